//! Bounce buffers.

use std::alloc::{self, Layout, handle_alloc_error};

use cufile::cuda::{Device, PinnedBuffer};

/// A buffer in host memory that file bytes pass through, allocated when first used.
pub(crate) struct Bounce {
    memory: Memory,
    len_bytes: usize,
}

enum Memory {
    None,
    /// Page-locked, for the GPU.
    Pinned(PinnedBuffer),
    /// Aligned, for `O_DIRECT`.
    Plain(*mut u8),
}

impl Bounce {
    /// What `O_DIRECT` asks of memory on any file system.
    pub const ALIGNMENT: usize = 4096;

    /// A buffer for chunks of `chunk_bytes`, with room for the gaps and over-reads that alignment takes.
    pub fn new(chunk_bytes: usize) -> Self {
        Self { memory: Memory::None, len_bytes: Self::bytes_for(chunk_bytes) }
    }

    /// How many bytes a buffer for chunks of `chunk_bytes` has.
    pub fn bytes_for(chunk_bytes: usize) -> usize {
        let with_gaps = chunk_bytes.saturating_add(chunk_bytes / 8);
        with_gaps.div_ceil(Self::ALIGNMENT).saturating_add(4).saturating_mul(Self::ALIGNMENT)
    }

    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// How many bytes were allocated so far.
    pub fn allocated_bytes(&self) -> usize {
        if matches!(self.memory, Memory::None) { 0 } else { self.len_bytes }
    }

    /// Makes sure that it is page-locked memory. Whichever GPU that was allocated for, all can use it.
    ///
    /// # Errors
    /// What CUDA said.
    pub fn pin(&mut self, device: &Device) -> cufile::Result<()> {
        if !matches!(self.memory, Memory::Pinned(_)) {
            *self = Self { memory: Memory::None, ..*self };
            self.memory = Memory::Pinned(device.alloc_pinned(self.len_bytes)?);
        }
        Ok(())
    }

    /// The first byte's address, aligned to a page. Allocates plain memory if none was allocated.
    pub fn ptr(&mut self) -> *mut u8 {
        if let Memory::None = self.memory {
            // SAFETY: the layout is not empty.
            let plain = unsafe { alloc::alloc_zeroed(self.layout()) };
            if plain.is_null() {
                handle_alloc_error(self.layout());
            }
            self.memory = Memory::Plain(plain);
        }
        match &mut self.memory {
            Memory::Pinned(pinned) => pinned.as_mut_ptr(),
            Memory::Plain(plain) => *plain,
            Memory::None => unreachable!("allocated above"),
        }
    }

    fn layout(&self) -> Layout {
        Layout::from_size_align(self.len_bytes, Self::ALIGNMENT).expect("a bounce buffer's size was checked")
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        if let Memory::Plain(plain) = self.memory {
            // SAFETY: allocated in `ptr` with this layout.
            unsafe { alloc::dealloc(plain, self.layout()) };
        }
    }
}
