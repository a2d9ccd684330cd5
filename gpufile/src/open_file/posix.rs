//! Positional reads and writes that continue until all bytes are transferred.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use super::OpenFile;
use super::file_system::known_len_bytes;
use super::outcome::{Outcome, Stop};
use super::repeat::{impossible_count, repeat};
use crate::storage::Span;

/// Reads `len` bytes from `offset` to `target`.
///
/// # Safety
/// `target` must be valid for writes of `len` bytes by the kernel.
pub(super) unsafe fn read_full(file: &OpenFile, target: *mut u8, len: usize, offset: u64) -> Outcome {
    if let Some(stored) = &file.stored {
        let span = Span { offset, len_bytes: len, ptr: target };
        // SAFETY: the caller's promise.
        return unsafe { stored.read(vec![span], false, &|| false) };
    }
    let call = |done, most, at| {
        file.counters().called(done);
        // SAFETY: the caller's promise; the call stays within `len`.
        unsafe { libc::pread(file.as_fd().as_raw_fd(), target.add(done).cast(), most, at) }
    };
    transfer(len, offset, call, || known_len_bytes(file))
}

/// Writes `len` bytes from `source` to `offset`.
///
/// # Safety
/// `source` must be valid for reads of `len` bytes by the kernel.
pub(super) unsafe fn write_full(file: &OpenFile, source: *const u8, len: usize, offset: u64) -> Outcome {
    let call = |done, most, at| {
        file.counters().called(done);
        // SAFETY: the caller's promise; the call stays within `len`.
        unsafe { libc::pwrite(file.as_fd().as_raw_fd(), source.add(done).cast(), most, at) }
    };
    transfer(len, offset, call, || None).map_err(|stop| match stop.cause {
        None => Stop::failed(stop.done_bytes, io::Error::from(io::ErrorKind::WriteZero)),
        Some(_) => stop,
    })
}

/// Reads spans of memory that follow each other in the file, many with one call.
///
/// # Safety
/// As for [`read_full`], for each span.
pub(super) unsafe fn read_adjacent(file: &OpenFile, spans: impl Iterator<Item = Span>) -> Outcome {
    let many = |list: &[libc::iovec], at| {
        // SAFETY: the caller's promise.
        unsafe { libc::preadv(file.as_fd().as_raw_fd(), list.as_ptr(), list.len() as libc::c_int, at) }
    };
    // SAFETY: as above.
    transfer_adjacent(spans, many, |span| unsafe { read_full(file, span.ptr, span.len_bytes, span.offset) })
}

/// As [`read_adjacent`], for writes.
///
/// # Safety
/// As for [`write_full`], for each span.
pub(super) unsafe fn write_adjacent(file: &OpenFile, spans: impl Iterator<Item = Span>) -> Outcome {
    let many = |list: &[libc::iovec], at| {
        // SAFETY: the caller's promise.
        unsafe { libc::pwritev(file.as_fd().as_raw_fd(), list.as_ptr(), list.len() as libc::c_int, at) }
    };
    // SAFETY: as above.
    transfer_adjacent(spans, many, |span| unsafe { write_full(file, span.ptr, span.len_bytes, span.offset) })
}

pub(super) fn one_by_one(spans: impl Iterator<Item = Span>, mut one: impl FnMut(Span) -> Outcome) -> Outcome {
    let mut bytes = 0;
    for span in spans {
        one(span).map_err(|stop| stop.after(bytes))?;
        bytes += span.len_bytes;
    }
    Ok(())
}

/// Transfers up to 64 spans with a call of `many`, and the rest with calls of `one`.
fn transfer_adjacent(
    spans: impl Iterator<Item = Span>,
    many: impl Fn(&[libc::iovec], libc::off_t) -> isize,
    one: impl Fn(Span) -> Outcome,
) -> Outcome {
    const MOST: usize = 64;
    const NONE: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let mut spans = spans.peekable();
    let mut bytes = 0;
    while let Some(first) = spans.peek() {
        let mut offset = first.offset;
        let mut list = [NONE; MOST];
        let mut count = 0;
        for (part, Span { ptr, len_bytes, .. }) in list.iter_mut().zip(&mut spans) {
            *part = libc::iovec { iov_base: ptr.cast(), iov_len: len_bytes };
            count += 1;
        }
        let moved = match libc::off_t::try_from(offset) {
            Ok(at) if count > 1 => many(&list[..count], at),
            _ => 0,
        };
        // A failed call moved nothing. The calls for single spans find the reason.
        let mut moved = usize::try_from(moved).unwrap_or(0);
        if moved > list[..count].iter().map(|part| part.iov_len).sum() {
            return Err(Stop::failed(bytes, impossible_count()));
        }
        for libc::iovec { iov_base, iov_len } in &list[..count] {
            let done = moved.min(*iov_len);
            moved -= done;
            if done < *iov_len {
                let ptr = iov_base.cast::<u8>().wrapping_add(done);
                let rest = Span { ptr, len_bytes: iov_len - done, offset: offset + done as u64 };
                one(rest).map_err(|stop| stop.after(bytes + done))?;
            }
            bytes += iov_len;
            offset += *iov_len as u64;
        }
    }
    Ok(())
}

