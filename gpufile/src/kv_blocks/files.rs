//! The files with the blocks of a store.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use cufile::fork::Mutex;

use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::file::options::OpenOptions;
use crate::kv_blocks::index::Index;
use crate::kv_blocks::slots::Slot;
use crate::kv_blocks::sum;
use crate::kv_blocks::sums::{Sums, on_threads};
use crate::trusted::at::lacks_call;
use crate::trusted::{PrivateFolder, make_private};

/// Slots start at multiples of this, in bytes, so that neighbours share no block of a disk and no page.
const ALIGNMENT: u64 = 4096;

/// The places of blocks in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub block_bytes: u64,
    pub blocks_per_file: u32,
    /// The folders take turns, slot by slot and file by file.
    pub folders: u32,
    pub slots: u32,
}

/// A folder of a store.
pub struct Folder {
    pub folder: PrivateFolder,
    /// The inode of its index, which this process has open. Another index in its place is that of another store.
    pub index: u64,
}

/// The files. Each is opened when one of its slots is first used.
pub struct Files {
    folders: Arc<[Folder]>,
    options: OpenOptions,
    pub layout: Layout,
    /// False for a reader, which makes no files.
    writes: bool,
    open: Mutex<BTreeMap<u32, File>>,
    pub of_memory: Sums,
}

impl Layout {
    /// Returns the distance of two slots in a file, in bytes.
    pub fn slot_bytes(block_bytes: u64) -> Option<u64> {
        block_bytes.checked_next_multiple_of(ALIGNMENT)
    }

    /// Returns the number of the file with a slot.
    pub fn file_of(&self, slot: Slot) -> u32 {
        slot / self.folders / self.blocks_per_file * self.folders + slot % self.folders
    }

    /// Returns the start of a slot in its file, in bytes.
    pub fn offset_of(&self, slot: Slot) -> u64 {
        u64::from(slot / self.folders % self.blocks_per_file) * self.block_bytes.next_multiple_of(ALIGNMENT)
    }

    /// Returns the length of a file with all its slots, in bytes.
    fn file_bytes(&self, file: u32) -> u64 {
        let (round, folder) = (file / self.folders, file % self.folders);
        let of_folder = self.slots.saturating_sub(folder).div_ceil(self.folders);
        let slots = of_folder.saturating_sub(round * self.blocks_per_file).min(self.blocks_per_file);
        u64::from(slots) * self.block_bytes.next_multiple_of(ALIGNMENT)
    }

    /// Returns the number of files of all slots. The last of them may have none.
    fn files(&self) -> u32 {
        self.slots.div_ceil(self.folders).div_ceil(self.blocks_per_file) * self.folders
    }
}

/// Returns whether a store gives this name to a file.
pub fn is_ours(name: &OsStr) -> bool {
    let is_number = |digits: &str| digits.len() >= 5 && digits.bytes().all(|digit| digit.is_ascii_digit());
    name == Index::NAME || name.to_str().and_then(|name| name.strip_prefix("blocks-")).is_some_and(is_number)
}

/// Checks that the folder of a new store has no files with the names of blocks, which may be of another program.
///
/// # Errors
/// [`Cause::Invalid`] with the first of them.
pub fn require_none(folder: &PrivateFolder) -> Result<()> {
    let failed = |error: io::Error| failed_folder(folder, "list", error);
    match folder.names().map_err(failed)?.iter().find(|name| is_ours(name) && *name != Index::NAME) {
        None => Ok(()),
        Some(name) => Err(Error::Open {
            path: folder.path_of(name),
            cause: Cause::Invalid(
                "no index says that a block store made it; remove it, or name another folder".to_owned(),
            ),
        }),
    }
}

fn failed_folder(folder: &PrivateFolder, operation: &'static str, error: io::Error) -> Error {
    Error::File { operation, path: folder.path().to_owned(), cause: error.into() }
}

