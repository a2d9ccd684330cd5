//! Reads and writes of many ranges in one call, with an outcome for each range.

use std::borrow::Borrow;

use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::{Engine, Entry, Growth, IoRange, Refusals};
use crate::error::Result;
#[cfg(doc)]
use crate::error::{Cause, Error};
use crate::file::File;
use crate::lists::request::Request;
use crate::memory::Memory;

impl File {
    /// Reads many ranges of the file into one buffer, like [`read_many`](Self::read_many). Returns the outcome of each
    /// range, in their order.
    ///
    /// An outcome is what [`read_at`](Self::read_at) returns. A range that fails does not stop the others. Ranges beyond
    /// the buffer fail with [`Cause::Invalid`]. So do ranges that overlap in it, except where
    /// [`read_many`](Self::read_many) permits that.
    ///
    /// ```
    /// use gpufile::{File, IoRange};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, "abcdef")?;
    /// let mut buffer = vec![0; 8]; // or device memory
    /// let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 4 };
    /// let ranges = [range(0, 0), range(4, 4), range(0, 6)]; // the last ends behind the buffer
    /// let outcomes = File::open(&path)?.read_many_each(&mut buffer, &ranges)?;
    /// assert!(matches!(outcomes[..], [Ok(4), Ok(2), Err(_)])); // the file ends within the second
    /// assert_eq!(buffer[..6], *b"abcdef");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Transfer`] if the engine cannot find the GPU of the buffer. Nothing is read then.
    #[must_use = "the outcomes have the errors"]
    pub fn read_many_each<B: IoBufMut + ?Sized>(
        &self,
        buffer: &mut B,
        ranges: &[IoRange],
    ) -> Result<Vec<Result<usize>>> {
        let memory = self.memory_mut(buffer, 0)?;
        // SAFETY: the buffer is borrowed for as long as the call lasts.
        Ok(unsafe { self.each_range(Direction::Read, memory, ranges) })
    }

    /// Writes one buffer to many ranges of the file, like [`write_many`](Self::write_many) and with the same restrictions.
    /// Returns the outcome of each range, in their order.
    ///
    /// An outcome is what [`write_all_at`](Self::write_all_at) returns. A range that fails does not stop the
    /// others. Ranges beyond the buffer fail with [`Cause::Invalid`]. If the GPU fails to copy, the engine may write ranges
    /// twice.
    ///
    /// ```
    /// use gpufile::{File, IoRange};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// let buffer = b"abcd".to_vec(); // or device memory
    /// let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 2 };
    /// let ranges = [range(2, 0), range(0, 3), range(0, 2)]; // the second ends behind the buffer
    /// let outcomes = File::create(&path)?.write_many_each(&buffer, &ranges)?;
    /// assert!(matches!(outcomes[..], [Ok(()), Err(_), Ok(())]));
    /// assert_eq!(std::fs::read(&path)?, b"cdab");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Transfer`] if the engine cannot find the GPU of the buffer. Nothing is written then.
    #[must_use = "the outcomes have the errors"]
    pub fn write_many_each<B: IoBuf + ?Sized>(
        &self,
        buffer: &B,
        ranges: &[IoRange],
    ) -> Result<Vec<Result<()>>> {
        let memory = self.memory(buffer, 0)?;
        // SAFETY: the buffer is borrowed for as long as the call lasts.
        let outcomes = unsafe { self.each_range(Direction::Write, memory, ranges) };
        Ok(outcomes.into_iter().map(|outcome| outcome.map(drop)).collect())
    }

    /// # Safety
    /// As for [`Workers::run`](crate::engine::Workers::run).
    pub(crate) unsafe fn each_range(
        &self,
        direction: Direction,
        memory: Memory,
        ranges: &[IoRange],
    ) -> Vec<Result<usize>> {
        let run = |ranges: &[IoRange]| {
            let workers = self.engine().workers();
            let transfer = self.transfer(direction, memory, ranges, Growth::MayAllocate).each();
            let stops = match direction {
                _ if ranges.is_empty() => Ok(Vec::new()),
                // SAFETY: the caller's promise.
                Direction::Read => unsafe { workers.read_ranges(&transfer) },
                // SAFETY: the caller's promise.
                Direction::Write => unsafe { workers.run(&transfer) },
            };
            stops.map(|stops| transfer.outcomes(stops)).map_err(|_| Refusals::of(&transfer))
        };
        let (outcomes, refusals) = Refusals::default().run(ranges, run);
        refusals.with_others(outcomes)
    }

    /// Carries out ranges of one buffer. Returns the numbers and outcomes of those that were not moved as a whole, in their
    /// order.
    ///
    /// # Safety
    /// As for [`Workers::run`](crate::engine::Workers::run).
    #[cfg(feature = "kv-blocks")]
    pub(crate) unsafe fn incomplete_ranges(
        &self,
        direction: Direction,
        memory: Memory,
        ranges: &[IoRange],
    ) -> Vec<(usize, Result<usize>)> {
        if ranges.is_empty() {
            return Vec::new();
        }
        let workers = self.engine().workers();
        let transfer = self.transfer(direction, memory, ranges, Growth::MayAllocate).each();
        let stops = match direction {
            // SAFETY: the caller's promise.
            Direction::Read => unsafe { workers.read_ranges(&transfer) },
            // SAFETY: the caller's promise.
            Direction::Write => unsafe { workers.run(&transfer) },
        };
        if let Ok(stops) = stops {
            return transfer.incomplete(stops).collect();
        }
        // SAFETY: the caller's promise.
        let outcomes = unsafe { self.each_range(direction, memory, ranges) };
        let outcomes = outcomes.into_iter().enumerate();
        outcomes
            .filter(|(at, outcome)| !matches!(outcome, Ok(done) if *done == ranges[*at].len_bytes))
            .collect()
    }
}

