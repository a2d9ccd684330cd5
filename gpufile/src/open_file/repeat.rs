//! The loop around each call that moves bytes. It continues after a short count, and trusts neither a count that
//! exceeds the request nor an end before the file's own.

use std::io;

use super::outcome::{Outcome, Stop};
use crate::error::Cause;

/// The most bytes that one call of the kernel moves, on every Linux file system: 2 GiB minus a page.
const KERNEL_LIMIT: usize = 0x7fff_f000;

/// Repeats `call` until `len` bytes are moved, or the call fails. `call` gets the number of bytes moved before, and the
/// most to move. It returns the number that it moved.
///
/// A call that moves nothing ends the transfer. If `len_bytes` says that a file has bytes at that place, the call is
/// repeated once, because the file may have grown since. If it still moves nothing, the transfer fails.
pub(super) fn repeat(
    len: usize,
    offset: u64,
    mut call: impl FnMut(usize, usize) -> Result<usize, Cause>,
    len_bytes: impl Fn() -> Option<u64>,
) -> Outcome {
    let mut done = 0;
    let mut was_empty = false;
    while done < len {
        let most = (len - done).min(KERNEL_LIMIT);
        match call(done, most) {
            Ok(0) => {
                let at = offset.saturating_add(done as u64);
                match len_bytes().filter(|end| *end > at) {
                    None => return Err(Stop::end_of_file(done)),
                    Some(end) if was_empty => {
                        return Err(Stop::failed(done, Cause::EndedEarly { at, end }));
                    }
                    Some(_) => was_empty = true,
                }
            }
            Ok(count) if count <= most => {
                done += count;
                was_empty = false;
            }
            Ok(_) => return Err(Stop::failed(done, impossible_count())),
            Err(cause) if is_interruption(&cause) => {}
            Err(cause) => return Err(Stop::failed(done, cause)),
        }
    }
    Ok(())
}

pub(super) fn impossible_count() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

fn is_interruption(cause: &Cause) -> bool {
    let error = match cause {
        Cause::Io(error) => error,
        Cause::Cufile(error) => match &**error {
            cufile::Error::Io { source, .. } => source,
            _ => return false,
        },
        _ => return false,
    };
    error.kind() == io::ErrorKind::Interrupted
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::open_file::outcome::done_bytes;

    /// Repeats a call that returns these counts, and then 0.
    fn counts(len: usize, counts: &[usize], len_bytes: Option<u64>) -> Outcome {
        let mut counts = counts.iter();
        repeat(len, 100, |_, _| Ok(counts.next().copied().unwrap_or(0)), || len_bytes)
    }

    #[test]
    fn partial_transfers_continue_at_their_end() {
        let calls = RefCell::new(Vec::new());
        let call = |done, most: usize| {
            calls.borrow_mut().push((done, most));
            Ok(most.min(4))
        };
        assert!(repeat(10, 100, call, || None).is_ok());
        assert_eq!(*calls.borrow(), [(0, 10), (4, 6), (8, 2)]);
    }

    #[test]
    fn transfers_end_short_only_at_the_end_of_file() {
        for end in [None, Some(0), Some(107)] {
            let stop = counts(10, &[7], end).unwrap_err();
            assert!(matches!(stop, Stop { done_bytes: 7, cause: None }), "{end:?}");
        }
        for end in [108, 1000] {
            let Stop { done_bytes, cause } = counts(10, &[7], Some(end)).unwrap_err();
            let Some(Cause::EndedEarly { at, end: known }) = cause else { panic!("{cause:?}") };
            assert_eq!((done_bytes, at, known), (7, 107, end));
        }
        // The file grew between the call and the question for its length.
        assert!(counts(10, &[7, 0, 3], Some(110)).is_ok());
        assert!(counts(10, &[0, 3, 0, 7], Some(110)).is_ok());
    }

    #[test]
    fn counts_beyond_the_request_are_errors() {
        for (found, before) in [(&[11][..], 0), (&[4, 7], 4), (&[usize::MAX], 0)] {
            let Stop { done_bytes, cause } = counts(10, found, None).unwrap_err();
            let Some(Cause::Io(error)) = cause else { panic!("{cause:?}") };
            assert_eq!((done_bytes, error.raw_os_error()), (before, Some(libc::EIO)));
        }
        assert!(counts(10, &[4, 6], None).is_ok());
    }

    #[test]
    fn interrupted_calls_are_repeated() {
        let calls = Cell::new(0);
        let call = |_, most| {
            calls.set(calls.get() + 1);
            match calls.get() {
                1 => Err(io::Error::from(io::ErrorKind::Interrupted).into()),
                _ => Ok(most),
            }
        };
        assert!(repeat(10, 0, call, || None).is_ok());
        assert_eq!(calls.get(), 2);
        let failing = |_, _| Err(io::Error::from_raw_os_error(libc::EFAULT).into());
        assert!(matches!(repeat(10, 0, failing, || None), Err(Stop { done_bytes: 0, cause: Some(_) })));
    }

    #[test]
    fn no_call_exceeds_the_kernel_transfer_limit() {
        let call = |_, most| {
            assert!(most <= KERNEL_LIMIT);
            Ok(most)
        };
        assert_eq!(done_bytes(&repeat(5 << 30, 0, call, || None), 5 << 30), 5 << 30);
    }
}
