//! The queue of jobs from which workers claim chunks, and the reports of completed chunks.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use super::super::sync::{Condvar, Mutex, MutexGuard};
use super::job::{Claim, Job, NextStep};
use crate::memory::Place;
use crate::open_file::outcome::Outcome;

/// Jobs that have chunks to hand out. They take turns, one chunk each, so that none keeps others waiting. Jobs of one
/// call share a turn, one after the other.
pub(crate) struct Queue {
    place: Place,
    state: Mutex<State>,
    /// Notified when jobs have chunks to hand out, and when the queue is closed.
    ready: Condvar,
    /// Notified when a worker of a closed queue is no longer busy.
    rested: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Submitted>,
    /// The number of workers that may have a lane or the like.
    busy: usize,
    /// The workers that wait for `ready`, and how many of these were notified. Only the others are worth a call of the kernel.
    waiting: usize,
    notified: usize,
    closed: bool,
}

struct Submitted {
    job: Arc<Job>,
    generation: u64,
    /// True if the job shares the turn of the one before it.
    is_behind: bool,
}

/// The workers to notify.
enum Notify {
    None,
    One,
    All,
}

impl State {
    /// Adds a job behind `before` if that is here, otherwise with its own turn.
    fn push(&mut self, job: &Arc<Job>, before: Option<&Arc<Job>>) {
        let is_before = |of: &Submitted| before.is_some_and(|before| Arc::ptr_eq(&of.job, before));
        let before = self.jobs.iter().rposition(is_before);
        let at = before.map_or(self.jobs.len(), |before| before + 1);
        let generation = job.generation();
        self.jobs.insert(at, Submitted { job: job.clone(), generation, is_behind: before.is_some() });
    }

    /// Notes a job of this many chunks. Returns whether to notify one or all workers, or none because enough were.
    fn notify_for(&mut self, chunks: usize) -> Notify {
        match self.waiting - self.notified {
            0 => Notify::None,
            _ if chunks == 1 => {
                self.notified += 1;
                Notify::One
            }
            _ => {
                self.notified = self.waiting;
                Notify::All
            }
        }
    }

    /// Claims a chunk of the job whose turn it is. Returns `None` if no job has one.
    fn claim(&mut self, place: Place) -> Option<Claim> {
        while let Some(first) = self.jobs.pop_front() {
            let claimed = Job::claim(&first.job, first.generation, Some(place));
            let mut sharing = self.jobs.iter().take_while(|job| job.is_behind).count();
            if matches!(claimed, Some((_, true))) {
                self.jobs.push_front(first);
                sharing += 1;
            } else if let Some(next) = self.jobs.front_mut() {
                next.is_behind = false;
            }
            if let Some((claim, _)) = claimed {
                // The next turn is that of another call.
                self.jobs.rotate_left(sharing);
                return Some(claim);
            }
        }
        None
    }
}

impl Queue {
    pub fn new(place: Place) -> Self {
        Self { place, state: Mutex::default(), ready: Condvar::new(), rested: Condvar::new() }
    }

    /// Adds a job with `chunks` chunks of the place, behind `before`, an earlier job of the same call.
    pub fn submit(&self, job: &Arc<Job>, chunks: usize, before: Option<&Arc<Job>>) {
        let mut state = self.state();
        state.push(job, before);
        let notify = state.notify_for(chunks);
        drop(state);
        self.notify(notify);
    }

    fn notify(&self, notify: Notify) {
        match notify {
            Notify::None => {}
            Notify::One => self.ready.notify_one(),
            Notify::All => self.ready.notify_all(),
        }
    }

    /// Closes the queue, so that its workers end. Waits until none is busy, which is soon, because no job is left, and
    /// busy workers run no foreign code.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        self.ready.notify_all();
        while state.busy > 0 {
            state = self.rested.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Claims the next chunk, if there is one.
    pub fn claim(&self) -> Option<Claim> {
        self.state().claim(self.place)
    }

    /// Waits for a chunk, and claims it. The worker is busy afterwards, but not while it waits. Returns `None` if the
    /// queue is closed.
    pub fn wait_for_claim(&self, is_busy: &mut bool) -> Option<Claim> {
        let mut state = self.state();
        loop {
            let claim = state.claim(self.place);
            let was_busy = mem::replace(is_busy, claim.is_some());
            state.busy = state.busy + usize::from(*is_busy) - usize::from(was_busy);
            if claim.is_some() {
                return claim;
            }
            if state.closed {
                self.rested.notify_all();
                return None;
            }
            state.waiting += 1;
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
            // One that woke up without a notification leaves that to another, which then gets a second one at worst.
            state.notified = state.notified.saturating_sub(1);
        }
    }

    /// Notes that the worker is no longer busy.
    pub fn rest(&self, is_busy: &mut bool) {
        if mem::take(is_busy) {
            self.state().busy -= 1;
            self.rested.notify_all();
        }
    }

    /// Adds a job that has more chunks ready, and wakes a worker, as all may sleep.
    fn push_again(&self, job: Arc<Job>, generation: u64) {
        let mut state = self.state();
        state.jobs.push_back(Submitted { job, generation, is_behind: false });
        let notify = state.notify_for(1);
        drop(state);
        self.notify(notify);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The reports of one thread, which complete claims and collect wakers.
#[derive(Default)]
pub(crate) struct Reports<'a> {
    queue: Option<&'a Queue>,
    wakers: Vec<Waker>,
}

impl<'a> Reports<'a> {
    pub fn to(queue: &'a Queue) -> Self {
        Self { queue: Some(queue), wakers: Vec::new() }
    }

    pub fn completed(&mut self, claim: Claim, outcome: Outcome) {
        match claim.complete(outcome) {
            NextStep::Nothing | NextStep::Finished(None) => {}
            NextStep::Finished(Some(waker)) => self.wakers.push(waker),
            NextStep::MoreIsReady(job, generation) => {
                if let Some(queue) = self.queue {
                    queue.push_again(job, generation);
                }
            }
        }
    }

    pub fn has_wakers(&self) -> bool {
        !self.wakers.is_empty()
    }

    pub fn wake_all(&mut self) {
        for waker in self.wakers.drain(..) {
            // Wakers are foreign code. The engine survives their panics, and forgets the payloads, whose
            // drops may panic too.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                mem::forget(panic);
            }
        }
    }
}
