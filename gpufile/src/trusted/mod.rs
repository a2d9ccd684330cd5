//! Folders and files whose contents this process trusts: object caches, block stores, the locks of saves, and the sockets
//! of shared models.
//!
//! # Who is trusted
//!
//! This process trusts its own user (the effective user ID), and root, who can change everything. It trusts no other user,
//! and no group: a mode does not tell who is in the group. Therefore:
//!
//! - A private folder belongs to the user of the process, and no other user may write to it. [`PrivateFolder::open`] makes a
//!   missing folder with the mode 0700. An older one that others may read gets this mode if all its files have names of
//!   ours. Anything else is refused, with an error that says what to change. So `/tmp`, which is sticky and belongs to
//!   root, is refused, and a folder within it is not.
//! - A file is opened only if it is a regular one of that user, and if no other user may write to it. A file to write has
//!   one name only, because the bytes of a hard link belong to another file too.
//! - Nothing is followed: neither a symbolic link in the place of the folder, nor one in the place of a file. All names are
//!   relative to the descriptor of the folder. No open waits for a FIFO.
//! - A process of root trusts only root's folders. A folder of another user would let that user choose what root reads.
//!
//! The folders above are not checked. A user who can rename one of them can lead this process to another private folder of
//! its own user, or keep it from finding one, and no further. The owner and the mode are those that the file system tells.
//! A file system that gives all files one owner, or squashes root, works if that owner is the user of the process. One with
//! the same mode for all files works if only the owner may write; others may be able to read then.
//!
//! A save may write into any folder. It trusts nothing there except its own files.

#![cfg_attr(
    not(all(feature = "kv-blocks", feature = "remote")),
    allow(dead_code, reason = "each feature uses another part of it")
)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, FileType, Metadata, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use libc::c_int;

use crate::{Cause, local_path};

pub(crate) mod at;

/// The bits that let others than the owner write. An access control list shows in those of the group.
pub(crate) const SHARED_WRITE: u32 = 0o022;
/// The bits of all others than the owner.
const SHARED: u32 = 0o077;

/// An open folder of this user that no other user may write to.
///
/// ```
/// use gpufile::trusted::PrivateFolder;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let parent = tempfile::tempdir()?;
/// # let path = parent.path().join("sockets");
/// let folder = PrivateFolder::open(&path, false, |name| name == "socket")?;
/// folder.make_private()?;
/// assert!(folder.names()?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    handle: fs::File,
}

impl PrivateFolder {
    /// Opens a folder, or makes it with the mode 0700. `is_ours` knows the names that the program gives to files in it. Makes
    /// the folders above only if `makes_parents` is true.
    ///
    /// # Errors
    /// [`Cause::Invalid`] if another user could have put files into it, if others may read it and it has other files, or if the
    /// path is an address. Nothing is changed then.
    pub fn open(path: &Path, makes_parents: bool, is_ours: impl Fn(&OsStr) -> bool) -> Result<Self, Cause> {
        local_path::refuse(path)?;
        // A slash at the end would follow a link.
        let path: PathBuf = path.components().collect();
        match fs::DirBuilder::new().mode(0o700).recursive(makes_parents).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        Self::open_existing(&path, is_ours)
    }

    /// As [`open`](Self::open), for a folder that exists.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if there is no folder.
    pub(crate) fn open_existing(path: &Path, is_ours: impl Fn(&OsStr) -> bool) -> Result<Self, Cause> {
        local_path::refuse(path)?;
        let path: PathBuf = path.components().collect();
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let handle = at::open_path(&path, flags).map_err(|error| not_a_folder(&path, error))?;
        let folder = Self { path, handle };
        let metadata = folder.handle.metadata()?;
        if let Some(why) = whose(&metadata) {
            let instead = "name a folder that does not exist yet, for example within it";
            return Err(Cause::Invalid(format!("{why}; {instead}{}", or_close(&metadata))));
        }
        if is_shared(&metadata)
            && let Some(other) = folder.names()?.iter().find(|name| !is_ours(name))
        {
            return Err(Cause::Invalid(format!(
                "other users may open it (mode {:03o}), and it has other files, such as {other:?}; name a folder for this \
                 purpose alone, or close it to others with `chmod 700`",
                metadata.mode() & 0o777,
            )));
        }
        Ok(folder)
    }

    /// Gives the folder the mode 0700 if others may open it.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn make_private(&self) -> io::Result<()> {
        make_private(&self.handle, 0o700)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Returns all names.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        at::names(&self.handle)
    }

    /// As [`open_own`].
    ///
    /// # Errors
    /// As [`open_own`]. [`Cause::Invalid`] also for a file to write that has a second name.
    pub(crate) fn open_file(&self, name: &OsStr, flags: c_int) -> Result<fs::File, Cause> {
        let file = open_own(&self.handle, name, flags)?;
        if flags & libc::O_ACCMODE != libc::O_RDONLY && file.metadata()?.nlink() > 1 {
            let why = "it has another name too (a hard link), whose bytes would change; remove one of them";
            return Err(Cause::Invalid(why.to_owned()));
        }
        Ok(file)
    }

    /// Opens a file if there is one.
    ///
    /// # Errors
    /// As [`open_own`].
    pub(crate) fn find_file(&self, name: &OsStr, flags: c_int) -> Result<Option<fs::File>, Cause> {
        match self.open_file(name, flags) {
            Err(Cause::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// As [`at::rename`].
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        at::rename(&self.handle, from, to)
    }

    /// As [`at::remove`].
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        at::remove(&self.handle, name)
    }

    /// As [`at::inode`].
    pub(crate) fn inode(&self, name: &OsStr) -> io::Result<u64> {
        at::inode(&self.handle, name)
    }

    /// As [`at::sync_folder`].
    pub(crate) fn sync(&self) -> io::Result<()> {
        at::sync_folder(&self.handle)
    }
}

