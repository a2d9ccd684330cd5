//! Jobs that a caller has given to the workers, one after the other.

use std::mem;
use std::sync::Arc;

use super::job::Job;
use super::workers::Workers;
use crate::open_file::outcome::EntryStop;

/// Each job has some entries of one transfer. `finish` and `drop` wait for all.
pub(crate) struct InFlight<'w> {
    workers: &'w Workers,
    /// The jobs, oldest first, each with the number of the transfer's entries before its own.
    jobs: [Option<(usize, Arc<Job>)>; MOST],
    /// The stops of ended jobs.
    stops: Vec<EntryStop>,
}

/// The most jobs in flight. With so many, the caller seldom waits before it makes the next.
const MOST: usize = 32;

impl<'w> InFlight<'w> {
    pub fn new(workers: &'w Workers) -> Self {
        Self { workers, jobs: [const { None }; MOST], stops: Vec::new() }
    }

    /// Adds a started job, for the entries from number `start` on. At the limit, waits for the oldest job first.
    pub fn push(&mut self, start: usize, job: Arc<Job>) {
        self.replace_oldest(Some((start, job)));
    }

    pub fn is_stopped(&self) -> bool {
        !self.stops.is_empty()
    }

    /// Waits for all jobs. Returns their stops, in the order of the jobs.
    pub fn finish(mut self) -> Vec<EntryStop> {
        self.finish_all();
        mem::take(&mut self.stops)
    }

    fn finish_all(&mut self) {
        (0..MOST).for_each(|_| self.replace_oldest(None));
    }

    /// Replaces the oldest job, and waits for it.
    fn replace_oldest(&mut self, job: Option<(usize, Arc<Job>)>) {
        let oldest = mem::replace(&mut self.jobs[0], job);
        self.jobs.rotate_left(1);
        if let Some((start, job)) = oldest {
            let stops = self.workers.finish(job);
            self.stops.extend(stops.into_iter().map(|stop| stop.behind(start)));
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.finish_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direction::Direction;
    use crate::engine::plan::transfer::{Entries, IoRange, Transfer};
    use crate::engine::work::lanes::Lanes;
    use crate::memory::Memory;
    use crate::open_file::OpenFile;
    use crate::settings::Settings;

    /// Starts `MOST + 3` reads of an empty file, and lets `test` have the jobs.
    fn with_jobs(is_inline: bool, test: impl FnOnce(InFlight<'_>, Vec<Arc<Job>>)) {
        let workers = Workers::new(1, Arc::new(Lanes::new(Arc::default(), 4096, 1 << 20)));
        let file = &OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default());
        let mut byte = 0;
        let ranges = &[IoRange { file_offset: 0, buffer_offset: 0, len_bytes: 1 }];
        let entries = Entries::Ranges { file, memory: Memory::on_host(&raw mut byte, 1), ranges };
        let transfer = Transfer::for_test(Direction::Read, entries);
        let mut in_flight = InFlight::new(&workers);
        let jobs: Vec<_> = (0..MOST + 3)
            .map(|start| {
                assert_eq!(in_flight.is_stopped(), start > MOST, "{start}");
                // SAFETY: all jobs are done at the end of `test`. None of them writes the byte.
                let (job, _) = unsafe { workers.prepare(&transfer) }.unwrap();
                workers.start(&job, is_inline);
                in_flight.push(start, job.clone());
                job
            })
            .collect();
        test(in_flight, jobs);
    }

    #[test]
    fn finish_returns_the_stops_in_the_order_of_the_jobs() {
        with_jobs(true, |in_flight, _| {
            let entries = in_flight.finish().into_iter().map(|stop| stop.entry);
            assert!(entries.eq(0..MOST + 3));
        });
    }

    #[test]
    fn drop_waits_for_all_jobs() {
        with_jobs(false, |in_flight, jobs| {
            drop(in_flight);
            assert!(jobs.iter().all(|job| job.is_done()));
        });
    }
}
