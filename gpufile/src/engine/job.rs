//! A transfer that workers share: which chunks are still to be handed out, which are under way, and what stopped it.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::Cutting;
use super::plan::{Plan, Refused};
use super::transfer::Transfer;
use crate::error::Cause;

/// What ended a transfer before its last byte.
pub(crate) struct Stop {
    /// The number of the entry, as the caller gave it.
    pub entry: usize,
    /// How many bytes of the entry had been transferred, without a gap.
    pub done_bytes: usize,
    /// What failed; `None` at the end of the file.
    pub cause: Option<Cause>,
}

/// How the chunks of a job are handed out.
#[derive(Clone, Copy, Default)]
pub(crate) struct Handing {
    /// All chunks go to one worker, in order.
    pub serial: bool,
    /// The last chunk is handed out when the others are done.
    pub last_alone: bool,
}

/// What is to be done after a chunk was completed.
#[must_use]
pub(crate) enum After {
    Nothing,
    /// The last chunk may be handed out now.
    LastIsReady,
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
    chunks: usize,
    next: usize,
    running: usize,
    handing: Handing,
    /// What stopped the transfer, and in which chunk.
    stop: Option<(usize, Stop)>,
    waker: Option<Waker>,
}

impl State {
    fn is_done(&self) -> bool {
        self.next == self.chunks && self.running == 0
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
        let handing = Handing { serial: cutting.serial, last_alone: cutting.last_bytes > 0 && chunks > 1 };
        self.is_done.store(false, Ordering::Relaxed);
        *self.state() = State { chunks, handing, ..State::default() };
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

    /// Hands out chunks, and says whether more can be had at once.
    pub fn take(&self) -> Option<(Range<usize>, bool)> {
        let mut state = self.state();
        let ready = match state.handing.last_alone {
            true if state.running > 0 => state.chunks - 1,
            true if state.next < state.chunks - 1 => state.chunks - 1,
            _ => state.chunks,
        };
        if state.next >= ready {
            return None;
        }
        let start = state.next;
        let end = if state.handing.serial { ready } else { start + 1 };
        state.next = end;
        state.running += end - start;
        if end == state.chunks {
            self.progressed.notify_all();
        }
        Some((start..end, end < ready))
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
        state.running -= 1;
        if let Some(stop) = stop {
            // What comes later is not begun any more; of what is under way, the first chunk counts, because all before
            // it are whole.
            state.next = state.chunks;
            if state.stop.as_ref().is_none_or(|(first, _)| chunk < *first) {
                state.stop = Some((chunk, stop));
            }
        }
        if state.is_done() {
            self.is_done.store(true, Ordering::Release);
            let waker = state.waker.take();
            self.progressed.notify_all();
            return After::Finished(waker);
        }
        let last_is_left = state.handing.last_alone && state.running == 0 && state.next == state.chunks - 1;
        if last_is_left { After::LastIsReady } else { After::Nothing }
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
            self.spin_until_done();
            state = self.state();
        }
        while !state.is_done() {
            state = sleep(state);
        }
    }

    fn spin_until_done(&self) {
        const SPIN: Duration = Duration::from_millis(1);
        let start = Instant::now();
        while !self.is_done.load(Ordering::Acquire) && start.elapsed() < SPIN {
            std::hint::spin_loop();
        }
    }

    pub fn is_done(&self) -> bool {
        self.state().is_done()
    }

    /// Whether the job is done; if not, `waker` will be woken.
    pub fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.state();
        if state.is_done() {
            return Poll::Ready(());
        }
        state.waker = Some(waker.clone());
        Poll::Pending
    }

    /// What stopped the transfer, if not its end.
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
pub(crate) struct IdleJobs(Mutex<Vec<Arc<Job>>>);

impl IdleJobs {
    const KEPT: usize = 64;

    pub fn take(&self) -> Arc<Job> {
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_default()
    }

    /// Keeps a job whose outcome was taken. A worker or the queue may still refer to it, and will find nothing to do, or
    /// help with what it is used for next.
    pub fn put(&self, job: Arc<Job>) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < Self::KEPT {
            idle.push(job);
        }
    }

    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
