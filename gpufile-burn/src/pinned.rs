//! Pinned memory of CUDA as bytes of burn. cubecl copies from it to the GPU without a buffer between.

use std::mem::MaybeUninit;
use std::slice;

use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use gpufile::cuda::PinnedBuffer;

/// The most that is claimed, as a power of two: a page.
const MOST: u32 = 12;

struct Pinned(PinnedBuffer);

impl AllocationController for Pinned {
    /// Returns the alignment that the address has. CUDA promises none.
    fn alloc_align(&self) -> usize {
        1 << self.0.as_ptr().addr().trailing_zeros().min(MOST)
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Pinned
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes: &mut [u8] = &mut self.0;
        // SAFETY: the two have one layout, and the caller promises to write initialized bytes only.
        Ok(unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes: &[u8] = &self.0;
        // SAFETY: the two have one layout.
        Ok(unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }
}

pub(crate) fn into_bytes(buffer: PinnedBuffer) -> Bytes {
    let len_bytes = buffer.len();
    // SAFETY: all bytes of the buffer are initialized, as it is a slice of `u8`.
    unsafe { Bytes::from_controller(Box::new(Pinned(buffer)), len_bytes) }
}
