//! The folder of a save: its lock, and syncing it.

use std::fs;
use std::io::{self, ErrorKind};
use std::mem;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::lock::try_lock;
use crate::Cause;

/// A folder that is open for as long as a file is saved in it.
///
/// A save opens it first, so that a folder that cannot be opened fails the save before any change.
#[derive(Debug)]
pub(in crate::formats) struct Folder {
    path: PathBuf,
    /// `None` if the process may not read the folder and the save does not sync.
    pub(super) handle: Option<fs::File>,
    sync: bool,
    /// Set if every process that sees the folder sees the locks of the others.
    pub(super) has_locks: bool,
}

impl Folder {
    /// Opens the folder that `path` names a file in.
    ///
    /// # Errors
    /// [`crate::Error::Open`] if `path` does not name a file; [`crate::Error::File`] if the folder cannot be opened.
    pub fn open(path: &Path, sync: bool) -> crate::Result<Self> {
        if path.file_name().is_none() {
            return Err(no_file_name(path));
        }
        let folder_path = folder_of(path);
        let handle = match fs::File::open(folder_path) {
            Ok(handle) => Some(handle),
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !sync => None,
            Err(error) => return Err(failed("open the folder", folder_path, error)),
        };
        let has_locks = handle.as_ref().is_some_and(is_local);
        Ok(Self { path: folder_path.to_owned(), handle, sync, has_locks })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the names in the folder have reached the storage, if the save syncs.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn sync(&self) -> crate::Result<()> {
        let Some(handle) = self.handle.as_ref().filter(|_| self.sync) else { return Ok(()) };
        sync(handle).map_err(|error| failed("sync the folder", &self.path, error))
    }

    /// Locks the folder, so that no other process replaces models in it until the lock is dropped. Returns `None` where
    /// processes do not see each other's locks.
    ///
    /// # Errors
    /// [`crate::Error::File`] if another process keeps the lock for a minute. Processes only rename and sync under it.
    pub fn lock(&self) -> crate::Result<Option<FolderLock<'_>>> {
        const PATIENCE: Duration = Duration::from_secs(60);
        const PAUSE: Duration = Duration::from_millis(5);
        let Some(handle) = self.handle.as_ref().filter(|_| self.has_locks) else { return Ok(None) };
        let start = Instant::now();
        loop {
            match try_lock(handle) {
                Ok(()) => return Ok(Some(FolderLock(handle))),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Ok(None),
                Err(error) if start.elapsed() > PATIENCE => {
                    return Err(failed("lock the folder", &self.path, error));
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

/// The lock of a folder.
#[derive(Debug)]
pub(in crate::formats) struct FolderLock<'a>(&'a fs::File);

impl Drop for FolderLock<'_> {
    fn drop(&mut self) {
        // Closing the folder does not unlock it while a forked process has a copy of the descriptor.
        // SAFETY: takes integers.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

pub(super) fn failed(operation: &'static str, path: &Path, error: io::Error) -> crate::Error {
    crate::Error::File { operation, path: path.to_owned(), cause: error.into() }
}

/// Returns the error of a path that does not name a file.
pub(in crate::formats) fn no_file_name(path: &Path) -> crate::Error {
    crate::Error::Open { path: path.to_owned(), cause: Cause::Invalid("it does not name a file".to_owned()) }
}

/// Syncs the folder that names a file, or a folder.
#[cfg(feature = "zarr")]
pub(in crate::formats) fn sync_folder(path: &Path) -> io::Result<()> {
    sync(&fs::File::open(folder_of(path))?)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn sync(folder: &fs::File) -> io::Result<()> {
    match folder.sync_all() {
        // Some file systems refuse to sync folders, because they need not.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result,
    }
}

/// Returns whether a folder is on a local file system. On a network file system, other machines may not see locks, or
/// locks may be mandatory.
fn is_local(folder: &fs::File) -> bool {
    const BCACHEFS: u32 = 0xca45_1a4e;
    const ZFS: u32 = 0x2fc1_2fc1;
    const LOCAL: [u32; 8] = [
        libc::TMPFS_MAGIC as u32,
        libc::EXT4_SUPER_MAGIC as u32,
        libc::XFS_SUPER_MAGIC as u32,
        libc::BTRFS_SUPER_MAGIC as u32,
        libc::F2FS_SUPER_MAGIC as u32,
        libc::OVERLAYFS_SUPER_MAGIC as u32,
        BCACHEFS,
        ZFS,
    ];
    // SAFETY: zeros are valid, and the kernel fills them in.
    let mut stat: libc::statfs64 = unsafe { mem::zeroed() };
    // SAFETY: `stat` outlives the call.
    let asked = unsafe { libc::fstatfs64(folder.as_raw_fd(), &mut stat) };
    asked == 0 && LOCAL.contains(&(stat.f_type as u32))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn locking_waits_for_a_locked_folder() {
        // On other file systems there may be no locks.
        let Ok(place) = tempfile::tempdir_in("/dev/shm") else { return };
        let folder = || Folder::open(&place.path().join("a"), false).unwrap();
        let (one, other) = (folder(), folder());
        let lock = one.lock().unwrap();
        assert!(lock.is_some());
        let is_unlocked = AtomicBool::new(false);
        thread::scope(|threads| {
            let waiting = threads.spawn(|| {
                let lock = other.lock().unwrap();
                (lock.is_some(), is_unlocked.load(Ordering::Relaxed))
            });
            thread::sleep(Duration::from_millis(20));
            // A copy of the descriptor, as a process that was forked has it, does not keep the lock.
            let _copy = one.handle.as_ref().unwrap().try_clone().unwrap();
            is_unlocked.store(true, Ordering::Relaxed);
            drop(lock);
            assert_eq!(waiting.join().unwrap(), (true, true));
        });
    }

    #[test]
    fn kernel_file_systems_are_not_local() {
        assert!(!is_local(&fs::File::open("/proc").unwrap()));
        if let Ok(memory) = fs::File::open("/dev/shm") {
            assert!(is_local(&memory));
        }
    }
}
