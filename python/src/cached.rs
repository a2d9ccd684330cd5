//! Actions that never wait for the storage: copies between memory of the host and the kernel's page cache, and some
//! starts of transfers.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use gpufile::{DirectIo, File, IoBuf, IoBufMut};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyByteArrayMethods};

use crate::memory::{Access, Memory};

/// The longest transfer, in bytes, that one thread completes before several would begin.
const LONGEST_BYTES: usize = 256 << 10;

/// The actions of a file that do not wait for the storage.
#[derive(Clone, Copy)]
pub struct Cached {
    copies: Copies,
    /// True if the length of the file is known without asking a server or a program.
    is_local: bool,
}

/// The short transfers that are copies in memory, and never wait for the storage.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copies {
    /// No transfer: the engine bypasses the page cache, or the bytes come from a server.
    Nothing,
    /// Reads of pages that the page cache has.
    Reads,
    /// Reads and writes, on tmpfs.
    Everything,
}

impl Cached {
    /// Returns what a file does without a wait.
    pub fn of(file: &File) -> Self {
        if file.storage().is_some() {
            // The length is known, and each read waits for the server.
            return Self { copies: Copies::Nothing, is_local: true };
        }
        // SAFETY: zeros are valid for a structure of integers.
        let mut status: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `status` outlives the call.
        let found = unsafe { libc::fstatfs(file.as_fd().as_raw_fd(), &mut status) } == 0;
        let settings = file.engine().settings();
        let copies = match found && status.f_type == libc::TMPFS_MAGIC {
            _ if settings.direct_read == DirectIo::Always => Copies::Nothing,
            true if settings.direct_write != DirectIo::Always => Copies::Everything,
            _ => Copies::Reads,
        };
        let is_local = found
            && matches!(
                status.f_type,
                libc::TMPFS_MAGIC
                    | libc::EXT4_SUPER_MAGIC
                    | libc::XFS_SUPER_MAGIC
                    | libc::BTRFS_SUPER_MAGIC
                    | libc::OVERLAYFS_SUPER_MAGIC
            );
        Self { copies, is_local }
    }

    /// Returns whether the engine starts a transfer without a wait. It asks for the length of the file first, unless the
    /// transfer is short, and allocates the blocks of a file that becomes much longer.
    pub fn starts_at_once(self, access: Access, len_bytes: usize) -> bool {
        /// The engine starts shorter transfers without a call to the file system.
        const NO_CALL_BYTES: usize = 1 << 20;
        /// The engine allocates the blocks of shorter writes one by one.
        const ALLOCATED_BYTES: usize = 16 << 20;
        match access {
            _ if len_bytes < NO_CALL_BYTES => true,
            Access::Write => self.is_local,
            Access::Read => self.is_local && len_bytes < ALLOCATED_BYTES,
        }
    }

    /// Returns whether reading or writing short memory is a copy on this file system.
    pub fn is_memory(self, memory: &Memory) -> bool {
        self.copies == Copies::Everything && is_short(memory)
    }

    /// Reads into short memory if the page cache has all bytes, up to the end of the file. Returns the number of bytes.
    /// `None` if the read may wait or fails.
    pub fn read(self, py: Python<'_>, file: &File, memory: &mut Memory, offset: u64) -> Option<usize> {
        match memory.len_bytes() {
            _ if self.copies != Copies::Reads || !is_short(memory) => None,
            len_bytes => {
                let start = memory.as_mut_ptr();
                // SAFETY: the memory is writable, and the caller has it to itself.
                unsafe { self.copy(py, file, start, len_bytes, offset) }
            }
        }
    }

    /// Returns `len_bytes` bytes of a file as an object of Python, if they are copied from memory at once. `None` if
    /// the read may wait or fails, or the file ends early.
    pub fn bytes<'py>(
        self,
        py: Python<'py>,
        file: &File,
        len_bytes: usize,
        offset: u64,
    ) -> PyResult<Option<Bound<'py, PyByteArray>>> {
        if self.copies == Copies::Nothing || len_bytes > LONGEST_BYTES {
            return Ok(None);
        }
        // SAFETY: without a source, the call allocates bytes that have no value yet, or raises.
        let bytes = unsafe {
            let raw = ffi::PyByteArray_FromStringAndSize(ptr::null(), len_bytes as _);
            Bound::from_owned_ptr_or_err(py, raw)?.cast_into_unchecked::<PyByteArray>()
        };
        // SAFETY: the object was made here, and no other code has it.
        let read = unsafe { self.copy(py, file, bytes.data(), len_bytes, offset) };
        Ok((read == Some(len_bytes)).then_some(bytes))
    }

    /// Copies bytes of a file, as [`read`](Self::read) does.
    ///
    /// # Safety
    /// `start` must be valid for writes of `len_bytes`, and nothing else may use it during the call.
    unsafe fn copy(
        self,
        py: Python<'_>,
        file: &File,
        start: *mut u8,
        len_bytes: usize,
        offset: u64,
    ) -> Option<usize> {
        /// The longest copy, in bytes, that takes no longer than to hand Python's lock over and back.
        const WITH_LOCK_BYTES: usize = 16 << 10;
        let target = Target(start);
        // SAFETY: the caller's promise.
        let copy = move || unsafe { self.copy_now(file, target, len_bytes, offset) };
        if len_bytes <= WITH_LOCK_BYTES { copy() } else { py.detach(copy) }
    }

    /// # Safety
    /// As for [`copy`](Self::copy).
    unsafe fn copy_now(
        self,
        file: &File,
        Target(start): Target,
        len_bytes: usize,
        offset: u64,
    ) -> Option<usize> {
        // tmpfs does not take the flag, and has nothing to wait for.
        let flags = if self.copies == Copies::Everything { 0 } else { libc::RWF_NOWAIT };
        let fd = file.as_fd().as_raw_fd();
        let offset = libc::off_t::try_from(offset).ok()?;
        let mut done = 0;
        while done < len_bytes {
            // SAFETY: `done` bytes of the memory were read.
            let rest = libc::iovec { iov_base: unsafe { start.add(done) }.cast(), iov_len: len_bytes - done };
            let at = offset.checked_add(done as _)?;
            // Not by the function of glibc, which has it from 2.26 on.
            // SAFETY: the caller's promise. The 0 is the upper half of the offset where registers have 32 bits.
            let read = unsafe { libc::syscall(libc::SYS_preadv2, fd, &raw const rest, 1, at, 0, flags) };
            match read {
                1.. => done += read as usize,
                0 => break,
                _ => return None,
            }
        }
        file.count_host_read(done);
        Some(done)
    }
}

/// The start of memory that a copy fills, for a closure without Python's lock.
#[derive(Clone, Copy)]
struct Target(*mut u8);

// SAFETY: the thread that made it waits for the closure.
unsafe impl Send for Target {}

fn is_short(memory: &Memory) -> bool {
    memory.location().is_host_accessible && memory.len_bytes() <= LONGEST_BYTES
}
