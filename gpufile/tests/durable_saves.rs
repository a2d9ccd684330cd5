//! Tests of errors that file systems report late, and of syncs. Functions of this file replace the C library's.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gpufile::formats::safetensors::{Checkpoint, TensorData};
use gpufile::formats::{Dtype, Error, SaveOptions, safetensors};

/// The lock that tests take in turn, because a refusal holds for all of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

static SYNCED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    let path = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    SYNCED.lock().unwrap().push(path);
    // SAFETY: the C library's function does the same, with the same contract.
    unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int }
}

/// The folder whose files cannot be closed without an error, and that error.
static FAILING: Mutex<Option<(PathBuf, c_int)>> = Mutex::new(None);

/// Closes the descriptor, and reports an error, as a file system on the network does.
#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    let path = fs::read_link(format!("/proc/self/fd/{fd}"));
    // SAFETY: the C library's function does the same, with the same contract.
    let closed = unsafe { libc::syscall(libc::SYS_close, fd) };
    match (&*FAILING.lock().unwrap(), path) {
        (Some((folder, errno)), Ok(path)) if path.starts_with(folder) => {
            // SAFETY: the location is this thread's.
            unsafe { *libc::__errno_location() = *errno };
            -1
        }
        _ => closed as c_int,
    }
}

/// The folder in which no file can be created, or the folder that cannot be opened, and the errno.
static REFUSED: Mutex<Option<(PathBuf, bool, c_int)>> = Mutex::new(None);

/// The folder whose file system has no space for more new files than this number.
static ROOM: Mutex<Option<(PathBuf, usize)>> = Mutex::new(None);

/// Returns whether a full file system refuses a new file in the folder.
fn is_full(folder: Option<&Path>) -> bool {
    match &mut *ROOM.lock().unwrap() {
        Some((full, 0)) => folder == Some(full),
        Some((full, room)) if folder == Some(full) => {
            *room -= 1;
            false
        }
        _ => false,
    }
}

/// A file without which its file system has space for new ones.
static FILLING: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Returns true if opening fails, with the errno set.
fn is_refused(path: &Path, flags: c_int) -> bool {
    let creates = flags & libc::O_CREAT != 0;
    let mut errno = None;
    if let Some((refused, is_creation, with)) = &*REFUSED.lock().unwrap()
        && *is_creation == creates
        && refused == if creates { path.parent().unwrap() } else { path }
        && flags & libc::O_PATH == 0
    {
        errno = Some(*with);
    }
    let is_filled =
        FILLING.lock().unwrap().as_ref().is_some_and(|filling| {
            filling.parent() == path.parent() && fs::symlink_metadata(filling).is_ok()
        });
    if creates && (is_filled || is_full(path.parent())) {
        errno = Some(libc::ENOSPC);
    }
    if let Some(errno) = errno {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = errno };
    }
    errno.is_some()
}

#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    openat(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode)
}

#[unsafe(no_mangle)]
extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's string, as for the C library's function.
    let name = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    let shown = match folder {
        libc::AT_FDCWD => name.to_owned(),
        folder => fs::read_link(format!("/proc/self/fd/{folder}")).unwrap().join(name),
    };
    if is_refused(&shown, flags) {
        return -1;
    }
    // SAFETY: the C library's function does the same, with the same contract.
    unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) as c_int }
}

fn save_files(path: &Path, count: usize) {
    try_to_save_files(path, count).unwrap();
}

/// Saves as [`save_files`]. Returns the errno of a failure.
fn try_to_save_files(path: &Path, count: usize) -> Result<PathBuf, Option<i32>> {
    let names: Vec<_> = (0..count).map(|number| format!("{count}.{number}")).collect();
    let tensors: Vec<_> =
        names.iter().map(|name| TensorData::new(name, Dtype::U8, &[1], [7].as_slice())).collect();
    let options = SaveOptions::new().shard_bytes(1).remove_old_model(true);
    let saved = safetensors::save(path, &tensors, &options);
    saved.map(|saved| saved.path).map_err(|error| match error {
        Error::Save { error, .. } => error.raw_os_error(),
        error => panic!("{error}"),
    })
}

#[test]
fn full_file_systems_keep_the_old_model() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let listed = |folder: &Path| {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<BTreeSet<_>>()
    };
    for (old, new) in [(1, 1), (1, 2), (2, 1), (2, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let opened = try_to_save_files(&path, old).unwrap();
        let before = listed(folder.path());
        let mut room = 0;
        loop {
            *ROOM.lock().unwrap() = Some((folder.path().to_owned(), room));
            let saved = try_to_save_files(&path, new);
            *ROOM.lock().unwrap() = None;
            let Err(errno) = saved else { break };
            assert_eq!(errno, Some(libc::ENOSPC));
            assert_eq!(listed(folder.path()), before, "{old} to {new} with room for {room}");
            assert_eq!(Checkpoint::open(&opened).unwrap().tensors().len(), old);
            room += 1;
        }
        assert!(room >= new);
        assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors().len(), new);
    }
}

