//! Checksums of blocks: GPUs and the host sum alike, whatever the pieces are, and every way finds damage.

use std::fs::File;
use std::os::unix::fs::FileExt;

use cufile::IoBufMut;
use cufile::cuda::DeviceBuffer;
use gpufile::kv_blocks::{BlockStore, Piece, Region};
use testkit::bed::{Bed, pattern};
use testkit::random::Random;

use crate::store::{block, builder, words};

/// Several pieces of the kernel, and no multiple of a word.
const BLOCK: usize = 700_001;
/// The memory of a block, with room around it.
const ROOM: usize = BLOCK + 64;

/// Returns pieces of a block which a region has from `start` on, in any order.
fn pieces<'a, B>(region: &'a Region<B>, start: usize, random: &mut Random) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < BLOCK {
        let len_bytes = (1 + random.below(BLOCK / 2)).min(BLOCK - at);
        let place = random.below(pieces.len() + 1);
        pieces.insert(place, region.piece(start + at, len_bytes, at));
        at += len_bytes;
    }
    pieces
}

/// Stores the block of a key from a buffer with its bytes, and returns the word of the outcome.
fn put<B: IoBufMut + Send + 'static>(
    store: &BlockStore,
    key: u128,
    memory: B,
    start: usize,
    random: &mut Random,
) -> &'static str {
    let region = Region::new(memory);
    words(&store.store(&[block(key, &pieces(&region, start, random))]).wait())[0]
}

fn get<B: IoBufMut + Send + 'static>(
    store: &BlockStore,
    key: u128,
    memory: B,
    start: usize,
    random: &mut Random,
) -> (&'static str, Region<B>) {
    let region = Region::new(memory);
    let word = words(&store.fetch(&[block(key, &pieces(&region, start, random))]).wait())[0];
    (word, region)
}

fn on_gpu(bed: &Bed, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = bed.device.alloc(bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

/// Stores blocks from the host and the GPU, and fetches each to both.
fn moves(bed: &Bed, store: &BlockStore, random: &mut Random) {
    let bytes = pattern(ROOM);
    for key in 0..8 {
        let start = random.below(ROOM - BLOCK);
        let stored = match key % 2 {
            0 => put(store, key, bytes.clone(), start, random),
            _ => put(store, key, on_gpu(bed, &bytes), start, random),
        };
        assert_eq!(stored, "ok");
        let place = random.below(ROOM - BLOCK);
        let (word, region) = get(store, key, vec![0; ROOM], place, random);
        assert_eq!(word, "ok", "{key}");
        assert!(region.access(|found| found[place..][..BLOCK] == bytes[start..][..BLOCK]).unwrap());
        let (word, region) = get(store, key, on_gpu(bed, &[0; ROOM]), place, random);
        assert_eq!(word, "ok", "{key}");
        let found = region.access(|found| found.to_vec().unwrap()).unwrap();
        assert!(found[place..][..BLOCK] == bytes[start..][..BLOCK]);
    }
}

#[test]
fn checked_blocks_move_between_the_host_and_gpus() {
    Bed::each(|bed| {
        let store = builder(bed, BLOCK).checksums(true).open(bed.path("store")).unwrap();
        let mut random = Random::new(7);
        for _ in 0..3 {
            moves(bed, &store, &mut random);
        }
    });
}

#[test]
fn gpus_that_do_not_sum_leave_it_to_the_host() {
    for (function, values) in
        [("cuModuleLoadData", "err=209"), ("cuLaunchKernel", "err=701"), ("cudaHostAlloc", "err=2")]
    {
        let bed = Bed::emulated();
        let store = builder(&bed, BLOCK).checksums(true).open(bed.path("store")).unwrap();
        bed.emulator.as_ref().unwrap().fault(function, values);
        moves(&bed, &store, &mut Random::new(8));
    }
}

#[test]
fn a_reset_of_the_gpu_ends_no_checks() {
    let bed = Bed::emulated();
    let store = builder(&bed, BLOCK).checksums(true).open(bed.path("store")).unwrap();
    for _ in 0..2 {
        moves(&bed, &store, &mut Random::new(9));
        // SAFETY: no transfer is left, and no buffer on the GPU.
        unsafe { bed.reset() };
    }
    moves(&bed, &store, &mut Random::new(9));
}

#[test]
fn damage_is_found_on_each_way() {
    Bed::each(|bed| {
        let store = builder(bed, BLOCK).checksums(true).open(bed.path("store")).unwrap();
        let bytes = pattern(ROOM);
        let mut random = Random::new(11);
        assert_eq!(put(&store, 0, bytes.clone(), 3, &mut random), "ok");
        let path = bed.path("store").join("blocks-00000");
        let file = File::options().read(true).write(true).open(path).unwrap();
        for way in 0..3 {
            for _ in 0..5 {
                assert_eq!(put(&store, 1, on_gpu(bed, &bytes), 5, &mut random), "ok");
                let slot = (0..4).map(|slot| slot * BLOCK.next_multiple_of(4096) as u64).find(|slot| {
                    let mut found = vec![0; BLOCK];
                    file.read_exact_at(&mut found, *slot).is_ok() && found == bytes[5..][..BLOCK]
                });
                let (at, bit) = (random.below(BLOCK), random.below(8));
                let place = slot.unwrap() + at as u64;
                file.write_all_at(&[bytes[5 + at] ^ 1 << bit], place).unwrap();
                let word = match way {
                    0 => get(&store, 1, vec![0; ROOM], 9, &mut random).0,
                    1 => get(&store, 1, on_gpu(bed, &[0; ROOM]), 9, &mut random).0,
                    _ => {
                        // Some of the bytes, on the GPU.
                        let region = Region::new(on_gpu(bed, &[0; 100]));
                        let piece = [region.piece(0, 100, random.below(BLOCK - 100))];
                        words(&store.fetch(&[block(1, &piece)]).wait())[0]
                    }
                };
                assert_eq!(word, "corrupt", "way {way}, bit {bit} of byte {at}");
                assert!(!store.contains(1));
            }
        }
        assert_eq!(get(&store, 0, vec![0; ROOM], 0, &mut random).0, "ok");
    });
}
