//! New pages of files in memory, filled as they are allocated (`userfaultfd`). Without it, the kernel clears each page
//! before its bytes are copied there, and writes of one file wait for each other.

use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::OpenFile;
use super::mapping::Mapping;
use super::outcome::Stop;
use super::page_cache::page_bytes;
use super::posix::write_full;
use crate::storage::Span;

/// With fewer pages, one write call is as fast.
const FEW_PAGES: usize = 16;

/// A range behind the old end of a file of tmpfs, whose pages threads fill, each once.
#[derive(Debug)]
pub(crate) struct Fill {
    mapping: Mapping,
    pages: MissingPages,
}

impl Fill {
    /// Makes the file longer, to the end of `range`, and prepares its pages, which are allocated when filled.
    ///
    /// # Errors
    /// The error that the kernel returned. Containers may forbid `userfaultfd`; then the file has its old length.
    pub fn new(open: &OpenFile, range: Range<u64>) -> io::Result<Self> {
        let pages = MissingPages::new()?;
        // A file that another program makes longer at the same time does not become shorter.
        if range.is_empty() || !open.allocate(range.end - 1, 1) {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping::for_writing_once(&open.file, range)?;
        pages.register(mapping.addresses())?;
        Ok(Self { mapping, pages })
    }

    /// Writes spans of host memory, in order: fills whole pages, and writes the ends. Returns the bytes before the first
    /// page that the kernel did not fill: it exists, or no memory is left.
    ///
    /// # Errors
    /// A write call that failed.
    ///
    /// # Safety
    /// The memory of the spans must be valid for reads, and nothing may write it.
    pub unsafe fn write(&self, open: &OpenFile, spans: impl Iterator<Item = Span>) -> Result<usize, Stop> {
        let mut done = 0;
        for span in spans {
            // SAFETY: the caller's promise.
            let bytes = unsafe { self.write_span(open, span) }.map_err(|stop| stop.after(done))?;
            done += bytes;
            if bytes < span.len_bytes {
                break;
            }
        }
        Ok(done)
    }

    /// As [`write`](Self::write), for one span.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    unsafe fn write_span(&self, open: &OpenFile, span: Span) -> Result<usize, Stop> {
        let Some(pages) = self.whole_pages(&span) else { return Ok(0) };
        let call = |part: Range<usize>| {
            let (source, at) = (span.ptr.wrapping_add(part.start), span.offset + part.start as u64);
            // SAFETY: the caller's promise, for a part of the span.
            unsafe { write_full(open, source, part.len(), at) }.map_err(|stop| stop.after(part.start))
        };
        call(0..pages.start)?;
        let start = span.offset + pages.start as u64;
        let filled = self.pages.fill(self.mapping.at(start), &span, &pages);
        self.mapping.unmap(start, filled);
        if filled < pages.len() {
            return Ok(pages.start + filled);
        }
        call(pages.end..span.len_bytes)?;
        Ok(span.len_bytes)
    }

    /// Returns the whole pages of a span, none if it is short; `None` if it does not lie in the mapping.
    fn whole_pages(&self, span: &Span) -> Option<Range<usize>> {
        if !self.mapping.has(span) {
            return None;
        }
        let page = page_bytes() as usize;
        let before = (span.offset.next_multiple_of(page as u64) - span.offset) as usize;
        let inside = span.len_bytes.saturating_sub(before) / page * page;
        Some(match inside / page {
            0..FEW_PAGES => span.len_bytes..span.len_bytes,
            _ => before..before + inside,
        })
    }
}

/// The `userfaultfd`. It is never read, because only [`fill`](Self::fill) touches the mappings.
#[derive(Debug)]
struct MissingPages(OwnedFd);

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len_bytes: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    target: u64,
    source: u64,
    len_bytes: u64,
    mode: u64,
    copied: i64,
}

/// Returns the number of a request of `userfaultfd` that reads and writes a `T`.
const fn request<T>(number: libc::c_ulong) -> libc::c_ulong {
    const READ_AND_WRITE: libc::c_ulong = 3;
    const UFFDIO: libc::c_ulong = 0xAA;
    READ_AND_WRITE << 30 | (size_of::<T>() as libc::c_ulong) << 16 | UFFDIO << 8 | number
}

impl MissingPages {
    /// # Errors
    /// The error of `userfaultfd`: `EPERM` where containers forbid it, `ENOSYS`.
    fn new() -> io::Result<Self> {
        /// `UFFD_USER_MODE_ONLY`, which needs no privilege.
        const USER_MODE_ONLY: libc::c_int = 1;
        const UFFD_API: u64 = 0xAA;
        // SAFETY: the call takes an integer.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        let fd = libc::c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the call returned a new descriptor.
        let new = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        new.ask(0x3F, &mut Api { api: UFFD_API, features: 0, ioctls: 0 })?;
        Ok(new)
    }

