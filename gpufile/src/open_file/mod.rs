//! An open file as the engine sees it, and the ways in which bytes go between it and host memory or cuFile.

mod available;
mod blocks;
mod cufile_way;
mod direct;
mod mapping;
mod posix;
mod storage;

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{fs, io};

pub(crate) use cufile_way::read_cufile;
pub(crate) use direct::open_flags;
pub(crate) use mapping::Mapping;
pub(crate) use storage::Storage;

use crate::engine::{Bounce, Cutting, Engine, Side};
use crate::error::{Cause, Error};
use crate::file::WRITE;
use crate::page_cache;
use crate::route::RoutePolicy;
use crate::settings::DirectIo;
use crate::write_plan::Keep;
use blocks::{Blocks, Held, Sharing, WrittenFiles};
use cufile_way::Way;
use direct::Direct;
use mapping::may_be_sealed;
use posix::{read_full, write_full};

/// The number of bytes transferred, in order, and what failed. At the end of the file, fewer were transferred
/// and nothing failed.
pub(crate) type Outcome = (usize, Option<Cause>);

/// Below this, a read is not worth an `O_DIRECT` request of its own, nor the question whether it is cached.
const DIRECT_MIN_BYTES: usize = 128 << 10;

/// An open file and what is known about it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub path: PathBuf,
    /// Buffered: without `O_DIRECT`.
    pub file: fs::File,
    pub engine: Engine,
    pub policy: RoutePolicy,
    pub direct_read: DirectIo,
    pub direct_write: DirectIo,
    pub storage: Storage,
    /// The block device, or what stands for one, as `stat` numbers it.
    pub device: u64,
    /// Decided when device memory first asks, because opening the cuFile driver takes a tenth of a second.
    way: OnceLock<Way>,
    /// The same file with `O_DIRECT`, opened when first needed.
    direct: OnceLock<Option<Direct>>,
    /// The length in bytes of the longest file whose reads may fill the page cache. It depends on the memory
    /// that was available when a read first asked.
    most_cached_bytes: OnceLock<u64>,
    /// A mapping of all of a file of tmpfs for overwriting, made when first needed and anew when the file has grown.
    mapping: Mutex<Option<Arc<Mapping>>>,
    inode: u64,
    /// The blocks that are being written, through this and other descriptors of the same file in the process.
    /// Looked up by the first write.
    blocks: OnceLock<Arc<Blocks>>,
}

/// Bytes of a file that lie in a bounce buffer, from `start` on.
pub(crate) struct Staged {
    pub start: usize,
    pub done: usize,
    pub cause: Option<Cause>,
}

