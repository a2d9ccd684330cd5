//! Jobs that a caller has given to the workers.

use std::sync::Arc;

use super::Engine;
use super::job::{Job, Stop};

/// The jobs that are being carried out, which are waited for in any case. With each, `T` says what it is.
pub(crate) struct UnderWay<'e, T> {
    engine: &'e Engine,
    /// The oldest first.
    jobs: [Option<(T, Arc<Job>)>; MOST],
}

/// How many there are at most: enough for making them never to wait for one in practice.
const MOST: usize = 32;

impl<'e, T> UnderWay<'e, T> {
    pub fn new(engine: &'e Engine) -> Self {
        Self { engine, jobs: [const { None }; MOST] }
    }

    /// Adds a job that was submitted; waits for the oldest if there are as many as may be, and tells what stopped that.
    pub fn push(&mut self, what: T, job: Arc<Job>) -> Option<(T, Option<Stop>)> {
        self.turn(Some((what, job)))
    }

    /// Waits for the oldest, and tells what stopped it; `None` if none is left.
    pub fn finish_next(&mut self) -> Option<(T, Option<Stop>)> {
        (0..MOST).find_map(|_| self.turn(None))
    }

    /// Puts a job, or none, in the place of the oldest, and waits for that.
    fn turn(&mut self, job: Option<(T, Arc<Job>)>) -> Option<(T, Option<Stop>)> {
        let oldest = std::mem::replace(&mut self.jobs[0], job);
        self.jobs.rotate_left(1);
        oldest.map(|(what, job)| (what, self.engine.finish(job)))
    }
}

impl<T> Drop for UnderWay<'_, T> {
    fn drop(&mut self) {
        while self.finish_next().is_some() {}
    }
}
