//! Reads of very many ranges: the caller prepares a window while workers read those before.

use std::sync::Arc;

use super::super::plan::chunks::Chunks;
use super::super::plan::schedule::Plan;
use super::super::plan::transfer::{Entries, Transfer};
use super::super::sync::on_worker;
use super::in_flight::InFlight;
use super::job::Job;
use super::workers::Workers;
use crate::gpu::nvtx;
use crate::memory::Place;
use crate::open_file::outcome::EntryStop;

/// Few, so that workers begin soon. Each window has twice as many as the one before.
const FIRST_WINDOW: usize = 1 << 10;
/// Enough for some chunks.
const WINDOW: usize = 16 << 10;

impl Workers {
    /// Reads ranges of one buffer, as [`run`](Self::run) does. Ranges behind a refused range are not read;
    /// ranges before it may have been.
    ///
    /// # Errors
    /// The first range that does not lie in the buffer. Also one that overlaps another in memory, except in long lists
    /// of ranges of a GPU.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    pub unsafe fn read_ranges(&self, transfer: &Transfer<'_>) -> Result<Vec<EntryStop>, EntryStop> {
        let Entries::Ranges { ranges, memory, .. } = transfer.entries else {
            unreachable!("ranges of one buffer")
        };
        // Planning ranges of the host takes a smaller part of the time of reading them.
        let fewest = match memory.place {
            Place::Host => 2 * WINDOW,
            Place::Device(_) => 4 * FIRST_WINDOW,
        };
        if ranges.len() < fewest || on_worker() {
            // SAFETY: the caller's promise.
            return unsafe { self.run(transfer) };
        }
        if let Some(refused) = Chunks::default().overlap(&transfer.entries) {
            return Err(refused);
        }
        let plan = Plan::of_read(transfer, 0, |gpus| self.busy(gpus));
        let schedule = plan.schedule.for_list(ranges.len(), self.threads, self.lanes.bounce_bytes());
        let (_range, _request) = (nvtx::range(|| transfer.to_string()), transfer.request());
        // SAFETY: the caller's promise.
        unsafe { self.read_in_windows(transfer, Plan { schedule, ..plan }) }
    }

    /// As [`read_ranges`](Self::read_ranges), window by window.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn read_in_windows(
        &self,
        transfer: &Transfer<'_>,
        mut plan: Plan,
    ) -> Result<Vec<EntryStop>, EntryStop> {
        let count = transfer.entries.len();
        let mut in_flight = InFlight::new(self);
        let (mut start, mut window_len) = (0, FIRST_WINDOW);
        let mut before: Option<Arc<Job>> = None;
        while start < count && (transfer.choices.each || !in_flight.is_stopped()) {
            let end = count.min(start + window_len);
            let window = Transfer { entries: transfer.entries.part(start..end), ..*transfer };
            let cut = |chunks: &mut Chunks| chunks.cut_anew(&window, &plan).map(|()| plan.clone());
            let job = self.idle_job();
            // SAFETY: the caller's promise; `in_flight` waits for the job, and no other thread has the idle
            // job.
            let set_up = unsafe { job.set_up(&window, cut, true) };
            let chunks = set_up.map_err(|refused| refused.behind(start))?;
            // The chunks of the first window are shorter, so that the GPU soon has something to copy.
            self.submit(&job, before.as_ref());
            before = Some(job.clone());
            in_flight.push(start, job);
            plan.schedule.chunks_before += chunks;
            start = end;
            window_len = WINDOW.min(2 * window_len);
        }
        Ok(in_flight.finish())
    }
}
