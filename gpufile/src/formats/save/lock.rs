//! Locks of files and folders (`flock`). The kernel drops a lock when its process ends.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

/// Takes the lock of a file, if no other process has it.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if another process has it; another kind if the file system has no locks.
pub(super) fn try_lock(file: &fs::File) -> io::Result<()> {
    // SAFETY: takes integers.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
