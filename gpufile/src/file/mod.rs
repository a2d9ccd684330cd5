//! Open files: reads and writes of device and host memory.

mod mapped;
pub(crate) mod options;
mod registration;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::Path;
use std::slice;
use std::sync::Arc;

use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::{Choices, Engine, FILE_LIMIT, Growth, IoRange, Transfer, beyond_limit};
use crate::error::{Cause, Error, Result};
use crate::memory::{Memory, Place};
use crate::open_file::OpenFile;
use crate::open_file::outcome::{EntryStop, Outcome, Stop};
use crate::route::{Route, RoutePolicy, Way};

/// An open file. Reads and writes are positional and take `&self`, so threads can share a file. Clones refer
/// to the same open file.
///
/// Names elsewhere: `FileHandle` (KvikIO, kvik-rs); `FileWrapper`, `closed`, `opened` (KvikIO); `close`, `posix_close`
/// (kvik-rs).
///
/// # Transfers
///
/// | | one range | many ranges of one buffer | ranges of many files |
/// |---|---|---|---|
/// | wait | [`read_at`](Self::read_at), [`write_all_at`](Self::write_all_at) | | |
/// | wait, exactly | [`read_exact_at`](Self::read_exact_at) | [`read_many`](Self::read_many), [`write_many`](Self::write_many) | [`Engine::read_many`], [`Engine::write_many`] |
/// | wait, an outcome each | | [`read_many_each`](Self::read_many_each), [`write_many_each`](Self::write_many_each) | [`Engine::read_many_each`], [`Engine::write_many_each`] |
/// | a future | [`read_at_async`](Self::read_at_async), [`write_all_at_async`](Self::write_all_at_async) | [`read_many_async`](Self::read_many_async), [`write_many_async`](Self::write_many_async) | [`Engine::read_many_async`], [`Engine::write_many_async`] |
/// | a future, an outcome each | | [`read_many_each_async`](Self::read_many_each_async), [`write_many_each_async`](Self::write_many_each_async) | [`Engine::read_many_each_async`], [`Engine::write_many_each_async`] |
/// | in a stream's order | [`read_at_on_stream`](Self::read_at_on_stream), [`write_all_at_on_stream`](Self::write_all_at_on_stream) | [`read_many_on_stream`](Self::read_many_on_stream), [`write_many_on_stream`](Self::write_many_on_stream) | |
///
/// - **The buffer** is device or host memory, borrowed by transfers that wait and owned by the others.
///   [`read_uninit_at`](Self::read_uninit_at) takes host memory that is not initialised.
/// - **Exactly**: the last three rows return an [`IoFuture`](crate::IoFuture), and
///   [`exact`](crate::IoFuture::exact) makes a read of one range fail at the end of the file. Writes and lists are always
///   exact, except where each range has an outcome.
/// - **In a stream's order**: one outcome for one file and one buffer. The call takes the ranges before the stream gets there, so
///   they cannot depend on its work. For several files, call them for each, with parts of a buffer
///   ([`OwnedPart`](crate::OwnedPart)).
/// - **In another way**: [`inline`](Self::inline), [`map`](Self::map) and [`with_chunk_bytes`](Self::with_chunk_bytes) return the
///   same file with another way to move the bytes.
///
/// Reads fill the page cache, from which later reads take the cached bytes. Reads of a file longer than half
/// of the available memory bypass the page cache where it holds less than half of the range.
/// [`OpenOptions::direct_read`](crate::OpenOptions::direct_read) changes this.
///
/// ```
/// use gpufile::File;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// let file = File::create(&path)?;
/// let bytes = vec![7; 5000]; // or device memory, as everywhere
/// file.write_all_at(&bytes, 100)?;
/// assert_eq!(file.len_bytes()?, 5100);
///
/// let mut tail = vec![0; 4096];
/// let read = file.read_at(&mut tail, 5000)?; // the file ends after 100 bytes
/// assert_eq!((read, tail[99]), (100, 7));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct File {
    open: Arc<OpenFile>,
    engine: Engine,
    chunk_bytes: Option<usize>,
    is_inline: bool,
}

