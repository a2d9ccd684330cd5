//! A transfer that workers share: which chunks are still to be handed out, which are under way, and what stopped it.

use std::cell::UnsafeCell;
use std::mem;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};

use super::Cutting;
use super::plan::{Plan, Refused};
use super::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, look_until};
use super::transfer::Transfer;
use crate::error::Cause;

/// The end of a transfer before its last byte.
pub(crate) struct Stop {
    /// The number of the entry, as the caller gave it.
    pub entry: usize,
    /// The number of bytes of the entry that had been transferred, without a gap.
    pub done_bytes: usize,
    /// The failure; `None` at the end of the file.
    pub cause: Option<Cause>,
}

impl Stop {
    /// The same in a longer list, in which so many entries come before.
    pub fn behind(self, entries: usize) -> Self {
        Self { entry: entries + self.entry, ..self }
    }
}

/// The rules by which the chunks of a job are handed out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handing {
    /// The chunks are carried out in order: one is out at a time, except that its worker may have the next one too.
    pub serial: bool,
    /// The last chunk is handed out when the others are done.
    pub last_alone: bool,
    /// No more chunks are out at a time.
    pub at_once: Option<usize>,
}

/// The action that is due after a chunk was completed.
#[must_use]
pub(crate) enum After {
    Nothing,
    /// Chunks that were held back may be handed out now, to those who name this use of the job.
    MoreIsReady(u64),
    /// The job is done: tell this one.
    Finished(Option<Waker>),
}

/// A job. It is used again for other transfers.
#[derive(Default)]
pub(crate) struct Job {
    work: UnsafeCell<Work>,
    state: Mutex<State>,
    /// Notified when all chunks are handed out, and when all are completed.
    progressed: Condvar,
    is_done: AtomicBool,
}

#[derive(Default)]
struct Work {
    /// Its true lifetime ends when the job is done.
    transfer: Option<Transfer<'static>>,
    plan: Plan,
}

#[derive(Default)]
struct State {
    /// The number of times that the job was set up. A worker that has the number of an earlier use gets no
    /// chunks of this one.
    uses: u64,
    /// The number of bytes of memory that the plan keeps.
    kept_bytes: usize,
    chunks: usize,
    next: usize,
    running: usize,
    handing: Handing,
    /// The chunk in which the transfer stopped, and what stopped it.
    stop: Option<(usize, Stop)>,
    waker: Option<Waker>,
}

impl State {
    fn is_done(&self) -> bool {
        self.next == self.chunks && self.running == 0
    }

    /// Returns whether as many chunks are out as are allowed.
    fn is_full(&self) -> bool {
        let most = if self.handing.serial { Some(1) } else { self.handing.at_once };
        most.is_some_and(|most| self.running >= most)
    }

    /// Returns whether only the last chunk is left, which waits for the others.
    fn last_is_left(&self) -> bool {
        self.handing.last_alone && self.next + 1 == self.chunks
    }

    /// Returns the number of chunks that may have been handed out by now.
    fn ready(&self) -> usize {
        let last_is_held_back = self.handing.last_alone && self.running > 0;
        self.chunks - usize::from(last_is_held_back)
    }
}