/// Repeats a system call, which gets the bytes moved before, the most to move, and the offset.
fn transfer(
    len: usize,
    offset: u64,
    call: impl Fn(usize, usize, libc::off_t) -> isize,
    len_bytes: impl Fn() -> Option<u64>,
) -> Outcome {
    let call = |done, most| {
        let at = offset.checked_add(done as u64).and_then(|at| libc::off_t::try_from(at).ok());
        let at = at.ok_or_else(|| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        usize::try_from(call(done, most, at)).map_err(|_| io::Error::last_os_error().into())
    };
    repeat(len, offset, call, len_bytes)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::error::Cause;

    #[test]
    fn an_overflowing_offset_fails_after_the_bytes_before_it() {
        let Stop { done_bytes, cause } = transfer(10, i64::MAX as u64 - 3, |_, _, _| 4, || None).unwrap_err();
        let Some(Cause::Io(error)) = cause else { panic!("{cause:?}") };
        assert_eq!((done_bytes, error.raw_os_error()), (4, Some(libc::EOVERFLOW)));
        assert!(transfer(1, u64::MAX, |_, _, _| 1, || None).unwrap_err().cause.is_some());
    }

    /// Carries out spans, where a call for many moves `most` bytes. Returns the outcome, and the parts that were moved
    /// one by one.
    fn adjacent(
        lens: &[usize],
        most: impl Fn(isize) -> isize,
        fails_at: u64,
    ) -> (Outcome, Vec<(usize, u64, usize)>) {
        let mut offset = 100;
        let spans = lens.iter().map(|len_bytes| {
            offset += *len_bytes as u64;
            let start = offset - *len_bytes as u64;
            Span {
                offset: start,
                len_bytes: *len_bytes,
                ptr: ptr::without_provenance_mut(7000 + start as usize),
            }
        });
        let ones = RefCell::new(Vec::new());
        let many = |list: &[libc::iovec], _| {
            assert!(list.len() > 1, "one span needs no list");
            most(list.iter().map(|part| part.iov_len as isize).sum())
        };
        let outcome = transfer_adjacent(spans, many, |Span { offset, len_bytes, ptr }| {
            if (offset..offset + len_bytes as u64).contains(&fails_at) {
                return Err(Stop::end_of_file((fails_at - offset) as usize));
            }
            ones.borrow_mut().push((ptr.addr(), offset, len_bytes));
            Ok(())
        });
        (outcome, ones.into_inner())
    }

    #[test]
    fn spans_that_a_list_leaves_are_moved_singly() {
        let never = u64::MAX;
        assert!(
            matches!(adjacent(&[10, 0, 20], |all| all.min(30), never), (Ok(()), ones) if ones.is_empty())
        );
        assert!(
            matches!(adjacent(&[10], |all| all.min(30), never), (Ok(()), ones) if ones == [(7100, 100, 10)])
        );
        let (outcome, ones) = adjacent(&[10, 20, 5], |all| all.min(13), never);
        assert!(outcome.is_ok());
        assert_eq!(ones, [(7113, 113, 17), (7130, 130, 5)]);
        // A call that fails, such as one that a signal interrupted.
        let (outcome, ones) = adjacent(&[10, 20], |_| -1, never);
        assert!(outcome.is_ok());
        assert_eq!(ones, [(7100, 100, 10), (7110, 110, 20)]);
        let Stop { done_bytes, .. } = adjacent(&[10, 20, 5], |all| all.min(13), 120).0.unwrap_err();
        assert_eq!(done_bytes, 20);
        // Each list has 64 spans, and the last span is alone.
        let (outcome, ones) = adjacent(&[3; 129], |all| all, never);
        assert!(outcome.is_ok());
        assert_eq!(ones, [(7484, 484, 3)]);
        let (outcome, ones) = adjacent(&[3; 129], |all| all + 1, never);
        let Stop { done_bytes, cause: Some(Cause::Io(error)) } = outcome.unwrap_err() else {
            panic!("no cause")
        };
        assert_eq!((done_bytes, error.raw_os_error(), ones), (0, Some(libc::EIO), Vec::new()));
    }
}