impl File {
    pub(crate) fn new(open: OpenFile, engine: Engine) -> Self {
        Self { open: Arc::new(open), engine, chunk_bytes: None, is_inline: false }
    }

    /// Registers the file with cuFile if its settings require that.
    ///
    /// # Errors
    /// [`Error::Open`] with the reason why cuFile does not work for it.
    pub(crate) fn checked(open: OpenFile, engine: Engine) -> Result<Self> {
        if open.settings.policy == RoutePolicy::RequireCufile && open.stored().is_none() {
            let failed = |reason| Error::Open { path: open.path.clone(), cause: Cause::NoCufile(reason) };
            open.require_cufile().map_err(failed)?;
        }
        Ok(Self::new(open, engine))
    }

    /// Returns the same open file with another chunk length for its transfers, in bytes. 0 stands for 1. For device memory,
    /// chunks are no longer than a bounce buffer. In a transfer of more than 4096 chunks, short chunks grow up to 1 MiB.
    #[must_use = "the file itself keeps its chunk size"]
    pub fn with_chunk_bytes(&self, chunk_bytes: usize) -> Self {
        Self { chunk_bytes: Some(chunk_bytes.max(1)), ..self.clone() }
    }

    /// Returns the same open file, whose transfers the calling thread carries out alone, without the engine's workers.
    /// Futures, stream-ordered transfers and long lists of ranges still use workers.
    #[must_use = "the file itself keeps its workers"]
    pub fn inline(&self) -> Self {
        Self { is_inline: true, ..self.clone() }
    }

    /// Returns the same open file with another engine for its transfers, and the policies of that engine. Choices of
    /// [`OpenOptions`](crate::OpenOptions) no longer apply.
    ///
    /// # Errors
    /// [`Error::Open`] if the process has too many descriptors, or if the engine requires cuFile, and it does not work
    /// for the file.
    pub fn with_engine(&self, engine: &Engine) -> Result<Self> {
        let open = self.open.with_gpus(engine.gpus().clone(), engine.settings().clone());
        let open = open.map_err(|error| Error::Open { path: self.path().to_owned(), cause: error.into() })?;
        let other = Self::checked(open, engine.clone())?;
        Ok(Self { chunk_bytes: self.chunk_bytes, is_inline: self.is_inline, ..other })
    }

    /// Reads into the whole buffer from `offset` in bytes. Returns the number of bytes that were read. It is
    /// less than the length of the buffer only if the file ends there. The rest of the buffer is then
    /// unspecified, because cuFile overwrites it.
    ///
    /// Names elsewhere: `PartialIO::Yes`, `read_host`, `pread_host`, `posix_host_read`, `pread_raw` (kvik-rs).
    ///
    /// # Errors
    /// [`Error::Transfer`]. Bytes after the failed one may have been read too.
    #[doc(alias = "read")]
    #[doc(alias = "Yes")]
    #[doc(alias = "read_host")]
    #[doc(alias = "pread_host")]
    #[doc(alias = "posix_host_read")]
    #[doc(alias = "pread_raw")]
    pub fn read_at<B: IoBufMut + ?Sized>(&self, buffer: &mut B, offset: u64) -> Result<usize> {
        let memory = self.memory_mut(buffer, offset)?;
        // SAFETY: the buffer is borrowed for as long as the call lasts.
        unsafe { self.read_memory(memory, offset) }
    }

    /// Reads into the whole buffer from `offset` in bytes.
    ///
    /// Names elsewhere: `PartialIO::No` (kvik-rs).
    ///
    /// # Errors
    /// [`Error::Transfer`], with [`Cause::EndOfFile`] if the file ends before the buffer is full.
    #[doc(alias = "PartialIO")]
    #[doc(alias = "No")]
    pub fn read_exact_at<B: IoBufMut + ?Sized>(&self, buffer: &mut B, offset: u64) -> Result<()> {
        let len = buffer.len_bytes();
        match self.read_at(buffer, offset)? {
            done if done < len => Err(self.open.error(Direction::Read, offset, len, Stop::end_of_file(done))),
            _ => Ok(()),
        }
    }

