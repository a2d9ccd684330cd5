//! Tests of block stores after the machine stopped, with only those bytes on the disk that were synced. Here, `fsync` and
//! `fdatasync` copy the file that they sync, as a disk would keep it.

use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};

use gpufile::kv_blocks::{Block, BlockStore, BlockStoreBuilder, Region};
use gpufile::{Engine, OpenOptions};
use testkit::in_flight::soon;

use testkit::another_boot::{ENTRY, stop_the_machine};

const BLOCK: usize = 4096;
const HEADER: usize = 4096;

/// The folder with the files of a store as they were last synced.
fn on_disk(folder: &Path) -> PathBuf {
    folder.join("on-disk")
}

/// The folder with the blocks, as they were when a file of blocks was last synced, and with the index as the disk had it
/// then.
fn before_the_entry(folder: &Path) -> PathBuf {
    folder.join("before-the-entry")
}

fn is_of_a_store(name: &str) -> bool {
    name == "index" || name.starts_with("blocks-")
}

/// Copies the files of a store from one folder to another.
fn copy(from: &Path, to: &Path, is_copied: impl Fn(&str) -> bool) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if is_of_a_store(&name) && is_copied(&name) {
            fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
    }
}

/// Notes that the disk has what was written to a file.
fn synced(fd: c_int) {
    let Ok(path) = fs::read_link(format!("/proc/self/fd/{fd}")) else { return };
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    if !is_of_a_store(name) {
        return;
    }
    copy(folder, &on_disk(folder), |other| other == name);
    if name != "index" {
        copy(folder, &before_the_entry(folder), |name| name != "index");
        copy(&on_disk(folder), &before_the_entry(folder), |name| name == "index");
    }
}

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: takes an integer.
    let status = unsafe { libc::syscall(libc::SYS_fsync, fd) } as c_int;
    synced(fd);
    status
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: takes an integer.
    let status = unsafe { libc::syscall(libc::SYS_fdatasync, fd) } as c_int;
    synced(fd);
    status
}

fn builder(slots: usize) -> BlockStoreBuilder {
    let options = OpenOptions::new().engine(&Engine::builder().threads(2).build());
    BlockStore::builder(BLOCK).limit_bytes((slots * BLOCK) as u64).blocks_per_file(3).files(&options)
}

/// Returns the bytes of the block with a key, which no other block has.
fn contents(key: u128) -> Vec<u8> {
    (0..BLOCK).map(|at| (at as u128 * 31 + key * 7 + (at as u128 >> 8)) as u8).collect()
}

fn put(store: &BlockStore, key: u128) {
    let region = Region::new(contents(key));
    let pieces = [region.piece(0, BLOCK, 0)];
    store.store(&[Block::new(key, &pieces)]).wait().pop().unwrap().unwrap();
}

/// Opens what a disk has in another boot of the machine, and compares each block. Returns the keys.
fn found_after_a_power_cut(folder: &Path) -> Vec<u128> {
    stop_the_machine(folder);
    let store = builder(6).open(folder).unwrap();
    let mut keys = store.keys();
    keys.sort_unstable();
    for key in &keys {
        let region = Region::new(vec![0_u8; BLOCK]);
        let pieces = [region.piece(0, BLOCK, 0)];
        let block = Block::new(*key, &pieces);
        store.fetch(&[block]).wait().pop().unwrap().unwrap();
        assert!(region.access(|bytes| *bytes == contents(*key)).unwrap(), "block {key} has other bytes");
    }
    keys
}

#[test]
fn slots_of_durable_blocks_change_when_the_disk_knows() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = builder(6).durable(true).open(folder).unwrap();
    (0..6).for_each(|key| put(&store, key));
    // Other blocks take the slots of one that is removed and of one that is evicted.
    assert_eq!(store.remove(&[1]), 1);
    let entry = HEADER + ENTRY..HEADER + 2 * ENTRY;
    soon("the entry is cleared", || fs::read(folder.join("index")).unwrap()[entry.clone()] == [0; ENTRY]);
    for key in [10, 11] {
        put(&store, key);
        // Only the bytes have reached the disk, and no entry that says so.
        assert!(!found_after_a_power_cut(&before_the_entry(folder)).contains(&key));
    }
    store.close().unwrap();
    let keys = found_after_a_power_cut(&on_disk(folder));
    assert!(keys.contains(&10) && keys.contains(&11) && !keys.contains(&1), "{keys:?}");
}

#[test]
fn later_stores_leave_no_durable_entry_of_other_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = builder(6).durable(true).open(folder).unwrap();
    (0..6).for_each(|key| put(&store, key));
    store.close().unwrap();
    let store = builder(6).open(folder).unwrap();
    (6..9).for_each(|key| put(&store, key));
    // The bytes reached the disk, and the index did only where it was synced.
    let disk = before_the_entry(folder);
    copy(folder, &disk, |name| name != "index");
    copy(&on_disk(folder), &disk, |name| name == "index");
    assert_eq!(found_after_a_power_cut(&disk), [3, 4, 5]);
}

#[test]
fn closing_syncs_the_blocks_of_earlier_stores() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = builder(6).open(folder).unwrap();
    (0..6).for_each(|key| put(&store, key));
    store.close().unwrap();
    fs::remove_dir_all(on_disk(folder)).unwrap();
    let store = builder(6).open(folder).unwrap();
    (6..8).for_each(|key| put(&store, key));
    drop(store);
    soon("the store is unlocked", || builder(6).open(folder).is_ok());
    builder(6).open(folder).unwrap().close().unwrap();
    assert_eq!(found_after_a_power_cut(&on_disk(folder)).len(), 6);
}
