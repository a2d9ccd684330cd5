//! The memory of a transfer, independent of its owner's type.

use cufile::cuda::Context;
use cufile::{IoBuf, IoBufMut, Location};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// In memory that the host can access.
    Host,
    /// On the GPU with this ordinal.
    Device(u32),
}

/// The bytes of a buffer, without its type and lifetime. The holder of a `Memory` keeps the buffer in place.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub ptr: *mut u8,
    pub len_bytes: usize,
    pub place: Place,
    pub context: Option<Context>,
    /// True if the memory belongs to the primary context of its GPU, so that kernels can use it.
    pub is_in_primary_context: bool,
    pub is_registered: bool,
    /// The number of bytes of the allocation before the memory.
    pub base_offset: usize,
}

// SAFETY: the pointer is used only while a transfer holds the buffer. The kernel and CUDA use it from any
// thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns memory of the engine that the host can access.
    pub fn on_host(ptr: *mut u8, len_bytes: usize) -> Self {
        Self {
            ptr,
            len_bytes,
            place: Place::Host,
            context: None,
            is_in_primary_context: false,
            is_registered: false,
            base_offset: 0,
        }
    }

    /// Returns the address of the allocation that contains the memory, or the memory's own if none is known.
    pub fn base(&self) -> usize {
        self.ptr.addr().wrapping_sub(self.base_offset)
    }

    /// Returns the part of `len_bytes` at `ptr`.
    ///
    /// # Panics
    /// If the part does not lie within the memory.
    pub fn part(&self, ptr: *mut u8, len_bytes: usize) -> Self {
        let offset = ptr.addr().wrapping_sub(self.ptr.addr());
        let end = offset.checked_add(len_bytes);
        assert!(end.is_some_and(|end| end <= self.len_bytes), "a part lies within its memory");
        Self { ptr, len_bytes, base_offset: self.base_offset + offset, ..*self }
    }
}

// SAFETY: the memory is that of an `IoBuf`, which its holder keeps in place.
unsafe impl IoBuf for Memory {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        let &Self { context, is_registered, base_offset, .. } = self;
        Location { is_host_accessible: self.place == Place::Host, context, is_registered, base_offset }
    }
}

// SAFETY: reads use only memory that `of_mut` returned; the transfer holds its buffer alone.
unsafe impl IoBufMut for Memory {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}
