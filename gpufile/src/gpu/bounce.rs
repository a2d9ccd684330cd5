//! Bounce buffers.

use std::alloc::{self, Layout, handle_alloc_error};
#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::io;
use std::mem;
use std::sync::Arc;

use cufile::cuda::{Device, PinnedBuffer, PinnedRegion};

use crate::route::Counters;

/// Host memory through which the bytes of files pass, allocated when first used.
pub(crate) struct Bounce {
    allocation: Allocation,
    len_bytes: usize,
    /// Set if CUDA refused to pin the buffer.
    is_refused: bool,
    /// The addresses for page-locked memory, if some were reserved.
    region: Option<Arc<PinnedRegion>>,
    counters: Arc<Counters>,
}

enum Allocation {
    None,
    /// Page-locked memory, for transfers with the GPU.
    Pinned(PinnedBuffer),
    /// Aligned memory, for `O_DIRECT`.
    Plain(*mut u8),
}

// SAFETY: the buffer owns its memory, of which nothing depends on the thread.
unsafe impl Send for Bounce {}

impl Bounce {
    /// The alignment of memory, in bytes, that suffices for `O_DIRECT` on any file system.
    pub const ALIGNMENT: usize = 4096;

    /// Returns a buffer for chunks of `chunk_bytes`, with room for alignment.
    pub fn new(chunk_bytes: usize) -> Self {
        Self {
            allocation: Allocation::None,
            len_bytes: Self::bytes_for(chunk_bytes),
            is_refused: false,
            region: None,
            counters: Arc::default(),
        }
    }

    pub fn counted_in(self, counters: &Arc<Counters>) -> Self {
        let mut this = self;
        this.counters = counters.clone();
        this
    }

    /// Lets the buffer be pinned at addresses of a region, whose buffers are as long as this one.
    pub fn in_region(self, region: &Arc<PinnedRegion>) -> Self {
        let mut this = self;
        this.region = Some(region.clone());
        this
    }

    pub fn bytes_for(chunk_bytes: usize) -> usize {
        let with_gaps = chunk_bytes.saturating_add(chunk_bytes / 8);
        with_gaps.div_ceil(Self::ALIGNMENT).saturating_add(4).saturating_mul(Self::ALIGNMENT)
    }

    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the bytes allocated so far, used or not.
    pub fn allocated_bytes(&self) -> usize {
        match self.allocation {
            Allocation::None => 0,
            _ => self.len_bytes,
        }
    }

    /// Returns the page-locked bytes, used or not.
    pub fn pinned_bytes(&self) -> usize {
        if self.is_pinned() { self.len_bytes } else { 0 }
    }

    /// Makes the buffer page-locked, for all GPUs, whichever `device` it is. If CUDA refuses, the buffer stays in other
    /// memory, from which CUDA copies more slowly.
    pub fn pin(&mut self, device: &Device) {
        if self.is_pinned() || self.is_refused {
            return;
        }
        self.free();
        let pinned = match &self.region {
            Some(region) => region.alloc(),
            None => device.alloc_pinned(self.len_bytes),
        };
        match pinned {
            Ok(pinned) => {
                self.counters.allocated_pinned(self.len_bytes);
                self.allocation = Allocation::Pinned(pinned);
            }
            Err(error) => {
                self.is_refused = true;
                self.counters.not_pinned(error);
            }
        }
    }

    /// Returns whether [`pin`](Self::pin) would wait for at least this number of threads.
    pub fn is_behind(&self, threads: usize) -> bool {
        let allocating = self.region.as_ref().map_or(0, |region| region.allocating());
        !self.is_pinned() && !self.is_refused && allocating >= threads
    }

    /// Returns whether kernels can use the buffer.
    pub fn is_pinned(&self) -> bool {
        matches!(self.allocation, Allocation::Pinned(_))
    }

    /// Returns whether other code has freed the page-locked memory, by a reset of its GPU.
    pub fn is_lost(&self) -> bool {
        matches!(&self.allocation, Allocation::Pinned(pinned) if !pinned.is_allocated())
    }

    /// Returns the address of the first byte, aligned to a page. Allocates plain memory if none was
    /// allocated.
    pub fn ptr(&mut self) -> *mut u8 {
        self.start().unwrap_or_else(|_| handle_alloc_error(self.layout()))
    }

