//! A transfer that owns its buffer, so it continues while the caller does other work.

use std::io;
use std::mem::ManuallyDrop;
use std::process;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Wake, Waker};

use cufile::{IoBuf, IoBufMut};

use crate::engine::{EntryStop, Growth, IoRange, Job, Schedule, Transfer};
use crate::error::{Cause, Error, READ, Result, WRITE};
use crate::file::File;
use crate::memory::Memory;
use crate::open_file::Method;
use crate::outcome::Stop;

/// A buffer, a file, and the job that moves bytes between them.
///
/// Dropping it leaves all three to the job, and to the worker that ends the job. A write continues to its
/// end. A read ends with the chunks that were begun. Forgetting it leaks all three.
pub(crate) struct Owned<B> {
    /// On the heap, at a fixed address, because workers refer to it.
    place: NonNull<Pending<B>>,
    /// The process in which the transfer began, and in which it will end.
    process: u32,
}

struct Pending<B> {
    buffer: B,
    file: File,
    range: [IoRange; 1],
    /// The reason why no job exists.
    refused: Option<Error>,
    is_write: bool,
    job: Option<(Arc<Job>, usize)>,
}

// SAFETY: this is an owning pointer. Workers use only the memory of the buffer, as an `IoBuf` allows.
unsafe impl<B: Send> Send for Owned<B> {}
// SAFETY: `&Owned` gives no access to the buffer.
unsafe impl<B: Send> Sync for Owned<B> {}

type Prepared = (Memory, IoRange, Method, Schedule);

// A worker may drop the buffer, long after its owner has gone.
impl<B: IoBuf + Send + 'static> Owned<B> {
    /// Prepares to read into the whole buffer.
    pub fn read(file: &File, buffer: B, offset: u64) -> Self
    where
        B: IoBufMut,
    {
        Self::new(file, buffer, |file, buffer| {
            let memory = file.memory_mut(buffer, offset)?;
            let range = file.range(READ, offset, memory.len_bytes)?;
            let schedule = file.read_schedule(memory.len_bytes, memory.place, &range);
            Ok((memory, range, Method::Read, schedule))
        })
    }

    /// Prepares to write the whole buffer.
    pub fn write(file: &File, buffer: B, offset: u64, growth: Growth) -> Self {
        Self::new(file, buffer, |file, buffer| {
            let memory = file.memory(buffer, offset)?;
            let range = file.range(WRITE, offset, memory.len_bytes)?;
            let plan = file.write_plan(&memory, offset, growth);
            Ok((memory, range, plan.method, plan.schedule))
        })
    }

    fn new(file: &File, buffer: B, prepare: impl FnOnce(&File, &mut B) -> Result<Prepared>) -> Self {
        let range = [IoRange { file_offset: 0, buffer_offset: 0, len_bytes: 0 }];
        let pending =
            Pending { buffer, file: file.clone(), range, refused: None, is_write: false, job: None };
        let place = NonNull::from(Box::leak(Box::new(pending)));
        // SAFETY: it was just made, and nothing else refers to it.
        let pending = unsafe { &mut *place.as_ptr() };
        match prepare(&pending.file, &mut pending.buffer) {
            Err(error) => pending.refused = Some(error),
            Ok((memory, range, method, schedule)) => {
                pending.range = [range];
                pending.is_write = !method.is_read();
                let entries = pending.file.entries(memory, &pending.range);
                let workers = pending.file.engine().workers();
                // SAFETY: all of it stays until `finish` has waited for the job, or for ever.
                let job = unsafe { workers.prepare(&Transfer { method, entries }, &schedule) };
                pending.job = Some(job.expect("a checked range, which overlaps no other"));
            }
        }
        Self { place, process: process::id() }
    }
}

impl<B> Owned<B> {
    /// Returns the job and its number of chunks. Workers begin the job only after it is submitted. Returns
    /// `None` if the transfer was refused.
    pub fn job(&self) -> Option<(&Arc<Job>, usize)> {
        self.pending().job.as_ref().map(|(job, chunks)| (job, *chunks))
    }

    pub fn file(&self) -> &File {
        &self.pending().file
    }

    fn pending(&self) -> &Pending<B> {
        // SAFETY: the value stays on the heap as long as `self`; the job too uses it by shared references.
        unsafe { self.place.as_ref() }
    }

