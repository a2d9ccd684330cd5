//! Positional reads and writes that go on until they are done.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most bytes that one call of the kernel moves, on every Linux file system: 2 GiB less a page.
const KERNEL_LIMIT: usize = 0x7fff_f000;

/// Reads up to `len` bytes from `offset` to `target`; fewer only at the end of the file. On failure also says how many
/// bytes had been read before.
///
/// # Safety
/// `target` must be valid for writes of `len` bytes by the kernel.
pub(crate) unsafe fn read_full(
    file: BorrowedFd<'_>,
    target: *mut u8,
    len: usize,
    offset: u64,
) -> Result<usize, (usize, io::Error)> {
    // SAFETY: the caller's promise, within `len`.
    transfer(len, offset, |done, piece, at| unsafe {
        libc::pread(file.as_raw_fd(), target.add(done).cast(), piece, at)
    })
}

/// Writes all of `len` bytes from `source` to `offset`. On failure also says how many bytes had been written before.
///
/// # Safety
/// `source` must be valid for reads of `len` bytes by the kernel.
pub(crate) unsafe fn write_full(
    file: BorrowedFd<'_>,
    source: *const u8,
    len: usize,
    offset: u64,
) -> Result<(), (usize, io::Error)> {
    // SAFETY: the caller's promise, within `len`.
    let done = transfer(len, offset, |done, piece, at| unsafe {
        libc::pwrite(file.as_raw_fd(), source.add(done).cast(), piece, at)
    })?;
    if done < len { Err((done, io::ErrorKind::WriteZero.into())) } else { Ok(()) }
}

fn transfer(
    len: usize,
    offset: u64,
    call: impl Fn(usize, usize, libc::off_t) -> isize,
) -> Result<usize, (usize, io::Error)> {
    let mut done = 0;
    while done < len {
        let at = offset.checked_add(done as u64).and_then(|at| libc::off_t::try_from(at).ok());
        let Some(at) = at else { return Err((done, io::Error::from_raw_os_error(libc::EOVERFLOW))) };
        match call(done, (len - done).min(KERNEL_LIMIT), at) {
            0 => break,
            count if count > 0 => done += count as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err((done, error));
                }
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn partial_transfers_go_on_where_they_stopped() {
        let calls = RefCell::new(Vec::new());
        let done = transfer(10, 100, |done, piece, at| {
            calls.borrow_mut().push((done, piece, at));
            piece.min(4) as isize
        });
        assert_eq!(done.unwrap(), 10);
        assert_eq!(*calls.borrow(), [(0, 10, 100), (4, 6, 104), (8, 2, 108)]);
    }

    #[test]
    fn the_end_of_the_file_ends_the_transfer_short() {
        assert_eq!(transfer(10, 0, |done, _, _| if done == 0 { 7 } else { 0 }).unwrap(), 7);
    }

    #[test]
    fn an_offset_that_overflows_is_an_error_after_the_bytes_before_it() {
        let (done, error) = transfer(10, i64::MAX as u64 - 3, |_, _, _| 4).unwrap_err();
        assert_eq!((done, error.raw_os_error()), (4, Some(libc::EOVERFLOW)));
        assert!(transfer(1, u64::MAX, |_, _, _| 1).is_err());
    }

    #[test]
    fn no_call_asks_for_more_than_the_kernel_moves() {
        let done = transfer(5 << 30, 0, |_, piece, _| {
            assert!(piece <= KERNEL_LIMIT);
            piece as isize
        });
        assert_eq!(done.unwrap(), 5 << 30);
    }
}
