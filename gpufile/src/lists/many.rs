//! Reads and writes of many ranges in one call.

use std::borrow::Borrow;

use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::{Choices, Engine, Entries, Entry, Growth, InFlight, IoRange, Transfer, groups};
use crate::error::Result;
use crate::file::File;
use crate::lists::request::{Request, all};
use crate::open_file::outcome::EntryStop;

impl File {
    /// Reads many ranges of the file into one buffer. The engine packs small ranges, merges neighbours, and
    /// shares the work among all workers. One call is much faster than many calls of
    /// [`read_at`](Self::read_at).
    ///
    /// Ranges may have any order in the file and in the buffer. On a GPU, a kernel copies short ranges to their
    /// places.
    ///
    /// # Errors
    /// [`Error::Entry`](crate::Error::Entry) with the number of the first range that the engine saw fail. A range
    /// fails with [`Cause::EndOfFile`](crate::Cause::EndOfFile) if the file ends within it. Other ranges may have
    /// been read or not. Ranges beyond the buffer, and ranges that overlap in it, fail with
    /// [`Cause::Invalid`](crate::Cause::Invalid). In lists of 4,096 ranges or more, ranges may overlap in device
    /// memory; each byte then comes from one of them.
    pub fn read_many<B: IoBufMut + ?Sized>(&self, buffer: &mut B, ranges: &[IoRange]) -> Result<()> {
        let memory = self.memory_mut(buffer, 0)?;
        if ranges.is_empty() {
            return Ok(());
        }
        let transfer = self.transfer(Direction::Read, memory, ranges, Growth::MayAllocate);
        // SAFETY: the buffer is borrowed for as long as the call lasts.
        let outcome = unsafe { self.engine().workers().read_ranges(&transfer) };
        result(&transfer, outcome)
    }

    /// Writes one buffer to many ranges of the file, like [`read_many`](Self::read_many). Where ranges overlap in the
    /// file, either may be written last. The restrictions on [other writers](Self::write_all_at) hold here too. Ranges of
    /// one call may share blocks.
    ///
    /// # Errors
    /// [`Error::Entry`](crate::Error::Entry) with the number of the first range that the engine saw fail. Other
    /// ranges may have been written or not. The file's length is then as after a failed
    /// [`write_all_at`](Self::write_all_at) of all ranges. Ranges beyond the buffer fail with
    /// [`Cause::Invalid`](crate::Cause::Invalid) before anything is written.
    pub fn write_many<B: IoBuf + ?Sized>(&self, buffer: &B, ranges: &[IoRange]) -> Result<()> {
        let memory = self.memory(buffer, 0)?;
        if ranges.is_empty() {
            return Ok(());
        }
        let transfer = self.transfer(Direction::Write, memory, ranges, Growth::MayAllocate);
        // SAFETY: the buffer is borrowed for as long as the call lasts.
        let outcome = unsafe { self.engine().workers().run(&transfer) };
        result(&transfer, outcome)
    }
}

fn result(transfer: &Transfer<'_>, outcome: Result<Vec<EntryStop>, EntryStop>) -> Result<()> {
    let first = outcome.map_or_else(Some, |stops| stops.into_iter().next());
    first.map_or(Ok(()), |stop| Err(transfer.entries.error_of_list(transfer.direction, stop)))
}

