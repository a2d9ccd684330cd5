//! Jobs that a caller has given to the workers, one after the other.

use std::mem;
use std::sync::Arc;

use super::job::Job;
use super::workers::Workers;
use crate::open_file::outcome::EntryStop;

/// Jobs in flight. `finish` and `drop` wait for all of them.
///
/// The `T` of a job describes it. When the job is done, `finished` gets the `T`, and the stop if the job
/// ended early. `finished` returns the stop that results for all jobs together.
pub(crate) struct InFlight<'w, T, F: FnMut(T, Option<EntryStop>) -> Option<EntryStop>> {
    workers: &'w Workers,
    finished: F,
    /// The jobs, oldest first.
    jobs: [Option<(T, Arc<Job>)>; MOST],
    /// The stop of the first job that stopped.
    stop: Option<EntryStop>,
}

/// The most jobs in flight. With so many, the caller in practice never waits for a job before it makes the
/// next.
const MOST: usize = 32;

impl<'w, T, F: FnMut(T, Option<EntryStop>) -> Option<EntryStop>> InFlight<'w, T, F> {
    pub fn new(workers: &'w Workers, finished: F) -> Self {
        Self { workers, finished, jobs: [const { None }; MOST], stop: None }
    }

    /// Adds a job that was started. Waits for the oldest job if the limit is reached.
    pub fn push(&mut self, what: T, job: Arc<Job>) {
        self.replace_oldest(Some((what, job)));
    }

    /// Returns whether one of the jobs waited for so far was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Waits for all jobs. Returns the stop of the first job that stopped.
    pub fn finish(mut self) -> Option<EntryStop> {
        self.finish_all();
        self.stop.take()
    }

    fn finish_all(&mut self) {
        (0..MOST).for_each(|_| self.replace_oldest(None));
    }

    /// Puts a job, or none, in the place of the oldest job, and waits for the oldest.
    fn replace_oldest(&mut self, job: Option<(T, Arc<Job>)>) {
        let oldest = mem::replace(&mut self.jobs[0], job);
        self.jobs.rotate_left(1);
        if let Some((what, job)) = oldest {
            let stop = (self.finished)(what, self.workers.finish(job));
            self.stop = self.stop.take().or(stop);
        }
    }
}

impl<T, F: FnMut(T, Option<EntryStop>) -> Option<EntryStop>> Drop for InFlight<'_, T, F> {
    fn drop(&mut self) {
        self.finish_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::work::lanes::Lanes;
    use crate::open_file::outcome::Stop;

    fn workers() -> Workers {
        Workers::new(1, Arc::new(Lanes::new(Arc::default(), 4096, 1 << 20)))
    }

    #[test]
    fn drop_finishes_all_jobs_in_order() {
        let workers = workers();
        let mut ended = Vec::new();
        let mut jobs = InFlight::new(&workers, |what, stop| {
            ended.push(what);
            stop
        });
        (0..MOST + 3).for_each(|what| jobs.push(what, Arc::default()));
        drop(jobs);
        assert!(ended.into_iter().eq(0..MOST + 3));
    }

    #[test]
    fn finish_returns_the_first_stop() {
        let workers = workers();
        let stopped = |entry, _: Option<EntryStop>| Some(EntryStop { entry, stop: Stop::end_of_file(0) });
        let mut jobs = InFlight::new(&workers, stopped);
        (0..MOST).for_each(|what| jobs.push(what, Arc::default()));
        assert!(!jobs.is_stopped(), "none was waited for");
        jobs.push(MOST, Arc::default());
        assert!(jobs.is_stopped());
        assert_eq!(jobs.finish().map(|stop| stop.entry), Some(0));
    }
}
