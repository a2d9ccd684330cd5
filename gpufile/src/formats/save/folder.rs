//! The folder of a save: its names, syncing it, and the record of what the save has put into it.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::access::Access;
use super::lock::{NameLock, PATIENCE};
use super::locks::Locks;
use super::names::old_name;
use super::outcome::InPlace;
use super::target;
use crate::formats::random::random;
use crate::trusted::{at, user};
use crate::{Cause, local_path};

/// A folder that is open for as long as a file is saved in it. Every name is relative to it, wherever it is renamed to.
///
/// A save opens it first, so that a folder that cannot be opened fails the save before any change.
#[derive(Debug)]
pub(in crate::formats) struct Folder {
    target: PathBuf,
    pub(super) handle: fs::File,
    /// As it was when the folder was opened.
    pub(super) metadata: fs::Metadata,
    sync: bool,
    pub(super) locks: Locks,
    record: RefCell<Record>,
}

#[derive(Debug, Default)]
struct Record {
    lock: Option<NameLock>,
    /// The names that the save has made and not removed.
    made: BTreeSet<OsString>,
    /// Old names that the save could not remove.
    kept: BTreeSet<OsString>,
    in_place: InPlace,
    /// The names of the data in place, of those in `made` and in `kept`.
    parts: BTreeSet<OsString>,
}

