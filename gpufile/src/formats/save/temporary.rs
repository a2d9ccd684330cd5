//! Temporary files: writing them, and renaming them over their targets.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use super::access::Access;
use super::folder::{Folder, failed};
use super::leftovers;
use super::lock::try_lock;
use super::locks::Locks;
use super::mount;
use super::names::temporary_name;
use super::options::SaveOptions;
use crate::formats::random::random;
use crate::trusted::SHARED_WRITE;
use crate::trusted::at::lacks_call;
use crate::{File, OpenOptions};

/// A file under a unique temporary name. Dropping it removes the file, unless it was renamed.
///
/// Until it is renamed, no other user can write to it. Only its owner can open a temporary file that will replace
/// another file.
#[derive(Debug)]
pub(in crate::formats) struct Temporary<'f> {
    folder: &'f Folder,
    name: OsString,
    target: OsString,
    /// Holds the lock, which tells other processes that this one is alive.
    file: File,
    mode: u32,
    is_renamed: bool,
}

/// A file to write: its name when it is complete, and its permissions, if it does not get those of any new file.
#[derive(Debug, Clone)]
pub(in crate::formats) struct New {
    pub target: OsString,
    pub access: Option<Access>,
}

impl<'f> Temporary<'f> {
    /// Creates a file in the folder, named after its target. A failure leaves no file.
    pub(super) fn create(folder: &'f Folder, new: &New, options: &OpenOptions) -> crate::Result<Self> {
        let path = || folder.path_of(&new.target);
        let failed = |error: io::Error| crate::Error::Open { path: path(), cause: error.into() };
        loop {
            let name = temporary_name(&new.target, random().map_err(failed)?);
            let file = match folder.create(&name, new.access.is_some()) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                created => created.map_err(failed)?,
            };
            let file = options.take_over(path(), file).inspect_err(|_| drop(folder.remove(&name)))?;
            let target = new.target.clone();
            let mut temporary = Self { folder, name, target, file, mode: 0, is_renamed: false };
            let has_lock = folder.locks == Locks::Mandatory || temporary.lock();
            let metadata = temporary.handle().metadata().map_err(failed)?;
            // Another process may have found it unlocked and removed it.
            if has_lock && metadata.nlink() > 0 {
                temporary.try_calls(metadata.dev())?;
                temporary.mode = metadata.mode() & 0o777;
                temporary.set_mode(temporary.mode & !SHARED_WRITE);
                return Ok(temporary);
            }
        }
    }

    fn handle(&self) -> &fs::File {
        &self.file.open_file().file
    }

    /// Takes the lock, and returns whether no other process has it.
    fn lock(&self) -> bool {
        // On a file system without locks, no process removes it.
        !try_lock(self.handle()).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Renames the file to another temporary name, and syncs it where the storage may be elsewhere. So a mount that refuses
    /// these calls fails the save before it writes. Does so once on each device.
    fn try_calls(&mut self, device: u64) -> crate::Result<()> {
        let folder = self.folder;
        let path = folder.path_of(&self.target);
        mount::once(device, folder.syncs(), || {
            let name =
                temporary_name(&self.target, random().map_err(|error| failed("rename", &path, error))?);
            folder.rename(&self.name, &name).map_err(|error| crate::Error::File {
                operation: "rename a file to",
                path: path.clone(),
                cause: mount::of_rename(error),
            })?;
            self.name = name;
            if folder.syncs() && folder.locks != Locks::ForAll {
                sync_file(self.handle()).map_err(|error| failed("sync", &path, error))?;
                folder.sync()?;
            }
            Ok(())
        })
    }

    /// Lets others write, or not, if the complete file lets them. Some file systems have one mode for all files, and refuse.
    fn set_mode(&self, mode: u32) {
        if self.mode & SHARED_WRITE != 0 {
            let _ = self.handle().set_permissions(Permissions::from_mode(mode));
        }
    }

    /// Creates a file and writes it. Waits for the storage if the options say so. A failure leaves no file.
    pub fn written(
        folder: &'f Folder,
        new: New,
        options: &SaveOptions,
        mut write: impl FnMut(&File, PathBuf) -> crate::Result<()>,
    ) -> crate::Result<Self> {
        let write = |files: &[File], mut temporary: Vec<PathBuf>| {
            write(&files[0], temporary.pop().expect("one file for one target"))
        };
        let mut written = Self::written_together(folder, &[new], options, write)?;
        Ok(written.pop().expect("one file for one target"))
    }

    /// Creates a file for each target, and writes all of them in one call, which gets the temporary paths too. Then waits
    /// for the storage if the options say so.
    ///
    /// If the file system is full, it removes what killed processes left, and tries once more. A failure
    /// leaves no file.
    pub fn written_together(
        folder: &'f Folder,
        new: &[New],
        options: &SaveOptions,
        mut write: impl FnMut(&[File], Vec<PathBuf>) -> crate::Result<()>,
    ) -> crate::Result<Vec<Self>> {
        let is_full =
            |error: &crate::Error| matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
        match Self::try_to_write(folder, new, options, &mut write) {
            Err(error) if is_full(&error) && leftovers::remove(folder, options.kept) > 0 => {
                Self::try_to_write(folder, new, options, &mut write)
            }
            written => written,
        }
    }

    fn try_to_write(
        folder: &'f Folder,
        new: &[New],
        options: &SaveOptions,
        write: &mut impl FnMut(&[File], Vec<PathBuf>) -> crate::Result<()>,
    ) -> crate::Result<Vec<Self>> {
        let create = |new| Self::create(folder, new, &options.files);
        let mut temporaries = new.iter().map(create).collect::<crate::Result<Vec<_>>>()?;
        let files: Vec<_> = temporaries.iter().map(|temporary| temporary.file.clone()).collect();
        write(&files, temporaries.iter().map(|temporary| folder.path_of(&temporary.name)).collect())?;
        for ((temporary, new), file) in iter::zip(&mut temporaries, new).zip(&files) {
            let handle = &file.open_file().file;
            if let Some(access) = &new.access {
                let given = access.give(handle);
                temporary.mode = given.map_err(|error| file.failed("set the permissions of", error))?;
            }
            let (operation, synced) = match options.sync {
                true => ("sync", sync_file(handle)),
                false => ("close", close_copy(handle)),
            };
            synced.map_err(|error| file.failed(operation, error))?;
        }
        Ok(temporaries)
    }

    pub fn target(&self) -> &OsStr {
        &self.target
    }

    /// Renames the file to its target, which replaces an older one. After a failure the older file stays, and
    /// the temporary one is removed.
    pub fn replace(mut self) -> crate::Result<()> {
        // While the file was written, another program may have put something else there.
        self.folder.check(&self.target)?;
        let renamed = self.folder.rename(&self.name, &self.target);
        renamed.map_err(|error| failed("replace", &self.folder.path_of(&self.target), error))?;
        // From now on the name is free for others.
        self.is_renamed = true;
        self.set_mode(self.mode);
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            // The caller gets the error that came before this removal, and the name if it stays.
            let _ = self.folder.remove(&self.name);
        }
    }
}

/// Starts to write a range of a file to the storage, so that the sync at the end waits for less. The kernel alone begins
/// seconds later. Where it cannot, nothing happens.
pub fn begin_sync(file: impl AsFd, range: Range<u64>) {
    let (start, len) = (range.start as libc::off64_t, (range.end - range.start) as libc::off64_t);
    // SAFETY: takes integers.
    unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Waits for the storage. A mount that cannot be asked to do so gets the file as at its close.
fn sync_file(file: &fs::File) -> io::Result<()> {
    match file.sync_all() {
        Err(error) if lacks_call(&error) => close_copy(file),
        synced => synced,
    }
}

/// Closes a copy of the descriptor. Network file systems write delayed data then, and report errors of it.
fn close_copy(file: &fs::File) -> io::Result<()> {
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
