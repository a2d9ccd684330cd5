//! Files whose reads take their bytes from a mapping.

use std::io;

use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::open_file::Mapping;
use crate::open_file::page_cache;

impl File {
    /// Returns the same file, whose reads copy their bytes from a mapping of it, without a system call for each range.
    /// Once the mapping's pages have been touched, this is the fastest method for many small ranges of a file in the
    /// page cache.
    ///
    /// Other programs may write to the file, or shorten it, at any time: a read of bytes that are gone ends there, or fails
    /// with [`Cause::EndOfFile`]. [`map_unchecked`](Self::map_unchecked) is faster for ranges shorter than 4 KiB.
    ///
    /// Bytes that the file got after it was mapped, and lists of several files, are read with system calls.
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
    ///
    /// Names elsewhere: `MmapHandle`, `initial_map_size`, `initial_map_offset` (KvikIO).
    ///
    /// # Errors
    /// [`Error::File`], also if the file is not regular. Files of `/proc` count as regular, with a length of
    /// 0 bytes.
    #[doc(alias = "MmapHandle")]
    #[doc(alias = "initial_map_size")]
    #[doc(alias = "initial_map_offset")]
    pub fn map(&self) -> Result<File> {
        self.mapped(|mapping| mapping)
    }

    /// Maps all of the file for reading, like [`map`](Self::map). Workers copy the ranges without system calls.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    ///
    /// # Safety
    /// The file must not become shorter while the returned file, a clone or another handle of it, or a transfer of one of
    /// them lives: reading a page that is gone ends the process with `SIGBUS`. Nothing may write to a range while it is read.
    pub unsafe fn map_unchecked(&self) -> Result<File> {
        // SAFETY: the caller's promise.
        self.mapped(|mapping| unsafe { mapping.trusted() })
    }

    fn mapped(&self, change: impl FnOnce(Mapping) -> Mapping) -> Result<File> {
        let map = || {
            let status = self.open_file().file.metadata()?;
            if !status.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            let len_bytes = usize::try_from(status.len()).map_err(io::Error::other)?;
            let mapping = Mapping::for_read(&self.open_file().file, len_bytes)?;
            self.open_file().with_mapping(change(mapping))
        };
        Ok(self.with_open_file(map().map_err(|error| self.failed("map", error))?))
    }

    /// Reads the whole file into the page cache, and touches the pages of a [mapped](Self::map) file (`madvise`,
    /// `MADV_POPULATE_READ`, since Linux 5.14). Later reads of a mapped file then wait neither for the disk nor for page
    /// faults. For a file that is not mapped, the call returns at once, as [`page_cache::prefetch`] does.
    ///
    /// # Errors
    /// [`Error::File`], with [`Cause::EndOfFile`] if a mapped file has become shorter.
    pub fn prefetch(&self) -> Result<()> {
        match &self.open_file().mapped {
            Some(mapping) => mapping.populate().map_err(|error| self.prefetch_error(mapping, error)),
            None => page_cache::prefetch(self, 0..self.len_bytes()?)
                .map_err(|error| self.failed("prefetch", error)),
        }
    }

    fn prefetch_error(&self, mapping: &Mapping, error: io::Error) -> Error {
        match self.len_bytes() {
            // Pages that are gone count as a bad address.
            Ok(at) if error.raw_os_error() == Some(libc::EFAULT) && at < mapping.len_bytes() as u64 => {
                let path = self.path().to_owned();
                Error::File { operation: "prefetch", path, cause: Cause::EndOfFile { at } }
            }
            _ => self.failed("prefetch", error),
        }
    }
}
