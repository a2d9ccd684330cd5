//! Submits the copies of many threads to the streams of a GPU.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use cufile::cuda::{Device, Event, PinnedRegion};

use super::super::sync::{Mutex, MutexGuard};
use super::buffers::Buffers;
use super::staging_memory::StagingMemory;
use super::streams::Streams;

/// The streams of a GPU, and the filled buffers whose copies are to be submitted to them.
///
/// CUDA lets only one thread submit at a time. A change of the processor costs more, because the new one's cache has no data
/// of CUDA. So one thread submits the copies of all, which go on to their next chunks.
pub(crate) struct Submitter {
    pub streams: Streams,
    pub staging: Arc<StagingMemory>,
    /// Addresses for the bounce buffers of all lanes.
    pub pinned: Arc<PinnedRegion>,
    /// Events for future lanes. Creating one later would wait for all threads that register buffers.
    events: Mutex<Vec<Event>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    filled: VecDeque<Arc<Buffers>>,
    /// True while a thread submits what is in the list.
    is_busy: bool,
}

impl Submitter {
    /// Returns a submitter with new streams, and addresses for two bounce buffers of `buffer_bytes` for each lane.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn new(device: &Device, buffer_bytes: usize, lanes: usize) -> cufile::Result<Self> {
        /// The number of lanes to reserve for. Lanes without a limit are seldom more.
        const MOST: usize = 64;
        let buffers = 2 * lanes.min(MOST);
        let streams = Streams::new(device)?;
        let events: cufile::Result<Vec<_>> = (0..buffers).map(|_| device.event()).collect();
        let events = Mutex::new(events?);
        let pinned = Arc::new(device.reserve_pinned(buffer_bytes, buffers));
        Ok(Self { streams, staging: Arc::default(), pinned, events, state: Mutex::default() })
    }

    pub fn event(&self, device: &Device) -> cufile::Result<Event> {
        let made = self.events.lock().pop();
        made.map_or_else(|| device.event(), Ok)
    }

    pub fn staging_bytes(&self) -> usize {
        self.staging.live_bytes() + self.streams.unpacker_bytes()
    }

    pub fn free_unused_staging(&self) {
        self.staging.free_unused();
    }

    /// Submits the copies that were noted in these buffers, or leaves them to a thread that is submitting others.
    ///
    /// # Safety
    /// As for [`Buffers::submit_to_device`].
    pub unsafe fn submit(&self, buffers: &Arc<Buffers>) {
        buffers.will_be_submitted();
        let mut state = self.state();
        state.filled.push_back(buffers.clone());
        if mem::replace(&mut state.is_busy, true) {
            return;
        }
        while let Some(next) = state.filled.pop_front() {
            drop(state);
            // SAFETY: the promise of the thread that left these buffers here.
            unsafe { next.submit_to_device(&self.streams) };
            state = self.state();
        }
        state.is_busy = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
