//! Files that are read through a mapping.

use std::fmt;
use std::io;
use std::sync::Arc;

use cufile::IoBufMut;

use crate::engine::{Entries, IoRange, Schedule, Transfer};
use crate::error::{Cause, Error, READ, Result};
use crate::file::File;
use crate::memory::Memory;
use crate::open_file::{Mapping, Method};

/// A file that is mapped into memory for reading, made by [`File::map`] or [`File::map_unchecked`].
///
/// Ranges are copied from the mapping, without a system call for each. Once the mapping's pages have been
/// touched, this is the fastest method for many small ranges of a file in the page cache.
///
/// ```
/// use gpufile::{File, IoRange};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("table.bin");
/// # std::fs::write(&path, (0..=255).collect::<Vec<u8>>())?;
/// let mapped = File::open(&path)?.map()?;
/// let mut buffer = vec![0; 2]; // or device memory
/// let byte = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 1 };
/// mapped.read_many(&mut buffer, &[byte(200, 0), byte(3, 1)])?;
/// assert_eq!(buffer, [200, 3]);
/// # Ok(())
/// # }
/// ```
pub struct MappedFile {
    file: File,
    mapping: Arc<Mapping>,
}

impl File {
    /// Maps all of the file for reading. Other programs may write to the file, or shorten it, at any time: a
    /// read of bytes that are gone fails with [`Cause::EndOfFile`].
    ///
    /// The kernel copies the ranges (`process_vm_writev`, many ranges with one call).
    /// [`map_unchecked`](Self::map_unchecked) is faster for ranges shorter than 4 KiB.
    ///
    /// # Errors
    /// [`Error::File`], also if the file is not regular. Files of `/proc` count as regular, with a length of
    /// 0 bytes.
    pub fn map(&self) -> Result<MappedFile> {
        Ok(MappedFile { file: self.clone(), mapping: Arc::new(self.mapping()?) })
    }

    /// Maps all of the file for reading, like [`map`](Self::map). Workers copy the ranges without system calls.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    ///
    /// # Safety
    /// While the value lives, the file must not become shorter: reading a page that is gone ends the process
    /// with `SIGBUS`. Nothing may write to a range while it is read.
    pub unsafe fn map_unchecked(&self) -> Result<MappedFile> {
        // SAFETY: the caller's promise.
        let mapping = unsafe { self.mapping()?.trusted() };
        Ok(MappedFile { file: self.clone(), mapping: Arc::new(mapping) })
    }

    fn mapping(&self) -> Result<Mapping> {
        let map = || {
            let status = self.open_file().file.metadata()?;
            if !status.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            let len_bytes = usize::try_from(status.len()).map_err(io::Error::other)?;
            Mapping::for_read(&self.open_file().file, len_bytes)
        };
        map().map_err(|error| self.failed("map", error))
    }
}

