//! Very many ranges: planned window by window, while workers carry out what is planned.

use super::chunks::Refused;
use super::in_flight::InFlight;
use super::job::EntryStop;
use super::schedule::Schedule;
use super::sync::on_worker;
use super::transfer::{Entries, Transfer};
use super::workers::Workers;

/// The number of ranges in the first window: few, so that workers begin soon. Each window has twice as many
/// as the one before.
const FIRST_WINDOW: usize = 1 << 10;
/// The most ranges in a window: enough for some chunks.
const WINDOW: usize = 16 << 10;

impl Workers {
    /// As [`run`](Self::run), for a read of ranges of one buffer. Ranges behind one that is refused are not read; those
    /// before it may have been.
    ///
    /// # Errors
    /// That a range does not lie in the buffer, or that two overlap in memory.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    pub unsafe fn read_ranges(
        &self,
        transfer: &Transfer<'_>,
        schedule: &Schedule,
    ) -> Result<Option<EntryStop>, Refused> {
        let Entries::Ranges { ranges, .. } = transfer.entries else { unreachable!("ranges of one buffer") };
        if ranges.len() >= 2 * WINDOW && !on_worker() {
            // SAFETY: the caller's promise.
            if let Some(outcome) = unsafe { self.read_in_windows(transfer, schedule) } {
                return outcome;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.run(transfer, schedule) }
    }

    /// `None` if the ranges want another order, which can only be found for all of them together.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn read_in_windows(
        &self,
        transfer: &Transfer<'_>,
        schedule: &Schedule,
    ) -> Option<Result<Option<EntryStop>, Refused>> {
        let Entries::Ranges { file, memory, ranges, file_limit } = transfer.entries else {
            unreachable!("ranges of one buffer")
        };
        let mut in_flight =
            InFlight::new(self, |start, stop: Option<EntryStop>| stop.map(|stop| stop.behind(start)));
        let (mut start, mut window_len) = (0, FIRST_WINDOW);
        let (mut chunks_before, mut memory_end) = (0, 0);
        while start < ranges.len() {
            let window = &ranges[start..ranges.len().min(start + window_len)];
            let entries = Entries::Ranges { file, memory, ranges: window, file_limit };
            let job = self.idle_job();
            // SAFETY: the caller's promise; `in_flight` waits for it, and an idle job is set up by no one else.
            let set_up = unsafe {
                job.set_up(
                    &Transfer { method: transfer.method.clone(), entries },
                    &Schedule { chunks_before, ..*schedule },
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
            self.submit(file.block_device, &job, chunks);
            in_flight.push(start, job);
            chunks_before += chunks;
            start += window.len();
            window_len = WINDOW.min(2 * window_len);
            if in_flight.is_stopped() {
                break;
            }
        }
        Some(Ok(in_flight.finish()))
    }
}