// SAFETY: `work` changes only in `Job::set_up` and `Job::take_outcome`, called by the one who uses the job and while no
// chunk is out; it is read only by those to whom a chunk was handed out. The mutex orders one after the other.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Takes up a transfer; returns how many chunks it has, and whether they are in the caller's order.
    ///
    /// # Errors
    /// That a range does not lie in its buffer, or that two entries of a read overlap in memory.
    ///
    /// # Safety
    /// The job must be new or its outcome taken, and not be set up by another thread too. What the transfer refers
    /// to must stay until the job [is done](Self::wait), and its memory must be as an [`IoBuf`](cufile::IoBuf) (for
    /// reads, [`IoBufMut`](cufile::IoBufMut)) promises that long.
    pub unsafe fn set_up(
        &self,
        transfer: &Transfer<'_>,
        cutting: &Cutting,
    ) -> Result<(usize, bool), Refused> {
        // SAFETY: no chunk is out, and none will be until the state changes below.
        let work = unsafe { &mut *self.work.get() };
        work.plan.make(transfer, cutting)?;
        // SAFETY: only the lifetime changes; the caller keeps what it stands for until the job is done.
        work.transfer =
            Some(unsafe { std::mem::transmute::<Transfer<'_>, Transfer<'static>>(transfer.clone()) });
        let (chunks, keeps_order) = (work.plan.chunks(), work.plan.keeps_order());
        let kept_bytes = work.plan.kept_bytes();
        let Cutting { serial, at_once, last_bytes, .. } = *cutting;
        let handing = Handing { serial, last_alone: last_bytes > 0 && chunks > 1, at_once };
        self.is_done.store(false, Ordering::Relaxed);
        let mut state = self.state();
        *state = State { uses: state.uses + 1, kept_bytes, chunks, handing, ..State::default() };
        drop(state);
        Ok((chunks, keeps_order))
    }

    /// The transfer and its chunks.
    ///
    /// # Safety
    /// The caller must hold a chunk that [`take`](Self::take) handed out and that was not completed, as long as it uses
    /// the answer.
    pub unsafe fn work(&self) -> (&Transfer<'static>, &Plan) {
        // SAFETY: nobody changes it while chunks are out.
        let work = unsafe { &*self.work.get() };
        (work.transfer.as_ref().expect("a job with chunks has a transfer"), &work.plan)
    }

    /// The number of this use of the job, for [`take`](Self::take).
    pub fn current_use(&self) -> u64 {
        self.state().uses
    }

    /// Hands out a chunk of this use, and says whether another can be had at once.
    pub fn take(&self, of_use: u64) -> Option<(usize, bool)> {
        let mut state = self.state();
        if state.uses != of_use || state.next >= state.ready() || state.is_full() {
            return None;
        }
        let chunk = self.hand_out(&mut state);
        Some((chunk, state.next < state.ready() && !state.is_full()))
    }

    /// Hands out the next chunk of a serial job to the worker that has `chunk`, which it has to end first. So the GPU can
    /// copy the one while the other is written.
    pub fn take_after(&self, chunk: usize) -> Option<usize> {
        let mut state = self.state();
        let follows = state.handing.serial && state.running == 1 && state.next == chunk + 1;
        if follows && state.next < state.ready() { Some(self.hand_out(&mut state)) } else { None }
    }

    fn hand_out(&self, state: &mut State) -> usize {
        let chunk = state.next;
        state.next += 1;
        state.running += 1;
        if state.next == state.chunks {
            self.progressed.notify_all();
        }
        chunk
    }

    /// Returns whether a chunk before this one stopped the transfer. Then nothing is to be done for this one.
    pub fn is_stopped_before(&self, chunk: usize) -> bool {
        self.state().stop.as_ref().is_some_and(|(first, _)| *first < chunk)
    }

    /// Takes a chunk back; `stop` tells how many bytes of it were transferred, and what failed, if not all were.
    pub fn complete(&self, chunk: usize, stop: Option<(usize, Option<Cause>)>) -> After {
        let stop = stop.map(|(bytes, cause)| {
            // SAFETY: the chunk is not completed before the end of this function.
            let (transfer, plan) = unsafe { self.work() };
            let (entry, done_bytes) = plan.locate(transfer, chunk, bytes);
            Stop { entry, done_bytes, cause }
        });
        let mut state = self.state();
        let was_full = state.is_full();
        state.running -= 1;
        if let Some(stop) = stop {
            // What comes later is not begun any more; of what is under way, the first chunk counts, because all before
            // it are whole.
            state.next = state.chunks;
            let stops = state.stop.take().into_iter().chain([(chunk, stop)]);
            state.stop = stops.min_by_key(|(chunk, _)| *chunk);
        }
        if state.is_done() {
            self.is_done.store(true, Ordering::Release);
            let waker = state.waker.take();
            self.progressed.notify_all();
            return After::Finished(waker);
        }
        let was_held_back = was_full || state.last_is_left();
        if was_held_back && !state.is_full() && state.next < state.ready() {
            After::MoreIsReady(state.uses)
        } else {
            After::Nothing
        }
    }

    /// Hands out no more chunks, because nobody wants the rest. Those that are out are completed, so that no gap comes
    /// before what was transferred.
    ///
    /// # Safety
    /// Only for the one who set the job up and has not taken its outcome.
    pub unsafe fn cancel(&self) {
        let mut state = self.state();
        if state.next == state.chunks {
            return;
        }
        // SAFETY: nobody changes it before the outcome is taken.
        let work = unsafe { &*self.work.get() };
        let transfer = work.transfer.as_ref().expect("a job with chunks has a transfer");
        let (entry, done_bytes) = work.plan.locate(transfer, state.next, 0);
        state.stop = Some((state.next, Stop { entry, done_bytes, cause: None }));
        state.next = state.chunks;
        let waker = state.waker.take();
        if state.is_done() {
            self.is_done.store(true, Ordering::Release);
        }
        self.progressed.notify_all();
        // It is foreign code, also when it is dropped.
        drop(state);
        drop(waker);
    }

    /// Waits until all chunks that were or will be handed out are completed.
    pub fn wait(&self) {
        let sleep = |state| self.progressed.wait(state).unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        while state.next < state.chunks {
            state = sleep(state);
        }
        if !state.is_done() {
            // The last chunks take less time than waking up a thread may.
            drop(state);
            look_until(|| self.is_done.load(Ordering::Acquire));
            state = self.state();
        }
        while !state.is_done() {
            state = sleep(state);
        }
    }

    pub fn is_done(&self) -> bool {
        self.state().is_done()
    }

    /// Returns whether the job is done. If it is not, its end will wake `waker`.
    pub fn poll(&self, waker: &Waker) -> Poll<()> {
        // Wakers are foreign code, which is not called while the job is locked.
        let mut waker = Some(waker.clone());
        let mut state = self.state();
        if state.is_done() {
            return Poll::Ready(());
        }
        mem::swap(&mut state.waker, &mut waker);
        drop(state);
        Poll::Pending
    }

    /// Takes the reason why the transfer stopped; `None` if it was carried out to its end.
    ///
    /// # Safety
    /// Only for the one who set the job up, when it is done.
    pub unsafe fn take_outcome(&self) -> Option<Stop> {
        // SAFETY: no chunk is out, so that nobody reads it.
        unsafe { (*self.work.get()).transfer = None };
        self.state().stop.take().map(|(_, stop)| stop)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole whatever happened to a thread that held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Jobs that are not in use, so that a transfer need not allocate one.
#[derive(Default)]
pub(crate) struct IdleJobs(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    jobs: Vec<Arc<Job>>,
    /// The number of bytes of memory that the jobs' plans keep.
    bytes: usize,
}

impl IdleJobs {
    const MOST: usize = 64;
    /// A plan of a million ranges in another order keeps 28 MB, which transfers of fewer never need.
    const MOST_BYTES: usize = 4 << 20;

    pub fn take(&self) -> Arc<Job> {
        let mut kept = self.kept();
        let Some(job) = kept.jobs.pop() else { return Arc::default() };
        kept.bytes -= job.state().kept_bytes;
        job
    }

    /// Keeps a job whose outcome was taken. The queue may still refer to it, and will get no chunks of its next use.
    pub fn put(&self, job: Arc<Job>) {
        let bytes = job.state().kept_bytes;
        let mut kept = self.kept();
        if kept.jobs.len() < Self::MOST && kept.bytes + bytes <= Self::MOST_BYTES {
            kept.bytes += bytes;
            kept.jobs.push(job);
        }
    }

    /// Frees them; returns how many bytes their plans kept.
    pub fn clear(&self) -> usize {
        mem::take(&mut *self.kept()).bytes
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
