//! Tests of what a store tells of its blocks, and of the choices when it is full: callbacks, counts, pins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

use gpufile::kv_blocks::{BlockStore, Region};
use testkit::bed::Bed;
use testkit::in_flight::soon;
use testkit::random::Random;

use crate::store::{block, builder, words};

const BLOCK: usize = 4096;

/// Stores a block of these bytes, and returns its outcome.
fn put(store: &BlockStore, key: u128) -> &'static str {
    let region = Region::new(vec![key as u8; BLOCK]);
    words(&store.store(&[block(key, &[region.piece(0, BLOCK, 0)])]).wait())[0]
}

fn get(store: &BlockStore, key: u128, len_bytes: usize) -> &'static str {
    let region = Region::new(vec![0_u8; len_bytes]);
    words(&store.fetch(&[block(key, &[region.piece(0, len_bytes, 0)])]).wait())[0]
}

#[test]
fn each_eviction_is_seen_once() {
    const SLOTS: usize = 37;
    const THREADS: u128 = 4;
    const STORED: u128 = 1_500;
    let bed = Bed::emulated();
    for folders in [1, 2] {
        let seen: Arc<Mutex<HashMap<u128, usize>>> = Arc::default();
        let this: Arc<OnceLock<Weak<BlockStore>>> = Arc::default();
        let (note, back) = (seen.clone(), this.clone());
        let on_evict = move |keys: &[u128]| {
            assert!(!keys.is_empty());
            // It may use the store, which has no lock then.
            let store = back.get().unwrap().upgrade().unwrap();
            for key in keys {
                assert!(!store.contains(*key) && !store.pin(*key) && store.len() <= SLOTS);
                *note.lock().unwrap().entry(*key).or_default() += 1;
            }
            drop(store);
            assert!(keys[0] % 50 != 7, "a panic of a callback ends nothing");
        };
        let builder = builder(&bed, BLOCK).limit_bytes((SLOTS * BLOCK) as u64).on_evict(on_evict);
        let paths = (0..folders).map(|folder| bed.path(&format!("{folders}-{folder}")));
        let store = Arc::new(builder.open_striped(paths).unwrap());
        this.set(Arc::downgrade(&store)).unwrap();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let store = &store;
                scope.spawn(move || {
                    let mut random = Random::new(thread as u64);
                    for key in (0..STORED).filter(|key| key % THREADS == thread) {
                        assert_eq!(put(store, key), "ok");
                        // Reads and removals of others change the order.
                        get(store, random.below(STORED as usize) as u128, 1);
                        if key % 100 == thread {
                            store.remove(&[key]);
                        }
                    }
                });
            }
        });
        // Each store has ended, and so has the callback of what it evicted.
        let removed = |key: &u128| (0..THREADS).any(|thread| key % THREADS == thread && key % 100 == thread);
        let seen = seen.lock().unwrap().clone();
        let mut evicted = 0;
        for key in 0..STORED {
            let times = seen.get(&key).copied().unwrap_or(0);
            match (store.contains(key), removed(&key)) {
                (true, _) => assert_eq!(times, 0, "block {key} is there"),
                (false, false) => assert_eq!(times, 1, "block {key}"),
                // Others may have evicted it before it was removed.
                (false, true) => assert!(times <= 1, "block {key}"),
            }
            evicted += times;
        }
        assert!(evicted >= 1_000, "{evicted}");
        assert_eq!(store.stats().evictions, evicted as u64);
    }
}

#[test]
fn counts_are_those_of_the_calls() {
    let bed = Bed::emulated();
    let store = builder(&bed, BLOCK).limit_bytes(3 * BLOCK as u64).open(bed.path("store")).unwrap();
    assert_eq!(store.stats(), Default::default());
    (0..5).for_each(|key| assert_eq!(put(&store, key), "ok"));
    assert_eq!([get(&store, 0, 10), get(&store, 3, 10), get(&store, 4, BLOCK)], ["missing", "ok", "ok"]);
    // One that asks for more than is stored was found, and got nothing.
    let region = Region::new(vec![1_u8; 100]);
    assert_eq!(words(&store.store(&[block(9, &[region.piece(0, 100, 0)])]).wait()), ["ok"]);
    assert_eq!(get(&store, 9, 101), "failed");
    let stats = store.stats();
    assert_eq!((stats.hits, stats.misses, stats.evictions), (3, 1, 3));
    assert_eq!((stats.bytes_stored, stats.bytes_fetched), (5 * BLOCK as u64 + 100, 10 + BLOCK as u64));
}

#[test]
fn pinned_blocks_stay() {
    let bed = Bed::emulated();
    let store = builder(&bed, BLOCK).limit_bytes(4 * BLOCK as u64).open(bed.path("store")).unwrap();
    (0..4).for_each(|key| assert_eq!(put(&store, key), "ok"));
    assert!(store.pin(0) && store.pin(1) && store.pin(1) && !store.pin(4) && !store.unpin(2));
    (10..20).for_each(|key| assert_eq!(put(&store, key), "ok"));
    let mut keys = store.keys();
    keys.sort_unstable();
    assert_eq!(keys, [0, 1, 18, 19]);
    assert!(store.pin(18) && store.pin(19));
    assert_eq!(put(&store, 20), "no room");
    assert!(store.unpin(1));
    assert_eq!(put(&store, 20), "no room", "the block has a second pin");
    assert!(store.unpin(1) && !store.unpin(1));
    assert_eq!((put(&store, 20), store.contains(1)), ("ok", false));
    // Removing a pinned block frees its slot, soon after.
    assert_eq!((store.remove(&[0]), store.unpin(0), store.pin(20)), (1, false, true));
    soon("the slot is free", || put(&store, 21) == "ok");
    assert!([18, 19, 20, 21].iter().all(|key| store.contains(*key)));
}

#[test]
fn stores_that_do_not_evict_refuse_blocks() {
    let bed = Bed::emulated();
    let open = |evicts| {
        let builder = builder(&bed, BLOCK).limit_bytes(3 * BLOCK as u64).evicts(evicts);
        builder.on_evict(|keys| panic!("{keys:?}")).open(bed.path("store")).unwrap()
    };
    let store = open(false);
    (0..3).for_each(|key| assert_eq!(put(&store, key), "ok"));
    assert_eq!([put(&store, 3), put(&store, 0)], ["no room"; 2]);
    assert_eq!((store.len(), store.stats().evictions), (3, 0));
    assert_eq!(store.remove(&[1]), 1);
    store.close().unwrap();
    let store = open(false);
    assert_eq!([put(&store, 4), put(&store, 5)], ["ok", "no room"]);
    assert!([0, 2, 4].iter().all(|key| get(&store, *key, BLOCK) == "ok"));
    drop(store);
    // The next opening chooses anew.
    let store = open(true);
    assert_eq!((put(&store, 5), store.len()), ("ok", 3));
}
