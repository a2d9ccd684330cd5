//! Mappings of files: read by copying, and written by letting the kernel copy.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;

use crate::engine::Segment;

/// A shared mapping of a file, from its beginning.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: *mut u8,
    len_bytes: usize,
    /// Whether pages stay mapped after they were written.
    keeps_pages: bool,
}

// SAFETY: an address range that stays until the value goes; the methods say what may be done with it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len_bytes` of a file for [`read`](Self::read).
    ///
    /// # Errors
    /// What `mmap` said.
    pub fn for_read(file: &fs::File, len_bytes: usize) -> io::Result<Self> {
        Self::new(file, len_bytes, libc::PROT_READ, true)
    }

    /// Maps the first `len_bytes` of a file for [`write`](Self::write), again and again.
    ///
    /// # Errors
    /// What `mmap` said: the file must be open for reading and writing.
    pub fn for_overwriting(file: &fs::File, len_bytes: usize) -> io::Result<Self> {
        Self::new(file, len_bytes, libc::PROT_READ | libc::PROT_WRITE, true)
    }

    /// Maps the first `len_bytes` of a file for one [`write`](Self::write) of each part. Those who write unmap the pages
    /// too, because one thread alone would take long in the end.
    ///
    /// # Errors
    /// What `mmap` said: the file must be open for reading and writing.
    pub fn for_writing_once(file: &fs::File, len_bytes: usize) -> io::Result<Self> {
        Self::new(file, len_bytes, libc::PROT_READ | libc::PROT_WRITE, false)
    }

    fn new(
        file: &fs::File,
        len_bytes: usize,
        protection: libc::c_int,
        keeps_pages: bool,
    ) -> io::Result<Self> {
        if len_bytes == 0 {
            return Ok(Self { ptr: ptr::dangling_mut(), len_bytes, keeps_pages });
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapped = unsafe {
            libc::mmap(ptr::null_mut(), len_bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match mapped {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            mapped => Ok(Self { ptr: mapped.cast(), len_bytes, keeps_pages }),
        }
    }

    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Copies ranges, each to where `place` says. While some are copied, the next are on their way from memory to the
    /// processor's cache. It is told of several together, so that it looks for their pages at the same time: that takes
    /// longest.
    ///
    /// # Safety
    /// The ranges must lie in the mapping, and the file must not be shorter by now. `place` must give memory that is valid
    /// for writes of the segment's length, and that nothing else uses.
    pub unsafe fn read<'a, I: Iterator<Item = Segment<'a>>>(
        &self,
        segments: impl Fn() -> I,
        mut place: impl FnMut(&Segment<'a>) -> *mut u8,
    ) {
        /// Ranges that are read together are about as long as the first, in most cases.
        const TOGETHER_BYTES: usize = 16 << 10;
        let (mut segments, mut coming) = (segments(), segments().peekable());
        let Some(first) = coming.peek() else { return };
        let together = (TOGETHER_BYTES / first.len_bytes.max(1)).clamp(2, 16);
        let mut prefetch = || coming.by_ref().take(together).for_each(|segment| self.prefetch(&segment));
        prefetch();
        loop {
            prefetch();
            let mut count = 0;
            for segment in segments.by_ref().take(together) {
                debug_assert!(segment.offset as usize + segment.len_bytes <= self.len_bytes);
                let target = place(&segment);
                // SAFETY: the caller's promise.
                unsafe {
                    ptr::copy_nonoverlapping(
                        self.ptr.add(segment.offset as usize),
                        target,
                        segment.len_bytes,
                    );
                }
                count += 1;
            }
            if count < together {
                return;
            }
        }
    }

    /// Begins to bring the first lines of a range into the processor's cache, and its page into the TLB.
    fn prefetch(&self, segment: &Segment<'_>) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            const LINE: usize = 64;
            const MOST_BYTES: usize = 8 * LINE;
            let start = self.ptr.wrapping_add(segment.offset as usize);
            for at in (0..segment.len_bytes.min(MOST_BYTES)).step_by(LINE) {
                // SAFETY: a hint, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(at).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = segment;
    }

    /// Lets the kernel copy bytes into the mapping at `offset`; returns how many it copied. Of a page that cannot be
    /// written (the file was truncated, the disk is full) it copies nothing, without a signal.
    pub fn write(&self, source: &[u8], offset: u64) -> usize {
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(source.len()));
        if end.is_none_or(|end| end > self.len_bytes) {
            return 0;
        }
        let mut done = 0;
        while done < source.len() {
            let rest = &source[done..];
            let local = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
            let target = self.ptr.wrapping_add(offset as usize + done);
            let remote = libc::iovec { iov_base: target.cast(), iov_len: rest.len() };
            // SAFETY: the kernel checks both addresses; the target lies in this mapping.
            let count = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
            match usize::try_from(count) {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        if !self.keeps_pages {
            self.unmap_pages(offset as usize, done);
        }
        done
    }

    /// Unmaps the mapping's pages that lie wholly in a range, until they are used again. Their contents are the file's and
    /// stay.
    pub fn unmap_pages(&self, offset: usize, len_bytes: usize) {
        let pages = self.whole_pages(offset, len_bytes);
        if !pages.is_empty() {
            let start = self.ptr.wrapping_add(pages.start).cast();
            // SAFETY: within this mapping, which shares its pages with the file, so that whoever uses them again finds the
            // same bytes. A failure costs time.
            unsafe { libc::madvise(start, pages.len(), libc::MADV_DONTNEED) };
        }
    }

    /// The part of a range that is whole pages of the mapping.
    fn whole_pages(&self, offset: usize, len_bytes: usize) -> Range<usize> {
        const PAGE: usize = 4096;
        let end = offset.saturating_add(len_bytes).min(self.len_bytes) / PAGE * PAGE;
        offset.min(end).next_multiple_of(PAGE)..end
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len_bytes > 0 {
            // SAFETY: mapped in `new`, unmapped once.
            unsafe { libc::munmap(self.ptr.cast(), self.len_bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_the_mapping_are_unmapped_and_keep_their_bytes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * 4096 + 100).unwrap();
        let mapping = Mapping::for_overwriting(&file, 3 * 4096 + 100).unwrap();
        for (offset, len_bytes, pages) in [
            (0, 4096, 0..4096),
            (0, 4095, 0..0),
            (1, 8191, 4096..8192),
            (1, 4096, 4096..4096),
            (5000, usize::MAX, 8192..3 * 4096),
            (3 * 4096, 4096, 3 * 4096..3 * 4096),
            (usize::MAX, usize::MAX, 3 * 4096..3 * 4096),
        ] {
            assert_eq!(mapping.whole_pages(offset, len_bytes), pages, "{len_bytes} bytes at {offset}");
        }
        assert_eq!(mapping.write(&[7; 5000], 4096), 5000);
        mapping.unmap_pages(0, usize::MAX);
        let mut bytes = [0; 5000];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 4096).unwrap();
        assert_eq!(bytes, [7; 5000]);
    }
}
