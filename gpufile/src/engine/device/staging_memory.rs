//! Device memory for the staging buffers of a GPU.

use std::mem;
use std::sync::{Arc, Weak};

use cufile::IoBuf;
use cufile::cuda::{Device, DeviceBuffer};

use super::super::sync::{Mutex, MutexGuard};

/// The fewest staging buffers that one call of `cudaMalloc` allocates (those of one lane), and the most. A call takes 0.1 to
/// 0.3 ms, and all lanes of a GPU need staging buffers at about the same time.
const AT_ONCE: (usize, usize) = (2, 16);

#[derive(Default)]
pub(crate) struct StagingMemory(Mutex<State>);

#[derive(Default)]
struct State {
    unused: Vec<StagingBuffer>,
    allocations: Vec<Weak<DeviceBuffer>>,
}

/// A part of an allocation, which is freed with its last part.
pub(crate) struct StagingBuffer {
    allocation: Arc<DeviceBuffer>,
    start: usize,
    len_bytes: usize,
}

impl StagingMemory {
    /// Returns a staging buffer of this length, the same in all calls, or `None` if the GPU has no memory left. Allocates as
    /// many as there are already, or one if memory is short.
    pub fn take(&self, device: &Device, len_bytes: usize) -> Option<StagingBuffer> {
        let mut state = self.state();
        if state.unused.is_empty() {
            let (fewest, most) = AT_ONCE;
            let count = (state.live_bytes() / len_bytes).clamp(fewest, most);
            let several = device.alloc(count * len_bytes).map(|several| (several, count));
            let (allocation, count) =
                several.or_else(|_| device.alloc(len_bytes).map(|one| (one, 1))).ok()?;
            let allocation = Arc::new(allocation);
            state.allocations.push(Arc::downgrade(&allocation));
            let part =
                |part| StagingBuffer { allocation: allocation.clone(), start: part * len_bytes, len_bytes };
            state.unused.extend((0..count).map(part));
        }
        state.unused.pop_if(|buffer| buffer.len_bytes == len_bytes)
    }

    pub fn live_bytes(&self) -> usize {
        self.state().live_bytes()
    }

    pub fn free_unused(&self) {
        let unused = mem::take(&mut self.state().unused);
        drop(unused);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    fn live_bytes(&mut self) -> usize {
        self.allocations.retain(|allocation| allocation.strong_count() > 0);
        self.allocations.iter().filter_map(Weak::upgrade).map(|allocation| allocation.len_bytes()).sum()
    }
}

impl StagingBuffer {
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.allocation.as_ptr().cast_mut().wrapping_add(self.start)
    }
}
