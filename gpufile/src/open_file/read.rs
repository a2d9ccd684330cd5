//! Reads of one file into host memory, by `O_DIRECT` or through the page cache, and into device memory by cuFile.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::{io, iter, ptr};

use cufile::FileHandle;

use super::direct::Direct;
use super::file_system::{FileSystem, known_len_bytes};
use super::mapping::Mapping;
use super::outcome::{Outcome, Stop, done_bytes};
use super::page_cache;
use super::posix::{one_by_one, read_adjacent, read_full};
use super::{OpenFile, device_route};
use crate::gpu::bounce::Bounce;
use crate::memory::Memory;
use crate::settings::DirectIo;
use crate::settings::available::available_bytes;
use crate::storage::Span;

/// The fewest bytes of a read that are worth an `O_DIRECT` request, or a check of the page cache.
pub(super) const DIRECT_MIN_BYTES: usize = 128 << 10;

/// The result of a read into a bounce buffer, in which the bytes begin at `start`.
pub(crate) struct BounceRead {
    pub start: usize,
    pub outcome: Outcome,
}

impl OpenFile {
    /// Reads into the bounce buffer, behind its first `end` bytes, and leaves room for `behind_bytes` more.
    pub fn read_to_bounce(
        &self,
        bounce: &mut Bounce,
        end: usize,
        offset: u64,
        len_bytes: usize,
        behind_bytes: usize,
    ) -> BounceRead {
        let room = (end, bounce.len_bytes());
        let direct = self.direct_for_read(offset, len_bytes).and_then(|direct| {
            let start = direct.alignment.place_for_read(room, offset, len_bytes, behind_bytes)?;
            Some((direct, start))
        });
        let start = direct.map_or(end, |(_, start)| start);
        let target = match bounce.part(start, len_bytes) {
            Ok(target) => target,
            Err(error) => return BounceRead { start, outcome: Err(Stop::failed(0, error)) },
        };
        let done = match direct {
            // SAFETY: `place_for_read` found room in the bounce buffer for the enclosing range, and nothing else uses
            // the buffer.
            Some((direct, _)) => unsafe { direct.read_enclosing(target, len_bytes, offset) },
            None => 0,
        };
        // SAFETY: `part` returned the address of `len_bytes` bytes, which nothing else uses.
        let outcome = unsafe { self.read_rest(target, len_bytes, offset, done) };
        BounceRead { start, outcome }
    }

    /// # Safety
    /// `target` must be valid for writes of `len_bytes`, and nothing else may use it during the call.
    pub unsafe fn read_to_host(
        &self,
        target: *mut u8,
        len_bytes: usize,
        offset: u64,
        bounce: &mut Bounce,
    ) -> Outcome {
        let mut done = 0;
        if let Some(direct) = self.direct_for_read(offset, len_bytes) {
            let most = direct.alignment.most_bytes(bounce.len_bytes());
            if direct.alignment.fits(target, offset, len_bytes) {
                // SAFETY: the caller's promise.
                done = unsafe { direct.read_enclosing(target, len_bytes, offset) };
            } else if most > 0 {
                while done < len_bytes {
                    let some = (len_bytes - done).min(most);
                    let read = self.read_to_bounce(bounce, 0, offset + done as u64, some, 0);
                    let count = done_bytes(&read.outcome, some);
                    let source = bounce.part(read.start, count).map_err(|error| Stop::failed(done, error))?;
                    // SAFETY: both ranges have `count` bytes, and the engine owns the bounce buffer.
                    unsafe { ptr::copy_nonoverlapping(source, target.add(done), count) };
                    read.outcome.map_err(|stop| stop.after(done))?;
                    done += count;
                }
                return Ok(());
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.read_rest(target, len_bytes, offset, done) }
    }

    /// Reads spans of host memory that follow each other in the file and have `len_bytes` together.
    ///
    /// # Safety
    /// As for [`read_to_host`](Self::read_to_host), for each span.
    pub unsafe fn read_adjacent_to_host(
        &self,
        spans: impl Iterator<Item = Span>,
        len_bytes: usize,
        offset: u64,
        bounce: &mut Bounce,
    ) -> Outcome {
        if self.direct_for_read(offset, len_bytes).is_none() {
            // SAFETY: the caller's promise.
            return unsafe { read_adjacent(self, spans) };
        }
        one_by_one(spans, |Span { offset, len_bytes, ptr }| {
            // SAFETY: the caller's promise.
            unsafe { self.read_to_host(ptr, len_bytes, offset, bounce) }
        })
    }

    /// Reads spans from a mapping of this file. System calls read what the kernel cannot copy from there, so the read
    /// is short if the file was truncated.
    ///
    /// # Safety
    /// As for [`Mapping::read`].
    pub unsafe fn read_mapped(
        &self,
        mapping: &Mapping,
        spans: impl Iterator<Item = Span> + Clone,
    ) -> Outcome {
        // SAFETY: the caller's promise, and that of `trusted`.
        if mapping.is_trusted && unsafe { mapping.copy(spans.clone()) } {
            return Ok(());
        }
        let (mut total_bytes, mut end) = (0, 0);
        let counted = spans.clone().inspect(|span| {
            total_bytes += span.len_bytes;
            end = end.max(span.offset + span.len_bytes as u64);
        });
        // SAFETY: the caller's promise.
        let copied = unsafe { mapping.read(counted) };
        // The end of a truncated file reads as zeros up to the end of its page.
        let is_whole = || self.len_bytes().is_ok_and(|len_bytes| len_bytes >= end);
        if copied == total_bytes && is_whole() {
            return Ok(());
        }
        one_by_one(spans, |Span { offset, len_bytes, ptr }| {
            // SAFETY: the caller's promise.
            unsafe { self.read_rest(ptr, len_bytes, offset, 0) }
        })
    }

    /// Reads a few bytes into host memory, from the mapping if there is one.
    ///
    /// # Safety
    /// As for [`read_to_host`](Self::read_to_host).
    pub unsafe fn read_small_to_host(&self, target: *mut u8, len_bytes: usize, offset: u64) -> Outcome {
        match &self.mapped {
            // SAFETY: the caller's promise.
            Some(mapping) => unsafe {
                self.read_mapped(mapping, iter::once(Span { offset, len_bytes, ptr: target }))
            },
            // SAFETY: the caller's promise.
            None => unsafe { self.read_rest(target, len_bytes, offset, 0) },
        }
    }

    /// Reads a few bytes into host memory if the page cache has them all, without waiting for the storage. Returns false if it
    /// has not, or if only a read that may wait can tell. Some bytes may have been read then.
    ///
    /// # Safety
    /// As for [`read_to_host`](Self::read_to_host).
    pub unsafe fn read_cached(&self, target: *mut u8, len_bytes: usize, offset: u64) -> bool {
        if self.stored.is_some() || self.mapped.is_some() || !self.is_buffered_read(len_bytes) {
            return false;
        }
        let Ok(at) = libc::off_t::try_from(offset) else { return false };
        let file = self.file.as_raw_fd();
        let done = if !self.file_system.has_slow_misses() {
            // tmpfs has no such reads, and has its bytes in memory.
            // SAFETY: the caller's promise.
            unsafe { libc::pread(file, target.cast(), len_bytes, at) as libc::c_long }
        } else if self.waits_for_misses.load(Ordering::Relaxed) {
            return false;
        } else {
            let part = libc::iovec { iov_base: target.cast(), iov_len: len_bytes };
            // By its number: the function is in glibc 2.26 and newer only.
            // SAFETY: the caller's promise. On 64-bit kernels, the first half of the offset is all of it.
            unsafe { libc::syscall(libc::SYS_preadv2, file, &raw const part, 1, at, 0, libc::RWF_NOWAIT) }
        };
        if done < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN) {
            // The file system or the kernel has no such reads; or it has an error, which a worker will find.
            self.waits_for_misses.store(true, Ordering::Relaxed);
        }
        done == len_bytes as libc::c_long
    }

