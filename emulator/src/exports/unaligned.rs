//! Unaligned writes to a descriptor with `O_DIRECT`, which read, change and write back whole blocks.
//!
//! This is not atomic: if another thread writes into one of these blocks during the write, the old bytes come
//! back.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::thread;
use std::time::Duration;

use cufile_sys::off_t;

use super::system;

pub(super) const BLOCK: usize = 4096;

/// The pause between reading a block and writing it, so that races lose bytes often.
const PAUSE: Duration = Duration::from_micros(200);

/// A block of which the write covers only a part, with the file's present bytes.
struct Edge {
    offset: usize,
    bytes: Vec<u8>,
    present: usize,
}

impl Edge {
    fn read(fd: RawFd, offset: usize) -> Result<Self, c_int> {
        let mut bytes = vec![0; BLOCK];
        let present = system::transfer(fd, bytes.as_mut_ptr(), BLOCK, offset as off_t, false)?;
        Ok(Self { offset, bytes, present })
    }

    /// Returns how many of the bytes of `[start, end)`, which lie at `pointer`, were written.
    fn write(&mut self, fd: RawFd, pointer: *const u8, start: usize, end: usize) -> Result<usize, c_int> {
        let (from, to) = (start - self.offset, end - self.offset);
        // SAFETY: the range is within the block. The caller checked the memory, or it is host memory that is
        // valid by the C caller's promise.
        unsafe { pointer.copy_to_nonoverlapping(self.bytes.as_mut_ptr().add(from), to - from) };
        let whole = self.present.max(to);
        let written = system::transfer(fd, self.bytes.as_mut_ptr(), whole, self.offset as off_t, true)?;
        Ok(written.clamp(from, to) - from)
    }
}

/// Writes as [`system::transfer`] does, and the old rest of the first and last block.
pub(super) fn write(fd: RawFd, pointer: *mut u8, size: usize, file_offset: off_t) -> Result<usize, c_int> {
    let start = usize::try_from(file_offset).map_err(|_| libc::EINVAL)?;
    let end = start.checked_add(size).ok_or(libc::EINVAL)?;
    let (first, last) = (start / BLOCK * BLOCK, (end - 1) / BLOCK * BLOCK);
    let mut head = (first < start).then(|| Edge::read(fd, first)).transpose()?;
    let needs_tail = end < last + BLOCK && (head.is_none() || last > first);
    let mut tail = needs_tail.then(|| Edge::read(fd, last)).transpose()?;
    thread::sleep(PAUSE);

    let mut done = 0;
    let parts = [
        (if head.is_some() { end.min(first + BLOCK) - start } else { 0 }, head.as_mut()),
        (if needs_tail { last.max(start) } else { end } - start, None),
        (size, tail.as_mut()),
    ];
    for (until, edge) in parts {
        let length = until.saturating_sub(done);
        if length == 0 {
            continue;
        }
        let (at, from) = (start + done, pointer.wrapping_add(done));
        let written = match edge {
            Some(edge) => edge.write(fd, from, at, at + length),
            None => system::transfer(fd, from, length, at as off_t, true),
        };
        match written {
            Ok(written) => done += written,
            Err(_) if done > 0 => break,
            Err(code) => return Err(code),
        }
        if done < until {
            break;
        }
    }
    Ok(done)
}