impl MappedFile {
    /// Returns the number of mapped bytes, which is the length of the file when it was mapped.
    pub fn len_bytes(&self) -> usize {
        self.mapping.len_bytes()
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Touches all pages (`madvise`, `MADV_POPULATE_READ`, since Linux 5.14). Later reads then wait neither
    /// for the disk nor for page faults.
    ///
    /// # Errors
    /// [`Error::File`], with [`Cause::EndOfFile`] if the file has become shorter.
    pub fn prefetch(&self) -> Result<()> {
        if self.len_bytes() == 0 {
            return Ok(());
        }
        let start = self.mapping.as_ptr().cast_mut().cast();
        // SAFETY: the range is the mapping's own.
        match unsafe { libc::madvise(start, self.len_bytes(), libc::MADV_POPULATE_READ) } {
            0 => Ok(()),
            _ => Err(self.prefetch_error(io::Error::last_os_error())),
        }
    }

    fn prefetch_error(&self, error: io::Error) -> Error {
        let path = self.file.path().to_owned();
        match self.file.len_bytes() {
            // Pages that are gone count as a bad address.
            Ok(at) if error.raw_os_error() == Some(libc::EFAULT) && at < self.len_bytes() as u64 => {
                Error::File { operation: "prefetch", path, cause: Cause::EndOfFile { at } }
            }
            _ => self.file.failed("prefetch", error),
        }
    }

    /// Reads into the whole buffer from `offset` in bytes. Returns the number of bytes that were read. It is
    /// less than the length of the buffer only if the mapping ends there.
    ///
    /// # Errors
    /// [`Error::Transfer`].
    pub fn read_at<B: IoBufMut + ?Sized>(&self, buffer: &mut B, offset: u64) -> Result<usize> {
        let memory = self.memory(buffer, offset)?;
        let left = (self.len_bytes() as u64).saturating_sub(offset);
        let len_bytes = memory.len_bytes.min(usize::try_from(left).unwrap_or(usize::MAX));
        let range = IoRange { file_offset: offset, buffer_offset: 0, len_bytes };
        if len_bytes > 0 {
            // SAFETY: the buffer is borrowed for as long as the call lasts; the range lies in it and in the
            // mapping.
            unsafe { self.run(memory, &[range]) }.map_err(|error| match error {
                Error::Entry { error, .. } => *error,
                other => other,
            })?;
        }
        Ok(len_bytes)
    }

    /// Reads into the whole buffer from `offset` in bytes.
    ///
    /// # Errors
    /// [`Error::Transfer`], with [`Cause::EndOfFile`] if the mapping ends before the buffer is full.
    pub fn read_exact_at<B: IoBufMut + ?Sized>(&self, buffer: &mut B, offset: u64) -> Result<()> {
        let len = buffer.len_bytes();
        match self.read_at(buffer, offset)? {
            done if done < len => {
                let cause = Cause::EndOfFile { at: self.len_bytes() as u64 };
                Err(self.file.transfer_error(READ, offset, len, done, cause))
            }
            _ => Ok(()),
        }
    }

    /// Reads many ranges into one buffer, like [`File::read_many`].
    ///
    /// # Errors
    /// As [`File::read_many`]. Ranges beyond the mapping fail with [`Cause::EndOfFile`].
    pub fn read_many<B: IoBufMut + ?Sized>(&self, buffer: &mut B, ranges: &[IoRange]) -> Result<()> {
        let memory = self.memory(buffer, 0)?;
        if ranges.is_empty() {
            return Ok(());
        }
        // SAFETY: the buffer is borrowed for as long as the call lasts.
        unsafe { self.run(memory, ranges) }
    }

    fn memory<B: IoBufMut + ?Sized>(&self, buffer: &mut B, offset: u64) -> Result<Memory> {
        let len = buffer.len_bytes();
        self.file
            .engine()
            .gpus()
            .memory_of_mut(buffer)
            .map_err(|error| self.file.transfer_error(READ, offset, len, 0, error.into()))
    }

    /// Reads ranges into memory by copying from the mapping.
    ///
    /// # Safety
    /// As for [`Workers::run`](crate::engine::Workers::run).
    unsafe fn run(&self, memory: Memory, ranges: &[IoRange]) -> Result<()> {
        let file_limit = self.len_bytes() as u64;
        let entries = Entries::Ranges { file: self.file.open_file(), memory, ranges, file_limit };
        let settings = self.file.engine().settings();
        let (total_bytes, chunk_bytes) = (entries.total_bytes(), self.file.chunk_bytes());
        let schedule = Schedule::new(settings, total_bytes, memory.place, chunk_bytes);
        let transfer = Transfer { method: Method::ReadMapping(self.mapping.clone()), entries };
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.file.engine().workers().read_ranges(&transfer, &schedule) };
        self.file.ranges_outcome(READ, &memory, ranges, file_limit, outcome)
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({} bytes of {:?})", self.len_bytes(), self.file.path())
    }
}
