//! Device memory through two pinned bounce buffers, the file's side of one overlapping the device's side of the other.

use std::io;
use std::os::fd::BorrowedFd;

use cufile::cuda::{Device, Event, PinnedBuffer, Stream};

use super::posix::{read_full, write_full};

/// Two bounce buffers and a stream on one device, used by one transfer at a time.
pub(crate) struct Lane {
    stream: Stream,
    buffers: [PinnedBuffer; 2],
}

/// How a transfer ended: bytes moved in order from the start, and what stopped it, if not the end of file or range.
pub(crate) type Outcome = (usize, Option<Stop>);

pub(crate) enum Stop {
    File(io::Error),
    Device(cufile::Error),
}

impl From<cufile::Error> for Stop {
    fn from(error: cufile::Error) -> Self {
        Stop::Device(error)
    }
}

impl Lane {
    pub fn new(device: &Device, buffer_bytes: usize) -> cufile::Result<Self> {
        let buffers = [device.alloc_pinned(buffer_bytes)?, device.alloc_pinned(buffer_bytes)?];
        Ok(Self { stream: device.stream()?, buffers })
    }

    pub fn device(&self) -> &Device {
        self.stream.device()
    }

    /// Reads the file's bytes from `offset` to `len` bytes of device memory at `target`.
    ///
    /// # Safety
    /// `target` must be device memory of this lane's device, `len` bytes long, that nothing else uses meanwhile.
    pub unsafe fn read(&mut self, file: BorrowedFd<'_>, target: *mut u8, len: usize, offset: u64) -> Outcome {
        let mut done = 0;
        // SAFETY: the caller's promise.
        let result = unsafe { self.read_pieces(file, target, len, offset, &mut done) };
        // Whatever happened, no copy may go on when the caller has its memory back.
        match (self.stream.synchronize(), result) {
            (Ok(()), result) => (done, result.err()),
            // Which of the copies arrived is unknown.
            (Err(error), _) => (0, Some(error.into())),
        }
    }

    /// # Safety
    /// As [`read`](Self::read); copies may still be under way when it returns.
    unsafe fn read_pieces(
        &mut self,
        file: BorrowedFd<'_>,
        target: *mut u8,
        len: usize,
        offset: u64,
        done: &mut usize,
    ) -> Result<(), Stop> {
        let mut copies: [Option<Event>; 2] = [None, None];
        for turn in 0.. {
            let (buffer, copy) = (&mut self.buffers[turn % 2], &mut copies[turn % 2]);
            let piece = (len - *done).min(buffer.len());
            if piece == 0 {
                break;
            }
            if let Some(copy) = copy.take() {
                copy.wait()?;
            }
            // SAFETY: the bounce buffer has `piece` bytes, and no copy uses it.
            let read =
                unsafe { read_full(file, buffer.as_mut_ptr(), piece, offset.saturating_add(*done as u64)) };
            let (count, failure) = match read {
                Ok(count) => (count, None),
                Err((count, error)) => (count, Some(error)),
            };
            if count > 0 {
                // SAFETY: `done + count` is at most `len`, and nothing else uses the target.
                *copy = Some(unsafe { self.stream.copy_to_device(target.add(*done), &buffer[..count]) }?);
                *done += count;
            }
            match failure {
                Some(error) => return Err(Stop::File(error)),
                None if count < piece => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Writes `len` bytes of device memory at `source` to the file at `offset`.
    ///
    /// # Safety
    /// `source` must be device memory of this lane's device, `len` bytes long, that nothing writes meanwhile.
    pub unsafe fn write(
        &mut self,
        file: BorrowedFd<'_>,
        source: *const u8,
        len: usize,
        offset: u64,
    ) -> Outcome {
        let mut done = 0;
        // SAFETY: the caller's promise.
        let result = unsafe { self.write_pieces(file, source, len, offset, &mut done) };
        // Whatever happened, no copy may go on when the caller has its memory back. What reached the file has.
        let synchronized = self.stream.synchronize().map_err(Stop::from);
        (done, result.and(synchronized).err())
    }

    /// # Safety
    /// As [`write`](Self::write); copies may still be under way when it returns.
    unsafe fn write_pieces(
        &mut self,
        file: BorrowedFd<'_>,
        source: *const u8,
        len: usize,
        offset: u64,
        done: &mut usize,
    ) -> Result<(), Stop> {
        let piece_bytes = self.buffers[0].len();
        let pieces = len.div_ceil(piece_bytes);
        let mut copies: [Option<Event>; 2] = [None, None];
        // One more turn than pieces: each turn fetches a piece and writes the one before.
        for turn in 0..=pieces {
            if turn < pieces {
                let start = turn * piece_bytes;
                let buffer = &mut self.buffers[turn % 2][..piece_bytes.min(len - start)];
                // SAFETY: the range lies within `len`; the file has taken what the bounce buffer held before.
                copies[turn % 2] = Some(unsafe { self.stream.copy_from_device(buffer, source.add(start)) }?);
            }
            if let Some(copy) = copies[(turn + 1) % 2].take() {
                copy.wait()?;
                let piece = piece_bytes.min(len - *done);
                let buffer = &self.buffers[(turn + 1) % 2][..piece];
                // SAFETY: the copy into the bounce buffer has ended.
                match unsafe { write_full(file, buffer.as_ptr(), piece, offset.saturating_add(*done as u64)) }
                {
                    Ok(()) => *done += piece,
                    Err((count, error)) => {
                        *done += count;
                        return Err(Stop::File(error));
                    }
                }
            }
        }
        Ok(())
    }
}