impl OpenFile {
    /// Takes over a descriptor; if it has `O_DIRECT`, another without is opened in its stead.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn new(
        path: PathBuf,
        file: fs::File,
        engine: Engine,
        policy: RoutePolicy,
        direct: (DirectIo, DirectIo),
    ) -> io::Result<Self> {
        let file = if direct::has_o_direct(&file)? { direct::reopen(&file, 0)? } else { file };
        let metadata = file.metadata()?;
        let storage = Storage::of(&file, &metadata)?;
        Ok(Self {
            path,
            file,
            engine,
            policy,
            direct_read: direct.0,
            direct_write: direct.1,
            storage,
            device: metadata.dev(),
            way: OnceLock::new(),
            direct: OnceLock::new(),
            most_cached_bytes: OnceLock::new(),
            mapping: Mutex::default(),
            inode: metadata.ino(),
            blocks: OnceLock::new(),
        })
    }

    /// Returns the error that reports a failed transfer of the file.
    #[cold]
    pub fn transfer_error(
        &self,
        operation: &'static str,
        offset: u64,
        len_bytes: usize,
        bytes_done: usize,
        cause: Cause,
    ) -> Error {
        Error::Transfer { operation, path: self.path.clone(), offset, len_bytes, bytes_done, cause }
    }

    /// Returns why a transfer that began at `offset` stopped after `done` bytes without an error.
    #[cold]
    pub fn no_more(&self, operation: &'static str, offset: u64, done: usize) -> Cause {
        if operation == WRITE {
            return io::Error::from(io::ErrorKind::WriteZero).into();
        }
        // A read that began behind the end did not see where that is. Since then the file may have become longer.
        let seen = offset.saturating_add(done as u64);
        Cause::EndOfFile { at: self.len_bytes().map_or(seen, |len| len.min(seen)) }
    }

    pub fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Reads into the bounce buffer, behind its first `end` bytes, and leaves room for `behind_bytes` more.
    pub fn read_staged(
        &self,
        bounce: &mut Bounce,
        end: usize,
        offset: u64,
        len_bytes: usize,
        behind_bytes: usize,
    ) -> Staged {
        let room = (end, bounce.len_bytes());
        if let Some(direct) = self.direct_for_read(offset, len_bytes)
            && let Some(start) = direct.place_for_read(room, offset, len_bytes, behind_bytes)
        {
            // SAFETY: the range lies in the bounce buffer, which nothing else uses.
            let target = unsafe { bounce.ptr().add(start) };
            // SAFETY: as above, with the over-read around it.
            let done = unsafe { direct.read_enclosing(target, len_bytes, offset) };
            // SAFETY: as above.
            let (done, cause) = unsafe { self.read_rest(target, len_bytes, offset, done) };
            return Staged { start, done, cause };
        }
        debug_assert!(end + len_bytes <= bounce.len_bytes());
        // SAFETY: a bounce buffer has room for a chunk, and nothing else uses it.
        let (done, cause) = unsafe { self.read_rest(bounce.ptr().add(end), len_bytes, offset, 0) };
        Staged { start: end, done, cause }
    }

    /// Reads to host memory.
    ///
    /// # Safety
    /// `target` must be valid for writes of `len_bytes`, and nothing else use it meanwhile.
    pub unsafe fn read_host(
        &self,
        target: *mut u8,
        len_bytes: usize,
        offset: u64,
        bounce: &mut Bounce,
    ) -> Outcome {
        let mut done = 0;
        if let Some(direct) = self.direct_for_read(offset, len_bytes) {
            if direct.is_aligned(target, offset, len_bytes) {
                // SAFETY: the caller's promise.
                done = unsafe { direct.read_enclosing(target, len_bytes, offset) };
            } else {
                while done < len_bytes {
                    let piece = (len_bytes - done).min(bounce.len_bytes() - 2 * direct.align(1));
                    let staged = self.read_staged(bounce, 0, offset + done as u64, piece, 0);
                    // SAFETY: both are as long, and a bounce buffer is the engine's.
                    unsafe {
                        let source = bounce.ptr().add(staged.start);
                        std::ptr::copy_nonoverlapping(source, target.add(done), staged.done);
                    }
                    done += staged.done;
                    if staged.done < piece {
                        return (done, staged.cause);
                    }
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.read_rest(target, len_bytes, offset, done) }
    }

    /// Reads what is left after `done` bytes, through the page cache.
    ///
    /// # Safety
    /// As for [`read_host`](Self::read_host).
    pub unsafe fn read_rest(&self, target: *mut u8, len_bytes: usize, offset: u64, done: usize) -> Outcome {
        // SAFETY: the caller's promise, behind what was read already.
        match unsafe { read_full(self.as_fd(), target.add(done), len_bytes - done, offset + done as u64) } {
            Ok(more) => (done + more, None),
            Err((more, error)) => (done + more, Some(error.into())),
        }
    }

    /// Returns where in a bounce buffer, behind its first `end` bytes, a range to be written must lie.
    pub fn place_for_write(&self, end: usize, offset: u64, len_bytes: usize, room_bytes: usize) -> usize {
        let Some(direct) = self.direct_for_write(len_bytes) else { return end };
        let (head, _) = direct.enclosing(offset, len_bytes);
        let start = direct.align(end) + head;
        if start + len_bytes <= room_bytes { start } else { end }
    }

    /// Writes host bytes, by `O_DIRECT` where that was asked for and their address allows it.
    pub fn write_staged(&self, side: &Side, last: bool, source: &[u8], offset: u64) -> Outcome {
        let _held = self.hold_beside_cufile(offset, source.len());
        let mut done = 0;
        if let (Side::WriteMapping(mapping), false) = (side, last) {
            done = mapping.write(source, offset);
        } else if let Some(direct) = self.direct_for_write(source.len()) {
            // The ends that are not aligned go through the page cache.
            let before = direct.until_aligned(offset).min(source.len());
            let inside = direct.aligned_part(source.len() - before);
            let middle = &source[before..before + inside];
            let at = offset + before as u64;
            if direct.is_aligned(middle.as_ptr(), at, inside) {
                // SAFETY: a slice.
                let head = unsafe { write_full(self.as_fd(), source.as_ptr(), before, offset) };
                if let Err((done, error)) = head {
                    return (done, Some(error.into()));
                }
                let (count, failure) = direct.write(middle, at);
                done = before + count;
                if let Some(error) = failure {
                    return (done, Some(error.into()));
                }
            }
        }
        // SAFETY: a slice.
        let rest = unsafe {
            write_full(self.as_fd(), source[done..].as_ptr(), source.len() - done, offset + done as u64)
        };
        match rest {
            Ok(()) => (source.len(), None),
            Err((more, error)) => (done + more, Some(error.into())),
        }
    }

    /// Writes host memory.
    ///
    /// # Safety
    /// `source` must be valid for reads of `len_bytes`, and nothing write it meanwhile.
    pub unsafe fn write_host(
        &self,
        side: &Side,
        last: bool,
        source: *const u8,
        len_bytes: usize,
        offset: u64,
        bounce: &mut Bounce,
    ) -> Outcome {
        // SAFETY: the caller's promise.
        let source = unsafe { std::slice::from_raw_parts(source, len_bytes) };
        let aligned = |direct: &&Direct| {
            let before = direct.until_aligned(offset);
            direct.is_aligned(source.as_ptr().wrapping_add(before), 0, 0)
        };
        if self.direct_for_write(len_bytes).is_none_or(|direct| aligned(&direct)) {
            return self.write_staged(side, last, source, offset);
        }
        let mut done = 0;
        while done < len_bytes {
            let at = offset + done as u64;
            let start = self.place_for_write(0, at, len_bytes - done, usize::MAX);
            let piece = (len_bytes - done).min(bounce.len_bytes() - start);
            // SAFETY: the range lies in the bounce buffer, which nothing else uses.
            let staged = unsafe { std::slice::from_raw_parts_mut(bounce.ptr().add(start), piece) };
            staged.copy_from_slice(&source[done..done + piece]);
            let (written, cause) = self.write_staged(side, last, staged, at);
            done += written;
            if written < piece {
                return (done, cause);
            }
        }
        (done, None)
    }

    /// Chooses how to cut a read. The chunks are read in order if the kernel makes up the contents as they
    /// are read. A long read by `O_DIRECT` that may be cut freely gets the lengths that are fastest for
    /// `O_DIRECT`; a sample of the range decides whether it takes that way.
    pub fn cutting_for_read(
        &self,
        cutting: Cutting,
        is_cut_freely: bool,
        offset: u64,
        len_bytes: usize,
    ) -> Cutting {
        if len_bytes > cutting.chunk_bytes && self.is_generated() {
            return Cutting { serial: true, ..cutting };
        }
        let is_cut_freely = is_cut_freely && self.engine.settings().chunk_bytes().is_none();
        let is_long = len_bytes > Direct::CHUNK_BYTES;
        if is_cut_freely
            && is_long
            && let Some(direct) = self.direct_for_read(offset, len_bytes.min(DIRECT_MIN_BYTES))
        {
            return direct.cutting(cutting);
        }
        cutting
    }

    /// Returns whether the file may have more contents than length, as files of procfs and debugfs have. To
    /// begin in the middle of such a file, the kernel makes up all that comes before.
    fn is_generated(&self) -> bool {
        self.storage == Storage::Other
            && self.file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
    }

    /// Returns whether a read of so many bytes certainly goes through the page cache.
    pub fn is_buffered_read(&self, len_bytes: usize) -> bool {
        match self.direct_read {
            DirectIo::Always => false,
            DirectIo::Never => true,
            DirectIo::Auto => len_bytes < DIRECT_MIN_BYTES || !self.storage.has_slow_misses(),
        }
    }

    fn blocks(&self) -> &Blocks {
        self.blocks.get_or_init(|| WrittenFiles::of_process().blocks_of((self.device, self.inode)))
    }

    /// Holds the blocks of a range that the kernel writes, beside which cuFile must not. It writes to no file of tmpfs
    /// directly.
    fn hold_beside_cufile(&self, offset: u64, len_bytes: usize) -> Option<Held<'_>> {
        match self.storage {
            Storage::Tmpfs => None,
            _ => self.blocks().hold(offset, len_bytes, Sharing::Shared),
        }
    }

    /// Allocates storage for a range that may lie behind the end (`fallocate`); says whether that worked.
    pub fn allocate(&self, offset: u64, len_bytes: u64, keep: Keep) -> bool {
        let mode = if keep == Keep::Size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len_bytes)) else {
            return false;
        };
        // SAFETY: takes integers.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) == 0 }
    }

    /// The way by `O_DIRECT`, if a read should take it.
    fn direct_for_read(&self, offset: u64, len_bytes: usize) -> Option<&Direct> {
        if self.is_buffered_read(len_bytes) {
            return None;
        }
        if self.direct_read == DirectIo::Auto && self.fits_page_cache() {
            return None;
        }
        let direct = self.direct()?;
        // What lies in the page cache is faster had from there. A few pages are there because of what was read before.
        let uncached = || {
            page_cache::residency(&self.file, offset..offset.saturating_add(len_bytes as u64)).is_ok_and(
                |residency| residency.cached * 2 < residency.pages && residency.dirty.unwrap_or(0) == 0,
            )
        };
        let aligned =
            || self.engine.settings().overread() || direct.is_aligned(std::ptr::null(), offset, len_bytes);
        ((self.direct_read == DirectIo::Always || uncached()) && aligned()).then_some(direct)
    }

    /// Returns whether there is enough memory to keep all of the file in the page cache, where the next
    /// reader finds it.
    fn fits_page_cache(&self) -> bool {
        let most = self.most_cached_bytes.get_or_init(|| available::available_bytes() / 2);
        // What is no file, such as a disk, has no length.
        self.file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() <= *most)
    }

    /// The way by `O_DIRECT`, if a write should take it.
    pub fn direct_for_write(&self, len_bytes: usize) -> Option<&Direct> {
        let wanted = self.direct_write == DirectIo::Always && len_bytes >= Bounce::ALIGNMENT;
        if wanted { self.direct() } else { None }
    }

    fn direct(&self) -> Option<&Direct> {
        let direct = self.direct.get_or_init(|| {
            let chunk_bytes = self.engine.settings().bounce_buffer_bytes();
            Direct::of(&self.file, Bounce::spare_bytes(chunk_bytes))
        });
        direct.as_ref().filter(|direct| direct.works())
    }

    /// A mapping for overwriting a range; `None` if the file is shorter or cannot be mapped.
    ///
    /// It covers all of the file and is kept for the next time, because to map pages anew takes as long as to write them. A
    /// file that may be sealed gets one for each write.
    pub fn mapping_for_overwriting(&self, range: Range<u64>) -> Option<Arc<Mapping>> {
        let mut mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mapping) = mapping.as_ref().filter(|mapping| mapping.len_bytes() as u64 >= range.end) {
            return Some(mapping.clone());
        }
        let len_bytes = self.len_bytes().ok().filter(|len_bytes| *len_bytes >= range.end)?;
        if may_be_sealed(&self.file) {
            return Some(Arc::new(Mapping::for_writing_once(&self.file, range).ok()?));
        }
        let new = Arc::new(Mapping::for_overwriting(&self.file, usize::try_from(len_bytes).ok()?).ok()?);
        *mapping = Some(new.clone());
        Some(new)
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests;
