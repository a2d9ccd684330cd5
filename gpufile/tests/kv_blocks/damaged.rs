//! Tests of block stores whose files were damaged, and of stores after the machine stopped.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use gpufile::kv_blocks::{Block, BlockError, BlockStore, BlockStoreBuilder, Recovery, Region};
use gpufile::{Engine, OpenOptions};
use testkit::random::Random;

use testkit::another_boot::{ENTRY, stop_the_machine};

const BLOCK: usize = 5000;
const SLOT: usize = 8192;
const SLOTS: usize = 12;
const HEADER: usize = 4096;

fn builder() -> BlockStoreBuilder {
    let options = OpenOptions::new().engine(&Engine::builder().threads(2).build());
    BlockStore::builder(BLOCK).limit_bytes((SLOTS * SLOT) as u64).blocks_per_file(4).files(&options)
}

fn contents(key: u128) -> Vec<u8> {
    (0..BLOCK - key as usize).map(|at| (at as u128 * 31 + key * 7 + (at as u128 >> 8)) as u8).collect()
}

fn put(store: &BlockStore, keys: std::ops::Range<u128>) {
    for key in keys {
        let region = Region::new(contents(key));
        let pieces = [region.piece(0, region.len_bytes(), 0)];
        store.store(&[Block::new(key, &pieces)]).wait().pop().unwrap().unwrap();
    }
}

fn get(store: &BlockStore, key: u128) -> Result<Vec<u8>, BlockError> {
    let region = Region::new(vec![0_u8; contents(key).len()]);
    let pieces = [region.piece(0, region.len_bytes(), 0)];
    store.fetch(&[Block::new(key, &pieces)]).wait().pop().unwrap()?;
    Ok(region.access(|bytes| bytes.clone()).unwrap())
}

/// Returns a folder with a store of some blocks, which was not closed.
fn stored(builder: BlockStoreBuilder, blocks: u128) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    put(&builder.open(folder.path()).unwrap(), 0..blocks);
    folder
}

fn change(path: &Path, at: u64, by: u8) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ by], at).unwrap();
}

#[test]
fn checksums_find_each_changed_block() {
    let folder = stored(builder().checksums(true), 10);
    // Block 6 is the third of the second file.
    change(&folder.path().join("blocks-00001"), 2 * SLOT as u64 + 4000, 1);
    let store = builder().checksums(true).open(folder.path()).unwrap();
    assert_eq!(store.len(), 10);
    for key in 0..10 {
        match get(&store, key) {
            Ok(bytes) => assert!(key != 6 && bytes == contents(key)),
            Err(error) => assert!(key == 6 && matches!(error, BlockError::Corrupt), "{key}: {error}"),
        }
    }
    assert!(matches!(get(&store, 6), Err(BlockError::Missing)), "a corrupt block is removed");
    put(&store, 6..7);
    assert!(get(&store, 6).unwrap() == contents(6));
    store.close().unwrap();
    assert_eq!(builder().checksums(true).open(folder.path()).unwrap().len(), 10);
}

#[test]
fn blocks_beyond_the_end_of_a_file_are_not_whole() {
    let folder = stored(builder(), 10);
    let cut = |len: usize| {
        let file = fs::File::options().write(true).open(folder.path().join("blocks-00001")).unwrap();
        file.set_len(len as u64).unwrap();
    };
    // Block 5 lacks a byte, and 6 and 7 lack all.
    cut(SLOT + BLOCK - 6);
    let store = builder().open(folder.path()).unwrap();
    let Recovery { whole, damaged, unsynced, .. } = store.recovery();
    assert_eq!((whole, damaged, unsynced), (7, 3, 0));
    assert!(get(&store, 4).unwrap() == contents(4) && !store.contains(5));
    // A file that others shorten while it is open.
    cut(0);
    assert!(matches!(get(&store, 4), Err(BlockError::Corrupt)));
    assert!(get(&store, 3).unwrap() == contents(3));
}

