//! A transfer that owns its buffers, so it continues while the caller does other work.

use std::any::Any;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

use cufile::fork::Generation;
use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::{Engine, Growth, IoRange, Job, Refusals, Transfer};
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::memory::Memory;
use crate::open_file::outcome::{EntryStop, Stop};
use crate::route::trace::Request;

/// The cause with which a transfer of the parent fails in a forked child.
pub(crate) const OF_ANOTHER_PROCESS: &str =
    "the transfer belongs to the parent process, which forked this one";

/// A buffer or a list of them, the files, and the jobs that move bytes between them.
///
/// Dropping it leaves all of that to the jobs, and to the worker that ends the last of them. A write continues
/// to its end. A read ends with the chunks that were begun. Forgetting it leaks all of it.
///
/// A forked child has no workers that would end the jobs, and locks of the jobs may stay locked there. So dropping
/// leaks all of it there, and waiting returns the value with an error.
pub(crate) struct Owned<T> {
    /// On the heap, at a fixed address, because workers refer to it.
    place: NonNull<Pending<T>>,
    /// The process in which the transfer began, and in which it will end.
    generation: Generation,
}

struct Pending<T> {
    /// The value that the caller gave, and gets back.
    owned: T,
    /// The work to be done. `None` if it was refused.
    work: Option<Work>,
    /// The reason why there is no work.
    refused: Option<Error>,
}

/// The jobs of a transfer. Workers begin them only after [`Owned::submit`].
pub(crate) struct Work {
    /// The engine whose workers carry out the jobs.
    engine: Engine,
    /// The transfer of all entries, which refers to the value, and to `_kept`.
    transfer: Transfer<'static>,
    /// All that the transfer refers to besides the value.
    _kept: Arc<dyn Any + Send + Sync>,
    jobs: Vec<JobAt>,
    total_bytes: usize,
    /// True if the caller gave a list. The transfer then is exact, and an error has the number of an entry.
    is_list: bool,
    /// The entries of the caller that are not part of the transfer, if each entry has an outcome.
    refusals: Refusals,
}

/// The end of a transfer.
pub(crate) struct Ended {
    /// The number of bytes. That of the whole transfer if each entry has an outcome.
    pub result: Result<usize>,
    /// The outcomes of the entries, if each has one.
    pub each: Vec<Result<usize>>,
}

impl From<Result<usize>> for Ended {
    fn from(result: Result<usize>) -> Self {
        Self { result, each: Vec::new() }
    }
}

/// The rule by which the stop of a transfer is an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// A read may be short at the end of the file.
    Short,
    /// A read must fill the buffer.
    Exact,
    /// The caller stopped the transfer.
    Cancelled,
}

/// One job of a transfer. It may refer to what the [`Work`] keeps and to the value of the [`Owned`], which both
/// stay until `Owned` has waited for the job, or for ever.
struct JobAt {
    job: Arc<Job>,
    /// The number of the transfer's entries before those of the job.
    start: usize,
}

// SAFETY: this is an owning pointer. Workers use only the memory of the buffers, as an `IoBuf` allows.
unsafe impl<T: Send> Send for Owned<T> {}
// SAFETY: `&Owned` gives no access to the buffers.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<B: IoBuf + Send + 'static> Owned<B> {
    /// Prepares to read into the whole buffer.
    pub fn read(file: &File, buffer: B, offset: u64) -> Self
    where
        B: IoBufMut,
    {
        Self::new(buffer, |buffer| {
            let memory = file.memory_mut(buffer, offset)?;
            let range = file.range(Direction::Read, offset, memory.len_bytes)?;
            // SAFETY: the memory is that of the buffer.
            Ok(unsafe { one(file, Direction::Read, memory, range, Growth::MayAllocate) })
        })
    }

    /// Prepares to write the whole buffer.
    pub fn write(file: &File, buffer: B, offset: u64, growth: Growth) -> Self {
        Self::new(buffer, |buffer| {
            let memory = file.memory(buffer, offset)?;
            let range = file.range(Direction::Write, offset, memory.len_bytes)?;
            // SAFETY: the memory is that of the buffer.
            Ok(unsafe { one(file, Direction::Write, memory, range, growth) })
        })
    }
}

/// Returns the work of one range, which was checked.
///
/// # Safety
/// As for [`Work::new`].
unsafe fn one(file: &File, direction: Direction, memory: Memory, range: IoRange, growth: Growth) -> Work {
    let kept = Arc::new((file.clone(), [range]));
    let transfer = || kept.0.transfer(direction, memory, &kept.1, growth);
    // SAFETY: the caller's promise. The rest belongs to `kept`.
    let mut work = unsafe { Work::new(file.engine(), transfer(), kept.clone(), range.len_bytes) };
    // SAFETY: as above.
    let added = unsafe { work.add(0, &transfer()) };
    added.expect("a checked range, which overlaps no other");
    work
}

