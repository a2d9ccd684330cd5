//! Reads and writes of many ranges in flight while the caller does other work.

use std::sync::Arc;
use std::{mem, slice};

use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::{Engine, Entry, Growth, IoRange, groups};
use crate::error::Result;
use crate::file::File;
use crate::future::io_future::IoFuture;
use crate::future::owned::{Owned, Work};
use crate::lists::request::{Request, all};
use crate::memory::Memory;

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
            unsafe { of_ranges(self, Direction::Read, memory, ranges) }
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
            unsafe { of_ranges(self, Direction::Write, memory, ranges) }
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
            unsafe { of_entries(self, Direction::Read, entries) }
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
            unsafe { of_entries(self, Direction::Write, entries) }
        }))
    }
}

/// Returns the work of ranges of a file and one buffer.
///
/// # Errors
/// The refusal of a range.
///
/// # Safety
/// As for [`Work::new`].
unsafe fn of_ranges(file: &File, direction: Direction, memory: Memory, ranges: &[IoRange]) -> Result<Work> {
    let kept = Arc::new(file.clone());
    let transfer = file.transfer(direction, memory, ranges, Growth::MayAllocate);
    let total_bytes = ranges.iter().fold(0, |sum: usize, range| sum.saturating_add(range.len_bytes));
    // SAFETY: the caller's promise. The file stays open, because `kept` refers to it too.
    let mut work = unsafe { Work::new(file.engine(), transfer.clone(), kept, total_bytes) }.of_list();
    if !ranges.is_empty() {
        // SAFETY: as above.
        unsafe { work.add(0, &transfer) }?;
    }
    Ok(work)
}

/// Returns the work of entries of any files and buffers.
///
/// # Errors
/// The refusal of an entry.
///
/// # Safety
/// As for [`Work::new`].
unsafe fn of_entries(engine: &Engine, direction: Direction, entries: Vec<Entry<'_>>) -> Result<Work> {
    // SAFETY: only the lifetime changes. The work, which keeps the list, is dropped before the value, or never.
    let list = Arc::new(unsafe { mem::transmute::<Vec<Entry<'_>>, Vec<Entry<'static>>>(entries) });
    // SAFETY: the vector is not changed, so its entries stay where they are as long as the work keeps it.
    let entries = unsafe { slice::from_raw_parts(list.as_ptr(), list.len()) };
    let total_bytes = entries.iter().map(|entry| entry.memory.len_bytes).fold(0, usize::saturating_add);
    let transfer = |group, growth| engine.transfer(direction, group, growth);
    let whole = transfer(entries, Growth::MayAllocate);
    // SAFETY: the caller's promise. The entries belong to the list, and the work keeps the engine.
    let mut work = unsafe { Work::new(engine, whole, list, total_bytes) }.of_list();
    // The engine writes several files at once, each by the plan that is fastest for it.
    let groups: Vec<&[Entry<'_>]> = match direction {
        Direction::Write => groups(entries).collect(),
        Direction::Read => entries.chunks(entries.len().max(1)).collect(),
    };
    let growth = if groups.len() > 1 { Growth::BesideOthers } else { Growth::MayAllocate };
    let mut start = 0;
    for group in groups {
        // SAFETY: as above.
        unsafe { work.add(start, &transfer(group, growth)) }?;
        start += group.len();
    }
    Ok(work)
}