impl From<PrivateFolder> for OwnedFd {
    fn from(folder: PrivateFolder) -> Self {
        folder.handle.into()
    }
}

/// Opens a regular file of this user that no other user can have written. Makes it with the mode 0600 if `flags` have
/// `O_CREAT`. Follows no link, and does not wait for a pipe.
///
/// # Errors
/// [`Cause::Invalid`] if the name leads to anything else; [`Cause::Io`] with the error of `openat`.
pub(crate) fn open_own(folder: &fs::File, name: &OsStr, flags: c_int) -> Result<fs::File, Cause> {
    let check = |file: fs::File| {
        let metadata = file.metadata()?;
        match not_own(&metadata) {
            Some(why) => Err(Cause::Invalid(format!("{why}; remove it{}", or_close(&metadata)))),
            None => Ok(file),
        }
    };
    // `O_NOFOLLOW` stays with what it opens, and cuFile takes no such file. So the file itself is opened by its place.
    match at::open(folder, name, libc::O_PATH | libc::O_NOFOLLOW, 0) {
        Ok(place) => Ok(at::reopen(&check(place)?, flags & !libc::O_CREAT)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound && flags & libc::O_CREAT != 0 => {
            match at::open(folder, name, flags | libc::O_EXCL, 0o600) {
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_own(folder, name, flags),
                made => check(made?),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Gives a file or folder this mode if others than its owner may open it. Some file systems have one mode for all files, and
/// refuse; that mode stays.
///
/// # Errors
/// The error that the operating system returned.
pub(crate) fn make_private(file: &fs::File, mode: u32) -> io::Result<()> {
    const NO_MODES: [i32; 3] = [libc::EPERM, libc::EOPNOTSUPP, libc::ENOSYS];
    if !is_shared(&file.metadata()?) {
        return Ok(());
    }
    match file.set_permissions(Permissions::from_mode(mode)) {
        Err(error) if error.raw_os_error().is_some_and(|errno| NO_MODES.contains(&errno)) => Ok(()),
        changed => changed,
    }
}

pub(crate) fn user() -> u32 {
    // SAFETY: the call has no conditions.
    unsafe { libc::geteuid() }
}

/// Returns whether others than the owner may open a file, and so hold a lock of it.
pub(crate) fn is_shared(metadata: &Metadata) -> bool {
    metadata.mode() & SHARED != 0
}

fn whose(metadata: &Metadata) -> Option<String> {
    if metadata.uid() != user() {
        return Some(format!("it belongs to user {}, and this process is user {}", metadata.uid(), user()));
    }
    (metadata.mode() & SHARED_WRITE != 0)
        .then(|| format!("other users may write to it (mode {:03o})", metadata.mode() & 0o7777))
}

/// Returns the other remedy, at the end of an error, for what belongs to this user.
fn or_close(metadata: &Metadata) -> &'static str {
    let may_be_ours = metadata.is_file() || metadata.is_dir();
    match may_be_ours && metadata.uid() == user() && metadata.mode() & SHARED_WRITE != 0 {
        true => ", or run `chmod go-w` if only you have written to it",
        false => "",
    }
}

fn not_own(metadata: &Metadata) -> Option<String> {
    match metadata.file_type() {
        kind if !kind.is_file() => Some(format!("it is not a regular file but {}", self::kind(kind))),
        _ => whose(metadata),
    }
}

fn not_a_folder(path: &Path, error: io::Error) -> Cause {
    let is_wrong = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP));
    match fs::symlink_metadata(path) {
        Ok(found) if is_wrong(&error) && found.is_symlink() => {
            Cause::Invalid("it is a symbolic link; name the folder that it leads to".to_owned())
        }
        _ => error.into(),
    }
}

/// Opens a file for reading without waiting for the other end of a pipe, or for a device. Follows symbolic links.
///
/// # Errors
/// The error that the operating system returned; [`InvalidInput`](io::ErrorKind::InvalidInput) if the path is an address.
///
/// ```
/// use gpufile::trusted;
///
/// # fn main() -> std::io::Result<()> {
/// # let file = tempfile::NamedTempFile::new()?;
/// # let path = file.path();
/// let file = trusted::open_unblocked(path)?;
/// let kind = file.metadata()?.file_type();
/// if !kind.is_file() {
///     println!("it is {}", trusted::kind(kind));
/// }
/// # Ok(())
/// # }
/// ```
pub fn open_unblocked(path: &Path) -> io::Result<fs::File> {
    local_path::refuse(path)
        .map_err(|cause| io::Error::new(io::ErrorKind::InvalidInput, cause.to_string()))?;
    let file = match fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        // A process holds a lease of the file, which only regular files have. A blocking open waits until it ends.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && fs::metadata(path)?.is_file() => {
            return fs::File::open(path);
        }
        opened => opened?,
    };
    // Later reads may look at the flags, and so may the file system.
    // SAFETY: takes integers.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the words for a kind of file that is not a regular one, such as `a FIFO`.
pub fn kind(file_type: FileType) -> &'static str {
    match file_type {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_block_device() => "a block device",
        kind if kind.is_char_device() => "a character device",
        kind if kind.is_symlink() => "a symbolic link",
        _ => "one of an unknown kind",
    }
}
