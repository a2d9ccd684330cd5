//! Calls on names in an open folder. They find the folder even after it was renamed, or a link to it was changed.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::c_int;

/// Opens a name, with `O_CLOEXEC`. A new file gets `mode`, less the umask.
///
/// # Errors
/// The error of `openat`.
pub(crate) fn open(folder: &fs::File, name: &OsStr, flags: c_int, mode: u32) -> io::Result<fs::File> {
    openat(folder.as_raw_fd(), name, flags, mode)
}

/// Opens a path, with `O_CLOEXEC`.
///
/// # Errors
/// The error of `openat`.
pub(crate) fn open_path(path: &Path, flags: c_int) -> io::Result<fs::File> {
    openat(libc::AT_FDCWD, path.as_os_str(), flags, 0)
}

/// Opens the file of a place (`O_PATH`), with `O_CLOEXEC`, whatever has its name by now.
///
/// # Errors
/// The error of `open`.
pub(crate) fn reopen(place: &fs::File, flags: c_int) -> io::Result<fs::File> {
    open_path(Path::new(&format!("/proc/self/fd/{}", place.as_raw_fd())), flags)
}

/// Returns the names in a folder.
///
/// # Errors
/// The error of listing it.
pub(crate) fn names(folder: &fs::File) -> io::Result<Vec<OsString>> {
    let entries = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))?;
    entries.map(|entry| entry.map(|entry| entry.file_name())).collect()
}

fn openat(folder: RawFd, name: &OsStr, flags: c_int, mode: u32) -> io::Result<fs::File> {
    let name = CString::new(name.as_bytes())?;
    loop {
        // SAFETY: `name` ends with a zero byte and outlives the call.
        let fd = unsafe { libc::openat(folder, name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
        if fd >= 0 {
            // SAFETY: the call has just made the descriptor, and nothing else has it.
            return Ok(unsafe { fs::File::from_raw_fd(fd) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Returns a file's number. Follows no symbolic link, and needs no descriptor.
///
/// # Errors
/// The error of `fstatat`.
pub(crate) fn inode(folder: &fs::File, name: &OsStr) -> io::Result<u64> {
    let name = CString::new(name.as_bytes())?;
    let mut status = MaybeUninit::<libc::stat64>::uninit();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `name` ends with a zero byte, and both outlive the call.
    done(unsafe { libc::fstatat64(folder.as_raw_fd(), name.as_ptr(), status.as_mut_ptr(), flags) })?;
    // SAFETY: the call has filled it.
    Ok(unsafe { status.assume_init() }.st_ino)
}

/// Renames a file within the folder, which replaces another.
///
/// # Errors
/// The error of `renameat`.
pub(crate) fn rename(folder: &fs::File, from: &OsStr, to: &OsStr) -> io::Result<()> {
    let (from, to) = (CString::new(from.as_bytes())?, CString::new(to.as_bytes())?);
    let folder = folder.as_fd().as_raw_fd();
    // SAFETY: both names end with a zero byte and outlive the call.
    done(unsafe { libc::renameat(folder, from.as_ptr(), folder, to.as_ptr()) })
}

/// Removes a name that is not a folder's.
///
/// # Errors
/// The error of `unlinkat`.
pub(crate) fn remove(folder: &fs::File, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_bytes())?;
    // SAFETY: the name ends with a zero byte and outlives the call.
    done(unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), 0) })
}

fn done(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn lacks_call(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL))
}

/// Waits until the names in a folder have reached the storage. Some file systems refuse that, because they need not.
///
/// # Errors
/// The error of `fsync`.
pub(crate) fn sync_folder(folder: &fs::File) -> io::Result<()> {
    match folder.sync_all() {
        Err(error) if lacks_call(&error) => Ok(()),
        synced => synced,
    }
}
