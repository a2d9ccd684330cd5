//! Tests of stores in several folders: where blocks are, and which folders open as one store.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gpufile::kv_blocks::{BlockStore, Region};
use testkit::another_boot::stop_the_machine;
use testkit::bed::{Bed, pattern};

use crate::store::{block, builder, words};

const BLOCK: usize = 5000;
const SLOT: u64 = 8192;

fn paths(bed: &Bed, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| bed.path(name)).collect()
}

fn open(bed: &Bed, names: &[&str]) -> Result<BlockStore, String> {
    let builder = builder(bed, BLOCK).limit_bytes(30 * SLOT).blocks_per_file(4);
    builder.open_striped(paths(bed, names)).map_err(|error| error.to_string())
}

fn contents(key: u128) -> Vec<u8> {
    pattern(BLOCK * 8)[key as usize * 31..][..BLOCK].to_vec()
}

fn put(store: &BlockStore, keys: std::ops::Range<u128>) {
    let regions: Vec<_> = keys.clone().map(|key| Region::new(contents(key))).collect();
    let pieces: Vec<_> = regions.iter().map(|region| [region.piece(0, BLOCK, 0)]).collect();
    let blocks: Vec<_> = keys.zip(&pieces).map(|(key, pieces)| block(key, pieces)).collect();
    assert!(words(&store.store(&blocks).wait()).iter().all(|word| *word == "ok"));
}

fn assert_has(store: &BlockStore, keys: std::ops::Range<u128>) {
    let region = Region::new(vec![0_u8; BLOCK * (keys.end - keys.start) as usize]);
    let piece = |key| [region.piece((key - keys.start) as usize * BLOCK, BLOCK, 0)];
    let pieces: Vec<_> = keys.clone().map(piece).collect();
    let blocks: Vec<_> = keys.clone().zip(&pieces).map(|(key, pieces)| block(key, pieces)).collect();
    assert_eq!(words(&store.fetch(&blocks).wait()), vec!["ok"; blocks.len()]);
    let found = region.access(|bytes| bytes.clone()).unwrap();
    keys.clone()
        .zip(found.chunks(BLOCK))
        .for_each(|(key, found)| assert!(found == contents(key), "block {key}"));
}

fn files_of(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn blocks_take_turns_on_the_folders() {
    let bed = Bed::emulated();
    let store = open(&bed, &["a", "b", "c"]).unwrap();
    put(&store, 0..25);
    assert_has(&store, 0..25);
    store.close().unwrap();
    // Slots 0, 3, 6 and 9 are in the first file of the first folder.
    assert_eq!(files_of(&bed.path("a")), ["blocks-00000", "blocks-00003", "blocks-00006", "index"]);
    assert_eq!(files_of(&bed.path("b")), ["blocks-00001", "blocks-00004", "index"]);
    assert_eq!(files_of(&bed.path("c")), ["blocks-00002", "blocks-00005", "index"]);
    // A later store finds its blocks, whatever the order.
    let store = open(&bed, &["c", "a", "b"]).unwrap();
    assert_eq!(store.recovery().whole, 25);
    assert_has(&store, 0..25);
    drop(store);
    // One without a clean end believes no block after the machine stopped.
    stop_the_machine(&bed.path("a"));
    let store = open(&bed, &["b", "c", "a"]).unwrap();
    assert_eq!((store.len(), store.recovery().unsynced), (0, 25));
    put(&store, 0..30);
    store.close().unwrap();
    // A lower limit cuts the files of all folders.
    let lower = builder(&bed, BLOCK).limit_bytes(7 * SLOT).blocks_per_file(4);
    let store = lower.open_striped(paths(&bed, &["a", "b", "c"])).unwrap();
    assert_eq!(store.len(), 7);
    let bytes = |folder: &str| -> u64 {
        let names = files_of(&bed.path(folder)).into_iter().filter(|name| name != "index");
        names.map(|name| fs::metadata(bed.path(folder).join(name)).unwrap().len()).sum()
    };
    assert_eq!(["a", "b", "c"].map(bytes), [3 * SLOT, 2 * SLOT, 2 * SLOT]);
}

#[test]
fn only_the_folders_of_one_store_open() {
    let bed = Bed::emulated();
    open(&bed, &["a", "b"]).unwrap().close().unwrap();
    put(&open(&bed, &["a", "b"]).unwrap(), 0..6);
    open(&bed, &["x", "y"]).unwrap().close().unwrap();
    open(&bed, &["single"]).unwrap().close().unwrap();
    let refused = |names: &[&str], word: &str| {
        let error = open(&bed, names).expect_err("they are not one store");
        assert!(error.contains(word), "{names:?}: {error}");
        let reader = builder(&bed, BLOCK).open_reader(paths(&bed, names));
        let error = reader.expect_err("they are not one store").to_string();
        assert!(error.contains(word) || names.contains(&"new") || names == ["a", "a"], "{names:?}: {error}");
    };
    refused(&["a"], "its store has 2 folders, and 1 were named");
    refused(&["b"], "its store has 2 folders, and 1 were named");
    refused(&["a", "b", "new"], "its store has 2 folders, and 3 were named");
    refused(&["a", "x"], "belongs to another store");
    refused(&["a", "y"], "belongs to another store");
    refused(&["b", "y"], "belongs to another store");
    refused(&["a", "single"], "its store has 1 folders");
    refused(&["a", "new"], "not one of the store in");
    refused(&["new", "b"], "not one of the store in");
    refused(&["a", "a"], "another store has it open");
    refused(&[], "has 1 to 65535 folders");
    // Nothing has changed.
    assert_has(&open(&bed, &["b", "a"]).unwrap(), 0..6);
    // A copy of a folder.
    fs::create_dir(bed.path("copy")).unwrap();
    fs::copy(bed.path("a/index"), bed.path("copy/index")).unwrap();
    refused(&["a", "copy"], "a copy of it");
    // A folder that is held by another store.
    let held = open(&bed, &["a", "b"]).unwrap();
    let error = open(&bed, &["b"]).unwrap_err();
    assert!(error.contains("another store has it open"), "{error}");
    drop(held);
}

#[test]
fn a_store_that_was_not_finished_begins_anew() {
    let bed = Bed::emulated();
    open(&bed, &["a", "b"]).unwrap().close().unwrap();
    // The process was killed before it wrote the header of the first.
    fs::write(bed.path("a/index"), "").unwrap();
    let store = open(&bed, &["a", "b"]).unwrap();
    put(&store, 0..5);
    drop(store);
    assert_has(&open(&bed, &["b", "a"]).unwrap(), 0..5);
    // With blocks there was a store, which has lost its index.
    fs::write(bed.path("a/index"), "").unwrap();
    let error = open(&bed, &["a", "b"]).unwrap_err();
    assert!(error.contains("no index says"), "{error}");
}

#[test]
fn indexes_of_earlier_versions_are_refused() {
    let bed = Bed::emulated();
    open(&bed, &["a"]).unwrap().close().unwrap();
    let index = fs::File::options().write(true).open(bed.path("a/index")).unwrap();
    for magic in [b"gpufKVB1", b"gpufKVB2", b"gpufKVB4"] {
        index.write_all_at(magic, 0).unwrap();
        let error = open(&bed, &["a"]).unwrap_err();
        assert!(error.contains("an earlier version of gpufile made it"), "{error}");
        let error = builder(&bed, BLOCK).open_reader([bed.path("a")]).unwrap_err().to_string();
        assert!(error.contains("an earlier version of gpufile made it"), "{error}");
    }
}
