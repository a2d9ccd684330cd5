//! The kernel's calls that move bytes.

use std::ffi::c_int;
use std::os::fd::RawFd;

use libc::off_t;

use crate::c;

/// Calls `pread` or `pwrite` until all bytes are moved, the file ends or the kernel refuses.
pub(super) fn transfer(
    fd: RawFd,
    pointer: *mut u8,
    size: usize,
    file_offset: off_t,
    write: bool,
) -> Result<usize, c_int> {
    let mut done = 0;
    while done < size {
        let at = pointer.wrapping_add(done);
        let offset = file_offset.checked_add(done as off_t).ok_or(libc::EINVAL)?;
        // SAFETY: the range was checked against its allocation. Host memory that CUDA does not know is valid by
        // the C caller's promise. The kernel refuses invalid addresses.
        let moved = unsafe {
            match write {
                true => libc::pwrite(fd, at.cast_const().cast(), size - done, offset),
                false => libc::pread(fd, at.cast(), size - done, offset),
            }
        };
        match usize::try_from(moved) {
            Ok(0) => break,
            Ok(moved) => done += moved,
            Err(_) if c::errno() == libc::EINTR => {}
            Err(_) if done > 0 => break,
            Err(_) => return Err(c::errno()),
        }
    }
    Ok(done)
}
