//! Reads of very many ranges. The caller prepares them window by window, while workers read the windows
//! before.

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
    /// Reads ranges of one buffer, as [`run`](Self::run) does. Ranges behind a refused range are not read;
    /// ranges before it may have been.
    ///
    /// # Errors
    /// [`Refused`] if a range does not lie in the buffer, or if two ranges overlap in memory.
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

    /// Reads the ranges window by window. Returns `None` if the ranges need another order, which requires all
    /// of them together.
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
            // SAFETY: the caller's promise; `in_flight` waits for the job, and no other thread has the idle
            // job.
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