    fn start(&mut self) -> io::Result<*mut u8> {
        if let Allocation::None = self.allocation {
            // SAFETY: the layout is not empty.
            let plain = unsafe { alloc::alloc_zeroed(self.layout()) };
            if plain.is_null() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.allocation = Allocation::Plain(plain);
        }
        match &mut self.allocation {
            Allocation::Pinned(pinned) => Ok(pinned.as_mut_ptr()),
            Allocation::Plain(plain) => Ok(*plain),
            Allocation::None => unreachable!("allocated above"),
        }
    }

    fn free(&mut self) {
        match mem::replace(&mut self.allocation, Allocation::None) {
            Allocation::None => {}
            Allocation::Pinned(_) => self.counters.freed_pinned(self.len_bytes),
            // SAFETY: `start` allocated the memory with this layout.
            Allocation::Plain(plain) => unsafe { alloc::dealloc(plain, self.layout()) },
        }
    }

    /// Returns the address of `len_bytes` bytes that begin at byte `start`.
    ///
    /// # Errors
    /// Fails if the buffer has no such bytes, or if no memory is left.
    pub fn part(&mut self, start: usize, len_bytes: usize) -> io::Result<*mut u8> {
        match start.checked_add(len_bytes) {
            Some(end) if end <= self.len_bytes => Ok(self.start()?.wrapping_add(start)),
            _ => Err(io::Error::other("a chunk does not fit into its bounce buffer")),
        }
    }

    /// Moves the first `len_bytes` from the processor's own cache to the shared one (`cldemote`), from where a GPU
    /// reads much faster.
    pub fn demote(&mut self, len_bytes: usize) {
        const LINE: usize = 64;
        let start = self.ptr();
        for line in (0..len_bytes.min(self.len_bytes)).step_by(LINE) {
            demote_line(start.wrapping_add(line));
        }
    }

    fn layout(&self) -> Layout {
        Layout::from_size_align(self.len_bytes, Self::ALIGNMENT).expect("a bounce buffer's size was checked")
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        self.free();
    }
}

#[cfg(target_arch = "x86_64")]
fn demote_line(address: *mut u8) {
    // SAFETY: the instruction is a hint, which changes no memory. Processors without it do nothing.
    unsafe { asm!("cldemote [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Other processors have no such instruction.
#[cfg(not(target_arch = "x86_64"))]
fn demote_line(_: *mut u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_room_for_gaps_and_alignment() {
        for (chunk_bytes, pages) in [(1, 5), (4096, 6), (8 * 4096, 13), (16 << 20, 4612)] {
            assert_eq!(Bounce::bytes_for(chunk_bytes), pages * 4096);
            let mut bounce = Bounce::new(chunk_bytes);
            assert_eq!((bounce.len_bytes(), bounce.allocated_bytes()), (pages * 4096, 0));
            assert!(bounce.ptr().addr().is_multiple_of(4096));
            let (start, end) = (bounce.ptr(), bounce.len_bytes());
            for (at, len_bytes) in [(0, end), (end, 0), (end - 7, 7)] {
                assert_eq!(bounce.part(at, len_bytes).unwrap(), start.wrapping_add(at));
            }
            for (at, len_bytes) in [(0, end + 1), (end + 1, 0), (end - 7, 8), (1, usize::MAX)] {
                assert!(bounce.part(at, len_bytes).is_err(), "{len_bytes} bytes at {at}");
            }
            assert_eq!(bounce.allocated_bytes(), pages * 4096);
        }
        assert_eq!(Bounce::bytes_for(usize::MAX), usize::MAX);
    }

    #[test]
    fn demoted_bytes_stay_the_same() {
        let mut bounce = Bounce::new(10_000);
        let len_bytes = bounce.len_bytes();
        // SAFETY: the buffer has so many bytes, and nothing else uses it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(bounce.ptr(), len_bytes) };
        (0..).zip(&mut *bytes).for_each(|(number, byte)| *byte = ((number * 7) >> 3) as u8);
        let expected = bytes.to_vec();
        for demoted in [0, 1, 63, 64, 65, 9_999, len_bytes, usize::MAX] {
            bounce.demote(demoted);
            // SAFETY: as above.
            assert_eq!(unsafe { std::slice::from_raw_parts(bounce.ptr(), len_bytes) }, expected);
        }
    }

    #[test]
    fn dropped_buffers_free_their_memory() {
        let mapped_pages = || -> usize {
            let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
            sizes.split(' ').next().unwrap().parse().unwrap()
        };
        let before = mapped_pages();
        for _ in 0..256 {
            Bounce::new(8 << 20).ptr();
        }
        let more_bytes = mapped_pages().saturating_sub(before) * 4096;
        assert!(more_bytes < 1 << 30, "{more_bytes} bytes of 2 GiB are left");
    }
}