impl Folder {
    /// Opens the folder that `path` names a file in.
    ///
    /// # Errors
    /// [`crate::Error::Open`] if `path` is an address or does not name a file; [`crate::Error::File`] if the folder cannot be opened.
    pub fn open(path: &Path, sync: bool) -> crate::Result<Self> {
        local_path::check(path)?;
        // A path that ends with a slash or with `/.` names a folder.
        let ends_with = |end: &[u8]| path.as_os_str().as_bytes().ends_with(end);
        if path.file_name().is_none() || ends_with(b"/") || ends_with(b"/.") {
            return Err(no_file_name(path));
        }
        let folder = folder_of(path);
        let opened = fs::File::options().read(true).custom_flags(libc::O_DIRECTORY).open(folder);
        let handle = match opened {
            // A folder that is not synced need not be readable.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !sync => {
                at::open_path(folder, libc::O_PATH | libc::O_DIRECTORY)
            }
            opened => opened,
        };
        let opened = handle.and_then(|handle| Ok((handle.metadata()?, handle)));
        let (metadata, handle) = opened.map_err(|error| failed("open the folder", folder, error))?;
        let locks = Locks::of(&handle);
        Ok(Self { target: path.to_owned(), handle, metadata, sync, locks, record: RefCell::default() })
    }

    pub fn target(&self) -> &Path {
        &self.target
    }

    pub fn name(&self) -> &OsStr {
        self.target.file_name().expect("the folder was opened for a name")
    }

    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        self.target.with_file_name(name)
    }

    pub(super) fn syncs(&self) -> bool {
        self.sync
    }

    fn record(&self) -> RefMut<'_, Record> {
        self.record.borrow_mut()
    }

    /// Waits until no other process of this user saves a model of the target's name, and keeps others waiting until the
    /// folder is dropped. Does nothing where there can be no lock.
    ///
    /// # Errors
    /// [`crate::Error::File`] if another save takes longer than ten minutes.
    pub fn lock(&self) -> crate::Result<()> {
        const OPERATION: &str = "wait longer than ten minutes for another save of";
        let lock = NameLock::take(&self.handle, self.name(), PATIENCE);
        self.record().lock = lock.map_err(|error| failed(OPERATION, &self.target, error))?;
        Ok(())
    }

    /// Returns the permissions of the regular file that a name leads to; `None` if there is no file, or one that another
    /// user put into a folder like `/tmp`. Follows symbolic links.
    pub fn access_of(&self, name: &OsStr) -> crate::Result<Option<Access>> {
        let Some((file, metadata)) = self.check(name)? else { return Ok(None) };
        Ok((!self.is_planted(&metadata)).then(|| Access::of(&file, &metadata)))
    }

    /// Returns the regular file that a name leads to, open as a place only; `None` if there is none.
    ///
    /// # Errors
    /// [`crate::Error::File`] if the name leads to anything else, which a save must not replace.
    pub fn check(&self, name: &OsStr) -> crate::Result<Option<(fs::File, fs::Metadata)>> {
        let checked = target::checked(at::open(&self.handle, name, libc::O_PATH, 0));
        checked.map_err(|cause| crate::Error::File { operation: "replace", path: self.path_of(name), cause })
    }

    /// Returns whether a file is neither this user's nor the folder's owner's, in a folder where any user can create
    /// files and remove only those.
    fn is_planted(&self, file: &fs::Metadata) -> bool {
        const STICKY: u32 = libc::S_ISVTX;
        let folder = &self.metadata;
        folder.mode() & STICKY != 0 && ![user(), folder.uid()].contains(&file.uid())
    }

    /// Opens a regular file to read. Follows symbolic links, and does not wait for a pipe.
    ///
    /// # Errors
    /// The error of opening it; [`ErrorKind::InvalidInput`] if it is not a regular file.
    pub fn open_file(&self, name: &OsStr) -> io::Result<fs::File> {
        let file = at::open(&self.handle, name, libc::O_RDONLY | libc::O_NONBLOCK, 0)?;
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(ErrorKind::InvalidInput.into()),
        }
    }

    /// Returns the metadata of a name. Does not follow a symbolic link.
    pub fn metadata(&self, name: &OsStr) -> io::Result<fs::Metadata> {
        at::open(&self.handle, name, libc::O_PATH | libc::O_NOFOLLOW, 0)?.metadata()
    }

    /// Creates a file that only its owner can open, or one that follows the umask.
    pub(super) fn create(&self, name: &OsStr, is_private: bool) -> io::Result<fs::File> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let file = at::open(&self.handle, name, flags, if is_private { 0o600 } else { 0o666 })?;
        self.record().made.insert(name.to_owned());
        Ok(file)
    }

    /// Renames a file that the save has made, which replaces another.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        at::rename(&self.handle, from, to)?;
        let mut record = self.record();
        record.made.remove(from);
        record.made.insert(to.to_owned());
        Ok(())
    }

    /// Gives an old file another name, until [`put_back`](Self::put_back) or [`remove`](Self::remove). Returns that name;
    /// `None` if there is no file.
    pub(super) fn set_aside(&self, name: &OsStr) -> crate::Result<Option<OsString>> {
        if self.check(name)?.is_none() {
            return Ok(None);
        }
        let moved = random().and_then(|number| {
            let aside = old_name(name, number);
            self.rename(name, &aside).map(|()| Some(aside))
        });
        moved.map_err(|error| failed("replace", &self.path_of(name), error))
    }

    /// Gives an old file its name again, in the place of a new one.
    pub(super) fn put_back(&self, aside: &OsStr, name: &OsStr) -> crate::Result<()> {
        self.rename(aside, name).map_err(|error| failed("put back", &self.path_of(name), error))?;
        self.record().made.remove(name);
        Ok(())
    }

    /// Removes a file, if there is one. A file that cannot be removed counts as left behind.
    pub fn remove(&self, name: &OsStr) -> crate::Result<()> {
        // A read-only file system may refuse to remove even what is not there.
        let removed = match self.metadata(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            _ => at::remove(&self.handle, name),
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                self.record().kept.insert(name.to_owned());
                Err(failed("remove", &self.path_of(name), error))
            }
            _ => {
                let mut record = self.record();
                record.made.remove(name);
                record.kept.remove(name);
                Ok(())
            }
        }
    }

    /// Returns whether this save has made a file of this name, and not removed it.
    pub fn made(&self, name: &OsStr) -> bool {
        self.record().made.contains(name)
    }

    /// Waits until the names in the folder have reached the storage, if the save syncs.
    pub fn sync(&self) -> crate::Result<()> {
        match self.sync {
            true => at::sync_folder(&self.handle)
                .map_err(|error| failed("sync the folder", folder_of(&self.target), error)),
            false => Ok(()),
        }
    }

    pub fn set_in_place<'n>(&self, in_place: InPlace, parts: impl IntoIterator<Item = &'n OsStr>) {
        let mut record = self.record();
        record.in_place = in_place;
        record.parts = parts.into_iter().map(OsStr::to_owned).collect();
    }

    /// Returns which data is in place, and the paths of the files that the save leaves and that are no part of it.
    pub fn outcome(&self) -> (InPlace, Vec<PathBuf>) {
        let record = self.record.borrow();
        let stay = record.made.union(&record.kept);
        let left = stay.filter(|name| !record.parts.contains(*name) && self.metadata(name).is_ok());
        (record.in_place.clone(), left.map(|name| self.path_of(name)).collect())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(lock) = self.record.get_mut().lock.take() {
            lock.release(&self.handle);
        }
    }
}

pub(super) fn failed(operation: &'static str, path: &Path, error: io::Error) -> crate::Error {
    crate::Error::File { operation, path: path.to_owned(), cause: error.into() }
}

pub(in crate::formats) fn no_file_name(path: &Path) -> crate::Error {
    crate::Error::Open { path: path.to_owned(), cause: Cause::Invalid("it does not name a file".to_owned()) }
}

/// Syncs the folder that names a file, or a folder.
#[cfg(feature = "zarr")]
pub(in crate::formats) fn sync_folder(path: &Path) -> io::Result<()> {
    at::sync_folder(&fs::File::open(folder_of(path))?)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}