// A worker may drop the value, long after its owner has gone.
impl<T: Send + 'static> Owned<T> {
    /// Takes over a value. `prepare` gets it at its final address.
    pub fn new(owned: T, prepare: impl FnOnce(&mut T) -> Result<Work>) -> Self {
        let place = NonNull::from(Box::leak(Box::new(Pending { owned, work: None, refused: None })));
        // SAFETY: it was just made, and nothing else refers to it.
        let pending = unsafe { &mut *place.as_ptr() };
        match prepare(&mut pending.owned) {
            Ok(work) => pending.work = Some(work),
            Err(error) => pending.refused = Some(error),
        }
        Self { place, generation: Generation::current() }
    }
}

impl<T> Owned<T> {
    /// Lets the workers begin.
    pub fn submit(&self) {
        if let Some(work) = &self.pending().work {
            let workers = work.engine.workers();
            work.jobs.iter().for_each(|at| workers.submit(&at.job, None));
        }
    }

    /// Begins the span of the transfer, if it was not refused.
    pub fn request(&self) -> Option<Request> {
        self.pending().work.as_ref().map(|work| work.transfer.request())
    }

    /// Returns whether the transfer has ended, or belongs to another process.
    pub fn is_done(&self) -> bool {
        !self.generation.is_current() || self.jobs().iter().all(|at| at.job.is_done())
    }

    /// Returns whether the transfer has ended. If it has not, the end of a job will wake `waker`.
    pub fn poll(&self, waker: &Waker) -> Poll<()> {
        if !self.generation.is_current() {
            return Poll::Ready(());
        }
        match self.jobs().iter().any(|at| at.job.poll(waker).is_pending()) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    /// Returns the value, which workers may be filling.
    pub fn value(&self) -> &T {
        &self.pending().owned
    }

    fn jobs(&self) -> &[JobAt] {
        self.pending().jobs()
    }

    fn pending(&self) -> &Pending<T> {
        // SAFETY: the value stays on the heap as long as `self`; the jobs too use it by shared references.
        unsafe { self.place.as_ref() }
    }

    /// Waits for the jobs. Returns their outcome and the value.
    pub fn finish(self, is_exact: bool) -> (Ended, T) {
        self.end(if is_exact { Ending::Exact } else { Ending::Short })
    }

    /// Stops the handing out of chunks, and waits for the chunks that were begun. Returns the outcome and the
    /// value.
    pub fn cancel(self) -> (Ended, T) {
        self.end(Ending::Cancelled)
    }

    fn end(self, ending: Ending) -> (Ended, T) {
        let this = ManuallyDrop::new(self);
        if !this.generation.is_current() {
            let Pending { owned, work, refused } = this.pending();
            let stop =
                EntryStop { entry: 0, stop: Stop::failed(0, Cause::Invalid(OF_ANOTHER_PROCESS.to_owned())) };
            let result = work.as_ref().map(|work| work.result(stop, Ending::Short));
            // SAFETY: no thread of this process uses the value, and `this` is never dropped. The work stays where it
            // is. Without work, nothing uses the error.
            let (owned, refused) = unsafe { (ptr::read(owned), ptr::read(refused)) };
            return (result.unwrap_or_else(|| Err(refused.expect("no work"))).into(), owned);
        }
        if ending == Ending::Cancelled {
            this.stop();
        }
        // SAFETY: `this` is not dropped.
        unsafe { Self::take(this.place, ending) }
    }

    fn stop(&self) {
        for JobAt { job, .. } in self.jobs() {
            // SAFETY: the work set the job up, and `take` takes its outcome later.
            unsafe { job.cancel() };
        }
    }

    /// Waits for the jobs. Returns the outcome and the value.
    ///
    /// # Safety
    /// The caller may take each place only once.
    unsafe fn take(place: NonNull<Pending<T>>, ending: Ending) -> (Ended, T) {
        // SAFETY: the value is on the heap, and taken only once.
        let stops = unsafe { place.as_ref() }.work.as_ref().map_or_else(Vec::new, Work::wait);
        // SAFETY: `new` leaked it; the jobs are done, so nothing else refers to it.
        let Pending { owned, work, refused } = *unsafe { Box::from_raw(place.as_ptr()) };
        let ended = match work {
            Some(work) => work.ended(stops, ending),
            None => Err(refused.expect("no work")).into(),
        };
        (ended, owned)
    }
}

impl<T> Pending<T> {
    fn jobs(&self) -> &[JobAt] {
        self.work.as_ref().map_or(&[], |work| &work.jobs)
    }
}

impl Work {
    /// Returns work without jobs. `total_bytes` is the length of all entries.
    ///
    /// # Safety
    /// The transfer may refer to `kept`, and to the value of the [`Owned`] that gets the work. Their memory must meet the
    /// promises of [`IoBuf`] (for reads, [`IoBufMut`]).
    pub unsafe fn new(
        engine: &Engine,
        transfer: Transfer<'_>,
        kept: Arc<dyn Any + Send + Sync>,
        total_bytes: usize,
    ) -> Self {
        // SAFETY: only the lifetime changes. The work is dropped before the value, or never.
        let transfer = unsafe { mem::transmute::<Transfer<'_>, Transfer<'static>>(transfer) };
        let (engine, jobs) = (engine.clone(), Vec::new());
        let (is_list, refusals) = (false, Refusals::default());
        Self { engine, transfer, _kept: kept, jobs, total_bytes, is_list, refusals }
    }