impl Engine {
    /// Reads many ranges of any files into any memory, like [`File::read_many`].
    ///
    /// ```
    /// use gpufile::{Engine, File, Request};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = |name| folder.path().join(name);
    /// # std::fs::write(path("a.bin"), "aaaa")?;
    /// # std::fs::write(path("b.bin"), "bbbb")?;
    /// let (a, b) = (File::open(path("a.bin"))?, File::open(path("b.bin"))?);
    /// let mut memory = vec![0; 6]; // or device memory
    /// let (head, tail) = memory.split_at_mut(4);
    /// let request = |file, buffer, offset| Request { file, buffer, offset };
    /// Engine::global().read_many(&mut [request(&a, head, 0), request(&b, tail, 2)])?;
    /// assert_eq!(memory, b"aaaabb");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Entry`](crate::Error::Entry) with the number of the first request that the engine saw fail. A request
    /// fails with [`Cause::EndOfFile`](crate::Cause::EndOfFile) if the file ends within its range. Other requests may
    /// have been read or not.
    pub fn read_many<B: IoBufMut, F: Borrow<File>>(&self, requests: &mut [Request<B, F>]) -> Result<()> {
        let entries = all(Request::to_read(requests))?;
        if entries.is_empty() {
            return Ok(());
        }
        let transfer = self.transfer(Direction::Read, &entries, Growth::MayAllocate);
        // SAFETY: the requests, which hold their buffers, are borrowed mutably for as long as the call lasts.
        let outcome = unsafe { self.workers().run(&transfer) };
        result(&transfer, outcome)
    }

    /// Writes memory to many ranges of any files, like [`File::write_many`], with its restrictions on overlaps and other
    /// writers.
    ///
    /// The engine writes several files at once, which is faster than one after another, especially for new files. Requests
    /// for one file should follow each other.
    ///
    /// ```
    /// use gpufile::{Engine, File, Request};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = |name| folder.path().join(name);
    /// let (a, b) = (File::create(path("a.bin"))?, File::create(path("b.bin"))?);
    /// let bytes = b"abcd".to_vec(); // or device memory
    /// let requests = [
    ///     Request { file: &a, buffer: &bytes[..], offset: 0 },
    ///     Request { file: &b, buffer: &bytes[2..], offset: 2 },
    /// ];
    /// Engine::global().write_many(&requests)?;
    /// assert_eq!(std::fs::read(path("b.bin"))?, b"\0\0cd");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Entry`](crate::Error::Entry) with the number of the first request that the engine saw fail. Other
    /// requests may have been written or not. Each file's length is then as after a failed
    /// [`write_all_at`](File::write_all_at) of all its requests.
    pub fn write_many<B: IoBuf, F: Borrow<File>>(&self, requests: &[Request<B, F>]) -> Result<()> {
        let entries = all(Request::to_write(requests))?;
        let transfer = self.transfer(Direction::Write, &entries, Growth::MayAllocate);
        // SAFETY: the requests, which hold their buffers, are borrowed for as long as the call lasts.
        result(&transfer, Ok(unsafe { self.write_groups(&transfer, &entries) }))
    }

    pub(crate) fn transfer<'e>(
        &'e self,
        direction: Direction,
        entries: &'e [Entry<'e>],
        growth: Growth,
    ) -> Transfer<'e> {
        let choices = Choices { chunk_bytes: None, growth, is_inline: false, each: false };
        Transfer { direction, entries: Entries::Requests(entries), settings: self.settings(), choices }
    }

    /// As [`Workers::run`](crate::engine::Workers::run), for writes: each file by its fastest method, and several at once.
    ///
    /// # Safety
    /// As for [`Workers::run`](crate::engine::Workers::run).
    pub(crate) unsafe fn write_groups(
        &self,
        transfer: &Transfer<'_>,
        entries: &[Entry<'_>],
    ) -> Vec<EntryStop> {
        let workers = self.workers();
        let mut in_flight = InFlight::new(workers);
        let mut start = 0;
        for group in groups(entries) {
            let is_alone = group.len() == entries.len();
            let growth = if is_alone { Growth::MayAllocate } else { Growth::BesideOthers };
            let choices = Choices { growth, ..transfer.choices };
            let part = Transfer { entries: Entries::Requests(group), choices, ..*transfer };
            // SAFETY: the caller's promise; `in_flight` waits for the job.
            let prepared = unsafe { workers.prepare(&part) };
            let (job, chunks) = prepared.expect("entries that were checked, and may overlap in memory");
            workers.start(&job, chunks == 1 && is_alone);
            in_flight.push(start, job);
            if in_flight.is_stopped() && !transfer.choices.each {
                break;
            }
            start += group.len();
        }
        in_flight.finish()
    }
}
