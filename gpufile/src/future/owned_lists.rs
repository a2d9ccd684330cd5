//! Reads and writes of many ranges in flight while the caller does other work.

use std::any::Any;
use std::sync::Arc;
use std::{mem, slice};

use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::{Engine, Entry, Growth, IoRange, Refusals, Transfer, groups};
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
    /// The output has the errors of [`read_many`](Self::read_many).
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

    /// Starts a read of many ranges into one buffer, like [`read_many_async`](Self::read_many_async). The output has the
    /// outcome of each range, as [`read_many_each`](Self::read_many_each) returns it.
    ///
    /// ```
    /// use gpufile::{File, IoRange};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, "abcdef")?;
    /// let file = File::open(&path)?;
    /// let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 4 };
    /// let future = file.read_many_each_async(vec![0; 8], vec![range(4, 4), range(0, 6), range(0, 0)]);
    /// let (outcomes, (buffer, _)) = future.wait(); // or future.await
    /// assert!(matches!(outcomes?[..], [Ok(2), Err(_), Ok(4)])); // the second ends behind the buffer
    /// assert_eq!(buffer[..6], *b"abcdef");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The output has an error instead if the engine cannot find the GPU of the buffer.
    pub fn read_many_each_async<B: IoBufMut + Send + 'static>(
        &self,
        buffer: B,
        ranges: Vec<IoRange>,
    ) -> IoFuture<(B, Vec<IoRange>), Vec<Result<usize>>> {
        IoFuture::start_each(Owned::new((buffer, ranges), |(buffer, ranges)| {
            let memory = self.memory_mut(buffer, 0)?;
            // SAFETY: the memory belongs to the value that is handed over.
            Ok(unsafe { each_range(self, Direction::Read, memory, ranges) })
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

    /// Starts a write of one buffer to many ranges, like [`write_many_async`](Self::write_many_async). The output has the
    /// outcome of each range, as [`write_many_each`](Self::write_many_each) returns it: the length of the range, or an
    /// error.
    ///
    /// # Errors
    /// The output has an error instead if the engine cannot find the GPU of the buffer.
    pub fn write_many_each_async<B: IoBuf + Send + 'static>(
        &self,
        buffer: B,
        ranges: Vec<IoRange>,
    ) -> IoFuture<(B, Vec<IoRange>), Vec<Result<usize>>> {
        IoFuture::start_each(Owned::new((buffer, ranges), |(buffer, ranges)| {
            let memory = self.memory(buffer, 0)?;
            // SAFETY: the memory belongs to the value that is handed over.
            Ok(unsafe { each_range(self, Direction::Write, memory, ranges) })
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
            let transfer = |entries| self.transfer(Direction::Read, entries, Growth::MayAllocate);
            // SAFETY: memory and files belong to the value that is handed over.
            unsafe { of_entries(self, entries, transfer) }
        }))
    }

    /// Starts a read of many ranges of any files, like [`read_many_async`](Self::read_many_async). The output has the
    /// outcome of each request, as [`read_many_each`](Self::read_many_each) returns it.
    ///
    /// # Errors
    /// The output has an error instead only in a forked child, as [`IoFuture`] says.
    pub fn read_many_each_async<B: IoBufMut + Send + 'static>(
        &self,
        requests: Vec<Request<B>>,
    ) -> IoFuture<Vec<Request<B>>, Vec<Result<usize>>> {
        IoFuture::start_each(Owned::new(requests, |requests| {
            let (entries, refusals) = Refusals::of_requests(Request::to_read(requests));
            // SAFETY: memory and files belong to the value that is handed over.
            Ok(unsafe { each_entry(self, Direction::Read, &entries, refusals) })
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
            let transfer = |entries| self.transfer(Direction::Write, entries, Growth::MayAllocate);
            // SAFETY: memory and files belong to the value that is handed over.
            unsafe { of_entries(self, entries, transfer) }
        }))
    }

    /// Starts a write of memory to many ranges of any files, like [`write_many_async`](Self::write_many_async). The output has the
    /// outcome of each request, as [`write_many_each`](Self::write_many_each) returns it: the length of the request, or an error.
    ///
    /// ```
    /// use gpufile::{Engine, File, Request};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = |name| folder.path().join(name);
    /// # std::fs::write(path("a.bin"), "aaaa")?;
    /// let (a, b) = (File::open(path("a.bin"))?, File::create(path("b.bin"))?);
    /// let requests = vec![a, b].into_iter().map(|file| Request { file, buffer: vec![7; 2], offset: 0 });
    /// let future = Engine::global().write_many_each_async(requests.collect());
    /// let (outcomes, _) = future.wait(); // or future.await
    /// assert!(matches!(outcomes?[..], [Err(_), Ok(2)])); // the first file may only be read
    /// assert_eq!(std::fs::read(path("b.bin"))?, [7, 7]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The output has an error instead only in a forked child, as [`IoFuture`] says.
    pub fn write_many_each_async<B: IoBuf + Send + 'static>(
        &self,
        requests: Vec<Request<B>>,
    ) -> IoFuture<Vec<Request<B>>, Vec<Result<usize>>> {
        IoFuture::start_each(Owned::new(requests, |requests| {
            let (entries, refusals) = Refusals::of_requests(Request::to_write(requests));
            // SAFETY: memory and files belong to the value that is handed over.
            Ok(unsafe { each_entry(self, Direction::Write, &entries, refusals) })
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
    let transfer = file.transfer(direction, memory, ranges, Growth::MayAllocate);
    // SAFETY: the caller's promise. The file stays open, because the clone refers to it too.
    unsafe { of_list(file.engine(), transfer, Arc::new(file.clone())) }
}

/// Returns the work of ranges of a file and one buffer, with an outcome for each range.
///
/// # Safety
/// As for [`Work::new`].
unsafe fn each_range(file: &File, direction: Direction, memory: Memory, ranges: &[IoRange]) -> Work {
    let run = |ranges: &[IoRange]| {
        let kept = Arc::new((file.clone(), ranges.to_vec()));
        let transfer = file.transfer(direction, memory, &kept.1, Growth::MayAllocate).each();
        // SAFETY: the caller's promise. The ranges belong to `kept`, and the file stays open.
        let work = unsafe { of_list(file.engine(), transfer.clone(), kept.clone()) };
        work.map_err(|_| Refusals::of(&transfer))
    };
    let (work, refusals) = Refusals::default().run(ranges, run);
    work.with_refusals(refusals)
}

/// Returns the work of a list of ranges.
///
/// # Errors
/// The refusal of a range.
///
/// # Safety
/// As for [`Work::new`].
unsafe fn of_list(engine: &Engine, transfer: Transfer<'_>, kept: Arc<dyn Any + Send + Sync>) -> Result<Work> {
    let total_bytes = transfer.entries.lens().fold(0, usize::saturating_add);
    // SAFETY: the caller's promise.
    let mut work = unsafe { Work::new(engine, transfer.clone(), kept, total_bytes) }.of_list();
    if transfer.entries.len() > 0 {
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
unsafe fn of_entries<'e>(
    engine: &'e Engine,
    entries: Vec<Entry<'e>>,
    transfer: impl Fn(&'e [Entry<'e>]) -> Transfer<'e>,
) -> Result<Work> {
    // SAFETY: only the lifetime changes. The work, which keeps the list, is dropped before the value, or never.
    let list = Arc::new(unsafe { mem::transmute::<Vec<Entry<'_>>, Vec<Entry<'static>>>(entries) });
    // SAFETY: the vector is not changed, so its entries stay where they are as long as the work keeps it.
    let entries = unsafe { slice::from_raw_parts(list.as_ptr(), list.len()) };
    let whole = transfer(entries);
    if whole.direction == Direction::Read {
        // SAFETY: the caller's promise. The entries belong to the list, and the work keeps the engine.
        return unsafe { of_list(engine, whole, list) };
    }
    let total_bytes = whole.entries.lens().fold(0, usize::saturating_add);
    // SAFETY: as above.
    let mut work = unsafe { Work::new(engine, whole, list, total_bytes) }.of_list();
    // The engine writes several files at once, each by the plan that is fastest for it.
    let mut start = 0;
    for group in groups(entries) {
        let mut part = transfer(group);
        if group.len() < entries.len() {
            part.choices.growth = Growth::BesideOthers;
        }
        // SAFETY: as above.
        unsafe { work.add(start, &part) }?;
        start += group.len();
    }
    Ok(work)
}

/// Returns the work of entries of any files and buffers. Each entry has an outcome, also those in `refusals`.
///
/// # Safety
/// As for [`Work::new`].
unsafe fn each_entry(
    engine: &Engine,
    direction: Direction,
    entries: &[Entry<'_>],
    refusals: Refusals,
) -> Work {
    let run = |entries: &[Entry<'_>]| {
        let transfer = |entries| engine.transfer(direction, entries, Growth::MayAllocate).each();
        // SAFETY: the caller's promise.
        let work = unsafe { of_entries(engine, entries.to_vec(), transfer) };
        work.map_err(|_| Refusals::of(&transfer(entries)))
    };
    let (work, refusals) = refusals.run(entries, run);
    work.with_refusals(refusals)
}
