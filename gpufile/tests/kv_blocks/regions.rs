//! Tests that no transfer uses memory that has left its region, and random calls beside owners who swap the memory.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gpufile::kv_blocks::{Block, BlockError, BlockStore, Piece, Region};
use testkit::bed::Bed;
use testkit::in_flight::soon;
use testkit::random::{Random, cases, seed};

use crate::store::{block, builder, words};

const PAGE: usize = 4096;

/// Buffers that left regions. They have bytes that no block has, which nothing may change.
#[derive(Default)]
struct Outside(VecDeque<Vec<u8>>);

impl Outside {
    const BYTE: u8 = 255;

    fn keep(&mut self, mut buffer: Vec<u8>) {
        buffer.fill(Self::BYTE);
        self.0.push_back(buffer);
    }

    /// Checks all, and frees the oldest.
    fn check(&mut self) {
        let is_changed = |buffer: &Vec<u8>| *buffer != vec![Self::BYTE; buffer.len()];
        assert!(!self.0.iter().any(is_changed), "a transfer has written to a buffer outside of its region");
        self.0.drain(..self.0.len().saturating_sub(300));
    }
}

/// Takes the buffer of a region out whenever no transfer uses it, while `calls` runs.
fn swapping(region: &Region<Vec<u8>>, calls: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut outside = Outside::default();
            while !stop.load(Ordering::Relaxed) {
                match region.access(|buffer| mem::replace(buffer, vec![2; PAGE])) {
                    Some(buffer) => outside.keep(buffer),
                    None => outside.check(),
                }
                thread::sleep(Duration::from_micros(20));
            }
            outside.check();
        });
        calls();
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn blocks_that_took_nothing_keep_no_memory() {
    const BLOCKS: usize = 3000;
    const LATE: u128 = 1 << 40;
    let bed = Bed::emulated();
    // With checksums, the call is one task.
    for has_checksums in [false, true] {
        let store = builder(&bed, PAGE).checksums(has_checksums).limit_bytes(64 << 20);
        let store = store.open(bed.path(&format!("{has_checksums}"))).unwrap();
        let many = Region::new(vec![1; BLOCKS * PAGE]);
        let region = Region::new(vec![7; PAGE]);
        let whole = [region.piece(0, PAGE, 0)];
        let pages: Vec<_> = (0..BLOCKS).map(|page| [many.piece(page * PAGE, PAGE, 0)]).collect();
        let mut blocks: Vec<_> = (0..).zip(&pages).map(|(key, pieces)| block(key, pieces)).collect();
        blocks.push(block(LATE, &whole));
        assert!(store.store(&blocks).wait().iter().all(Result::is_ok));

        // An early block names the region and takes none of it. The last one takes it.
        let empty = [region.piece(0, 0, 0), pages[0][0]];
        let refused = [whole[0], many.piece(PAGE, PAGE, PAGE)];
        match has_checksums {
            true => blocks[0] = block(0, &empty),
            false => blocks.insert(2, block(1, &refused)),
        }
        swapping(&region, || {
            for _ in 0..30 {
                store.fetch(&blocks).wait();
            }
        });
        store.close().unwrap();
    }
}

/// The length of a block of the random calls. Regions have [`byte`] of each place there, or a zero.
const BLOCK: usize = 3 * PAGE;
const KEYS: usize = 40;

fn byte(place: usize) -> u8 {
    1 + (place * 7 + place / 251) as u8 % 250
}

fn bytes() -> Vec<u8> {
    (0..KEYS * BLOCK).map(byte).collect()
}

/// Returns pieces of a block, of random regions, with empty ones between. Pieces that belong nowhere may follow.
fn cut<'a>(random: &mut Random, regions: &'a [Region<Vec<u8>>], key: usize) -> (Vec<Piece<'a>>, bool) {
    let piece = |random: &mut Random, from, len| {
        regions[random.below(regions.len())].piece(key * BLOCK + from, len, from)
    };
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < BLOCK {
        if random.one_in(3) {
            pieces.push(piece(random, at, 0));
        }
        let len = match random.below(3) {
            0 => PAGE - at % PAGE,
            1 => 1 + random.below(BLOCK - at),
            _ => BLOCK - at,
        };
        pieces.push(piece(random, at, len));
        at += len;
    }
    let is_wrong = random.one_in(8);
    if is_wrong {
        let region = &regions[random.below(regions.len())];
        pieces.push(if random.one_in(2) {
            region.piece(0, 1, BLOCK)
        } else {
            region.piece(usize::MAX, 9, BLOCK - 9)
        });
    }
    (pieces, is_wrong)
}

