//! Files that take the place of others when they are complete.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Error, Result, of_entry};
use crate::{Cause, File, OpenOptions};

/// How files are saved.
///
/// A file is written beside the one that it replaces, as `.NAME.PROCESS.NUMBER.tmp`, and renamed when it is complete.
/// Whoever opens the path meanwhile finds the old contents or the new ones. On failure the old file is untouched and
/// the new one is removed; only a process that is killed leaves it behind. A new file has the permissions that any new
/// file gets; where a symbolic link was, the file takes its place.
#[derive(Debug, Clone)]
#[must_use]
pub struct SaveOptions {
    files: OpenOptions,
    pub(super) sync: bool,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SaveOptions {
    /// By the process's default engine, waiting for the storage.
    pub fn new() -> Self {
        Self { files: OpenOptions::new(), sync: true }
    }

    /// Opens the file in this way: with this engine, path policy and use of `O_DIRECT`. What the options say about
    /// access and creation does not count.
    pub fn files(mut self, files: &OpenOptions) -> Self {
        self.files = files.clone();
        self
    }

    /// Whether to wait until the file has reached the storage before it is renamed, and then for the folder (`fsync`).
    /// Without, a crash of the machine may leave an incomplete file in the place of the old one.
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }
}

/// Writes a file, and puts it in its place when all of it is there.
pub(super) fn save(
    path: &Path,
    options: &SaveOptions,
    write: impl FnOnce(&File) -> crate::Result<()>,
) -> Result<()> {
    let save = || {
        let (file, mut temporary) = create(path, &options.files)?;
        write(&file)?;
        match options.sync {
            true => file.sync_all()?,
            false => close_copy(&file).map_err(|error| file.failed("close", error))?,
        }
        drop(file);
        let failed = |operation, error: io::Error| crate::Error::File {
            operation,
            path: path.to_owned(),
            cause: error.into(),
        };
        fs::rename(&temporary.path, path).map_err(|error| failed("replace", error))?;
        // From now on the name is free for others.
        temporary.is_renamed = true;
        if options.sync {
            sync_folder(path).map_err(|error| failed("sync the folder of", error))?;
        }
        Ok(())
    };
    save().map_err(|error| Error::Save { path: path.to_owned(), error: of_entry(error) })
}

/// A path that is removed, unless it was renamed.
struct Temporary {
    path: PathBuf,
    is_renamed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            // If it cannot be removed, the failure that it is removed for is what matters.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a file beside the one that it is to replace.
fn create(path: &Path, options: &OpenOptions) -> crate::Result<(File, Temporary)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    /// File systems allow 255 bytes, and the rest of the name has less than the difference.
    const MOST_BYTES: usize = 200;
    let name = path.file_name().map(OsStr::as_bytes).ok_or_else(|| no_file_name(path))?;
    let options = options.clone().read(true).write(true).create_new(true);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut temporary = b".".to_vec();
        temporary.extend_from_slice(&name[..name.len().min(MOST_BYTES)]);
        temporary.extend_from_slice(format!(".{}.{number}.tmp", process::id()).as_bytes());
        let temporary = path.with_file_name(OsStr::from_bytes(&temporary));
        match options.open(&temporary) {
            Ok(file) => return Ok((file, Temporary { path: temporary, is_renamed: false })),
            // Of a process that had this number and was killed.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            Err(error) => {
                // It may have been created, and found to be none for cuFile then.
                drop(Temporary { path: temporary, is_renamed: false });
                return Err(error);
            }
        }
    }
}

/// Closes a copy of the descriptor. That is when file systems on the network write what they have put off, and say if it
/// failed.
fn close_copy(file: &File) -> io::Result<()> {
    let copy = file.as_fd().try_clone_to_owned()?.into_raw_fd();
    // SAFETY: the descriptor is nobody else's.
    if unsafe { libc::close(copy) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // It is closed all the same.
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

pub(super) fn no_file_name(path: &Path) -> crate::Error {
    crate::Error::Open { path: path.to_owned(), cause: Cause::Invalid("it does not name a file".to_owned()) }
}

/// Syncs the folder that names a file, or a folder.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    match fs::File::open(folder)?.sync_all() {
        // File systems whose folders need no sync, or have none, say so.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_given_up_is_not_removed_when_another_has_it() {
        for is_renamed in [false, true] {
            let file = tempfile::NamedTempFile::new().unwrap();
            drop(Temporary { path: file.path().to_owned(), is_renamed });
            assert_eq!(file.path().exists(), is_renamed);
        }
    }
}