impl Engine {
    /// Reads many ranges of any files into any memory, like [`read_many`](Self::read_many). Returns the outcome of each
    /// request, as [`File::read_many_each`] does.
    ///
    /// ```
    /// use gpufile::{Engine, File, Request};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = |name| folder.path().join(name);
    /// # std::fs::write(path("a.bin"), "aaaa")?;
    /// # std::fs::write(path("b.bin"), "bbbb")?;
    /// let (a, b) = (File::options().write(true).open(path("a.bin"))?, File::open(path("b.bin"))?);
    /// let (mut head, mut tail) = (vec![0; 4], vec![0; 4]); // or device memory
    /// let mut requests = [
    ///     Request { file: &a, buffer: &mut head, offset: 0 },
    ///     Request { file: &b, buffer: &mut tail, offset: 1 },
    /// ];
    /// let outcomes = Engine::global().read_many_each(&mut requests);
    /// assert!(matches!(outcomes[..], [Err(_), Ok(3)])); // the first file may only be written
    /// assert_eq!(tail[..3], *b"bbb");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the outcomes have the errors"]
    pub fn read_many_each<B: IoBufMut, F: Borrow<File>>(
        &self,
        requests: &mut [Request<B, F>],
    ) -> Vec<Result<usize>> {
        // SAFETY: the requests, which hold their buffers, are borrowed mutably for as long as the call lasts.
        unsafe { self.each_entry(Direction::Read, Request::to_read(requests)) }
    }

    /// Writes memory to many ranges of any files, like [`write_many`](Self::write_many) and with the same restrictions.
    /// Returns the outcome of each request, as [`File::write_many_each`] does.
    ///
    /// ```
    /// use gpufile::{Engine, File, Request};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = |name| folder.path().join(name);
    /// # std::fs::write(path("a.bin"), "aaaa")?;
    /// let (a, b) = (File::open(path("a.bin"))?, File::create(path("b.bin"))?);
    /// let bytes = b"abcd".to_vec(); // or device memory
    /// let requests = [&a, &b].map(|file| Request { file, buffer: &bytes, offset: 0 });
    /// let outcomes = Engine::global().write_many_each(&requests);
    /// assert!(matches!(outcomes[..], [Err(_), Ok(())])); // the first file may only be read
    /// assert_eq!(std::fs::read(path("b.bin"))?, b"abcd");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the outcomes have the errors"]
    pub fn write_many_each<B: IoBuf, F: Borrow<File>>(&self, requests: &[Request<B, F>]) -> Vec<Result<()>> {
        // SAFETY: the requests, which hold their buffers, are borrowed for as long as the call lasts.
        let outcomes = unsafe { self.each_entry(Direction::Write, Request::to_write(requests)) };
        outcomes.into_iter().map(|outcome| outcome.map(drop)).collect()
    }

    /// Carries out entries of any files and memory. Returns the outcome of each. The outcome of an error is the error.
    ///
    /// # Safety
    /// As for [`Workers::run`](crate::engine::Workers::run).
    pub(crate) unsafe fn each_entry<'e>(
        &self,
        direction: Direction,
        entries: impl Iterator<Item = Result<Entry<'e>>>,
    ) -> Vec<Result<usize>> {
        let (entries, refusals) = Refusals::of_requests(entries);
        if direction == Direction::Write {
            let transfer = self.transfer(direction, &entries, Growth::MayAllocate).each();
            // SAFETY: the caller's promise.
            let stops = unsafe { self.write_groups(&transfer, &entries) };
            return refusals.with_others(transfer.outcomes(stops));
        }
        let run = |entries: &[Entry<'_>]| {
            if entries.is_empty() {
                return Ok(Vec::new());
            }
            let transfer = self.transfer(direction, entries, Growth::MayAllocate).each();
            // SAFETY: the caller's promise.
            let stops = unsafe { self.workers().run(&transfer) };
            stops.map(|stops| transfer.outcomes(stops)).map_err(|_| Refusals::of(&transfer))
        };
        let (outcomes, refusals) = refusals.run(&entries, run);
        refusals.with_others(outcomes)
    }
}

#[cfg(all(test, feature = "kv-blocks"))]
mod tests {
    use super::*;

    #[test]
    fn incomplete_ranges_are_those_of_all_outcomes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        std::fs::write(&path, [7; 100]).unwrap();
        let file = File::open(&path).unwrap();
        let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 10 };
        let good = [range(0, 0), range(95, 10), range(20, 20), range(100, 30), range(50, 40)];
        // The last is behind the buffer, and the one before overlaps the first.
        let refused = [good[0], good[1], range(30, 5), range(40, 41)];
        for (ranges, count) in [(&good[..], 2), (&refused[..], 4), (&[], 0)] {
            let mut buffer = [0_u8; 50];
            let memory = file.memory_mut(buffer.as_mut_slice(), 0).unwrap();
            // SAFETY: the buffer is borrowed until both calls have returned.
            let (incomplete, all) = unsafe {
                let incomplete = file.incomplete_ranges(Direction::Read, memory, ranges);
                (incomplete, file.each_range(Direction::Read, memory, ranges))
            };
            let text = |outcome: &Result<usize>| format!("{outcome:?}");
            let expected = all.iter().enumerate().filter(|(_, outcome)| text(outcome) != "Ok(10)");
            let expected: Vec<_> = expected.map(|(at, outcome)| (at, text(outcome))).collect();
            let found: Vec<_> = incomplete.iter().map(|(at, outcome)| (*at, text(outcome))).collect();
            assert_eq!(found, expected);
            assert_eq!(found.len(), count);
        }
    }
}
