//! Removing the temporary files that killed processes left.
//!
//! Only files of the same user count, which no other user could have written. Locks tell whether their process lives.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use cufile::fork::Mutex;

use super::folder::Folder;
use super::lock::try_lock;
use super::locks::Locks;
use super::names::{target_of, temporary_name};
use crate::formats::random::random;
use crate::trusted::{at, open_own};

/// The time without a write after which a file counts as left, where other machines may not see its lock.
const AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The number of saves into each folder until it is listed again.
static SAVES: Mutex<BTreeMap<(u64, u64), usize>> = Mutex::of_static(BTreeMap::new());

/// Removes the files that killed processes left in a folder, before a save.
///
/// Lists short folders each time, and long ones so seldom that a save lists few names on average.
pub(super) fn look_for(folder: &Folder, kept: Option<(u64, u64)>) {
    /// The most folders to remember. Beyond that, all are forgotten and listed again.
    const FOLDERS: usize = 1 << 16;
    /// The number of names that a save lists on average.
    const NAMES: usize = 32;
    let identity = (folder.metadata.dev(), folder.metadata.ino());
    if let Some(left @ 1..) = SAVES.lock().get_mut(&identity) {
        *left -= 1;
        return;
    }
    let found = list(folder, kept);
    let mut saves = SAVES.lock();
    if saves.len() > FOLDERS {
        saves.clear();
    }
    saves.insert(identity, found.names / NAMES);
}

/// Removes the files that killed processes left in a folder. Returns their number.
pub(super) fn remove(folder: &Folder, kept: Option<(u64, u64)>) -> usize {
    list(folder, kept).removed
}

#[derive(Default)]
struct Found {
    names: usize,
    removed: usize,
}

fn list(folder: &Folder, kept: Option<(u64, u64)>) -> Found {
    let mut found = Found::default();
    // A file that cannot be listed or removed does no harm.
    let path = format!("/proc/self/fd/{}", folder.handle.as_raw_fd());
    let Ok(entries) = fs::read_dir(path) else { return found };
    let mut clock = Clock(None);
    for entry in entries.flatten() {
        found.names += 1;
        let name = entry.file_name();
        let Some(target) = target_of(name.as_bytes()) else { continue };
        let target = OsString::from_vec(target.to_vec());
        found.removed += usize::from(remove_if_left(folder, &name, &target, kept, &mut clock));
    }
    found
}

/// Removes a temporary file if it is this user's and the process that created it has ended. Returns whether it did.
fn remove_if_left(
    folder: &Folder,
    name: &OsStr,
    target: &OsStr,
    kept: Option<(u64, u64)>,
    clock: &mut Clock,
) -> bool {
    let Ok(file) = open_own(&folder.handle, name, libc::O_RDWR) else { return false };
    let Ok(metadata) = file.metadata() else { return false };
    let is_kept = |metadata: &fs::Metadata| kept == Some((metadata.dev(), metadata.ino()));
    if is_kept(&metadata) || folder.locks == Locks::Mandatory || try_lock(&file).is_err() {
        return false;
    }
    if folder.locks == Locks::ForSome && !clock.is_old(folder, target, &metadata) {
        return false;
    }
    at::remove(&folder.handle, name).is_ok()
}

/// The clock that gives files their times, read once.
struct Clock(Option<SystemTime>);

impl Clock {
    /// Returns whether the last write to a file was long ago. Compares its time with that of a new file, because the
    /// clock of this machine may differ from that of the file system.
    fn is_old(&mut self, folder: &Folder, target: &OsStr, metadata: &fs::Metadata) -> bool {
        let now = || {
            let name = temporary_name(target, random().ok()?);
            let file = folder.create(&name, true).ok()?;
            let time = file.metadata().and_then(|metadata| metadata.modified());
            let _ = folder.remove(&name);
            time.ok()
        };
        if self.0.is_none() {
            self.0 = now();
        }
        let (Some(now), Ok(written)) = (self.0, metadata.modified()) else { return false };
        now.duration_since(written).is_ok_and(|age| age > AGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = ".target.0123456789abcdef.gpufile-tmp";

    /// Makes a folder as on a file system whose locks not all machines see, and a file of this name in it.
    fn foreign_folder() -> (tempfile::TempDir, Folder, fs::File) {
        let place = tempfile::tempdir().unwrap();
        let mut folder = Folder::open(&place.path().join("target"), false).unwrap();
        folder.locks = Locks::ForSome;
        let file = fs::File::create(place.path().join(NAME)).unwrap();
        (place, folder, file)
    }

    #[test]
    fn files_of_other_machines_stay_while_locked_or_young() {
        let (place, folder, file) = foreign_folder();
        let old = SystemTime::now() - AGE - Duration::from_secs(60);
        assert_eq!(remove(&folder, None), 0, "a young file");
        file.set_modified(old).unwrap();
        try_lock(&file).unwrap();
        assert_eq!(remove(&folder, None), 0, "a locked file");
        drop(file);
        assert_eq!(remove(&folder, None), 1);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn ages_are_told_by_the_clock_of_the_file_system() {
        let (_place, folder, file) = foreign_folder();
        let hour = Duration::from_secs(3600);
        // The file system's clock is two days behind this machine's. The file has just been written.
        let now = SystemTime::now() - 48 * hour;
        file.set_modified(now - hour).unwrap();
        let is_old =
            |clock: &mut Clock| clock.is_old(&folder, OsStr::new("target"), &file.metadata().unwrap());
        assert!(!is_old(&mut Clock(Some(now))));
        assert!(is_old(&mut Clock(Some(now + 24 * hour))));
        // The clock is read from a new file, which does not stay.
        let mut clock = Clock(None);
        assert!(is_old(&mut clock) && clock.0.is_some_and(|read| read > now + 24 * hour));
        assert_eq!(list(&folder, None).names, 1);
    }

    #[test]
    fn mandatory_locks_tell_nothing() {
        let (_place, mut folder, file) = foreign_folder();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        folder.locks = Locks::Mandatory;
        assert_eq!(remove(&folder, None), 0);
    }
}
