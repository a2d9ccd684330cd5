//! Mappings of files. Threads read them by copying, and let the kernel copy into them.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;

use crate::page_cache::page_bytes;

/// A range of a mapped file, and the memory of its entry.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub offset: u64,
    pub len_bytes: usize,
    pub ptr: *mut u8,
}

/// A shared mapping of a part of a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: *mut u8,
    len_bytes: usize,
    /// The offset in bytes in the file at which the mapping begins.
    start: u64,
    /// Set if pages stay mapped after they were written.
    keeps_pages: bool,
}

// SAFETY: the address range stays until the value is dropped; the methods state the permitted uses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len_bytes` of a file for [`read`](Self::read).
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn for_read(file: &fs::File, len_bytes: usize) -> io::Result<Self> {
        Self::new(file, 0..len_bytes as u64, libc::PROT_READ)
    }

    /// Maps the first `len_bytes` of a file for repeated calls of [`write`](Self::write).
    ///
    /// # Errors
    /// The error that the kernel returned. The file must be open for reading and writing.
    pub fn for_overwriting(file: &fs::File, len_bytes: usize) -> io::Result<Self> {
        Self::new(file, 0..len_bytes as u64, libc::PROT_NONE)?.made_writable()
    }

    /// Maps a range of a file for one [`write`](Self::write) of each part. Each writing thread unmaps its
    /// pages too, because one thread alone would take long to unmap them all at the end.
    ///
    /// # Errors
    /// The error that the kernel returned. The file must be open for reading and writing.
    pub fn for_writing_once(file: &fs::File, range: Range<u64>) -> io::Result<Self> {
        let range = range.start - range.start % page_bytes()..range.end;
        let mut mapping = Self::new(file, range, libc::PROT_NONE)?.made_writable()?;
        mapping.keeps_pages = false;
        Ok(mapping)
    }

    /// Maps a range whose start is a multiple of the page size.
    fn new(file: &fs::File, range: Range<u64>, protection: libc::c_int) -> io::Result<Self> {
        let start = range.start;
        let len_bytes = usize::try_from(range.end.saturating_sub(start)).map_err(io::Error::other)?;
        if len_bytes == 0 {
            return Ok(Self { ptr: ptr::dangling_mut(), len_bytes, start, keeps_pages: true });
        }
        let at = libc::off_t::try_from(start).map_err(io::Error::other)?;
        // SAFETY: the call makes a new mapping at an address that the kernel chooses.
        let mapped = unsafe {
            libc::mmap(ptr::null_mut(), len_bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), at)
        };
        match mapped {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            mapped => Ok(Self { ptr: mapped.cast(), len_bytes, start, keeps_pages: true }),
        }
    }

    /// Permits access to a mapping that was made without access. If the process locks all its mappings
    /// (`mlockall`), this one is locked too, but the kernel loads no pages without access. The function
    /// unlocks the mapping before it permits access, so the kernel does not load the rest of the file.
    fn made_writable(self) -> io::Result<Self> {
        if self.len_bytes == 0 {
            return Ok(self);
        }
        // SAFETY: the range is this mapping's own. If it stays locked, that costs only time.
        unsafe { libc::munlock(self.ptr.cast(), self.len_bytes) };
        // SAFETY: as above.
        match unsafe { libc::mprotect(self.ptr.cast(), self.len_bytes, libc::PROT_READ | libc::PROT_WRITE) } {
            0 => Ok(self),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Copies spans, each to the memory that `place` returns. During the copy, the processor fetches the next
    /// spans into its cache. It fetches several at a time, because looking up their pages takes longest.
    ///
    /// # Safety
    /// The spans must lie in the mapping, and the file must still be at least as long as the mapping. `place`
    /// must return memory that is valid for writes of the span's length, and that nothing else uses.
    pub unsafe fn read(
        &self,
        mut spans: impl Iterator<Item = Span> + Clone,
        mut place: impl FnMut(&Span) -> *mut u8,
    ) {
        /// The bytes to read together, on the assumption that most spans are about as long as the first.
        const TOGETHER_BYTES: usize = 16 << 10;
        let mut coming = spans.clone().peekable();
        let Some(first) = coming.peek() else { return };
        let together = (TOGETHER_BYTES / first.len_bytes.max(1)).clamp(2, 16);
        let mut prefetch = || coming.by_ref().take(together).for_each(|span| self.prefetch(&span));
        prefetch();
        loop {
            prefetch();
            let mut count = 0;
            for span in spans.by_ref().take(together) {
                debug_assert!(span.offset as usize + span.len_bytes <= self.len_bytes);
                let target = place(&span);
                // SAFETY: the caller's promise.
                unsafe {
                    ptr::copy_nonoverlapping(self.ptr.add(span.offset as usize), target, span.len_bytes);
                }
                count += 1;
            }
            if count < together {
                return;
            }
        }
    }

    /// Starts to load the first cache lines of a range into the processor's cache, and its page into the TLB.
    fn prefetch(&self, span: &Span) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            const LINE: usize = 64;
            const MOST_BYTES: usize = 8 * LINE;
            let start = self.ptr.wrapping_add(span.offset as usize);
            for at in (0..span.len_bytes.min(MOST_BYTES)).step_by(LINE) {
                // SAFETY: a prefetch is a hint, valid for any address.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(at).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = span;
    }

    /// Lets the kernel copy bytes into the mapping, to `offset` of the file. Returns how many bytes it
    /// copied. The kernel copies nothing to a page that cannot be written (the file was truncated, the disk
    /// is full), and sends no signal.
    pub fn write(&self, source: &[u8], offset: u64) -> usize {
        let at = offset.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        let fits = |at: &usize| at.checked_add(source.len()).is_some_and(|end| end <= self.len_bytes);
        let Some(at) = at.filter(fits) else { return 0 };
        let mut done = 0;
        while done < source.len() {
            let rest = &source[done..];
            let local = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
            let target = self.ptr.wrapping_add(at + done);
            let remote = libc::iovec { iov_base: target.cast(), iov_len: rest.len() };
            // SAFETY: the kernel checks both addresses; the target lies in this mapping.
            let count = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
            match usize::try_from(count) {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        if !self.keeps_pages {
            self.unmap_pages(at, done);
        }
        done
    }

    /// Unmaps the mapping's pages that lie wholly in a range, until they are used again. The file keeps their
    /// contents.
    fn unmap_pages(&self, offset: usize, len_bytes: usize) {
        let pages = self.whole_pages(offset, len_bytes);
        if !pages.is_empty() {
            let start = self.ptr.wrapping_add(pages.start).cast();
            // SAFETY: the range lies within this mapping, which shares its pages with the file. Later
            // accesses find the same bytes. A failure costs only time.
            unsafe { libc::madvise(start, pages.len(), libc::MADV_DONTNEED) };
        }
    }

    /// Returns the whole pages of the mapping that lie in a range.
    fn whole_pages(&self, offset: usize, len_bytes: usize) -> Range<usize> {
        let page = page_bytes() as usize;
        let end = offset.saturating_add(len_bytes).min(self.len_bytes) / page * page;
        offset.min(end).next_multiple_of(page)..end
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len_bytes > 0 {
            // SAFETY: `new` mapped this range, and it is unmapped only here.
            unsafe { libc::munmap(self.ptr.cast(), self.len_bytes) };
        }
    }
}

/// Returns whether the file is one that its owner may seal (`memfd_create` with `MFD_ALLOW_SEALING`). While a
/// writable mapping exists, the owner cannot seal it against writes.
pub(super) fn may_be_sealed(file: &fs::File) -> bool {
    // SAFETY: the call takes integers only.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SEAL == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn contents(file: &fs::File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn only_whole_pages_are_unmapped() {
        let page = page_bytes() as usize;
        let len = 3 * page + 100;
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        let mapping = Mapping::for_overwriting(&file, len).unwrap();
        for (offset, len_bytes, pages) in [
            (0, page, 0..page),
            (0, page - 1, 0..0),
            (1, 2 * page - 1, page..2 * page),
            (1, page, page..page),
            (page + 900, usize::MAX, 2 * page..3 * page),
            (3 * page, page, 3 * page..3 * page),
            (usize::MAX, usize::MAX, 3 * page..3 * page),
        ] {
            assert_eq!(mapping.whole_pages(offset, len_bytes), pages, "{len_bytes} bytes at {offset}");
        }
        assert_eq!(mapping.write(&[7; 5000], page as u64), 5000);
        mapping.unmap_pages(0, usize::MAX);
        assert_eq!(contents(&file)[page..page + 5000], [7; 5000]);
    }

    #[test]
    fn mapped_writes_change_only_their_range() {
        let page = page_bytes();
        let len = 5 * page as usize + 77;
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        let range = 2 * page + 5..4 * page + 9;
        let once = Mapping::for_writing_once(&file, range.clone()).unwrap();
        let mut expected = vec![0; len];
        for (offset, len_bytes, fits) in [
            (range.start, 3, true),
            (range.start + 100, page as usize, true),
            (range.end - 1, 1, true),
            // The page in which the range begins is mapped as a whole.
            (2 * page, 2, true),
            (2 * page - 1, 1, false),
            (range.end, 1, false),
            (range.end - 1, 2, false),
            (u64::MAX, 1, false),
        ] {
            let bytes = vec![offset as u8 | 1; len_bytes];
            assert_eq!(once.write(&bytes, offset), if fits { len_bytes } else { 0 }, "{offset}");
            if fits {
                expected[offset as usize..][..len_bytes].copy_from_slice(&bytes);
            }
            assert!(contents(&file) == expected, "{len_bytes} bytes at {offset}");
        }
    }

    #[test]
    fn mapped_writes_stop_at_a_truncated_end() {
        let page = page_bytes() as usize;
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 * page as u64).unwrap();
        for mapping in [
            Mapping::for_overwriting(&file, 4 * page).unwrap(),
            Mapping::for_writing_once(&file, 0..4 * page as u64).unwrap(),
        ] {
            file.set_len(2 * page as u64).unwrap();
            assert_eq!(mapping.write(&vec![1; 3 * page], 0), 2 * page);
            assert_eq!(contents(&file), vec![1; 2 * page]);
            file.set_len(4 * page as u64).unwrap();
        }
    }

    #[test]
    fn empty_mappings_have_no_bytes() {
        let file = tempfile::tempfile().unwrap();
        for mapping in [
            Mapping::for_read(&file, 0),
            Mapping::for_overwriting(&file, 0),
            Mapping::for_writing_once(&file, 0..0),
        ] {
            let mapping = mapping.unwrap();
            assert_eq!((mapping.len_bytes(), mapping.write(&[1], 0)), (0, 0));
        }
    }

    #[test]
    fn only_memfds_that_allow_sealing_can_be_sealed() {
        assert!(!may_be_sealed(&tempfile::NamedTempFile::new().unwrap().into_file()));
        if let Ok(file) = tempfile::tempfile_in("/dev/shm") {
            assert!(!may_be_sealed(&file));
        }
        for (flags, expected) in [(0, false), (libc::MFD_ALLOW_SEALING, true)] {
            // SAFETY: the name ends with a NUL.
            let fd = unsafe { libc::memfd_create(c"sealed".as_ptr(), flags) };
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            // SAFETY: the descriptor was just opened, and nothing else owns it.
            let file = unsafe { <fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
            assert_eq!(may_be_sealed(&file), expected);
        }
    }
}
