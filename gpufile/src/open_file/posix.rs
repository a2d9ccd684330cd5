//! Positional reads and writes that continue until all bytes are transferred.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::outcome::{Outcome, Stop};

/// The most bytes that one call of the kernel moves, on every Linux file system: 2 GiB minus a page.
const KERNEL_LIMIT: usize = 0x7fff_f000;

/// Reads `len` bytes from `offset` to `target`.
///
/// # Safety
/// `target` must be valid for writes of `len` bytes by the kernel.
pub(super) unsafe fn read_full(file: BorrowedFd<'_>, target: *mut u8, len: usize, offset: u64) -> Outcome {
    // SAFETY: the caller's promise; the call stays within `len`.
    transfer(len, offset, |done, chunk, at| unsafe {
        libc::pread(file.as_raw_fd(), target.add(done).cast(), chunk, at)
    })
}

/// Writes `len` bytes from `source` to `offset`.
///
/// # Safety
/// `source` must be valid for reads of `len` bytes by the kernel.
pub(super) unsafe fn write_full(file: BorrowedFd<'_>, source: *const u8, len: usize, offset: u64) -> Outcome {
    // SAFETY: the caller's promise; the call stays within `len`.
    let outcome = transfer(len, offset, |done, chunk, at| unsafe {
        libc::pwrite(file.as_raw_fd(), source.add(done).cast(), chunk, at)
    });
    outcome.map_err(|stop| match stop.cause {
        None => Stop::failed(stop.done_bytes, io::Error::from(io::ErrorKind::WriteZero)),
        Some(_) => stop,
    })
}

/// Repeats a call until `len` bytes are transferred, the call moves nothing, or the call fails.
fn transfer(len: usize, offset: u64, call: impl Fn(usize, usize, libc::off_t) -> isize) -> Outcome {
    let mut done = 0;
    while done < len {
        let at = offset.checked_add(done as u64).and_then(|at| libc::off_t::try_from(at).ok());
        let Some(at) = at else {
            return Err(Stop::failed(done, io::Error::from_raw_os_error(libc::EOVERFLOW)));
        };
        match call(done, (len - done).min(KERNEL_LIMIT), at) {
            0 => return Err(Stop::end_of_file(done)),
            count if count > 0 => done += count as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(Stop::failed(done, error));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::error::Cause;
    use crate::outcome::done_bytes;

    #[test]
    fn partial_transfers_continue_at_their_end() {
        let calls = RefCell::new(Vec::new());
        let outcome = transfer(10, 100, |done, chunk, at| {
            calls.borrow_mut().push((done, chunk, at));
            chunk.min(4) as isize
        });
        assert!(outcome.is_ok());
        assert_eq!(*calls.borrow(), [(0, 10, 100), (4, 6, 104), (8, 2, 108)]);
    }

    #[test]
    fn transfers_end_short_at_the_end_of_file() {
        let outcome = transfer(10, 0, |done, _, _| if done == 0 { 7 } else { 0 });
        assert!(matches!(outcome, Err(Stop { done_bytes: 7, cause: None })));
    }

    #[test]
    fn an_overflowing_offset_fails_after_the_bytes_before_it() {
        let Stop { done_bytes, cause } = transfer(10, i64::MAX as u64 - 3, |_, _, _| 4).unwrap_err();
        let Some(Cause::Io(error)) = cause else { panic!("{cause:?}") };
        assert_eq!((done_bytes, error.raw_os_error()), (4, Some(libc::EOVERFLOW)));
        assert!(transfer(1, u64::MAX, |_, _, _| 1).unwrap_err().cause.is_some());
    }

    #[test]
    fn no_call_exceeds_the_kernel_transfer_limit() {
        let outcome = transfer(5 << 30, 0, |_, chunk, _| {
            assert!(chunk <= KERNEL_LIMIT);
            chunk as isize
        });
        assert_eq!(done_bytes(&outcome, 5 << 30), 5 << 30);
    }
}
