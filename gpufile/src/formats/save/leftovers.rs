//! Removing the temporary files and the shards that killed processes left.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::folder::Folder;
use super::lock::try_lock;
use super::names::target_of;
use super::options::SaveOptions;
use crate::formats::safetensors::shards::remove_abandoned;

/// The age of a file that counts as left, where locks do not tell.
const AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Opens the folder that `path` names a file in, and removes the files that killed processes left there.
///
/// # Errors
/// As [`Folder::open`].
pub(in crate::formats) fn open_clean(path: &Path, options: &SaveOptions) -> crate::Result<Folder> {
    let folder = Folder::open(path, options.sync)?;
    remove(&folder, options.kept);
    Ok(folder)
}

/// Removes the files that killed processes left in a folder, on this process's first save there. Later saves need not
/// list a long folder again.
fn remove(folder: &Folder, kept: Option<(u64, u64)>) {
    /// The most folders to remember. Beyond that, all are forgotten and listed again.
    const FOLDERS: usize = 1 << 16;
    static SEEN: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());
    let Some(Ok(metadata)) = folder.handle.as_ref().map(fs::File::metadata) else { return };
    {
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.insert((metadata.dev(), metadata.ino())) {
            return;
        }
        if seen.len() > FOLDERS {
            seen.clear();
        }
    }
    // A file that cannot be listed or removed does no harm.
    let Ok(entries) = fs::read_dir(folder.path()) else { return };
    for entry in entries.flatten() {
        if let Some(target) = target_of(entry.file_name().as_bytes()) {
            remove_if_left(folder, &entry.path(), &folder.path().join(OsStr::from_bytes(target)), kept);
        }
    }
}

/// Removes a temporary file if the process that created it has ended.
fn remove_if_left(folder: &Folder, path: &Path, target: &Path, kept: Option<(u64, u64)>) {
    // Does not follow a symbolic link, and does not wait for a pipe.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = fs::File::options().read(true).write(true).custom_flags(flags).open(path) else { return };
    let Ok(metadata) = file.metadata() else { return };
    let is_kept = |metadata: &fs::Metadata| kept == Some((metadata.dev(), metadata.ino()));
    if !metadata.is_file() || is_kept(&metadata) {
        return;
    }
    let is_left = match folder.has_locks {
        true => try_lock(&file).is_ok(),
        false => metadata.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > AGE)),
    };
    if is_left && remove_abandoned(path, target, is_kept) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn without_locks_only_old_files_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("temporary");
        let mut folder = Folder::open(&path, false).unwrap();
        folder.has_locks = false;
        let file = fs::File::create(&path).unwrap();
        remove_if_left(&folder, &path, &place.path().join("target"), None);
        assert!(path.exists());
        file.set_modified(SystemTime::now() - AGE - Duration::from_secs(1)).unwrap();
        remove_if_left(&folder, &path, &place.path().join("target"), None);
        assert!(!path.exists());
    }
}
