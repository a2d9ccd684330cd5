//! Temporary files: writing them, and renaming them over their targets.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::folder::{Folder, failed, no_file_name};
use super::lock::try_lock;
use super::names::temporary_name;
use super::options::SaveOptions;
use crate::File;
use crate::formats::random::random;

/// A file under a unique temporary name. Dropping it removes the file, unless it was renamed.
#[derive(Debug)]
pub(in crate::formats) struct Temporary {
    path: PathBuf,
    /// Holds the lock, which tells other processes that this one is alive.
    file: fs::File,
    is_renamed: bool,
}

impl Temporary {
    /// Creates a file in the folder, named after its target, with these permissions less the umask.
    ///
    /// # Errors
    /// [`crate::Error::Open`]. No file is left then.
    pub fn create(folder: &Folder, target: &Path, mode: u32) -> crate::Result<Self> {
        let name = target.file_name().ok_or_else(|| no_file_name(target))?;
        loop {
            let open_error = |error: io::Error, path: &Path| crate::Error::Open {
                path: path.to_owned(),
                cause: error.into(),
            };
            let number = random().map_err(|error| open_error(error, target))?;
            let path = target.with_file_name(temporary_name(name, number));
            let mut new = fs::File::options();
            let file = match new.read(true).write(true).create_new(true).mode(mode).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                opened => opened.map_err(|error| open_error(error, &path))?,
            };
            let temporary = Self { path, file, is_renamed: false };
            let is_ours = || temporary.lock().map_err(|error| open_error(error, &temporary.path));
            if !folder.has_locks || is_ours()? {
                return Ok(temporary);
            }
        }
    }

    /// Takes the lock, and returns whether the file still exists. Another process may have found it unlocked and
    /// removed it.
    ///
    /// # Errors
    /// The error of reading the file's metadata. [`create`](Self::create) would try again without end otherwise.
    fn lock(&self) -> io::Result<bool> {
        match try_lock(&self.file) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            // On a file system without locks, no process removes it.
            _ => {}
        }
        Ok(self.file.metadata()?.nlink() > 0)
    }

    /// Creates a file and writes it. Waits for the storage if the options say so.
    ///
    /// # Errors
    /// The error of creating, writing or syncing the file. No file is left then.
    pub fn written(
        folder: &Folder,
        target: &Path,
        options: &SaveOptions,
        write: impl FnOnce(&File) -> crate::Result<()>,
    ) -> crate::Result<Self> {
        let mut written = Self::written_together(folder, &[target], options, |files| write(&files[0]))?;
        Ok(written.pop().expect("one file for one target"))
    }

    /// Creates a file for each target, and writes all of them in one call. Then waits for the storage if the options say
    /// so.
    ///
    /// # Errors
    /// As [`written`](Self::written). None of the files is left then.
    pub fn written_together(
        folder: &Folder,
        targets: &[&Path],
        options: &SaveOptions,
        write: impl FnOnce(&[File]) -> crate::Result<()>,
    ) -> crate::Result<Vec<Self>> {
        let (mut temporaries, mut files) = (Vec::with_capacity(targets.len()), Vec::new());
        for target in targets {
            let temporary = Self::create(folder, target, options.mode)?;
            let copy = temporary.file.try_clone();
            let copy = copy.map_err(|error| failed("open", &temporary.path, error))?;
            files.push(options.files.take_over(temporary.path.clone(), copy)?);
            temporaries.push(temporary);
        }
        write(&files)?;
        for file in &files {
            match options.sync {
                true => file.sync_all()?,
                false => close_copy(file).map_err(|error| file.failed("close", error))?,
            }
        }
        Ok(temporaries)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the file in the folder, for a later process to remove.
    pub fn leave(mut self) {
        self.is_renamed = true;
    }

    /// Renames the file, which replaces an older one.
    ///
    /// # Errors
    /// [`crate::Error::File`]. The older file stays then, and the temporary one is removed.
    pub fn replace(mut self, path: &Path) -> crate::Result<()> {
        fs::rename(&self.path, path).map_err(|error| failed("replace", path, error))?;
        // From now on the name is free for others.
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            // The caller gets the error that came before this removal.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Closes a copy of the descriptor. Network file systems write delayed data then, and report errors of it.
fn close_copy(file: &File) -> io::Result<()> {
    let copy = file.as_fd().try_clone_to_owned()?.into_raw_fd();
    // SAFETY: `copy` owns the descriptor, and nothing uses it later.
    if unsafe { libc::close(copy) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // The kernel has closed it nevertheless.
        error if error.kind() == ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_removes_only_files_that_were_not_renamed() {
        for is_renamed in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a");
            let file = fs::File::create(&path).unwrap();
            drop(Temporary { path: path.clone(), file, is_renamed });
            assert_eq!(path.exists(), is_renamed);
        }
    }

    #[test]
    fn temporary_files_are_locked_while_written() {
        // On other file systems there may be no locks.
        let Ok(place) = tempfile::tempdir_in("/dev/shm") else { return };
        let target = place.path().join("a");
        let folder = Folder::open(&target, false).unwrap();
        let temporary = Temporary::create(&folder, &target, 0o666).unwrap();
        let other = fs::File::open(temporary.path()).unwrap();
        assert_eq!(try_lock(&other).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn files_removed_before_locking_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let create =
            || Temporary { path: path.clone(), file: fs::File::create(&path).unwrap(), is_renamed: false };
        let removed = create();
        fs::remove_file(&path).unwrap();
        assert!(!removed.lock().unwrap());
        let locked = create();
        let other = fs::File::open(&path).unwrap();
        try_lock(&other).unwrap();
        assert!(!locked.lock().unwrap());
        drop(other);
        assert!(locked.lock().unwrap());
    }
}
