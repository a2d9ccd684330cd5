//! Locks of files and folders (`flock`), by which processes tell that they live.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

/// Takes the lock of a file, if nobody has it.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if somebody has it; another kind if the file system has no locks.
pub(super) fn try_lock(file: &fs::File) -> io::Result<()> {
    // SAFETY: takes integers.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