    /// Reads from `offset` in bytes into host memory that need not be initialised. Returns the bytes that
    /// were read. They are fewer than the buffer has only if the file ends there.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = gpufile::File::open("Cargo.toml")?;
    /// let mut memory = Vec::with_capacity(9);
    /// assert_eq!(file.read_uninit_at(memory.spare_capacity_mut(), 0)?, b"[package]");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn read_uninit_at<'b>(&self, buffer: &'b mut [MaybeUninit<u8>], offset: u64) -> Result<&'b mut [u8]> {
        let (ptr, len_bytes) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the buffer is borrowed mutably for as long as the call lasts.
        let done = unsafe { self.read_memory(Memory::on_host(ptr, len_bytes), offset) }?;
        // SAFETY: the read wrote `done` bytes.
        Ok(unsafe { slice::from_raw_parts_mut(ptr, done) })
    }

    /// Writes the whole buffer to `offset` in bytes.
    ///
    /// Names elsewhere: `write_host`, `pwrite_host`, `posix_host_write`, `pwrite_raw` (kvik-rs).
    ///
    /// # Length
    /// A failed write leaves the file with its old length, that of a successful write, or any length between. Bytes that were not
    /// written keep their values, or are zeros after the old end. A write never makes a file shorter. On tmpfs, a long write
    /// makes the file longer before it writes the first byte. On disks, blocks that a failed write did not use may stay allocated
    /// after the end until the file is truncated or removed.
    ///
    /// # Other writers
    /// Several threads may write to one file at once. Where their ranges overlap, either may be written last.
    ///
    /// On a [direct route](crate::RouteKind), libcufile writes device memory in whole blocks of 4 KiB. Where a range begins or
    /// ends within a block, libcufile reads the block, changes it, and writes it back. The transfers of all engines of a process
    /// take turns at such a block. Other writers do not: a descriptor, a mapping, another process. While a write of device memory
    /// is in flight, they must not write to any byte of the blocks that it touches. Otherwise, their bytes may be lost without an
    /// error.
    ///
    /// # Errors
    /// [`Error::Transfer`]. Bytes after the failed one may have been written too; see [Length](#length).
    #[doc(alias = "write")]
    #[doc(alias = "write_host")]
    #[doc(alias = "pwrite_host")]
    #[doc(alias = "posix_host_write")]
    #[doc(alias = "pwrite_raw")]
    pub fn write_all_at<B: IoBuf + ?Sized>(&self, buffer: &B, offset: u64) -> Result<()> {
        let memory = self.memory(buffer, offset)?;
        // SAFETY: the buffer is borrowed for as long as the call lasts.
        unsafe { self.write_memory(memory, offset) }
    }

    /// Returns the route between this file and device memory, and why it is not a better one. The first call loads CUDA, and
    /// opens the cuFile driver if the answer needs it.
    ///
    /// Names elsewhere: `get_compat_mode_manager` (KvikIO).
    #[doc(alias = "get_compat_mode_manager")]
    pub fn route(&self) -> &Route {
        self.open.route()
    }

    /// Returns the length of the file in bytes. Any write may change it.
    ///
    /// Names elsewhere: `nbytes`, `file_size` (KvikIO, kvik-rs); `get_file_size` (KvikIO); `refresh_nbytes` (kvik-rs).
    ///
    /// # Errors
    /// [`Error::File`].
    #[doc(alias = "nbytes")]
    #[doc(alias = "get_file_size")]
    #[doc(alias = "file_size")]
    #[doc(alias = "refresh_nbytes")]
    pub fn len_bytes(&self) -> Result<u64> {
        self.open.len_bytes().map_err(|error| self.failed("stat", error))
    }

    /// Truncates the file to this length in bytes, or extends it with zeros (`ftruncate`).
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.open.file.set_len(len_bytes).map_err(|error| self.failed("resize", error))
    }

    /// Waits until contents and size are on storage (`fsync`).
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn sync_all(&self) -> Result<()> {
        self.open.file.sync_all().map_err(|error| self.failed("sync", error))
    }

    /// Returns the path with which the file was opened. For a descriptor that was taken over, it is the path
    /// at that time.
    ///
    /// Names elsewhere: `RemoteEndpoint::str` (KvikIO).
    #[doc(alias = "str")]
    pub fn path(&self) -> &Path {
        &self.open.path
    }

    /// Returns the engine that carries out the file's transfers.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn open_file(&self) -> &Arc<OpenFile> {
        &self.open
    }

    /// Reads into memory. The read is short only at the end of the file.
    ///
    /// # Safety
    /// The memory must belong to an [`IoBufMut`] that stays in place. Nothing else may use it until the
    /// function returns.
    pub(crate) unsafe fn read_memory(&self, memory: Memory, offset: u64) -> Result<usize> {
        /// The longest read, in bytes, that ends before another thread has woken up.
        const ALONE_BYTES: usize = 256 << 10;
        /// The longest read, in bytes, that needs only one copy.
        const SMALL_BYTES: usize = 64 << 10;
        let len = memory.len_bytes;
        let range = [self.range(Direction::Read, offset, len)?];
        let is_small = |limit: usize| {
            len <= limit.min(self.open.settings.bounce_buffer_bytes) && self.open.is_buffered_read(len)
        };
        let outcome = if memory.place == Place::Host && is_small(ALONE_BYTES) {
            let _request = self.open.request_to_read(&memory);
            // SAFETY: the caller's promise.
            let outcome = unsafe { self.open.read_small_to_host(memory.ptr, len, offset) };
            self.open.count_read(Way::Host, len, &outcome);
            outcome
        } else if memory.place != Place::Host && is_small(SMALL_BYTES) && self.open.cufile(len).is_none() {
            let _request = self.open.request_to_read(&memory);
            // SAFETY: the caller's promise.
            unsafe { self.engine.workers().read_small(&self.open, &memory, offset) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.run(Direction::Read, memory, &range) }
        };
        match outcome {
            Ok(()) => Ok(len),
            Err(Stop { done_bytes, cause: None }) => Ok(done_bytes),
            Err(stop) => Err(self.open.error(Direction::Read, offset, len, stop)),
        }
    }

    /// Reads memory of the host if that takes no longer than to ask a worker: a few bytes, which the page cache has. Returns
    /// false if not all of them were read.
    ///
    /// # Safety
    /// As for [`read_memory`](Self::read_memory).
    pub(crate) unsafe fn read_at_once(&self, memory: &Memory, offset: u64) -> bool {
        /// The longest read, in bytes, that takes no longer than to give it to a worker.
        const AT_ONCE_BYTES: usize = 16 << 10;
        let len = memory.len_bytes;
        let is_short = (1..=AT_ONCE_BYTES).contains(&len) && memory.place == Place::Host;
        // SAFETY: the caller's promise.
        let is_read = is_short && unsafe { self.open.read_cached(memory.ptr, len, offset) };
        if is_read {
            self.open.count_read(Way::Host, len, &Ok(()));
        }
        is_read
    }

    /// Writes memory.
    ///
    /// # Safety
    /// The memory must belong to an [`IoBuf`] that stays in place until the function returns.
    pub(crate) unsafe fn write_memory(&self, memory: Memory, offset: u64) -> Result<()> {
        let len = memory.len_bytes;
        let range = [self.range(Direction::Write, offset, len)?];
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.run(Direction::Write, memory, &range) };
        outcome.map_err(|stop| self.open.error(Direction::Write, offset, len, stop))
    }

    /// Carries out a transfer of one range, and waits for it.
    ///
    /// # Safety
    /// As for [`Workers::run`](crate::engine::Workers::run).
    unsafe fn run(&self, direction: Direction, memory: Memory, range: &[IoRange; 1]) -> Outcome {
        let transfer = self.transfer(direction, memory, range, Growth::MayAllocate);
        // SAFETY: the caller's promise.
        let stops = unsafe { self.engine.workers().run(&transfer) };
        match stops.expect("a checked range, which overlaps no other").pop() {
            None => Ok(()),
            Some(EntryStop { stop, .. }) => Err(stop),
        }
    }

    pub(crate) fn transfer<'a>(
        &'a self,
        direction: Direction,
        memory: Memory,
        ranges: &'a [IoRange],
        growth: Growth,
    ) -> Transfer<'a> {
        let choices =
            Choices { chunk_bytes: self.chunk_bytes, growth, is_inline: self.is_inline, each: false };
        Transfer::of_file(direction, &self.open, memory, ranges, choices)
    }

    fn with_open_file(&self, open: OpenFile) -> Self {
        Self { open: Arc::new(open), ..self.clone() }
    }

    pub(crate) fn chunk_bytes(&self) -> Option<usize> {
        self.chunk_bytes
    }

    /// Returns a buffer's memory. Chooses the file's route, so no worker has to.
    pub(crate) fn memory<B: IoBuf + ?Sized>(&self, buffer: &B, offset: u64) -> Result<Memory> {
        let memory = self
            .engine
            .gpus()
            .memory_of(buffer)
            .map_err(|error| self.refused(Direction::Write, offset, buffer.len_bytes(), error))?;
        self.choose_route(&memory);
        Ok(memory)
    }

    /// As [`memory`](Self::memory), for a buffer to be read into.
    pub(crate) fn memory_mut<B: IoBufMut + ?Sized>(&self, buffer: &mut B, offset: u64) -> Result<Memory> {
        let memory = self
            .engine
            .gpus()
            .memory_of_mut(buffer)
            .map_err(|error| self.refused(Direction::Read, offset, buffer.len_bytes(), error))?;
        self.choose_route(&memory);
        Ok(memory)
    }

    fn choose_route(&self, memory: &Memory) {
        if memory.place != Place::Host {
            self.open.route();
        }
    }

    /// Returns the range of a whole buffer at `offset`, if the kernel can address it.
    pub(crate) fn range(&self, direction: Direction, offset: u64, len_bytes: usize) -> Result<IoRange> {
        self.check_offset(direction, offset, len_bytes)?;
        Ok(IoRange { file_offset: offset, buffer_offset: 0, len_bytes })
    }

    pub(crate) fn check_offset(&self, direction: Direction, offset: u64, len_bytes: usize) -> Result<()> {
        match offset.checked_add(len_bytes as u64) {
            Some(end) if end <= FILE_LIMIT => Ok(()),
            _ => Err(self.refused(direction, offset, len_bytes, beyond_limit())),
        }
    }

    #[cold]
    pub(crate) fn refused(
        &self,
        direction: Direction,
        offset: u64,
        len_bytes: usize,
        cause: impl Into<Cause>,
    ) -> Error {
        self.open.error(direction, offset, len_bytes, Stop::failed(0, cause))
    }

    /// Returns the error of an operation of the caller on this file, for example a copy.
    ///
    /// ```
    /// use gpufile::File;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let file = tempfile::NamedTempFile::new()?;
    /// # let path = file.path();
    /// let file = File::open(path)?;
    /// let error = file.failed("compare", std::io::Error::other("byte 7 differs"));
    /// assert!(error.to_string().starts_with("cannot compare "));
    /// # Ok(())
    /// # }
    /// ```
    pub fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        Error::File { operation, path: self.open.path.clone(), cause: error.into() }
    }

    /// Counts a read to host memory through the descriptor, for [`Engine::stats`](crate::Engine::stats).
    pub fn count_host_read(&self, bytes: usize) {
        self.open.count_read(Way::Host, bytes, &Ok(()));
    }
}

// A panic leaves no state half changed for a later call: the data that locks protect is consistent at any
// time.
impl UnwindSafe for File {}
impl RefUnwindSafe for File {}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.open.as_fd()
    }
}