impl Files {
    pub fn new(folders: Arc<[Folder]>, options: &OpenOptions, layout: Layout, writes: bool) -> Self {
        Self {
            folders,
            options: options.clone(),
            layout,
            writes,
            open: Mutex::default(),
            of_memory: Sums::default(),
        }
    }

    /// Returns the folder with a file.
    fn folder(&self, file: u32) -> &PrivateFolder {
        &self.folders[(file % self.layout.folders) as usize].folder
    }

    fn name(&self, file: u32) -> OsString {
        format!("blocks-{file:05}").into()
    }

    fn path(&self, file: u32) -> PathBuf {
        self.folder(file).path_of(&self.name(file))
    }

    /// Removes files, and the end of one, that a store with a higher limit has left. Returns the lengths of the others.
    ///
    /// # Errors
    /// The error that the operating system returned. [`Cause::Invalid`] for what is not a file of this user alone.
    pub fn survey(&self) -> Result<Vec<u64>> {
        let mut lens = Vec::new();
        for number in 0..self.layout.files() {
            lens.push(match self.find(number)? {
                Some(file) => self.cut(number, &file)?,
                None => 0,
            });
        }
        for folder in 0..self.layout.folders {
            for number in (self.layout.files() + folder..).step_by(self.layout.folders as usize) {
                if self.find(number)?.is_none() {
                    break;
                }
                let removed = self.folder(number).remove(&self.name(number));
                removed.map_err(|error| self.failed("remove", number, error))?;
            }
        }
        Ok(lens)
    }

    /// Makes a file shorter that has more bytes than its slots. Returns its length.
    fn cut(&self, number: u32, file: &fs::File) -> Result<u64> {
        let most = self.layout.file_bytes(number);
        let len_bytes = file.metadata().map_err(|error| self.failed("stat", number, error))?.len();
        if len_bytes > most {
            file.set_len(most).map_err(|error| self.failed("resize", number, error))?;
        }
        Ok(len_bytes.min(most))
    }

