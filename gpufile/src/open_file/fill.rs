//! New pages of files in memory, filled as they are allocated (`userfaultfd`). Without it, the kernel clears each page
//! before its bytes are copied there, and writes of one file wait for each other.

use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::OpenFile;
use super::mapping::{Mapping, Span};
use super::outcome::Stop;
use super::page_cache::page_bytes;
use super::posix::write_full;

/// The number of pages below which one write call is as fast.
const FEW_PAGES: usize = 16;

/// A range behind the old end of a file of tmpfs, to whose pages threads copy bytes, each page once.
#[derive(Debug)]
pub(crate) struct Fill {
    mapping: Mapping,
    pages: MissingPages,
}

impl Fill {
    /// Makes the file longer, to the end of `range`, and prepares its pages. The pages are allocated when they are filled.
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

    /// Writes spans of host memory, in order: whole pages by filling them, the ends by write calls. Returns the number
    /// of bytes before the first page that the kernel did not fill: it exists, or no memory is left.
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

    /// Writes one span, as [`write`](Self::write) does.
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

    /// Returns the part of a span whose pages lie wholly in it. The part is empty if it is short, and `None` if the span
    /// does not lie in the mapping.
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

/// The kernel's object by which a process fills the pages of its mappings. It is never read, because only
/// [`fill`](Self::fill) touches the mappings.
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

    /// Fills pages from a part of a span. Returns the number of bytes before the first page that the kernel did not fill.
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
mod tests;
