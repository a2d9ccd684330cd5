//! Reads and writes of many ranges in flight while the caller does other work.

use std::io;
use std::mem;
use std::sync::Arc;

use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::{Engine, Entry, EntryStop, IoRange, Refused, groups};
use crate::error::{Error, Result};
use crate::file::File;
use crate::future::io_future::IoFuture;
use crate::future::owned::{Ending, List, Owned, Part, Work};
use crate::lists::many::each_outcome;
use crate::lists::request::{Request, all};
use crate::memory::Memory;
use crate::outcome::Stop;

impl File {
    /// Starts a read of many ranges into one buffer, like [`read_many`](Self::read_many), and returns at once.
    ///
    /// ```
    /// use gpufile::{File, IoRange};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, "abcdef")?;
    /// let file = File::open(&path)?;
    /// let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 2 };
    /// let ranges = vec![range(4, 0), range(0, 2)];
    /// let future = file.read_many_async(vec![0; 4], ranges); // or device memory
    /// // Other work, while workers read.
    /// let (outcome, (buffer, ranges)) = future.wait(); // or future.await
    /// assert_eq!((outcome?, buffer, ranges.len()), (4, b"efab".to_vec(), 2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The output has the errors of [`read_many`](Self::read_many). Ranges that overlap in the buffer fail in lists
    /// of any length. To learn about each range, read the same list with [`read_many_each`](Self::read_many_each).
    pub fn read_many_async<B: IoBufMut + Send + 'static>(
        &self,
        buffer: B,
        ranges: Vec<IoRange>,
    ) -> IoFuture<(B, Vec<IoRange>)> {
        IoFuture::start(Owned::new((buffer, ranges), |(buffer, ranges)| {
            let memory = self.memory_mut(buffer, 0)?;
            // SAFETY: memory and ranges belong to the value that is handed over.
            unsafe { Ranges::work(self, Direction::Read, memory, ranges) }
        }))
    }

    /// Starts a write of one buffer to many ranges, like [`write_many`](Self::write_many). The call returns at once,
    /// except for a file that becomes longer: see [`write_all_at_async`](Self::write_all_at_async).
    ///
    /// ```
    /// use gpufile::{File, IoRange};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// let file = File::create(&path)?;
    /// let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 2 };
    /// let future = file.write_many_async(b"abcd".to_vec(), vec![range(4, 0), range(0, 2)]);
    /// let (outcome, (buffer, _)) = future.wait(); // or future.await
    /// assert_eq!((outcome?, buffer), (4, b"abcd".to_vec()));
    /// assert_eq!(std::fs::read(&path)?, b"cd\0\0ab");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The output has the errors of [`write_many`](Self::write_many).
    pub fn write_many_async<B: IoBuf + Send + 'static>(
        &self,
        buffer: B,
        ranges: Vec<IoRange>,
    ) -> IoFuture<(B, Vec<IoRange>)> {
        IoFuture::start(Owned::new((buffer, ranges), |(buffer, ranges)| {
            let memory = self.memory(buffer, 0)?;
            // SAFETY: memory and ranges belong to the value that is handed over.
            unsafe { Ranges::work(self, Direction::Write, memory, ranges) }
        }))
    }
}

impl Engine {
    /// Starts a read of many ranges of any files, like [`read_many`](Self::read_many), and returns at once.
    ///
    /// # Errors
    /// The output has the errors of [`read_many`](Self::read_many).
    pub fn read_many_async<B: IoBufMut + Send + 'static>(
        &self,
        requests: Vec<Request<B>>,
    ) -> IoFuture<Vec<Request<B>>> {
        IoFuture::start(Owned::new(requests, |requests| {
            let entries = all(Request::to_read(requests))?;
            // SAFETY: memory and files belong to the value that is handed over.
            unsafe { Requests::work(self, Direction::Read, entries) }
        }))
    }

    /// Starts a write of memory to many ranges of any files, like [`write_many`](Self::write_many). The call returns
    /// at once, except for a file that becomes longer: see [`write_all_at_async`](File::write_all_at_async).
    ///
    /// ```
    /// use gpufile::{Engine, File, Request};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = |name| folder.path().join(name);
    /// let (a, b) = (File::create(path("a.bin"))?, File::create(path("b.bin"))?);
    /// let request = |file, text: &str| Request { file, buffer: text.as_bytes().to_vec(), offset: 0 };
    /// let future = Engine::global().write_many_async(vec![request(a, "aaaa"), request(b, "bb")]);
    /// assert_eq!(future.wait().0?, 6); // or future.await
    /// assert_eq!(std::fs::read(path("b.bin"))?, b"bb");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The output has the errors of [`write_many`](Self::write_many).
    pub fn write_many_async<B: IoBuf + Send + 'static>(
        &self,
        requests: Vec<Request<B>>,
    ) -> IoFuture<Vec<Request<B>>> {
        IoFuture::start(Owned::new(requests, |requests| {
            let entries = all(Request::to_write(requests))?;
            // SAFETY: memory and files belong to the value that is handed over.
            unsafe { Requests::work(self, Direction::Write, entries) }
        }))
    }
}

/// Ranges of a file and one buffer.
struct Ranges {
    direction: Direction,
    file: File,
    memory: Memory,
    /// The ranges, which belong to the value of the [`Owned`].
    ranges: &'static [IoRange],
}