    /// Makes the folders private, which an earlier version left readable.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn make_private(&self) -> Result<()> {
        self.folders.iter().try_for_each(|Folder { folder, .. }| {
            folder.make_private().map_err(|error| failed_folder(folder, "change the mode of", error))
        })
    }

    /// Opens a file that the index knows of, if there is one.
    fn find(&self, number: u32) -> Result<Option<fs::File>> {
        let found = self.folder(number).find_file(&self.name(number), libc::O_RDWR);
        let found = found.map_err(|cause| Error::Open { path: self.path(number), cause })?;
        // An earlier version let others read it.
        let private = found.as_ref().map_or(Ok(()), |file| make_private(file, 0o600));
        private.map_err(|error| self.failed("change the mode of", number, error)).map(|()| found)
    }

    /// Checks that the folder of a file still has the index of this store. Otherwise, its files may be those of another one.
    fn require_index(&self, file: u32) -> Result<()> {
        let name = OsStr::new(Index::NAME);
        let Folder { folder, index } = &self.folders[(file % self.layout.folders) as usize];
        match folder.inode(name) {
            Ok(inode) if inode == *index => Ok(()),
            _ => Err(Error::Open {
                path: folder.path_of(name),
                cause: Cause::Invalid(
                    "it was removed or replaced while the store was open; open the store again".to_owned(),
                ),
            }),
        }
    }

    /// Returns the file with a slot.
    ///
    /// # Errors
    /// The error of opening it.
    pub fn get(&self, slot: Slot) -> Result<File> {
        self.file(self.layout.file_of(slot))
    }

    /// Returns a file. A store makes it with its full length. So writes never make it longer.
    fn file(&self, number: u32) -> Result<File> {
        let mut open = self.open.lock();
        if let Some(file) = open.get(&number) {
            return Ok(file.clone());
        }
        self.require_index(number)?;
        let flags = if self.writes { libc::O_RDWR | libc::O_CREAT } else { libc::O_RDONLY };
        let opened = self.folder(number).open_file(&self.name(number), flags);
        let file = opened.map_err(|cause| Error::Open { path: self.path(number), cause })?;
        let file = self.options.take_over(self.path(number), file)?;
        // Others may have replaced both since.
        self.require_index(number)?;
        let len_bytes = self.layout.file_bytes(number);
        if self.writes && file.len_bytes()? < len_bytes {
            match file.set_len(len_bytes) {
                // On such a mount, a write lengthens the file too.
                Err(Error::File { cause: Cause::Io(error), .. }) if lacks_call(&error) => {
                    file.write_all_at(&[0][..], len_bytes - 1)?;
                }
                set => set?,
            }
        }
        open.insert(number, file.clone());
        Ok(file)
    }

    /// Waits until the disk has the blocks in these slots, and the names of their files.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn sync(&self, slots: impl Iterator<Item = Slot>) -> Result<()> {
        let numbers: BTreeSet<_> = slots.map(|slot| self.layout.file_of(slot)).collect();
        numbers.into_iter().try_for_each(|number| self.file(number)?.sync_all())?;
        self.sync_folders()
    }

    /// Waits until the disk has all blocks, also those of earlier stores.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn sync_all(&self) -> Result<()> {
        let open = self.open.lock().clone();
        for number in 0..self.layout.files() {
            match open.get(&number) {
                Some(file) => file.sync_all()?,
                None => {
                    let synced = self.find(number)?.map_or(Ok(()), |file| file.sync_all());
                    synced.map_err(|error| self.failed("sync", number, error))?;
                }
            }
        }
        self.sync_folders()
    }

    /// Waits until the disk has the names of the files.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn sync_folders(&self) -> Result<()> {
        let sync = |Folder { folder, .. }: &Folder| {
            folder.sync().map_err(|error| failed_folder(folder, "sync", error))
        };
        self.folders.iter().try_for_each(sync)
    }

    /// Returns the sum of the bytes in each of these slots, which are read through the page cache.
    pub fn sums(&self, slots: &[(Slot, u64)]) -> Vec<Result<u64>> {
        let len_bytes = slots.iter().map(|(_, len_bytes)| *len_bytes).sum();
        on_threads(slots, len_bytes, |&(slot, len_bytes)| self.sum(slot, len_bytes))
    }

    fn sum(&self, slot: Slot, len_bytes: u64) -> Result<u64> {
        let file = self.get(slot)?;
        let (mut sum, mut done, mut buffer) = (0_u64, 0, vec![0; 256 << 10]);
        while done < len_bytes {
            let part = &mut buffer[..(256 << 10).min(len_bytes - done) as usize];
            let read = file.open_file().file.read_exact_at(part, self.layout.offset_of(slot) + done);
            read.map_err(|error| file.failed("read", error))?;
            sum = sum.wrapping_add(sum::sum(part, done));
            done += part.len() as u64;
        }
        Ok(sum)
    }

    fn failed(&self, operation: &'static str, file: u32, error: io::Error) -> Error {
        Error::File { operation, path: self.path(file), cause: error.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn folders_take_turns_and_no_slots_share_bytes() {
        for (folders, blocks_per_file, slots) in [(1, 4, 10), (2, 4, 11), (3, 2, 20), (3, 5, 2), (4, 1, 9)] {
            let layout = Layout { block_bytes: 5000, blocks_per_file, folders, slots };
            let mut ends: HashMap<u32, u64> = HashMap::new();
            for slot in 0..slots {
                let (file, offset) = (layout.file_of(slot), layout.offset_of(slot));
                assert_eq!(file % folders, slot % folders);
                assert_eq!(ends.insert(file, offset + 8192).unwrap_or(0), offset, "{layout:?}, slot {slot}");
            }
            for file in 0..layout.files() {
                assert_eq!(
                    layout.file_bytes(file),
                    ends.remove(&file).unwrap_or(0),
                    "{layout:?}, file {file}"
                );
            }
            assert!(ends.is_empty(), "{layout:?}");
        }
    }
}
