//! Locks (`flock`): of temporary files, and of the name that a model is saved under. The kernel drops a lock when its
//! process ends.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use super::names::lock_name;
use crate::trusted::{at, is_shared, open_own, user};

/// The time that a save waits for another save of the same model.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// Takes the lock of a file, if no other process has it.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if another process has it; another kind if the file system has no locks.
pub(super) fn try_lock(file: &fs::File) -> io::Result<()> {
    // SAFETY: takes integers.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The lock of a name: a file in the same folder that only this user can open. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct NameLock {
    name: OsString,
    file: fs::File,
}

pub(super) enum Tried {
    Taken(NameLock),
    /// Another process of this user has it, or removes its file at this moment.
    Busy,
    /// There can be no lock here.
    Impossible,
}

impl NameLock {
    /// Takes the lock of a name, if no other process has it.
    ///
    /// A file at the name of the lock that is another user's, or that others can open, is no lock: they could hold it
    /// for ever.
    pub fn try_take(folder: &fs::File, target: &OsStr) -> Tried {
        let name = lock_name(target, user());
        let flags = libc::O_RDWR | libc::O_CREAT;
        let Ok(file) = open_own(folder, &name, flags) else { return Tried::Impossible };
        let Ok(metadata) = file.metadata() else { return Tried::Impossible };
        if is_shared(&metadata) {
            return Tried::Impossible;
        }
        match try_lock(&file) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Tried::Busy,
            Err(_) => {
                // This user's process made the file, and no other can lock it either.
                let _ = at::remove(folder, &name);
                return Tried::Impossible;
            }
        }
        // The process that had the lock may have removed its file.
        match at::inode(folder, &name) {
            Ok(inode) if inode == metadata.ino() => Tried::Taken(Self { name, file }),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Tried::Impossible,
            _ => Tried::Busy,
        }
    }

    /// Waits for the lock of a name. Returns `None` where there can be no lock.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process keeps the lock for longer than `patience`.
    pub fn take(folder: &fs::File, target: &OsStr, patience: Duration) -> io::Result<Option<Self>> {
        const PAUSE: Duration = Duration::from_millis(5);
        let start = Instant::now();
        loop {
            match Self::try_take(folder, target) {
                Tried::Taken(lock) => return Ok(Some(lock)),
                Tried::Impossible => return Ok(None),
                Tried::Busy if start.elapsed() > patience => {
                    return Err(io::Error::from_raw_os_error(libc::EWOULDBLOCK));
                }
                Tried::Busy => thread::sleep(PAUSE),
            }
        }
    }

    /// Removes the file while the lock is held, so that nobody else holds a lock of it.
    pub fn release(self, folder: &fs::File) {
        let _ = at::remove(folder, &self.name);
        // A forked process may have a copy of the descriptor.
        // SAFETY: takes integers.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const NAME: &str = "model.safetensors";

    fn take(folder: &fs::File, patience: Duration) -> io::Result<Option<NameLock>> {
        NameLock::take(folder, OsStr::new(NAME), patience)
    }

    fn folder() -> (tempfile::TempDir, fs::File) {
        let place = tempfile::tempdir().unwrap();
        let folder = fs::File::open(place.path()).unwrap();
        (place, folder)
    }

    #[test]
    fn two_savers_of_one_user_exclude_each_other() {
        let (place, folder) = folder();
        let lock = take(&folder, PATIENCE).unwrap().unwrap();
        assert!(matches!(NameLock::try_take(&folder, OsStr::new("another")), Tried::Taken(_)));
        let is_unlocked = AtomicBool::new(false);
        thread::scope(|threads| {
            let waiting = threads.spawn(|| {
                let lock = take(&folder, PATIENCE).unwrap().unwrap();
                (lock, is_unlocked.load(Ordering::Relaxed))
            });
            // A copy of the descriptor, as a process that was forked has it, does not keep the lock.
            let _copy = lock.file.try_clone().unwrap();
            is_unlocked.store(true, Ordering::Relaxed);
            lock.release(&folder);
            let (lock, was_unlocked) = waiting.join().unwrap();
            assert!(was_unlocked);
            lock.release(&folder);
        });
        let left: Vec<_> =
            fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [lock_name(OsStr::new("another"), user())]);
    }

    #[test]
    fn waiting_for_a_lock_has_an_end() {
        let (_place, folder) = folder();
        let lock = take(&folder, PATIENCE).unwrap().unwrap();
        let error = take(&folder, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        lock.release(&folder);
        assert!(take(&folder, Duration::ZERO).unwrap().is_some());
    }

    #[test]
    fn planted_files_never_stop_a_save() {
        let (place, folder) = folder();
        let path = place.path().join(lock_name(OsStr::new(NAME), user()));
        let plant = |mode| {
            let file = fs::File::create(&path).unwrap();
            file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
            file
        };
        // Others can open this file, and so they can hold its lock.
        let held = plant(0o644);
        try_lock(&held).unwrap();
        assert!(take(&folder, PATIENCE).unwrap().is_none() && path.exists());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(take(&folder, PATIENCE).unwrap().is_none() && !place.path().join("elsewhere").exists());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(take(&folder, PATIENCE).unwrap().is_none());
        fs::remove_dir(&path).unwrap();
        let file = plant(0o600);
        // Only root can give a file away.
        if std::os::unix::fs::fchown(&file, Some(user() + 1), None).is_ok() {
            try_lock(&file).unwrap();
            assert!(take(&folder, PATIENCE).unwrap().is_none());
        }
    }
}