    /// Reads the bytes after the first `done` bytes, through the page cache.
    ///
    /// # Safety
    /// As for [`read_to_host`](Self::read_to_host).
    pub unsafe fn read_rest(&self, target: *mut u8, len_bytes: usize, offset: u64, done: usize) -> Outcome {
        // SAFETY: the caller's promise; the call writes behind the bytes that were read already.
        let rest = unsafe { read_full(self, target.add(done), len_bytes - done, offset + done as u64) };
        rest.map_err(|stop| stop.after(done))
    }

    pub fn read_cufile(&self, handle: &FileHandle, memory: &mut Memory, offset: u64) -> Outcome {
        device_route::read_cufile(handle, memory, offset, self.counters(), || known_len_bytes(&self.file))
    }

    /// Returns whether a read of `len_bytes` certainly uses no `O_DIRECT`.
    pub fn is_buffered_read(&self, len_bytes: usize) -> bool {
        match self.settings.direct_read {
            _ if self.stored.is_some() => true,
            DirectIo::Always => false,
            DirectIo::Never => true,
            DirectIo::Auto => len_bytes < DIRECT_MIN_BYTES || !self.file_system.has_slow_misses(),
        }
    }

    /// Returns whether the file may have more contents than its length states, as in procfs and debugfs. For a read in
    /// the middle, the kernel generates all bytes before.
    pub fn is_generated(&self) -> bool {
        self.file_system == FileSystem::Other
            && self.file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
    }

    /// As [`direct_for_read`](Self::direct_for_read), by the first bytes of a long read.
    pub fn direct_for_long_read(&self, offset: u64, len_bytes: usize) -> Option<&Direct> {
        self.direct_for_read(offset, len_bytes.min(DIRECT_MIN_BYTES))
    }

    /// Returns the `O_DIRECT` descriptor if a read should use it.
    pub(super) fn direct_for_read(&self, offset: u64, len_bytes: usize) -> Option<&Direct> {
        if self.is_buffered_read(len_bytes) {
            return None;
        }
        let mode = self.settings.direct_read;
        if mode == DirectIo::Auto && self.fits_page_cache() {
            return None;
        }
        let direct = self.direct()?;
        // Cached bytes are faster to read from the cache. Earlier reads may have brought a few pages of the
        // range into it.
        let uncached = || {
            page_cache::residency(&self.file, offset..offset.saturating_add(len_bytes as u64)).is_ok_and(
                |residency| residency.cached * 2 < residency.pages && residency.dirty.unwrap_or(0) == 0,
            )
        };
        let aligned = || self.settings.overread || direct.alignment.fits(ptr::null(), offset, len_bytes);
        ((mode == DirectIo::Always || uncached()) && aligned()).then_some(direct)
    }

    /// Returns whether the page cache can keep the whole file.
    pub(super) fn fits_page_cache(&self) -> bool {
        let most = match self.most_cached_bytes.load(Ordering::Relaxed) {
            // Another thread may ask at the same time. A lock could stay taken in a forked child.
            0 => available_bytes() / 2,
            known => known,
        };
        self.most_cached_bytes.store(most, Ordering::Relaxed);
        // Files that are not regular, such as disks, have no length.
        self.file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() <= most)
    }
}