#[test]
fn full_file_systems_lose_leftovers_in_long_folders() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join(".left.0123456789abcdef.gpufile-tmp");
    let path = folder.path().join("model.safetensors");
    for number in 0..100 {
        fs::write(folder.path().join(format!("{number}")), "").unwrap();
    }
    save_files(&path, 1);
    fs::write(&left, "").unwrap();
    save_files(&path, 1);
    assert!(left.exists(), "a long folder is not listed each time");
    *FILLING.lock().unwrap() = Some(left.clone());
    let saved = try_to_save_files(&path, 1);
    *FILLING.lock().unwrap() = None;
    assert!(saved.is_ok() && !left.exists(), "{saved:?}");
}

#[test]
fn saves_keep_shards_of_an_unreadable_index() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save_files(&path, 2);
    *REFUSED.lock().unwrap() = Some((folder.path().join("model.safetensors.index.json"), false, libc::EIO));
    save_files(&path, 3);
    *REFUSED.lock().unwrap() = None;
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors().len(), 3);
    // Two old shards, three new ones, and the index.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2 + 3 + 1);
}

/// Saves where opening fails with this errno. Returns the errno of the save.
fn save_refused(folder: &Path, creates: bool, errno: c_int, sync: bool) -> Option<i32> {
    let path = folder.join("a");
    *REFUSED.lock().unwrap() = Some((folder.to_owned(), creates, errno));
    let saved = safetensors::save(&path, &[], &SaveOptions::new().sync(sync));
    *REFUSED.lock().unwrap() = None;
    saved.err().map(|error| match error {
        Error::Save { error, .. } => error.raw_os_error().unwrap(),
        error => panic!("{error}"),
    })
}

#[test]
fn saves_that_create_no_file_remove_none() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    // A process in another container may give its files these names.
    for number in 0..1000 {
        fs::write(folder.path().join(format!(".a.{}.{number}.tmp", std::process::id())), "").unwrap();
    }
    assert_eq!(save_refused(folder.path(), true, libc::EMFILE, true), Some(libc::EMFILE));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1000);
}

#[test]
fn failed_folder_sync_keeps_the_old_file() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "old").unwrap();
    assert_eq!(save_refused(folder.path(), false, libc::EACCES, true), Some(libc::EACCES));
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"old");
    // Only this save opens the folder.
    assert_eq!(save_refused(folder.path(), false, libc::EACCES, false), None);
    assert_ne!(fs::read(folder.path().join("a")).unwrap(), b"old");
    assert_eq!(save_refused(folder.path(), false, libc::EMFILE, false), Some(libc::EMFILE));
}

#[test]
fn failed_close_keeps_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let save = |errno| {
        fs::write(&path, "old").unwrap();
        *FAILING.lock().unwrap() = Some((folder.path().to_owned(), errno));
        let saved = safetensors::save(&path, &[], &SaveOptions::new().sync(false));
        *FAILING.lock().unwrap() = None;
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        match saved {
            Ok(_) => None,
            Err(Error::Save { error, .. }) => error.raw_os_error(),
            Err(error) => panic!("{error}"),
        }
    };
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EIO] {
        assert_eq!(save(errno), Some(errno));
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
    // A signal interrupted the call, and the file is sound.
    assert_eq!(save(libc::EINTR), None);
    assert_ne!(fs::read(&path).unwrap(), b"old");
}

#[test]
fn syncing_stores_sync_parents_of_new_folders() {
    use gpufile::formats::zarr::FileStore;
    use gpufile::formats::zarr::zarrs::storage::{StoreKey, WritableStorageTraits};

    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let synced = |sync: bool, key: &str| {
        let store = FileStore::new(folder.join("new/store")).sync(sync);
        store.set(&StoreKey::new(key).unwrap(), vec![1].into()).unwrap();
        let mut synced = std::mem::take(&mut *SYNCED.lock().unwrap());
        synced.retain(|path| path.starts_with(&folder) && path.is_dir());
        synced.sort();
        synced
    };
    let folders = |names: &[&str]| names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
    assert_eq!(synced(true, "a/b/0"), folders(&["", "new", "new/store", "new/store/a", "new/store/a/b"]));
    assert_eq!(synced(true, "a/b/1"), folders(&["new/store/a/b"]));
    assert_eq!(synced(true, "a/c/0"), folders(&["new/store/a", "new/store/a/c"]));
    assert_eq!(synced(false, "d/0"), folders(&[]));
}
