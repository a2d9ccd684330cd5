//! The queue of jobs from which workers claim chunks, and the reports of completed chunks.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use super::job::{Claim, Job, NextStep};
use super::sync::{Condvar, Mutex, MutexGuard};
use crate::memory::Place;
use crate::outcome::Outcome;

/// Jobs that have chunks to hand out. Each job hands out one chunk per turn, so that no job keeps others
/// waiting.
pub(crate) struct Queue {
    /// The place of the chunks that the workers claim.
    place: Place,
    state: Mutex<State>,
    /// Notified when jobs have chunks to hand out, and when the queue is closed.
    ready: Condvar,
}

#[derive(Default)]
struct State {
    /// The jobs, each with the generation that was submitted.
    jobs: VecDeque<(Arc<Job>, u64)>,
    closed: bool,
}

impl Queue {
    pub fn new(place: Place) -> Self {
        Self { place, state: Mutex::default(), ready: Condvar::new() }
    }

    /// Adds a job that has this many chunks of the place.
    pub fn submit(&self, job: &Arc<Job>, chunks: usize) {
        self.push(job.clone(), job.generation());
        if chunks == 1 { self.ready.notify_one() } else { self.ready.notify_all() }
    }

    /// Closes the queue, so that workers no longer wait for claims.
    pub fn close(&self) {
        self.state().closed = true;
        self.ready.notify_all();
    }

    /// Claims the next chunk. Waits for one if `wait` is set. Returns `None` if there is none or the queue is
    /// closed.
    pub fn claim(&self, wait: bool) -> Option<Claim> {
        let mut state = self.state();
        loop {
            while let Some((job, generation)) = state.jobs.pop_front() {
                if let Some((claim, more)) = Job::claim(&job, generation, Some(self.place)) {
                    if more {
                        state.jobs.push_back((job, generation));
                    }
                    return Some(claim);
                }
            }
            if state.closed || !wait {
                return None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds a job that has more chunks ready, and wakes a worker. Workers may have found no chunk and gone to
    /// sleep before.
    fn push_again(&self, job: Arc<Job>, generation: u64) {
        self.push(job, generation);
        self.ready.notify_one();
    }

    fn push(&self, job: Arc<Job>, generation: u64) {
        self.state().jobs.push_back((job, generation));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reports of one thread, which complete claims and collect wakers.
#[derive(Default)]
pub(crate) struct Reports<'a> {
    queue: Option<&'a Queue>,
    wakers: Vec<Waker>,
}

impl<'a> Reports<'a> {
    /// Returns the reports of a worker of this queue.
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