    /// Returns the same work of a list.
    pub fn of_list(self) -> Self {
        Self { is_list: true, ..self }
    }

    /// Returns the same work of a list that has these entries too.
    pub fn with_refusals(self, refusals: Refusals) -> Self {
        Self { refusals, ..self }
    }

    /// Adds a job for some of the entries, of which `start` come before.
    ///
    /// # Errors
    /// The refusal of an entry.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub unsafe fn add(&mut self, start: usize, transfer: &Transfer<'_>) -> Result<()> {
        // SAFETY: the caller's promise. `Owned` waits for the job.
        let prepared = unsafe { self.engine.workers().prepare(transfer) };
        let refused = |stop: EntryStop| {
            self.transfer.entries.error_of_list(self.transfer.direction, stop.behind(start))
        };
        let (job, _) = prepared.map_err(refused)?;
        self.jobs.push(JobAt { job, start });
        Ok(())
    }

    /// Waits for the jobs. Returns the stops of entries.
    fn wait(&self) -> Vec<EntryStop> {
        let workers = self.engine.workers();
        let mut stops = Vec::new();
        for JobAt { job, start } in &self.jobs {
            stops.extend(workers.finish(job.clone()).into_iter().map(|stop| stop.behind(*start)));
        }
        stops
    }

    /// Returns the end of the transfer, whose jobs have ended with these stops.
    fn ended(self, stops: Vec<EntryStop>, ending: Ending) -> Ended {
        if self.transfer.choices.each {
            let each = self.refusals.with_others(self.transfer.outcomes(stops));
            return Ended { result: Ok(self.total_bytes), each };
        }
        let first = stops.into_iter().next();
        first.map_or(Ok(self.total_bytes), |stop| self.result(stop, ending)).into()
    }

    /// Converts the stop of an entry into the outcome of the transfer.
    fn result(&self, EntryStop { entry, stop }: EntryStop, ending: Ending) -> Result<usize> {
        let Stop { done_bytes, cause } = stop;
        let may_be_short = match ending {
            _ if self.is_list => false,
            Ending::Short => self.transfer.direction == Direction::Read,
            Ending::Exact => false,
            Ending::Cancelled => true,
        };
        if cause.is_none() && may_be_short {
            return Ok(done_bytes);
        }
        let cancelled = || io::Error::from_raw_os_error(libc::ECANCELED).into();
        let cause = cause.or_else(|| (ending == Ending::Cancelled).then(cancelled));
        let stop = EntryStop { entry, stop: Stop { done_bytes, cause } };
        Err(match self.is_list {
            true => self.transfer.entries.error_of_list(self.transfer.direction, stop),
            false => self.transfer.entries.error(self.transfer.direction, stop),
        })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        if self.pending().work.as_ref().is_some_and(|work| work.transfer.direction == Direction::Read) {
            self.stop();
        }
        // SAFETY: `finish` and `cancel` prevent this call.
        unsafe { abandon::<T>(self.place.cast()) };
    }
}

/// Takes the outcome of a transfer that no caller waits for, if all jobs are done. Drops the outcome and the
/// value. Otherwise leaves the place to a job that is not done.
///
/// # Safety
/// As for [`Owned::take`]. The place must belong to an `Owned<T>`.
unsafe fn abandon<T>(place: NonNull<()>) {
    let place = place.cast::<Pending<T>>();
    // SAFETY: the caller's promise.
    let jobs = unsafe { place.as_ref() }.jobs().iter().map(|at| at.job.clone());
    let jobs: Vec<_> = jobs.collect();
    let waker = Waker::from(Arc::new(Abandoned { place: place.cast(), abandon: abandon::<T> }));
    // If a job is not done, its worker frees the place, perhaps before `poll` returns.
    if jobs.iter().all(|job| job.poll(&waker).is_ready()) {
        // SAFETY: the caller's promise. No job was left the place.
        drop(unsafe { Owned::<T>::take(place, Ending::Cancelled) });
    }
}

/// A dropped transfer that was left to its jobs. One job at a time has it, and wakes it when that job is done.
struct Abandoned {
    place: NonNull<()>,
    abandon: unsafe fn(NonNull<()>),
}

// SAFETY: this stands for an `Owned`, which is `Send` if its value is. Such transfers own only values that are
// `Send`. One thread uses the place, once.
unsafe impl Send for Abandoned {}
// SAFETY: as above.
unsafe impl Sync for Abandoned {}

impl Wake for Abandoned {
    fn wake(self: Arc<Self>) {
        // SAFETY: a job wakes the owner of its place once, when the job is done. `abandon` left this the
        // place.
        unsafe { (self.abandon)(self.place) };
    }
}
