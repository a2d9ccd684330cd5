//! Pinned memory of CUDA as bytes of burn. cubecl copies from it to the GPU without a buffer between.

use std::mem::MaybeUninit;
use std::slice;

use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use gpufile::cuda::PinnedBuffer;

/// Returns the alignment that an address has, a page at most. CUDA promises none.
fn alignment(address: usize) -> usize {
    const PAGE: u32 = 12;
    1 << address.trailing_zeros().min(PAGE)
}

struct Pinned(PinnedBuffer);

impl AllocationController for Pinned {
    fn alloc_align(&self) -> usize {
        alignment(self.0.as_ptr().addr())
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

#[test]
fn no_address_gets_more_alignment_than_it_has() {
    for (address, expected) in [
        (0x1001, 1),
        (0x1002, 2),
        (0x1240, 0x40),
        (0x1800, 0x800),
        (0x3000, 0x1000),
        (0x7f00_0000_0000, 0x1000),
    ] {
        assert_eq!(alignment(address), expected, "{address:#x}");
        assert!(address.is_multiple_of(alignment(address)));
    }
}
