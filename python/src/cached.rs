//! Transfers that never wait: copies between memory of the host and the kernel's page cache.

use std::os::fd::{AsFd, AsRawFd};

use gpufile::cli_support::count_host_read;
use gpufile::{DirectIo, File, IoBuf, IoBufMut};
use pyo3::prelude::*;

use crate::memory::Memory;

/// The longest transfer, in bytes, that one thread ends sooner than several begin.
const LONGEST_BYTES: usize = 256 << 10;

/// The short transfers between a file and the host that are copies in memory, and never wait for the storage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cached {
    /// None is: the engine bypasses the page cache.
    Nothing,
    /// Reads of pages that the page cache has.
    Reads,
    /// All, on tmpfs.
    Everything,
}

impl Cached {
    /// Returns the transfers of a file that are copies.
    pub fn of(file: &File) -> Self {
        // SAFETY: zeros are valid for a structure of integers.
        let mut status: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `status` outlives the call.
        let found = unsafe { libc::fstatfs(file.as_fd().as_raw_fd(), &mut status) } == 0;
        let settings = file.engine().settings();
        match found && status.f_type == libc::TMPFS_MAGIC {
            _ if settings.direct_read == DirectIo::Always => Self::Nothing,
            true if settings.direct_write != DirectIo::Always => Self::Everything,
            _ => Self::Reads,
        }
    }

    /// Returns whether reading or writing short memory is a copy on this file system.
    pub fn is_memory(self, memory: &Memory) -> bool {
        self == Self::Everything && is_short(memory)
    }

    /// Reads into short memory if the page cache has all bytes, up to the end of the file. Returns the number of bytes.
    /// `None` if the read may wait or fails.
    pub fn read(self, py: Python<'_>, file: &File, memory: &mut Memory, offset: u64) -> Option<usize> {
        /// The longest copy, in bytes, that takes no longer than to hand Python's lock over and back.
        const WITH_LOCK_BYTES: usize = 16 << 10;
        match memory.len_bytes() {
            _ if self != Self::Reads || !is_short(memory) => None,
            ..=WITH_LOCK_BYTES => Self::copy(file, memory, offset),
            _ => py.detach(|| Self::copy(file, memory, offset)),
        }
    }

    fn copy(file: &File, memory: &mut Memory, offset: u64) -> Option<usize> {
        let (fd, start, len_bytes) = (file.as_fd().as_raw_fd(), memory.as_mut_ptr(), memory.len_bytes());
        let offset = libc::off_t::try_from(offset).ok()?;
        let mut done = 0;
        while done < len_bytes {
            // SAFETY: `done` bytes of the memory were read.
            let rest = libc::iovec { iov_base: unsafe { start.add(done) }.cast(), iov_len: len_bytes - done };
            let at = offset.checked_add(done as _)?;
            // Not by the function of glibc, which has it from 2.26 on.
            // SAFETY: the memory is writable, and the caller has it to itself. The 0 is the upper half of the offset
            // where registers have 32 bits.
            let read =
                unsafe { libc::syscall(libc::SYS_preadv2, fd, &raw const rest, 1, at, 0, libc::RWF_NOWAIT) };
            match read {
                1.. => done += read as usize,
                0 => break,
                _ => return None,
            }
        }
        count_host_read(file, done);
        Some(done)
    }
}

fn is_short(memory: &Memory) -> bool {
    memory.location().is_host_accessible && memory.len_bytes() <= LONGEST_BYTES
}
