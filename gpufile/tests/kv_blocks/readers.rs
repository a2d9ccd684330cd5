//! Tests of readers beside a store: in the same process, where each moment is chosen. `killed` has other processes.

use std::fs;
use std::os::unix::fs::FileExt;

use gpufile::kv_blocks::{BlockError, BlockReader, BlockStore, BlockStoreBuilder, Region};
use testkit::another_boot::stop_the_machine;
use testkit::bed::{Bed, pattern};

use crate::store::{block, builder, words};

const BLOCK: usize = 5000;
const SLOT: u64 = 8192;

fn few(bed: &Bed) -> BlockStoreBuilder {
    builder(bed, BLOCK).limit_bytes(6 * SLOT).blocks_per_file(2)
}

fn contents(key: u128) -> Vec<u8> {
    pattern(BLOCK * 8)[key as usize * 31..][..BLOCK].to_vec()
}

fn put(store: &BlockStore, key: u128) {
    let region = Region::new(contents(key));
    assert_eq!(words(&store.store(&[block(key, &[region.piece(0, BLOCK, 0)])]).wait()), ["ok"]);
}

fn get(reader: &BlockReader, key: u128) -> Result<Vec<u8>, BlockError> {
    let region = Region::new(vec![0_u8; BLOCK]);
    reader.fetch(&[block(key, &[region.piece(0, BLOCK, 0)])]).wait().pop().unwrap()?;
    Ok(region.access(|bytes| bytes.clone()).unwrap())
}

/// Checks that a reader has these blocks alone.
fn assert_has(reader: &BlockReader, keys: &[u128]) {
    let mut found = reader.keys().unwrap();
    found.sort_unstable();
    assert_eq!(found, keys);
    for key in 0..60 {
        match get(reader, key) {
            Ok(bytes) => assert!(keys.contains(&key) && bytes == contents(key), "block {key}"),
            Err(error) => {
                assert!(!keys.contains(&key) && matches!(error, BlockError::Missing), "{key}: {error}")
            }
        }
    }
}

#[test]
fn readers_follow_the_store() {
    let bed = Bed::emulated();
    let paths = || [bed.path("a"), bed.path("b")];
    let before = builder(&bed, BLOCK).open_reader(paths()).unwrap_err().to_string();
    assert!(before.contains("cannot open"), "{before}");
    assert!(!bed.path("a").exists(), "a reader makes no folder");
    let store = few(&bed).open_striped(paths()).unwrap();
    let reader = builder(&bed, BLOCK).open_reader(paths()).unwrap();
    assert_has(&reader, &[]);
    (0..6).for_each(|key| put(&store, key));
    assert_has(&reader, &[0, 1, 2, 3, 4, 5]);
    // The reader knows these, and others are in their slots.
    (6..9).for_each(|key| put(&store, key));
    assert!(matches!(get(&reader, 1), Err(BlockError::Missing)));
    assert_has(&reader, &[3, 4, 5, 6, 7, 8]);
    store.remove(&[4]);
    store.close().unwrap();
    assert_has(&reader, &[3, 5, 6, 7, 8]);
    // A store with fewer slots removes and cuts files, and the next makes new ones with the same names.
    let store = builder(&bed, BLOCK).limit_bytes(SLOT).blocks_per_file(2).open_striped(paths()).unwrap();
    let stays = store.keys();
    assert_eq!(stays.len(), 1);
    assert_has(&reader, &stays);
    store.close().unwrap();
    let store = few(&bed).open_striped(paths()).unwrap();
    (20..25).for_each(|key| put(&store, key));
    assert_has(&reader, &[&stays[..], &[20, 21, 22, 23, 24]].concat());
    let stats = reader.stats();
    assert_eq!(stats.bytes_fetched, (6 + 6 + 5 + 1 + 6) * BLOCK as u64);
    assert_eq!((stats.hits, stats.evictions, stats.bytes_stored), (24, 0, 0));
    assert_eq!(stats.misses, 6 * 60 - 24 + 1);
    // The slots of a store that is gone, and of another one in its place.
    drop(store);
    for folder in paths() {
        fs::remove_dir_all(folder).unwrap();
    }
    let other = few(&bed).open_striped(paths()).unwrap();
    (40..46).for_each(|key| put(&other, key));
    for key in 0..60 {
        if let Ok(bytes) = get(&reader, key) {
            assert!(key < 40 && bytes == contents(key), "block {key}");
        }
    }
}

#[test]
fn readers_take_memory_of_gpus() {
    Bed::each(|bed| {
        let store = few(bed).open(bed.path("store")).unwrap();
        (0..3).for_each(|key| put(&store, key));
        let reader = builder(bed, BLOCK).open_reader([bed.path("store")]).unwrap();
        let region = Region::new(bed.device.alloc(3 * BLOCK).unwrap());
        let pieces: Vec<_> = (0..3).map(|at| [region.piece(at * BLOCK, BLOCK, 0)]).collect();
        let blocks: Vec<_> = [2, 9, 0].into_iter().zip(&pieces).map(|(key, list)| block(key, list)).collect();
        assert_eq!(words(&reader.fetch(&blocks).wait()), ["ok", "missing", "ok"]);
        let found = region.access(|memory| memory.to_vec().unwrap()).unwrap();
        assert!(found[..BLOCK] == contents(2) && found[2 * BLOCK..] == contents(0));
        assert_eq!(region.bytes_in_use(), 0);
    });
}

#[test]
fn readers_find_what_a_store_would_not_believe() {
    let bed = Bed::emulated();
    let path = bed.path("store");
    let store = few(&bed).checksums(true).open(&path).unwrap();
    (0..4).for_each(|key| put(&store, key));
    let file = fs::File::options().write(true).open(path.join("blocks-00000")).unwrap();
    file.write_all_at(&[contents(1)[700] ^ 1], SLOT + 700).unwrap();
    let checks = builder(&bed, BLOCK).checksums(true).open_reader([&path]).unwrap();
    assert!(matches!(get(&checks, 1), Err(BlockError::Corrupt)) && get(&checks, 0).unwrap() == contents(0));
    assert!(store.contains(1), "a reader removes nothing");
    // Bytes that are not in the file.
    file.set_len(SLOT + 100).unwrap();
    let plain = builder(&bed, BLOCK).open_reader([&path]).unwrap();
    assert!(matches!(get(&plain, 1), Err(BlockError::Corrupt)));
    // After the machine stopped, only blocks with checksums count.
    drop(store);
    stop_the_machine(&path);
    assert_eq!(plain.keys().unwrap(), []);
    assert_eq!(checks.keys().unwrap().len(), 4);
    assert!(get(&checks, 2).unwrap() == contents(2));
    // Another length.
    let error = builder(&bed, BLOCK - 1).open_reader([&path]).unwrap_err().to_string();
    assert!(error.contains("blocks have 5000 bytes, not 4999"), "{error}");
}