    /// Makes pages of a mapping missing until they are filled. A mapping ends its registration.
    fn register(&self, addresses: Range<usize>) -> io::Result<()> {
        const MISSING: u64 = 1;
        let page = page_bytes() as usize;
        let len_bytes = addresses.len().next_multiple_of(page) as u64;
        self.ask(0, &mut Register { start: addresses.start as u64, len_bytes, mode: MISSING, ioctls: 0 })
    }

    /// Fills pages from a part of a span. Returns the bytes before the first page that the kernel did not fill.
    fn fill(&self, target: *mut u8, span: &Span, part: &Range<usize>) -> usize {
        if part.is_empty() {
            return 0;
        }
        let mut copy = Copy {
            target: target.addr() as u64,
            source: span.ptr.wrapping_add(part.start).addr() as u64,
            len_bytes: part.len() as u64,
            mode: 0,
            copied: 0,
        };
        match self.ask(3, &mut copy) {
            Ok(()) => part.len(),
            // A negative number is the error, as `ask` returns it.
            Err(_) => usize::try_from(copy.copied).unwrap_or(0).min(part.len()),
        }
    }

    fn ask<T>(&self, number: libc::c_ulong, argument: &mut T) -> io::Result<()> {
        // SAFETY: the argument is what the request reads and writes.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request::<T>(number) as _, argument as *mut T) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Barrier;
    use std::{io, thread};

    use super::*;
    use crate::error::Cause;
    use crate::settings::Settings;

    const MIB: usize = 1 << 20;

    /// Returns a file of tmpfs, and pages of it to fill. `None` where the kernel forbids that.
    fn filled(old_bytes: usize, range: Range<u64>) -> Option<(OpenFile, Fill)> {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.write_all_at(&vec![9; old_bytes], 0).unwrap();
        let open = OpenFile::for_test(file, Settings::default());
        match Fill::new(&open, range) {
            Ok(fill) => Some((open, fill)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                eprintln!("not checked: filling new pages, which is not permitted here");
                assert_eq!(open.len_bytes().unwrap(), old_bytes as u64);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn write(open: &OpenFile, fill: &Fill, bytes: &[u8], offset: u64) -> usize {
        let span = Span { offset, len_bytes: bytes.len(), ptr: bytes.as_ptr().cast_mut() };
        // SAFETY: the bytes are borrowed.
        unsafe { fill.write(open, [span].into_iter()) }.unwrap()
    }

    fn contents(open: &OpenFile) -> Vec<u8> {
        let mut bytes = vec![0; open.len_bytes().unwrap() as usize];
        open.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn pattern(len_bytes: usize, seed: usize) -> Vec<u8> {
        (0..len_bytes).map(|at| ((at + seed) * 31 % 251) as u8).collect()
    }

    #[test]
    fn spans_with_unaligned_ends_are_written_whole() {
        let (old_bytes, end) = (5000, 3 * MIB + 77);
        let Some((open, fill)) = filled(old_bytes, old_bytes as u64..end as u64) else { return };
        let new = pattern(end - old_bytes, 0);
        assert_eq!(open.len_bytes().unwrap(), end as u64);
        // A short one, two that share a page, a long one, and the last page, which exists.
        let mut start = 0;
        for len_bytes in [100, MIB + 3, 70_001, 4096 * 16, end] {
            let part = &new[start..(start + len_bytes).min(new.len())];
            assert_eq!(write(&open, &fill, part, (old_bytes + start) as u64), part.len());
            start += part.len();
        }
        assert!(contents(&open) == [vec![9; old_bytes], new].concat());
    }

    #[test]
    fn spans_outside_of_the_new_range_are_refused() {
        let Some((open, fill)) = filled(8192, 8192..(8192 + MIB) as u64) else { return };
        let bytes = pattern(MIB, 1);
        assert_eq!(write(&open, &fill, &bytes, 4096), 0);
        assert_eq!(write(&open, &fill, &bytes, 8193), 0);
        assert_eq!(write(&open, &fill, &bytes, u64::MAX - 10), 0);
        assert!(contents(&open) == [vec![9; 8192], vec![0; MIB]].concat());
    }

    #[test]
    fn pages_that_exist_are_left_to_the_caller() {
        let page = page_bytes() as usize;
        let Some((open, fill)) = filled(0, 0..MIB as u64) else { return };
        open.file.write_all_at(&[5], 20 * page as u64).unwrap();
        let bytes = pattern(MIB, 2);
        assert_eq!(write(&open, &fill, &bytes, 0), 20 * page);
        assert_eq!(write(&open, &fill, &bytes[21 * page..200 * page], 21 * page as u64), 179 * page);
        let mut expected = [&bytes[..200 * page], &vec![0; MIB - 200 * page]].concat();
        expected[20 * page..21 * page].fill(0);
        expected[20 * page] = 5;
        assert!(contents(&open) == expected);
    }

    #[test]
    fn files_shortened_meanwhile_get_their_bytes_again() {
        let Some((open, fill)) = filled(0, 0..4 * MIB as u64) else { return };
        let bytes = pattern(4 * MIB, 3);
        open.file.set_len(MIB as u64 + 5).unwrap();
        // The kernel fills no page behind the end.
        let done = write(&open, &fill, &bytes, 0);
        assert!((MIB..MIB + 4096 + 5).contains(&done), "{done}");
        assert!(contents(&open)[..MIB] == bytes[..MIB]);
    }

    #[test]
    fn files_made_longer_by_others_keep_their_length() {
        let Some((open, fill)) = filled(0, 0..MIB as u64) else { return };
        drop(fill);
        open.file.write_all_at(&[1], 5 * MIB as u64).unwrap();
        let fill = Fill::new(&open, MIB as u64..2 * MIB as u64).unwrap();
        assert_eq!(open.len_bytes().unwrap(), 5 * MIB as u64 + 1);
        assert_eq!(write(&open, &fill, &pattern(MIB - 4096, 4), MIB as u64), MIB - 4096);
    }

    #[test]
    fn threads_fill_parts_that_share_pages() {
        const PART: usize = 100_003;
        let Some((open, fill)) = filled(0, 0..(16 * PART) as u64) else { return };
        let (bytes, barrier) = (pattern(16 * PART, 5), Barrier::new(8));
        let write_half = |first: usize| {
            barrier.wait();
            for part in (first..16).step_by(8) {
                let at = part * PART;
                // The last page exists.
                let done = write(&open, &fill, &bytes[at..at + PART], at as u64);
                open.file.write_all_at(&bytes[at + done..at + PART], (at + done) as u64).unwrap();
            }
        };
        thread::scope(|scope| (0..8).for_each(|first| drop(scope.spawn(move || write_half(first)))));
        assert!(contents(&open) == bytes);
    }

    #[test]
    fn unreadable_memory_is_no_signal() {
        let Some((open, fill)) = filled(0, 0..MIB as u64) else { return };
        let span = Span { offset: 0, len_bytes: MIB - 8192, ptr: std::ptr::without_provenance_mut(4096) };
        // SAFETY: not kept: the kernel checks the addresses.
        assert_eq!(unsafe { fill.write(&open, [span].into_iter()) }.unwrap(), 0);
    }

    #[test]
    fn failed_write_calls_are_reported() {
        // SAFETY: the name ends with a NUL.
        let fd = unsafe { libc::memfd_create(c"filled".as_ptr(), libc::MFD_ALLOW_SEALING) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        let open = OpenFile::for_test(unsafe { FromRawFd::from_raw_fd(fd) }, Settings::default());
        let Ok(fill) = Fill::new(&open, 0..4 * MIB as u64) else {
            return eprintln!("not checked: filling new pages, which is not permitted here");
        };
        // From now on write calls fail, and mappings that exist stay writable.
        // SAFETY: the call takes integers only.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) }, 0);
        let bytes = pattern(MIB, 6);
        let span = |offset, range: Range<usize>| Span {
            offset,
            len_bytes: range.len(),
            ptr: bytes[range].as_ptr().cast_mut(),
        };
        for (spans, expected) in [
            (vec![span(0, 0..MIB)], Ok(MIB)),
            (vec![span(100, 0..MIB)], Err(0)),
            (vec![span(MIB as u64, 0..MIB), span(2 * MIB as u64, 0..MIB - 5)], Err(2 * MIB - 4096)),
            (vec![span(3 * MIB as u64, 0..100)], Err(0)),
        ] {
            // SAFETY: the bytes are borrowed.
            let written = unsafe { fill.write(&open, spans.into_iter()) };
            let of_system = |stop: &Stop| matches!(&stop.cause, Some(Cause::Io(error)) if error.raw_os_error() == Some(libc::EPERM));
            assert!(written.as_ref().err().is_none_or(of_system), "{written:?}");
            assert_eq!(written.map_err(|stop| stop.done_bytes), expected);
        }
    }

    #[test]
    fn files_on_disks_cannot_be_filled() {
        let open = OpenFile::for_test(tempfile::tempfile_in(".").unwrap(), Settings::default());
        let error: io::Error = Fill::new(&open, 0..MIB as u64).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM | libc::ENOSYS)), "{error}");
    }
}
