//! Descriptors and forks.

use std::io;
use std::os::fd::AsRawFd;

use cufile_sys::{CUfileDescr_t, CUfileFileHandleType};

pub use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

pub fn raw(file: BorrowedFd<'_>) -> RawFd {
    file.as_raw_fd()
}

pub fn lend(file: &impl AsFd) -> BorrowedFd<'_> {
    file.as_fd()
}

/// # Safety
/// The descriptor must stay open as long as the result is used.
pub unsafe fn borrow<'fd>(file: RawFd) -> BorrowedFd<'fd> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(file) }
}

pub fn description(file: RawFd) -> CUfileDescr_t {
    let type_ = CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    let mut description = CUfileDescr_t { type_, ..Default::default() };
    description.handle.fd = file;
    description
}

pub fn sync(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::fsync(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the system call a function in each child that is forked from now on. Returns whether it will.
///
/// # Safety
/// The function must do only what is allowed between fork and exec.
pub unsafe fn call_in_children(function: extern "C" fn()) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::pthread_atfork(None, None, Some(function)) == 0 }
}
