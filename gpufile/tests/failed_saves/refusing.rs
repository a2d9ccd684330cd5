//! Saves, and values of Zarr stores, on a file system that refuses each call in turn. It is mounted by FUSE, which needs root.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use testkit::alone;
use testkit::refusing::{CALLS, ERRORS, RefusingMount};

use crate::{PATHS, byte_at, save_each};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Saves,
    /// It fails, and writes nothing.
    Fails,
    /// It saves, or fails without a change after it has begun to write.
    Either,
    /// The new data is in place. What could not be removed is left.
    Leaves,
}

fn outcome(call: &str, errno: i32) -> Outcome {
    match call {
        "rename" | "create" => Outcome::Fails,
        // Folders then open, and only their names are unknown.
        "list" if errno == libc::ENOSYS => Outcome::Saves,
        "list" => Outcome::Fails,
        "fsync" | "fsync of folders" if errno == libc::EPERM => Outcome::Fails,
        "remove" => Outcome::Leaves,
        "writes out of order" => Outcome::Either,
        _ => Outcome::Saves,
    }
}

/// Returns the bytes of each file of a folder, and empty ones for those that cannot be read.
fn files(folder: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap_or_default())).collect()
}

#[test]
fn saves_on_mounts_that_refuse_calls_are_whole() {
    alone(|| {
        // Another device than that of the mounts, where renames are tried once.
        let old = tempfile::tempdir().unwrap();
        save_each(old.path(), b'o', false).into_iter().for_each(|(_, saved)| saved.unwrap());
        let old = files(old.path());
        let (mut mounts, mut refusals) = (Vec::new(), BTreeMap::new());
        for call in CALLS {
            let Some(mut mount) = RefusingMount::new() else { return };
            for (round, errno) in ERRORS.into_iter().enumerate() {
                for has_old in [false, true] {
                    let folder = mount.path.join(format!("{errno}{has_old}"));
                    fs::create_dir(&folder).unwrap();
                    if has_old {
                        old.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
                    }
                    mount.refuse(call, errno);
                    let saved = save_each(&folder, b'n', round % 2 == 1);
                    let counts = mount.refuse_nothing();
                    *refusals.entry(call).or_insert(0) += counts.refusals;
                    check(&folder, saved, call, errno, has_old.then_some(b'o'));
                    if outcome(call, errno) == Outcome::Fails {
                        assert_eq!(counts.written_bytes, 0, "{call} {errno}: saves fail before they write");
                        assert!(!has_old || files(&folder) == old, "{call} {errno}");
                    }
                }
            }
            // The next mount must not have the number of this device.
            mounts.push(mount);
        }
        // The others are calls that a save does not make, or only at times.
        for call in
            ["rename", "create", "remove", "list", "flock", "fsync", "fsync of folders", "chmod", "statfs"]
        {
            assert!(refusals[call] > 0, "{refusals:?}");
        }
    });
}

fn check(
    folder: &Path,
    saved: Vec<(PathBuf, Result<(), gpufile::formats::Error>)>,
    call: &str,
    errno: i32,
    old: Option<u8>,
) {
    let outcome = outcome(call, errno);
    assert_eq!(saved.len(), PATHS.len());
    for (path, saved) in saved {
        let context = format!("{call} {errno} {path:?}: {saved:?}");
        match saved {
            Ok(()) => {
                assert!(outcome != Outcome::Fails, "{context}");
                assert_eq!(byte_at(&path), Some(b'n'), "{context}");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(outcome != Outcome::Saves && !text.contains(".gpufile-tmp"), "{context}");
                let is_new = outcome == Outcome::Leaves && text.contains("the new");
                assert!(is_new || text.contains("nothing was replaced"), "{text}");
                assert!(call != "rename" || text.contains("renames no files"), "{text}");
                assert_eq!(byte_at(&path), if is_new { Some(b'n') } else { old }, "{context}");
            }
        }
    }
    let left = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with("-tmp")).collect();
    assert!(left.is_empty() || outcome == Outcome::Leaves, "{call} {errno}: {left:?}");
}

#[test]
fn zarr_values_on_mounts_that_refuse_calls_are_whole() {
    use gpufile::formats::zarr::FileStore;
    use gpufile::formats::zarr::zarrs::storage::{ReadableStorageTraits, StoreKey, WritableStorageTraits};

    alone(|| {
        let mut mounts = Vec::new();
        for call in CALLS {
            let Some(mut mount) = RefusingMount::new() else { return };
            for errno in ERRORS {
                let folder = mount.path.join(format!("{errno}"));
                fs::create_dir(&folder).unwrap();
                fs::write(folder.join("old"), [b'o'; 3000]).unwrap();
                let store = FileStore::new(&folder).sync(true);
                for (name, before) in [("old", Some(vec![b'o'; 3000])), ("in/new/folders", None)] {
                    let key = StoreKey::new(name).unwrap();
                    mount.refuse(call, errno);
                    let set = store.set(&key, vec![b'n'; 3000].into());
                    let counts = mount.refuse_nothing();
                    let context = format!("{call} {errno} {name}: {set:?}");
                    let expected = match outcome(call, errno) {
                        Outcome::Saves if call == "mkdir" && before.is_none() => Outcome::Fails,
                        outcome => outcome,
                    };
                    match expected {
                        Outcome::Saves | Outcome::Leaves => assert!(set.is_ok(), "{context}"),
                        Outcome::Fails => assert!(set.is_err() && counts.written_bytes == 0, "{context}"),
                        Outcome::Either => {}
                    }
                    let found = store.get(&key).unwrap().map(|bytes| bytes.to_vec());
                    let expected = if set.is_ok() { Some(vec![b'n'; 3000]) } else { before };
                    assert!(found == expected, "{context}");
                    let text = set.err().map_or(String::new(), |error| error.to_string());
                    assert!(call != "rename" || text.contains("renames no files"), "{context}");
                }
            }
            mounts.push(mount);
        }
    });
}
