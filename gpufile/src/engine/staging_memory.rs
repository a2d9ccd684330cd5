//! Device memory for the staging buffers of a lane.

use std::sync::{Arc, PoisonError};

use cufile::IoBuf;
use cufile::cuda::{Device, DeviceBuffer};

use super::sync::{Mutex, MutexGuard};

/// The number of staging buffers that one call of `cudaMalloc` allocates: those of a lane. A call takes 0.1 to 0.3 ms,
/// and all lanes of a GPU need staging buffers at about the same time.
const AT_ONCE: usize = 2;

/// The staging buffers of a lane that were allocated together with others, and are not in use yet.
#[derive(Default)]
pub(crate) struct StagingMemory(Mutex<Vec<StagingBuffer>>);

/// A part of an allocation, which is freed with its last part.
pub(crate) struct StagingBuffer {
    allocation: Arc<DeviceBuffer>,
    start: usize,
    len_bytes: usize,
}

impl StagingMemory {
    /// Returns a staging buffer of this length, which is the same for all. Returns `None` if the GPU has no memory left.
    pub fn take(&self, device: &Device, len_bytes: usize) -> Option<StagingBuffer> {
        let mut unused = self.unused();
        if unused.is_empty() {
            let several = device.alloc(AT_ONCE * len_bytes).map(|several| (several, AT_ONCE));
            let (allocation, count) =
                several.or_else(|_| device.alloc(len_bytes).map(|one| (one, 1))).ok()?;
            let allocation = Arc::new(allocation);
            let part =
                |part| StagingBuffer { allocation: allocation.clone(), start: part * len_bytes, len_bytes };
            unused.extend((0..count).map(part));
        }
        unused.pop_if(|buffer| buffer.len_bytes == len_bytes)
    }

    /// Returns the number of bytes that are allocated and not in use yet.
    pub fn unused_bytes(&self) -> usize {
        self.unused().iter().map(StagingBuffer::len_bytes).sum()
    }

    fn unused(&self) -> MutexGuard<'_, Vec<StagingBuffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StagingBuffer {
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.allocation.as_ptr().cast_mut().wrapping_add(self.start)
    }

    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}
