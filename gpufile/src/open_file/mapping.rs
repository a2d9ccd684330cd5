//! Mappings of files. The kernel copies their bytes, so that a truncated file is an error and no signal. Threads
//! copy from mappings of files that certainly do not change.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;

use super::page_cache::page_bytes;
use crate::storage::Span;

/// The address of ranges of memory, and their number.
type Ranges = (*const libc::iovec, libc::c_ulong);

#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: *mut u8,
    len_bytes: usize,
    /// The offset in bytes in the file at which the mapping begins.
    start: u64,
    /// Set if pages stay mapped after they were written.
    keeps_pages: bool,
    /// Set if the caller of `trusted` promised that the file does not change.
    pub is_trusted: bool,
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

    /// Returns the same mapping for [`copy`](Self::copy).
    ///
    /// # Safety
    /// While the mapping exists, the file must not become shorter, and nothing may write to a span while it is
    /// copied.
    pub unsafe fn trusted(mut self) -> Self {
        self.is_trusted = true;
        self
    }

    /// Maps the first `len_bytes` of a file for repeated calls of [`write`](Self::write).
    ///
    /// # Errors
    /// The error that the kernel returned. The file must be open for reading and writing.
    pub fn for_overwriting(file: &fs::File, len_bytes: usize) -> io::Result<Self> {
        Self::new(file, 0..len_bytes as u64, libc::PROT_NONE)?.made_writable()
    }

    /// Maps a range of a file for one [`write`](Self::write) of each part. Each thread unmaps its pages, because one
    /// alone would take long for all.
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
            return Ok(Self {
                ptr: ptr::dangling_mut(),
                len_bytes,
                start,
                keeps_pages: true,
                is_trusted: false,
            });
        }
        let at = libc::off_t::try_from(start).map_err(io::Error::other)?;
        // SAFETY: the call makes a new mapping at an address that the kernel chooses.
        let mapped = unsafe {
            libc::mmap(ptr::null_mut(), len_bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), at)
        };
        match mapped {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            mapped => Ok(Self { ptr: mapped.cast(), len_bytes, start, keeps_pages: true, is_trusted: false }),
        }
    }

    /// Permits access to a mapping made without. If the process locks its mappings (`mlockall`), the kernel loads no
    /// pages of those without access. This one is unlocked first, so the kernel does not load the rest of the file.
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

    /// Loads all pages of the mapping, and waits for that.
    ///
    /// # Errors
    /// The error that the kernel returned: `EFAULT` if pages are gone.
    pub fn populate(&self) -> io::Result<()> {
        if self.len_bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is the mapping's own.
        match unsafe { libc::madvise(self.ptr.cast(), self.len_bytes, libc::MADV_POPULATE_READ) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Copies spans of the mapping to their memory, while the processor fetches the next into its cache: several at a
    /// time, because looking up their pages takes longest. Returns false at a span outside the mapping.
    ///
    /// # Safety
    /// As for [`read`](Self::read). The file must still be at least as long as the mapping. Nothing may write to the
    /// spans.
    pub unsafe fn copy(&self, mut spans: impl Iterator<Item = Span> + Clone) -> bool {
        /// The bytes to copy together, if most spans are about as long as the first.
        const TOGETHER_BYTES: usize = 16 << 10;
        let mut coming = spans.clone().peekable();
        let Some(first) = coming.peek() else { return true };
        let together = (TOGETHER_BYTES / first.len_bytes.max(1)).clamp(2, 16);
        let mut prefetch = || coming.by_ref().take(together).for_each(|span| self.prefetch(&span));
        prefetch();
        loop {
            prefetch();
            let mut count = 0;
            for span in spans.by_ref().take(together) {
                if !self.has(&span) {
                    return false;
                }
                // SAFETY: the span lies in the mapping; the rest is the caller's promise.
                unsafe { ptr::copy_nonoverlapping(self.at(span.offset), span.ptr, span.len_bytes) };
                count += 1;
            }
            if count < together {
                return true;
            }
        }
    }

    /// Lets the kernel copy spans of the mapping to their memory, in order. Returns the bytes copied. It stops at a
    /// page that is gone (the file was truncated) or cannot be read, and sends no signal.
    ///
    /// # Safety
    /// The memory of the spans must be valid for writes, and nothing else may use it.
    pub unsafe fn read(&self, spans: impl Iterator<Item = Span>) -> usize {
        /// The bytes of a call, which the processor's cache keeps from the prefetch to the copy.
        const BYTES: usize = 64 << 10;
        let before = |span: &Span| self.prefetch(span);
        // SAFETY: the caller's promise; the kernel checks all addresses.
        self.exchange::<128>(BYTES, spans, before, |local, remote| unsafe {
            libc::process_vm_writev(libc::getpid(), local.0, local.1, remote.0, remote.1, 0)
        })
    }

    /// Lets the kernel copy the memory of spans into the mapping, in order. Returns the bytes copied. It stops at a
    /// page that cannot be written (the file was truncated, the disk is full), and sends no signal.
    ///
    /// # Safety
    /// The memory of the spans must be valid for reads, and nothing may write it.
    pub unsafe fn write(&self, spans: impl Iterator<Item = Span>) -> usize {
        // Threads wait for each other in each call, so a call has as many ranges as the kernel takes.
        // SAFETY: the caller's promise; the kernel checks all addresses.
        self.exchange::<1024>(
            usize::MAX,
            spans,
            |_| (),
            |local, remote| unsafe {
                libc::process_vm_readv(libc::getpid(), local.0, local.1, remote.0, remote.1, 0)
            },
        )
    }

    /// Lets `call` copy between the mapping (its local ranges) and the memory of spans (its remote ones): up to `MOST`
    /// spans, or `enough_bytes`, in one call. A local range without access is an error.
    fn exchange<const MOST: usize>(
        &self,
        enough_bytes: usize,
        spans: impl Iterator<Item = Span>,
        before: impl Fn(&Span),
        call: impl Fn(Ranges, Ranges) -> isize,
    ) -> usize {
        const NONE: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut spans = spans.peekable();
        let mut done = 0;
        while spans.peek().is_some() {
            let (mut local, mut remote) = ([NONE; MOST], [NONE; MOST]);
            let (mut count, mut apart, mut bytes) = (0, 0usize, 0);
            while count < MOST
                && bytes < enough_bytes
                && let Some(span) = spans.next_if(|span| self.has(span))
            {
                before(&span);
                let Span { offset, len_bytes, ptr } = span;
                local[count] = libc::iovec { iov_base: self.at(offset).cast(), iov_len: len_bytes };
                count += 1;
                bytes += len_bytes;
                match apart.checked_sub(1).map(|last| &mut remote[last]) {
                    Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == ptr.cast() => {
                        last.iov_len += len_bytes;
                    }
                    _ => {
                        remote[apart] = libc::iovec { iov_base: ptr.cast(), iov_len: len_bytes };
                        apart += 1;
                    }
                }
            }
            let copied = match bytes {
                0 => 0,
                _ => call((local.as_ptr(), count as _), (remote.as_ptr(), apart as _)),
            };
            let copied = usize::try_from(copied).ok().filter(|copied| *copied <= bytes).unwrap_or(0);
            done += copied;
            if !self.keeps_pages {
                local[..count].iter().for_each(|range| self.unmap_pages(*range));
            }
            if copied < bytes || count == 0 {
                break;
            }
        }
        done
    }

    pub(super) fn addresses(&self) -> Range<usize> {
        self.ptr.addr()..self.ptr.addr() + self.len_bytes
    }

    /// Unmaps whole pages of a range of the file, until they are used again.
    pub(super) fn unmap(&self, offset: u64, len_bytes: usize) {
        self.unmap_pages(libc::iovec { iov_base: self.at(offset).cast(), iov_len: len_bytes });
    }

    /// Returns whether a span lies in the mapping.
    pub(super) fn has(&self, span: &Span) -> bool {
        let start = span.offset.checked_sub(self.start);
        let end = start.and_then(|start| start.checked_add(span.len_bytes as u64));
        end.is_some_and(|end| end <= self.len_bytes as u64)
    }

    /// Returns the address of a byte of the file, valid if the mapping [has](Self::has) it.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.ptr.wrapping_add(offset.wrapping_sub(self.start) as usize)
    }

    /// Prefetches the first cache lines of a range, and its page into the TLB. Otherwise the kernel would wait for each
    /// range.
    fn prefetch(&self, span: &Span) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            const LINE: usize = 64;
            const MOST_BYTES: usize = 8 * LINE;
            let start = self.at(span.offset);
            for at in (0..span.len_bytes.min(MOST_BYTES)).step_by(LINE) {
                // SAFETY: a prefetch is a hint, valid for any address.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(at).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = span;
    }

    /// Unmaps the whole pages in a range, until they are used again.
    fn unmap_pages(&self, range: libc::iovec) {
        let pages = self.whole_pages(range.iov_base.addr() - self.ptr.addr(), range.iov_len);
        if !pages.is_empty() {
            let start = self.ptr.wrapping_add(pages.start).cast();
            // SAFETY: the range lies within this mapping, which shares its pages with the file. Later
            // accesses find the same bytes. A failure costs only time.
            unsafe { libc::madvise(start, pages.len(), libc::MADV_DONTNEED) };
        }
    }

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

/// Returns whether the file may be sealed (`memfd_create` with `MFD_ALLOW_SEALING`). A writable mapping prevents a seal
/// against writes.
pub(super) fn may_be_sealed(file: &fs::File) -> bool {
    // SAFETY: the call takes integers only.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SEAL == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn write(mapping: &Mapping, bytes: &[u8], offset: u64) -> usize {
        let span = Span { offset, len_bytes: bytes.len(), ptr: bytes.as_ptr().cast_mut() };
        // SAFETY: the bytes are borrowed.
        unsafe { mapping.write([span].into_iter()) }
    }

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
        assert_eq!(write(&mapping, &[7; 5000], page as u64), 5000);
        mapping.unmap_pages(libc::iovec { iov_base: mapping.at(0).cast(), iov_len: len });
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
            assert_eq!(write(&once, &bytes, offset), if fits { len_bytes } else { 0 }, "{offset}");
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
            assert_eq!(write(&mapping, &vec![1; 3 * page], 0), 2 * page);
            assert_eq!(contents(&file), vec![1; 2 * page]);
            file.set_len(4 * page as u64).unwrap();
        }
    }

    #[test]
    fn many_spans_are_copied_in_order() {
        let mut random = 1u64;
        let mut below = |most: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % most
        };
        let original: Vec<u8> = (0..300_001).map(|_| below(256) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        for _ in 0..60 {
            file.write_all_at(&original, 0).unwrap();
            let longest = [1, 70, 700, 5000, 150_000][below(5)];
            let count = below(1 + (200_000 / longest).min(400));
            let (mut spans, mut end) = (Vec::new(), 0);
            for _ in 0..count {
                // Some of the targets touch, and some do not.
                let (offset, len, target) = (below(150_000), below(longest + 1), end + below(2) * 3);
                spans.push((offset, len, target));
                end = target + len;
            }
            let mut memory = vec![0xee; end];
            let start = memory.as_mut_ptr();
            let all = || {
                spans.iter().map(|&(offset, len_bytes, target)| Span {
                    offset: offset as u64,
                    len_bytes,
                    ptr: start.wrapping_add(target),
                })
            };
            let total: usize = spans.iter().map(|(_, len, _)| len).sum();
            let mut expected = vec![0xee; end];
            for &(offset, len, target) in &spans {
                expected[target..][..len].copy_from_slice(&original[offset..][..len]);
            }
            let mapping = Mapping::for_overwriting(&file, original.len()).unwrap();
            // SAFETY: the memory is this test's, and long enough.
            assert_eq!(unsafe { mapping.read(all()) }, total);
            assert!(memory == expected);
            memory.fill(0xee);
            // SAFETY: as above; nothing shortens the file.
            assert!(unsafe { mapping.copy(all()) });
            assert!(memory == expected);
            memory.iter_mut().for_each(|byte| *byte = !*byte);
            let mut changed = original.clone();
            for &(offset, len, target) in &spans {
                changed[offset..][..len].copy_from_slice(&memory[target..][..len]);
            }
            // SAFETY: as above.
            assert_eq!(unsafe { mapping.write(all()) }, total);
            assert!(contents(&file) == changed);
        }
    }

    #[test]
    fn reads_stop_at_a_page_that_is_gone() {
        let page = page_bytes() as usize;
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![1; 4 * page], 0).unwrap();
        let mapping = Mapping::for_read(&file, 4 * page).unwrap();
        file.set_len(2 * page as u64).unwrap();
        let mut memory = vec![0; 4 * page];
        let start = memory.as_mut_ptr();
        let span = |number: usize| Span {
            offset: (number * page) as u64,
            len_bytes: page,
            ptr: start.wrapping_add(number * page),
        };
        // SAFETY: the memory is this test's, and long enough.
        let read = |numbers: [usize; 4]| unsafe { mapping.read(numbers.into_iter().map(span)) };
        assert_eq!(read([0, 1, 2, 3]), 2 * page);
        assert_eq!(read([3, 0, 1, 2]), 0);
        assert_eq!(read([1, 3, 0, 2]), page);
        let beyond = Span { offset: 4 * page as u64, len_bytes: 1, ptr: start };
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.read([span(0), beyond, span(1)].into_iter()) }, page);
        for (offset, len_bytes) in [(4 * page as u64, 1), (1, usize::MAX), (u64::MAX, 1)] {
            // SAFETY: as above.
            assert!(!unsafe { mapping.copy([Span { offset, len_bytes, ptr: start }].into_iter()) });
        }
        assert_eq!(memory[..2 * page], vec![1; 2 * page]);
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
            assert_eq!((mapping.len_bytes(), write(&mapping, &[1], 0)), (0, 0));
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
