//! What file systems report late, and what is synced, by taking the place of the C library's calls.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use gpufile::formats::{Error, SaveOptions, safetensors};

/// What was synced.
static SYNCED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    let path = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    SYNCED.lock().unwrap().push(path);
    // SAFETY: as for the C library's function, which does the same.
    unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int }
}

/// The folder whose files cannot be closed without an error, and which.
static FAILING: Mutex<Option<(PathBuf, c_int)>> = Mutex::new(None);

/// Closes the descriptor, and reports an error, as a file system on the network does.
#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    let path = fs::read_link(format!("/proc/self/fd/{fd}"));
    // SAFETY: as for the C library's function, which does the same.
    let closed = unsafe { libc::syscall(libc::SYS_close, fd) };
    match (&*FAILING.lock().unwrap(), path) {
        (Some((folder, errno)), Ok(path)) if path.starts_with(folder) => {
            // SAFETY: this thread's.
            unsafe { *libc::__errno_location() = *errno };
            -1
        }
        _ => closed as c_int,
    }
}

#[test]
fn a_file_that_a_file_system_could_not_write_until_it_was_closed_does_not_replace_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let save = |errno| {
        fs::write(&path, "old").unwrap();
        *FAILING.lock().unwrap() = Some((folder.path().to_owned(), errno));
        let saved = safetensors::save_with(&path, &[], BTreeMap::new(), &SaveOptions::new().sync(false));
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
    // A signal came, and that says nothing about the file.
    assert_eq!(save(libc::EINTR), None);
    assert_ne!(fs::read(&path).unwrap(), b"old");
}

#[cfg(feature = "zarr")]
#[test]
fn folders_that_a_store_makes_are_synced_where_they_are_named_if_it_syncs() {
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
