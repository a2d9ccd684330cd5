//! Very many ranges: planned window by window, while workers carry out what is planned.

use std::sync::Arc;

use super::job::{Job, Stop};
use super::plan::Refused;
use super::transfer::{Entries, Transfer};
use super::{Cutting, Engine, on_worker};

/// How many ranges a window has: enough for some chunks.
const WINDOW: usize = 16 << 10;

/// How many windows are under way at most: enough for the planning never to wait for a read in practice.
const UNDER_WAY: usize = 32;

impl Engine {
    /// As [`run`](Self::run), for a read of ranges of one buffer. Ranges behind one that is refused are not read; those
    /// before it may have been.
    ///
    /// # Errors
    /// That a range does not lie in the buffer, or that two overlap in memory.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    pub(crate) unsafe fn read_ranges(
        &self,
        transfer: &Transfer<'_>,
        cutting: Cutting,
    ) -> Result<Option<Stop>, Refused> {
        let Entries::Ranges { ranges, .. } = transfer.entries else { unreachable!("ranges of one buffer") };
        if ranges.len() >= 2 * WINDOW && !on_worker() {
            // SAFETY: the caller's promise.
            if let Some(outcome) = unsafe { self.read_in_windows(transfer, &cutting) } {
                return outcome;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.run(transfer, cutting) }
    }

    /// `None` if the ranges want another order, which can only be found for all of them together.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn read_in_windows(
        &self,
        transfer: &Transfer<'_>,
        cutting: &Cutting,
    ) -> Option<Result<Option<Stop>, Refused>> {
        let Entries::Ranges { file, memory, ranges, file_limit } = transfer.entries else {
            unreachable!("ranges of one buffer")
        };
        let mut under_way = UnderWay { engine: self, jobs: Default::default(), stop: None };
        let mut memory_end = 0;
        for (number, window) in ranges.chunks(WINDOW).enumerate() {
            let start = number * WINDOW;
            let entries = Entries::Ranges { file, memory, ranges: window, file_limit };
            // Workers that are busy need no short chunks.
            let graded_chunks = if number == 0 { cutting.graded_chunks } else { 0 };
            let job = self.0.idle_jobs.take();
            // SAFETY: the caller's promise; `under_way` waits for it, and an idle job is set up by no one else.
            let set_up = unsafe {
                job.set_up(
                    &Transfer { side: transfer.side.clone(), entries },
                    &Cutting { graded_chunks, ..*cutting },
                )
            };
            // Empty ranges may lie anywhere.
            let first = window.iter().find(|range| range.len_bytes > 0);
            let chunks = match set_up {
                Ok((chunks, true)) if first.is_none_or(|first| first.buffer_offset >= memory_end) => chunks,
                Err(Refused::OutOfRange(entry)) => return Some(Err(Refused::OutOfRange(start + entry))),
                _ => return None,
            };
            // No overflow: the window was checked.
            let last = window.iter().rfind(|range| range.len_bytes > 0);
            memory_end = last.map_or(memory_end, |last| last.buffer_offset + last.len_bytes);
            self.submit(file.device, &job, chunks);
            under_way.push(start, job);
            if under_way.stop.is_some() {
                break;
            }
        }
        under_way.finish_all();
        Some(Ok(under_way.stop.take()))
    }
}

/// The windows that are being read, which are waited for in any case.
struct UnderWay<'e> {
    engine: &'e Engine,
    /// Where a window starts in the list of ranges, and its job; the oldest first.
    jobs: [Option<(usize, Arc<Job>)>; UNDER_WAY],
    /// What stopped the first window that was stopped.
    stop: Option<Stop>,
}

impl UnderWay<'_> {
    /// Adds a window, after waiting for the oldest if there are as many as may be.
    fn push(&mut self, start: usize, job: Arc<Job>) {
        self.finish_oldest();
        self.jobs.rotate_left(1);
        self.jobs[UNDER_WAY - 1] = Some((start, job));
    }

    fn finish_oldest(&mut self) {
        let Some((start, job)) = self.jobs[0].take() else { return };
        let stop = self.engine.finish(job);
        if self.stop.is_none() {
            self.stop = stop.map(|stop| Stop { entry: start + stop.entry, ..stop });
        }
    }

    fn finish_all(&mut self) {
        for _ in 0..self.jobs.len() {
            self.finish_oldest();
            self.jobs.rotate_left(1);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.finish_all();
    }
}
