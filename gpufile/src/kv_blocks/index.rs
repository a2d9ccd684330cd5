//! The index of a store: open and locked, or open to read.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use cufile::fork::Generation;

use crate::error::{Cause, Error, Result};
use crate::kv_blocks::entry::{ENTRY_BYTES, Entry, Found, HEADER_BYTES, Header};
use crate::trusted::{PrivateFolder, make_private};

/// The file with the header and the entries. Only one store has it locked. In the further folders of a store, it has no entries.
pub struct Index {
    path: PathBuf,
    file: fs::File,
    generation: Generation,
}

impl Index {
    /// The name of the file.
    pub const NAME: &str = "index";

    /// Returns whether a folder has an index.
    ///
    /// # Errors
    /// [`Error::Open`] with the reason why it cannot be used.
    pub fn is_in(folder: &PrivateFolder) -> Result<bool> {
        let name = OsStr::new(Self::NAME);
        match folder.find_file(name, libc::O_RDONLY) {
            Ok(found) => Ok(found.is_some()),
            Err(cause) => Err(Error::Open { path: folder.path_of(name), cause }),
        }
    }

    /// Opens or creates the index of a folder. Returns it with its header, if it has one.
    ///
    /// # Errors
    /// If another store has the folder open, or if the file is not an index.
    pub fn open(folder: &PrivateFolder) -> Result<(Self, Option<Header>)> {
        let (name, path) = (OsStr::new(Self::NAME), folder.path_of(OsStr::new(Self::NAME)));
        let opened = folder.open_file(name, libc::O_RDWR | libc::O_CREAT);
        let file = opened.map_err(|cause| Error::Open { path: path.clone(), cause })?;
        // SAFETY: takes integers; the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            let cause = match error.raw_os_error() {
                Some(libc::EWOULDBLOCK) => Cause::Invalid("another store has it open".to_owned()),
                _ => error.into(),
            };
            return Err(Error::File { operation: "lock", path, cause });
        }
        let index = Self { path, file, generation: Generation::current() };
        let header = index.header()?;
        Ok((index, header))
    }

    /// Opens the index of a folder to read, beside the store that has it locked. Returns it with its header.
    ///
    /// # Errors
    /// If the folder has no index, or if the file is not one.
    pub fn open_to_read(folder: &PrivateFolder) -> Result<(Self, Option<Header>)> {
        let (name, path) = (OsStr::new(Self::NAME), folder.path_of(OsStr::new(Self::NAME)));
        let opened = folder.open_file(name, libc::O_RDONLY);
        let file = opened.map_err(|cause| Error::Open { path: path.clone(), cause })?;
        let index = Self { path, file, generation: Generation::current() };
        let header = index.header()?;
        Ok((index, header))
    }

    /// Returns the first bytes from a place on, and zeros after the end of the file.
    fn bytes_at(&self, place: u64) -> Result<[u8; ENTRY_BYTES]> {
        let mut bytes = [0; ENTRY_BYTES];
        let mut read = 0;
        while read < ENTRY_BYTES {
            match self.file.read_at(&mut bytes[read..], place + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("read", error)),
            }
        }
        Ok(bytes)
    }

    /// Returns the header, or `None` if the file is new.
    ///
    /// # Errors
    /// If the file is not an index of this version.
    pub fn header(&self) -> Result<Option<Header>> {
        let mut bytes = self.bytes_at(0)?;
        // A read at the time of a write may return parts of both.
        for _ in 0..1000 {
            if Header::parse(&bytes).is_some() || bytes == [0; ENTRY_BYTES] {
                break;
            }
            bytes = self.bytes_at(0)?;
        }
        // A process that was killed may leave a file without a header, and without blocks.
        let is_new = bytes == [0; ENTRY_BYTES] && self.metadata()?.len() <= ENTRY_BYTES as u64;
        if is_new {
            return Ok(None);
        }
        if Header::is_earlier(&bytes) {
            let why = "an earlier version of gpufile made it; remove its folder to begin anew";
            return Err(self.invalid("use", why.to_owned()));
        }
        let damaged =
            || self.invalid("use", "it is not the index of a block store, or it is damaged".to_owned());
        Header::parse(&bytes).map(Some).ok_or_else(damaged)
    }

    fn metadata(&self) -> Result<fs::Metadata> {
        self.file.metadata().map_err(|error| self.failed("stat", error))
    }

    /// Returns the number of the file.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn inode(&self) -> Result<u64> {
        Ok(self.metadata()?.ino())
    }

    /// Makes the file private, which an earlier version left readable.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn make_private(&self) -> Result<()> {
        make_private(&self.file, 0o600).map_err(|error| self.failed("change the mode of", error))
    }

    /// Writes the header.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn set_header(&self, header: Header) -> Result<()> {
        self.file.write_all_at(&header.to_bytes(), 0).map_err(|error| self.failed("write", error))
    }

    /// Returns what the index says about each slot, up to the last of `slots` that it has.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn entries(&self, slots: u32, block_bytes: u64) -> Result<Vec<Found>> {
        let len = self.metadata()?.len();
        let count = (len.saturating_sub(HEADER_BYTES as u64) / ENTRY_BYTES as u64).min(slots.into()) as u32;
        let mut found = Vec::new();
        let mut buffer = vec![[0; ENTRY_BYTES]; 4096];
        for start in (0..count).step_by(buffer.len()) {
            let part = &mut buffer[..(count - start).min(4096) as usize];
            part.fill([0; ENTRY_BYTES]);
            match self.file.read_exact_at(part.as_flattened_mut(), place(start)) {
                // A store has made the file shorter while a reader read it.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                read => read.map_err(|error| self.failed("read", error))?,
            }
            let entries = part.iter().zip(start..);
            found.extend(entries.map(|(bytes, slot)| Entry::parse(bytes, slot, block_bytes)));
        }
        Ok(found)
    }

    /// Returns what the index says about one slot.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn entry(&self, slot: u32, block_bytes: u64) -> Result<Found> {
        Ok(Entry::parse(&self.bytes_at(place(slot))?, slot, block_bytes))
    }

    /// Writes entries, or zeros for `None`. The slots must ascend. Neighbours are written by one call.
    ///
    /// # Errors
    /// The error that the operating system returned. Some entries may have been written.
    pub fn write(&self, entries: &[(u32, Option<Entry>)]) -> Result<()> {
        let mut bytes = Vec::new();
        for run in entries.chunk_by(|one, next| one.0 + 1 == next.0) {
            bytes.clear();
            for (slot, entry) in run {
                bytes.extend(entry.map_or([0; ENTRY_BYTES], |entry| entry.to_bytes(*slot)));
            }
            let written = self.file.write_all_at(&bytes, place(run[0].0));
            written.map_err(|error| self.failed("write", error))?;
        }
        Ok(())
    }

    /// Removes the entries of the slots from `slots` on.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn truncate(&self, slots: u32) -> Result<()> {
        match self.metadata()?.len() > place(slots) {
            true => self.file.set_len(place(slots)).map_err(|error| self.failed("resize", error)),
            false => Ok(()),
        }
    }

    /// Waits until the disk has what was written.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| self.failed("sync", error))
    }

    /// Returns the error of an operation that is not possible.
    pub fn invalid(&self, operation: &'static str, why: String) -> Error {
        Error::File { operation, path: self.path.clone(), cause: Cause::Invalid(why) }
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        Error::File { operation, path: self.path.clone(), cause: error.into() }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // Forked children have the same lock, and would keep it.
        if self.generation.is_current() {
            // SAFETY: takes integers; the descriptor is open.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

/// Returns the place of the entry of a slot.
fn place(slot: u32) -> u64 {
    HEADER_BYTES as u64 + u64::from(slot) * ENTRY_BYTES as u64
}

/// Returns the id of this boot of the machine, if the kernel tells it.
pub fn boot() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_le_bytes)
}
