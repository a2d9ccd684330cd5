//! Listing the keys of a store, for zarrs.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zarrs::storage::{
    ListableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
};

use super::store::{FileStore, has_gone};
use crate::formats::save::names::target_of;

/// The files and folders in one folder of a store, sorted by name. Omits other kinds of files, temporary files, and
/// names that are not UTF-8.
struct Folder {
    files: Vec<(String, u64)>,
    folders: Vec<(String, PathBuf)>,
}

impl Folder {
    /// Reads a folder. Returns nothing if there is no folder.
    fn read(path: &Path) -> Result<Self, StorageError> {
        let mut folder = Self { files: Vec::new(), folders: Vec::new() };
        let entries = match fs::read_dir(path) {
            Err(error) if has_gone(&error) => return Ok(folder),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let metadata = match fs::metadata(entry.path()) {
                // Another process removed it, or it is a broken link.
                Err(error) if has_gone(&error) || leads_nowhere(&error) => continue,
                metadata => metadata?,
            };
            if metadata.is_dir() {
                folder.folders.push((name, entry.path()));
            } else if metadata.is_file() && target_of(name.as_bytes()).is_none() {
                folder.files.push((name, metadata.len()));
            }
        }
        folder.files.sort();
        folder.folders.sort();
        Ok(folder)
    }
}

/// Returns whether an error means that a link leads to itself, or into a file.
fn leads_nowhere(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR))
}

/// Calls `found` with the key and the length of every file below a folder.
///
/// `above` has the device and inode of each folder above this one. A link to one of them is not followed.
fn walk(
    path: &Path,
    prefix: &str,
    above: &mut Vec<(u64, u64)>,
    found: &mut impl FnMut(String, u64),
) -> Result<(), StorageError> {
    let identity = match fs::metadata(path) {
        Err(error) if has_gone(&error) => return Ok(()),
        metadata => metadata.map(|metadata| (metadata.dev(), metadata.ino()))?,
    };
    if above.contains(&identity) {
        return Ok(());
    }
    above.push(identity);
    let folder = Folder::read(path)?;
    for (name, len_bytes) in folder.files {
        found(format!("{prefix}{name}"), len_bytes);
    }
    for (name, path) in folder.folders {
        walk(&path, &format!("{prefix}{name}/"), above, found)?;
    }
    above.pop();
    Ok(())
}

impl ListableStorageTraits for FileStore {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let mut names = Vec::new();
        walk(&self.prefix_path(prefix)?, prefix.as_str(), &mut Vec::new(), &mut |key, _| names.push(key))?;
        names.sort();
        Ok(names.into_iter().map(StoreKey::new).collect::<Result<_, _>>()?)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let folder = Folder::read(&self.prefix_path(prefix)?)?;
        let keys = folder.files.into_iter().map(|(name, _)| StoreKey::new(format!("{prefix}{name}")));
        let keys = keys.collect::<Result<_, _>>()?;
        let prefixes =
            folder.folders.into_iter().map(|(name, _)| StorePrefix::new(format!("{prefix}{name}/")));
        Ok(StoreKeysPrefixes::new(keys, prefixes.collect::<Result<_, _>>()?))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let mut size_bytes = 0;
        walk(&self.prefix_path(prefix)?, "", &mut Vec::new(), &mut |_, len_bytes| size_bytes += len_bytes)?;
        Ok(size_bytes)
    }
}