    /// Waits for the job. Returns the number of bytes that it transferred, and the buffer.
    pub fn finish(self) -> (Result<usize>, B) {
        let place = ManuallyDrop::new(self).place;
        // SAFETY: `self` is not dropped.
        unsafe { Self::take(place, false) }
    }

    /// Stops the handing out of chunks, and waits for the chunks that were begun. Returns the number of bytes
    /// that were transferred without a gap, and the buffer.
    pub fn cancel(self) -> (Result<usize>, B) {
        if let Some((job, _)) = self.job() {
            // SAFETY: `new` set the job up, and its outcome is taken below.
            unsafe { job.cancel() };
        }
        let place = ManuallyDrop::new(self).place;
        // SAFETY: `self` is not dropped.
        unsafe { Self::take(place, true) }
    }

    /// Waits for the job. Returns the number of bytes that it transferred, and the buffer.
    ///
    /// # Safety
    /// The caller may take each place only once.
    unsafe fn take(place: NonNull<Pending<B>>, is_cancelled: bool) -> (Result<usize>, B) {
        // SAFETY: the value is on the heap, and taken only once.
        let pending = unsafe { place.as_ref() };
        let stop =
            pending.job.as_ref().and_then(|(job, _)| pending.file.engine().workers().finish(job.clone()));
        // SAFETY: `new` leaked it; the job is done, so nothing else refers to it.
        let pending = *unsafe { Box::from_raw(place.as_ptr()) };
        let Pending { buffer, file, range: [range], refused, is_write, .. } = pending;
        if let Some(error) = refused {
            return (Err(error), buffer);
        }
        let IoRange { file_offset, len_bytes, .. } = range;
        let Some(EntryStop { stop: Stop { done_bytes: done, cause }, .. }) = stop else {
            return (Ok(len_bytes), buffer);
        };
        let operation = if is_write { WRITE } else { READ };
        let no_more = || io::Error::from(io::ErrorKind::WriteZero).into();
        let cause: Option<Cause> = cause.or_else(|| (is_write && !is_cancelled).then(no_more));
        match cause {
            None => (Ok(done), buffer),
            Some(cause) => (Err(file.transfer_error(operation, file_offset, len_bytes, done, cause)), buffer),
        }
    }
}

impl<B> Drop for Owned<B> {
    fn drop(&mut self) {
        if self.process != process::id() {
            // The workers, and any lock that they held, are in another process. So the transfer leaks.
            return;
        }
        // The thread that ends the job frees the place, perhaps before this function returns.
        if let Some((job, _)) = self.job().map(|(job, chunks)| (job.clone(), chunks)) {
            if !self.pending().is_write {
                // SAFETY: `new` set the job up, and `end` takes its outcome.
                unsafe { job.cancel() };
            }
            let abandoned = Abandoned { place: self.place.cast(), end: end::<B> };
            if job.poll(&Waker::from(Arc::new(abandoned))).is_pending() {
                return;
            }
        }
        // SAFETY: `finish` and `cancel` prevent this call, and no job was left the place.
        unsafe { end::<B>(self.place.cast()) };
    }
}

/// Takes the outcome of a transfer that no caller waits for. Drops the outcome and the buffer.
///
/// # Safety
/// As for [`Owned::take`]. The job must be done, and the place must belong to an `Owned<B>`.
unsafe fn end<B>(place: NonNull<()>) {
    // SAFETY: the caller's promise.
    drop(unsafe { Owned::<B>::take(place.cast(), true) });
}

/// A dropped transfer that was left to its job. The job wakes this when it is done.
struct Abandoned {
    place: NonNull<()>,
    end: unsafe fn(NonNull<()>),
}

// SAFETY: this stands for an `Owned`, which is `Send` if its buffer is. Such transfers own only buffers that
// are `Send`. One thread uses the place, once.
unsafe impl Send for Abandoned {}
// SAFETY: as above.
unsafe impl Sync for Abandoned {}

impl Wake for Abandoned {
    fn wake(self: Arc<Self>) {
        // SAFETY: a job wakes the owner of its place once, when the job is done. `Owned::drop` left this the
        // place.
        unsafe { (self.end)(self.place) };
    }
}