#[test]
fn damaged_indices_lose_blocks_but_never_change_them() {
    let (mut opened, mut refused, mut lost) = (0, 0, 0);
    let folder = stored(builder(), 10);
    let original = fs::read(folder.path().join("index")).unwrap();
    assert_eq!(original.len(), HEADER + 10 * ENTRY);
    let mut random = Random::new(5);
    for round in 0..400 {
        let mut bytes = original.clone();
        match round % 4 {
            0 => bytes.truncate(random.below(bytes.len())),
            1 => bytes.extend((0..random.below(300)).map(|_| random.below(256) as u8)),
            2 => bytes.copy_within(HEADER..HEADER + ENTRY, HEADER + (1 + random.below(9)) * ENTRY),
            _ => {
                for _ in 0..1 + random.below(4) {
                    let at = if random.one_in(4) {
                        random.below(ENTRY)
                    } else {
                        HEADER + random.below(10 * ENTRY)
                    };
                    bytes[at] ^= 1 << random.below(8);
                }
            }
        }
        fs::write(folder.path().join("index"), &bytes).unwrap();
        match builder().open(folder.path()) {
            Ok(store) => {
                opened += 1;
                lost += 10 - store.len();
                for key in store.keys() {
                    assert!(
                        key < 10 && get(&store, key).unwrap() == contents(key),
                        "round {round}, block {key}"
                    );
                }
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("is not the index of a block store"), "{error}");
            }
        }
    }
    assert!(opened > 200 && refused > 20 && lost > 100, "{opened} {refused} {lost}");
    // What a store has cleared stays cleared.
    fs::write(folder.path().join("index"), &original).unwrap();
    change(&folder.path().join("index"), (HEADER + 20) as u64, 1);
    assert_eq!(builder().open(folder.path()).unwrap().recovery().damaged, 1);
    let recovery = builder().open(folder.path()).unwrap().recovery();
    assert_eq!((recovery.whole, recovery.damaged), (9, 0));
}

#[test]
fn a_new_boot_keeps_only_what_reached_the_disk() {
    let found = |folder: &Path, builder: BlockStoreBuilder| {
        let store = builder.open(folder).unwrap();
        for key in store.keys() {
            assert!(get(&store, key).unwrap() == contents(key));
        }
        let Recovery { whole, damaged, unsynced, .. } = store.recovery();
        (whole, damaged, unsynced)
    };
    let plain = stored(builder(), 5);
    assert_eq!(found(plain.path(), builder()), (5, 0, 0), "the process was killed");
    stop_the_machine(plain.path());
    assert_eq!(found(plain.path(), builder()), (0, 0, 5));
    assert_eq!(found(plain.path(), builder()), (0, 0, 0));

    let closed = stored(builder(), 5);
    builder().open(closed.path()).unwrap().close().unwrap();
    stop_the_machine(closed.path());
    assert_eq!(found(closed.path(), builder()), (5, 0, 0));
    // It was open again since.
    stop_the_machine(closed.path());
    assert_eq!(found(closed.path(), builder()), (0, 0, 5));

    let durable = stored(builder().durable(true), 5);
    put(&builder().open(durable.path()).unwrap(), 5..7);
    stop_the_machine(durable.path());
    assert_eq!(found(durable.path(), builder()), (5, 0, 2));

    let checked = stored(builder().checksums(true), 5);
    stop_the_machine(checked.path());
    // The disk lacks the bytes of block 2.
    change(&checked.path().join("blocks-00000"), 2 * SLOT as u64, 0xff);
    let store = builder().checksums(true).open(checked.path()).unwrap();
    assert_eq!((store.len(), store.recovery().unsynced), (5, 0));
    assert!(matches!(get(&store, 2), Err(BlockError::Corrupt)) && get(&store, 3).unwrap() == contents(3));
    drop(store);
    stop_the_machine(checked.path());
    assert_eq!(found(checked.path(), builder()), (0, 0, 4), "without checksums they cannot be compared");
}

#[test]
fn stores_whose_index_was_removed_touch_no_other_store() {
    let folder = stored(builder(), 2);
    let old = builder().open(folder.path()).unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let new = builder().open(folder.path()).unwrap();
    put(&new, 20..30);
    // The next slots of the old store are in files that it has not opened.
    let region = Region::new(vec![1_u8; BLOCK]);
    for key in 100..110 {
        let pieces = [region.piece(0, BLOCK, 0)];
        let block = Block::new(key, &pieces);
        if let Err(error) = old.store(&[block]).wait().pop().unwrap() {
            assert!(error.to_string().contains("was removed or replaced"), "{error}");
        }
    }
    assert!(old.len() < 5, "{}", old.len());
    assert!((20..30).all(|key| get(&new, key).unwrap() == contents(key)));
}