impl Ranges {
    /// Returns the work of ranges.
    ///
    /// # Errors
    /// The refusal of a range.
    ///
    /// # Safety
    /// Memory and ranges must belong to the value that gets the work, and meet the promises of [`IoBuf`] (for reads,
    /// [`IoBufMut`]).
    unsafe fn work(file: &File, direction: Direction, memory: Memory, ranges: &[IoRange]) -> Result<Work> {
        // SAFETY: the caller's promise; the list is not used any more when the value is returned.
        let ranges = unsafe { mem::transmute::<&[IoRange], &'static [IoRange]>(ranges) };
        let list = Arc::new(Self { direction, file: file.clone(), memory, ranges });
        let total_bytes = ranges.iter().fold(0, |sum: usize, range| sum.saturating_add(range.len_bytes));
        if ranges.is_empty() {
            return Ok(Work { list, parts: Vec::new(), total_bytes, direction });
        }
        // This check precedes the plan, because planning a write may make the file longer.
        if let Some(entry) = file.entries(memory, ranges).out_of_range() {
            let error = file.bad_range(direction, &ranges[entry], &memory);
            return Err(Error::Entry { entry, error: Box::new(error) });
        }
        let (transfer, schedule) = list.file.plan_ranges(direction, &memory, ranges);
        // SAFETY: the caller's promise. The file is that of the list. `Owned` waits for the job.
        let prepared = unsafe { file.engine().workers().prepare(&transfer, &schedule) };
        let (job, _) = prepared.map_err(|refused| list.error(Err(refused)))?;
        let parts = vec![Part { job, start: 0 }];
        drop(transfer);
        Ok(Work { list, parts, total_bytes, direction })
    }

    fn error(&self, outcome: Result<Option<EntryStop>, Refused>) -> Error {
        self.file
            .ranges_outcome(self.direction, &self.memory, self.ranges, outcome)
            .expect_err("the transfer stopped or was refused")
    }
}

impl List for Ranges {
    fn engine(&self) -> &Engine {
        self.file.engine()
    }

    fn outcome(&self, stop: EntryStop, ending: Ending) -> Result<usize> {
        Err(self.error(Ok(Some(in_list(stop, ending == Ending::Cancelled)))))
    }
}

/// Entries of any files and buffers.
struct Requests {
    direction: Direction,
    engine: Engine,
    /// The entries. Their files and memory belong to the value of the [`Owned`].
    entries: Vec<Entry<'static>>,
}

impl Requests {
    /// Returns the work of entries.
    ///
    /// # Errors
    /// The refusal of an entry.
    ///
    /// # Safety
    /// Memory and files must belong to the value that gets the work, and meet the promises of [`IoBuf`] (for reads,
    /// [`IoBufMut`]).
    unsafe fn work(engine: &Engine, direction: Direction, entries: Vec<Entry<'_>>) -> Result<Work> {
        // SAFETY: the caller's promise; the list is dropped before the value is given back.
        let entries = unsafe { mem::transmute::<Vec<Entry<'_>>, Vec<Entry<'static>>>(entries) };
        let list = Arc::new(Self { direction, engine: engine.clone(), entries });
        let lens = list.entries.iter().map(|entry| entry.memory.len_bytes);
        let total_bytes = lens.fold(0, usize::saturating_add);
        // The engine writes several files at once, each by the plan that is fastest for it.
        let mut groups: Vec<&[Entry<'_>]> = match direction {
            Direction::Write => groups(&list.entries).collect(),
            Direction::Read => vec![&list.entries],
        };
        groups.retain(|group| !group.is_empty());
        let mut parts = Vec::new();
        let mut start = 0;
        for group in groups {
            let (transfer, schedule) = match direction {
                Direction::Write => engine.plan_writes(group, group.len() == list.entries.len()),
                Direction::Read => engine.plan_reads(group),
            };
            // SAFETY: the caller's promise. The entries are those of the list. `Owned` waits for the job.
            let prepared = unsafe { engine.workers().prepare(&transfer, &schedule) };
            let (job, _) = prepared.map_err(|refused| list.error(Err(refused)))?;
            parts.push(Part { job, start });
            start += group.len();
        }
        Ok(Work { list, parts, total_bytes, direction })
    }

    fn error(&self, outcome: Result<Option<EntryStop>, Refused>) -> Error {
        each_outcome(self.direction, &self.entries, outcome).expect_err("the transfer stopped or was refused")
    }
}

impl List for Requests {
    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn outcome(&self, stop: EntryStop, ending: Ending) -> Result<usize> {
        Err(self.error(Ok(Some(in_list(stop, ending == Ending::Cancelled)))))
    }
}

/// Returns the stop of an entry of a list. It has a cause also if the list was cancelled.
fn in_list(
    EntryStop { entry, stop: Stop { done_bytes, cause } }: EntryStop,
    is_cancelled: bool,
) -> EntryStop {
    let cancelled = || io::Error::from_raw_os_error(libc::ECANCELED).into();
    let cause = cause.or_else(|| is_cancelled.then(cancelled));
    EntryStop { entry, stop: Stop { done_bytes, cause } }
}
