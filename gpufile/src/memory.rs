//! The memory of a transfer, whatever owns it.

use cufile::cuda::Context;
use cufile::{IoBuf, IoBufMut};

use crate::gpus::Gpus;

/// The place of memory: accessible to the host, or on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The host can access it.
    Host,
    /// On the GPU with this ordinal.
    Device(u32),
}

/// The bytes of a buffer, without its type and lifetime. The holder of a `Memory` keeps the buffer where it is.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub ptr: *mut u8,
    pub len_bytes: usize,
    pub place: Place,
    context: Option<Context>,
    is_registered: bool,
    base_offset: usize,
}

// SAFETY: a pointer that is used only while a transfer holds the buffer, through the kernel and CUDA, from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory that the host can access and that is the engine's.
    pub fn on_host(ptr: *mut u8, len_bytes: usize) -> Self {
        Self { ptr, len_bytes, place: Place::Host, context: None, is_registered: false, base_offset: 0 }
    }

    /// A buffer to be read from only.
    ///
    /// # Errors
    /// The reason why the GPU that the buffer is on is not known.
    pub fn of<B: IoBuf + ?Sized>(buffer: &B, gpus: &Gpus) -> cufile::Result<Self> {
        let place = match buffer.is_host_accessible() {
            true => Place::Host,
            false => Place::Device(gpus.ordinal_of(buffer)?),
        };
        Ok(Self {
            ptr: buffer.as_ptr().cast_mut(),
            len_bytes: buffer.len_bytes(),
            place,
            context: buffer.context(),
            is_registered: buffer.is_registered(),
            base_offset: buffer.base_offset(),
        })
    }

    /// A buffer that may be written.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_mut<B: IoBufMut + ?Sized>(buffer: &mut B, gpus: &Gpus) -> cufile::Result<Self> {
        let memory = Self::of(buffer, gpus)?;
        Ok(Self { ptr: buffer.as_mut_ptr(), ..memory })
    }

    /// The address of the allocation that it is part of, as far as the buffer knows of more than itself.
    pub fn base(&self) -> usize {
        self.ptr.addr().wrapping_sub(self.base_offset)
    }

    /// The part at `ptr`, which must lie within.
    pub fn part(&self, ptr: *mut u8, len_bytes: usize) -> Self {
        let offset = ptr.addr() - self.ptr.addr();
        debug_assert!(offset + len_bytes <= self.len_bytes);
        Self { ptr, len_bytes, base_offset: self.base_offset + offset, ..*self }
    }
}

// SAFETY: made from an `IoBuf`, which its holder keeps where it is.
unsafe impl IoBuf for Memory {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn base_offset(&self) -> usize {
        self.base_offset
    }

    fn context(&self) -> Option<Context> {
        self.context
    }

    fn is_host_accessible(&self) -> bool {
        self.place == Place::Host
    }

    fn is_registered(&self) -> bool {
        self.is_registered
    }
}

// SAFETY: reads use only what was made by `of_mut`, whose buffer the transfer holds alone.
unsafe impl IoBufMut for Memory {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}