/// Makes random calls, and compares each outcome with those that are possible.
fn call_at_random(store: &BlockStore, regions: &[Region<Vec<u8>>], random: &mut Random) {
    let keys: Vec<_> = (0..1 + random.below(20)).map(|_| random.below(KEYS + 2)).collect();
    let cuts: Vec<_> = keys.iter().map(|key| cut(random, regions, (*key).min(KEYS - 1))).collect();
    let blocks: Vec<Block<'_>> =
        keys.iter().zip(&cuts).map(|(key, (pieces, _))| block(*key as u128, pieces)).collect();
    let transfer = store.fetch(&blocks);
    let outcomes = match random.below(6) {
        0 => return drop(transfer),
        1 => transfer.cancel(),
        _ => transfer.wait(),
    };
    for ((key, (_, is_wrong)), outcome) in keys.iter().zip(&cuts).zip(outcomes) {
        match outcome {
            Ok(()) => assert!(*key < KEYS && !is_wrong, "block {key}"),
            Err(BlockError::Missing) => assert!(*key >= KEYS && !is_wrong, "block {key}"),
            Err(BlockError::InUse | BlockError::Cancelled) => {}
            // Owners make regions shorter.
            Err(error) => assert!(*is_wrong || error.to_string().contains("exceeds the region"), "{error}"),
        }
    }
}

/// Swaps or resizes the buffer of a random region. A buffer that it swaps out must have no byte in a wrong place.
fn swap_at_random(regions: &[Region<Vec<u8>>], random: &mut Random, outside: &mut Outside) {
    let all = bytes();
    let region = &regions[random.below(regions.len())];
    let changed = region.access(|buffer| match random.below(3) {
        0 => {
            let len = if random.one_in(4) { random.below(all.len()) } else { all.len() };
            let old = mem::replace(buffer, vec![0; len]);
            assert!(
                old.iter().zip(&all).all(|(byte, right)| byte == right || *byte == 0),
                "a byte in a wrong place"
            );
            outside.keep(old);
        }
        1 => {
            buffer.truncate(all.len() / 2);
            buffer.shrink_to_fit();
        }
        _ => buffer.resize(all.len(), 0),
    });
    if changed.is_none() {
        outside.check();
    }
}

#[test]
fn random_calls_beside_owners_change_only_their_memory() {
    let (bed, all, seed) = (Bed::emulated(), bytes(), seed());
    println!("CUFILE_TEST_SEED={seed}");
    let store =
        builder(&bed, BLOCK).limit_bytes(1 << 20).blocks_per_file(16).open(bed.path("store")).unwrap();
    let regions: [_; 3] = [(); 3].map(|()| Region::new(all.clone()));
    let pieces: Vec<_> = (0..KEYS).map(|key| [regions[0].piece(key * BLOCK, BLOCK, 0)]).collect();
    let blocks: Vec<_> = (0..).zip(&pieces).map(|(key, pieces)| block(key, pieces)).collect();
    assert_eq!(words(&store.store(&blocks).wait()), ["ok"; KEYS]);
    regions.iter().for_each(|region| region.access(|buffer| buffer.fill(0)).unwrap());

    let calling = AtomicBool::new(true);
    thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let (mut random, mut outside) = (Random::new(seed), Outside::default());
            while calling.load(Ordering::Relaxed) {
                swap_at_random(&regions, &mut random, &mut outside);
                thread::sleep(Duration::from_micros(random.below(200) as u64));
            }
            outside.check();
        });
        let callers: Vec<_> = (1..3)
            .map(|caller| {
                let (store, regions) = (&store, &regions);
                scope.spawn(move || {
                    let mut random = Random::new(seed + caller);
                    (0..cases(300)).for_each(|_| call_at_random(store, regions, &mut random));
                })
            })
            .collect();
        let ended: Vec<_> = callers.into_iter().map(|caller| caller.join()).collect();
        calling.store(false, Ordering::Relaxed);
        owner.join().unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
    });

    // All blocks are there, and no call has kept memory.
    soon("calls end", || regions.iter().all(|region| region.bytes_in_use() == 0));
    regions[0].access(|buffer| *buffer = vec![0; all.len()]).unwrap();
    assert_eq!(words(&store.fetch(&blocks).wait()), ["ok"; KEYS]);
    assert!(regions[0].access(|buffer| *buffer == all).unwrap());
}
