//! Tests of block stores: bytes, outcomes, eviction, threads, deadlines, faults and wrong arguments.

use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cufile::IoBufMut;
use cufile::cuda::DeviceBuffer;
use gpufile::kv_blocks::{Block, BlockError, BlockStore, BlockStoreBuilder, BlockTransfer, Piece, Region};
use gpufile::{Engine, OpenOptions, RoutePolicy};
use testkit::bed::{Bed, pattern};
use testkit::in_flight::{block_on, soon};
use testkit::random::Random;
use testkit::{alone, in_a_fork};

/// Returns a builder whose files have an engine of their own on the bed.
pub fn builder(bed: &Bed, block_bytes: usize) -> BlockStoreBuilder {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
    BlockStore::builder(block_bytes).files(&OpenOptions::new().engine(&engine))
}

pub fn block<'a>(key: u128, pieces: &'a [Piece<'a>]) -> Block<'a> {
    Block::new(key, pieces)
}

/// Returns the bytes of the block with a key.
fn contents(key: u128, len_bytes: usize) -> Vec<u8> {
    let all = pattern(1 << 20);
    all[(key as usize * 977) % (1 << 19)..][..len_bytes].to_vec()
}

/// Memory on the host or a GPU, which a test looks into.
trait Memory: IoBufMut + Send + 'static {
    fn set(&mut self, at: usize, bytes: &[u8]);
    fn get(&mut self) -> Vec<u8>;
}

impl Memory for Vec<u8> {
    fn set(&mut self, at: usize, bytes: &[u8]) {
        self[at..][..bytes.len()].copy_from_slice(bytes);
    }
    fn get(&mut self) -> Vec<u8> {
        self.clone()
    }
}

impl Memory for DeviceBuffer {
    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.copy_from_host(at, bytes).unwrap();
    }
    fn get(&mut self) -> Vec<u8> {
        self.to_vec().unwrap()
    }
}

/// Returns the outcomes as words.
pub fn words(outcomes: &[Result<(), BlockError>]) -> Vec<&'static str> {
    let word = |outcome: &Result<(), BlockError>| match outcome {
        Ok(()) => "ok",
        Err(BlockError::Missing) => "missing",
        Err(BlockError::Corrupt) => "corrupt",
        Err(BlockError::NoRoom) => "no room",
        Err(BlockError::InUse) => "in use",
        Err(BlockError::Deadline) => "deadline",
        Err(BlockError::Cancelled) => "cancelled",
        Err(_) => "failed",
    };
    outcomes.iter().map(word).collect()
}

/// Stores host bytes under a key, in one piece.
fn put(store: &BlockStore, key: u128, bytes: Vec<u8>) {
    let region = Region::new(bytes);
    let pieces = [region.piece(0, region.len_bytes(), 0)];
    assert_eq!(words(&store.store(&[block(key, &pieces)]).wait()), ["ok"]);
}

/// Fetches the first bytes of a block to the host.
fn get(store: &BlockStore, key: u128, len_bytes: usize) -> Result<Vec<u8>, BlockError> {
    let region = Region::new(vec![0_u8; len_bytes]);
    let pieces = [region.piece(0, len_bytes, 0)];
    let outcome = store.fetch(&[block(key, &pieces)]).wait().pop().unwrap();
    outcome.map(|()| region.access(|bytes| bytes.clone()).unwrap())
}

/// Stores blocks of random pieces with gaps between them, and fetches each in other pieces.
fn scattered<B: Memory>(store: &BlockStore, memory: [B; 2], block_bytes: usize, seed: u64) {
    const BLOCKS: usize = 20;
    let mut random = Random::new(seed);
    let regions = memory.map(Region::new);
    let mut next = [0; 2];
    // Returns pieces of a block in both regions, in random order.
    let mut cut = |random: &mut Random, len_bytes: usize| {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < len_bytes {
            let part = (1 + random.below(block_bytes / 3 + 1)).min(len_bytes - at);
            let region = random.below(2);
            next[region] += random.below(700);
            pieces.push((region, next[region], part, at));
            next[region] += part;
            at += part;
        }
        let turn = random.below(pieces.len());
        pieces.rotate_left(turn);
        pieces
    };
    let lens: Vec<_> = (0..BLOCKS).map(|_| 1 + random.below(block_bytes)).collect();
    let stored: Vec<_> = lens.iter().map(|len_bytes| cut(&mut random, *len_bytes)).collect();
    let fetched: Vec<_> = lens.iter().map(|len_bytes| cut(&mut random, *len_bytes)).collect();
    for (key, pieces) in stored.iter().enumerate() {
        let bytes = contents(key as u128, lens[key]);
        for &(region, offset, len_bytes, at) in pieces {
            regions[region].access(|memory| memory.set(offset, &bytes[at..][..len_bytes])).unwrap();
        }
    }
    let of = |list: &[(usize, usize, usize, usize)]| -> Vec<Piece<'_>> {
        let piece = |&(region, offset, len, at): &(usize, _, _, _)| regions[region].piece(offset, len, at);
        list.iter().map(piece).collect()
    };
    let (stored, fetched_pieces): (Vec<_>, Vec<_>) =
        (stored.iter().map(|list| of(list)).collect(), fetched.iter().map(|list| of(list)).collect());
    let list: Vec<_> = (0..).zip(&stored).map(|(key, pieces)| block(key, pieces)).collect();
    assert_eq!(words(&store.store(&list).wait()), ["ok"; BLOCKS]);
    let mut list: Vec<_> = (0..).zip(&fetched_pieces).map(|(key, pieces)| block(key, pieces)).collect();
    list.reverse();
    assert_eq!(words(&store.fetch(&list).wait()), ["ok"; BLOCKS]);
    let [one, two] = regions.each_ref().map(|region| region.access(Memory::get).unwrap());
    for (key, pieces) in fetched.iter().enumerate() {
        let bytes = contents(key as u128, lens[key]);
        for &(region, offset, len_bytes, at) in pieces {
            let memory = if region == 0 { &one } else { &two };
            assert!(memory[offset..][..len_bytes] == bytes[at..][..len_bytes], "block {key}, seed {seed}");
        }
    }
}

#[test]
fn scattered_blocks_come_back_whole() {
    Bed::each(|bed| {
        for (seed, block_bytes) in [(1, 5000), (2, 4096), (3, 100_001), (4, 7)] {
            for (has_checksums, is_durable) in [(false, false), (true, true)] {
                let folder = bed.path(&format!("{seed}-{has_checksums}"));
                let builder = builder(bed, block_bytes).checksums(has_checksums).durable(is_durable);
                let store = builder.limit_bytes(10 << 20).blocks_per_file(3).open(&folder).unwrap();
                let room = 40 * (block_bytes + 700 * 20);
                scattered(&store, [vec![0_u8; room], vec![0; room]], block_bytes, seed);
                let device = || bed.device.alloc(room).unwrap();
                scattered(&store, [device(), device()], block_bytes, seed + 100);
                assert_eq!(store.len(), 20);
                let files = fs::read_dir(&folder).unwrap().count();
                assert!(files > 7, "{files} files");
            }
        }
    });
}

#[test]
fn new_and_found_files_are_registered_with_cufile() {
    let bed = Bed::emulated();
    let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
    let files = OpenOptions::new().policy(RoutePolicy::RequireCufile).engine(&engine);
    let builder = BlockStore::builder(100_000).files(&files);
    let mut memory = bed.device.alloc(100_000).unwrap();
    memory.set(0, &contents(1, 100_000));
    let region = Region::new(memory);
    let pieces = [region.piece(0, 100_000, 0)];
    for is_stored in [false, true] {
        let store = builder.clone().open(bed.path("blocks")).unwrap();
        let blocks = [block(1, &pieces)];
        let transfer = if is_stored { store.fetch(&blocks) } else { store.store(&blocks) };
        assert_eq!(words(&transfer.wait()), ["ok"]);
        store.close().unwrap();
    }
    assert!(bed.emulator.as_ref().unwrap().calls("cuFileHandleRegister") >= 2);
}

#[test]
fn one_region_and_one_file_take_the_short_way() {
    Bed::each(|bed| {
        const PIECE: usize = 16 << 10;
        let store = builder(bed, 8 * PIECE).limit_bytes(64 << 20).open(bed.path("store")).unwrap();
        let mut memory = bed.device.alloc(64 * PIECE).unwrap();
        let bytes = pattern(64 * PIECE);
        memory.copy_from_host(0, &bytes).unwrap();
        let region = Region::new(memory);
        let of = |page: usize| -> Vec<_> {
            (0..8).map(|layer| region.piece((layer * 8 + page) * PIECE, PIECE, layer * PIECE)).collect()
        };
        let pages: Vec<_> = (0..8).map(of).collect();
        let blocks: Vec<_> = (0..4).map(|page| block(page as u128, &pages[page])).collect();
        assert_eq!(words(&store.store(&blocks).wait()), ["ok"; 4]);
        // A layer alone.
        let layer = [region.piece(4 * PIECE, PIECE, 5 * PIECE)];
        let blocks = [block(0, &pages[7]), block(9, &pages[6]), block(3, &pages[5]), block(2, &layer)];
        assert_eq!(words(&store.fetch(&blocks).wait()), ["ok", "missing", "ok", "ok"]);
        let found = region.access(Memory::get).unwrap();
        let part =
            |bytes: &[u8], layer: usize, page: usize| bytes[(layer * 8 + page) * PIECE..][..PIECE].to_vec();
        for layer in 0..8 {
            assert!(part(&found, layer, 7) == part(&bytes, layer, 0));
            assert!(part(&found, layer, 5) == part(&bytes, layer, 3));
            assert!(part(&found, layer, 6) == part(&bytes, layer, 6), "nothing came for a missing block");
        }
        assert!(part(&found, 0, 4) == part(&bytes, 5, 2));
    });
}

#[test]
fn long_fetches_have_each_outcome_in_its_place() {
    Bed::each(|bed| {
        const PIECES: usize = 32;
        const BLOCK: usize = PIECES * 64;
        // More pieces than the first two tasks of a fetch have.
        const BLOCKS: usize = 300;
        let store = builder(bed, BLOCK).limit_bytes(1 << 30).open(bed.path("store")).unwrap();
        let mut memory = bed.device.alloc(2 * BLOCKS * BLOCK).unwrap();
        let bytes = pattern(2 * BLOCKS * BLOCK);
        memory.copy_from_host(0, &bytes).unwrap();
        let region = Region::new(memory);
        let pieces_of = |page: usize| -> Vec<_> {
            let piece = |at| region.piece((at * 2 * BLOCKS + page) * 64, 64, at * 64);
            (0..PIECES).map(piece).collect()
        };
        let pieces: Vec<_> = (0..2 * BLOCKS).map(pieces_of).collect();
        let whole = |key: usize| !key.is_multiple_of(7);
        let stored: Vec<_> = (0..BLOCKS).filter(|key| whole(*key)).collect();
        let blocks: Vec<_> = stored.iter().map(|key| block(*key as u128, &pieces[*key])).collect();
        assert!(words(&store.store(&blocks).wait()).iter().all(|word| *word == "ok"));
        // Pieces behind the memory.
        let beyond = [region.piece(2 * BLOCKS * BLOCK, 1, 0)];
        let wrong = |key: usize| key % 50 == 48;
        let pieces_to = |key| if wrong(key) { &beyond[..] } else { &pieces[BLOCKS + key] };
        let blocks: Vec<_> = (0..BLOCKS).map(|key| block(key as u128, pieces_to(key))).collect();
        let expected = |key| match key {
            _ if wrong(key) => "failed",
            _ if whole(key) => "ok",
            _ => "missing",
        };
        let expected: Vec<_> = (0..BLOCKS).map(expected).collect();
        assert_eq!(words(&store.fetch(&blocks).wait()), expected);
        assert_eq!(region.bytes_in_use(), 0);
        let found = region.access(Memory::get).unwrap();
        for (key, word) in expected.iter().enumerate() {
            let from = if *word == "ok" { key } else { BLOCKS + key };
            for at in 0..PIECES {
                let part = |bytes: &[u8], page| bytes[(at * 2 * BLOCKS + page) * 64..][..64].to_vec();
                assert!(part(&found, BLOCKS + key) == part(&bytes, from), "block {key}, piece {at}");
            }
        }
        assert_eq!(words(&store.fetch(&blocks).cancel()).len(), BLOCKS);
    });
}

#[test]
fn the_limit_evicts_the_least_recently_used() {
    let bed = Bed::emulated();
    let store =
        builder(&bed, 4096).limit_bytes(4 * 4096 + 100).blocks_per_file(2).open(bed.path("s")).unwrap();
    for key in 0..4 {
        put(&store, key, contents(key, 4096));
    }
    assert!(get(&store, 0, 4096).unwrap() == contents(0, 4096));
    put(&store, 4, contents(4, 100));
    let mut keys = store.keys();
    keys.sort_unstable();
    assert_eq!(keys, [0, 2, 3, 4]);
    assert!(store.contains(0) && !store.contains(1));
    let used = fs::read_dir(bed.path("s")).unwrap().map(|entry| entry.unwrap());
    let blocks =
        used.filter(|entry| entry.file_name() != "index").map(|entry| entry.metadata().unwrap().len());
    assert_eq!(blocks.sum::<u64>(), 4 * 4096);
    // A block with the same key replaces the older one.
    put(&store, 4, contents(5, 4096));
    assert!(get(&store, 4, 4096).unwrap() == contents(5, 4096));
    assert_eq!((store.remove(&[4, 3, 99]), store.len()), (2, 1));
    assert!(matches!(get(&store, 4, 10), Err(BlockError::Missing)));
}

#[test]
fn a_call_of_more_blocks_than_slots_stores_some() {
    let bed = Bed::emulated();
    // The last call has more pieces than the first task of shorter ones.
    for (count, slots, pieces) in [(5, 3, 1), (200, 30, 32)] {
        let block_bytes = 10 * pieces;
        let builder = builder(&bed, block_bytes).limit_bytes(slots * 4096);
        let store = builder.open(bed.path(&count.to_string())).unwrap();
        let region = Region::new(vec![1_u8; count * block_bytes]);
        let piece = |block: usize, at| region.piece(block * block_bytes + 10 * at, 10, 10 * at);
        let pieces: Vec<Vec<_>> =
            (0..count).map(|block| (0..pieces).map(|at| piece(block, at)).collect()).collect();
        let blocks: Vec<_> = (0..).zip(&pieces).map(|(key, pieces)| block(key, pieces)).collect();
        let (stored, rest) = (["ok"].repeat(slots as usize), ["no room"].repeat(count - slots as usize));
        assert_eq!(words(&store.store(&blocks).wait()), [stored, rest].concat());
        assert_eq!(region.bytes_in_use(), 0);
    }
}

#[test]
fn threads_find_each_others_blocks() {
    Bed::each(|bed| {
        let store = builder(bed, 20_000).limit_bytes(64 * 20_480).blocks_per_file(7).checksums(true);
        let store = store.open(bed.path("store")).unwrap();
        let work = |thread: u64| {
            let store = &store;
            move || {
                let mut random = Random::new(thread);
                let region = Region::new(vec![0_u8; 20_000]);
                let mut found = 0;
                for _ in 0..60 {
                    let key = random.below(100) as u128;
                    let len_bytes = 10_000 + key as usize;
                    let pieces = [region.piece(7, len_bytes, 0)];
                    if random.below(2) == 0 {
                        region.access(|bytes| bytes.set(7, &contents(key, len_bytes))).unwrap();
                        assert_eq!(words(&store.store(&[block(key, &pieces)]).wait()), ["ok"]);
                    } else {
                        match &store.fetch(&[block(key, &pieces)]).wait()[0] {
                            Ok(()) => {
                                found += 1;
                                let bytes = region.access(|bytes| bytes[7..][..len_bytes].to_vec()).unwrap();
                                assert!(bytes == contents(key, len_bytes), "block {key}");
                            }
                            Err(BlockError::Missing) => {}
                            Err(error) => panic!("block {key}: {error}"),
                        }
                    }
                    if random.below(10) == 0 {
                        store.remove(&[key]);
                    }
                }
                found
            }
        };
        let found: i32 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(found > 10, "{found}");
    });
}

#[test]
fn callbacks_and_futures_get_the_outcomes() {
    let bed = Bed::emulated();
    let store = builder(&bed, 4096).open(bed.path("store")).unwrap();
    let region = Region::new(vec![3_u8; 8192]);
    let (one, two) = ([region.piece(0, 4096, 0)], [region.piece(4096, 4096, 0)]);
    assert_eq!(words(&block_on(store.store(&[block(1, &one)]))), ["ok"]);
    let (sender, receiver) = mpsc::channel();
    let other = sender.clone();
    store.fetch(&[block(1, &one), block(2, &two)]).on_end(move |outcomes| other.send(outcomes).unwrap());
    assert_eq!(words(&receiver.recv_timeout(Duration::from_secs(20)).unwrap()), ["ok", "missing"]);
    // A callback that panics does not end the threads of the store. It may run on this thread.
    let panics = |transfer: BlockTransfer| {
        catch_unwind(AssertUnwindSafe(|| transfer.on_end(|_| panic!("in a callback")))).is_err()
    };
    panics(store.fetch(&[block(1, &one)]));
    let ended = || {
        let ended = store.fetch(&[block(2, &two)]);
        soon("the end", || ended.is_done());
        ended
    };
    // On the calling thread, the panic is the caller's.
    assert!(panics(ended()));
    ended().on_end(move |outcomes| sender.send(outcomes).unwrap());
    assert_eq!(words(&receiver.recv().unwrap()), ["missing"]);
    assert!(store.fetch(&[]).wait().is_empty());
    store.close().unwrap();
}

#[test]
fn callbacks_cannot_close_the_store() {
    let bed = Bed::emulated();
    let region = Region::new(vec![3_u8; 1 << 20]);
    let (sender, receiver) = mpsc::channel();
    // A transfer that has ended calls back at once, in this thread, which may close the store.
    let is_refused = |_| {
        let store = builder(&bed, 1 << 20).open(bed.path("store")).unwrap();
        let transfer = store.store(&[block(1, &[region.piece(0, 1 << 20, 0)])]);
        let (caller, sender) = (thread::current().id(), sender.clone());
        transfer.on_end(move |_| sender.send((thread::current().id() == caller, store.close())).unwrap());
        let (is_caller, closed) = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(closed.is_ok(), is_caller);
        closed.is_err_and(|error| error.to_string().contains("a callback of a transfer cannot wait"))
    };
    assert!((0..200).any(is_refused));
}

#[test]
fn forked_children_do_not_keep_a_closed_store_locked() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        let (store, reopened) = (folder.path().join("store"), folder.path().join("reopened"));
        let open = || BlockStore::builder(4096).limit_bytes(1 << 20).open(&store);
        let first = open().unwrap();
        let forked = folder.path().join("forked");
        thread::scope(|scope| {
            let child = scope.spawn(|| {
                in_a_fork(|| {
                    fs::write(&forked, "").unwrap();
                    soon("the parent opens the store", || reopened.exists());
                })
            });
            soon("the child lives", || forked.exists());
            first.close().unwrap();
            open().unwrap();
            fs::write(&reopened, "").unwrap();
            assert_eq!(child.join().unwrap(), Ok(()));
        });
    });
}

#[test]
fn wrong_arguments_fail_alone() {
    let bed = Bed::emulated();
    let store = builder(&bed, 4096).open(bed.path("store")).unwrap();
    let region = Region::new(vec![3_u8; 10_000]);
    let good = [region.piece(0, 100, 0)];
    let gap = [region.piece(200, 100, 0), region.piece(300, 100, 101)];
    let beyond = [region.piece(9_950, 51, 0)];
    let long = [region.piece(1000, 4097, 0)];
    let twice = [region.piece(50, 10, 0)];
    let none: [Piece<'_>; 0] = [];
    let blocks = [
        block(1, &good),
        block(2, &gap),
        block(3, &beyond),
        block(4, &long),
        block(5, &twice),
        block(6, &none),
    ];
    let outcomes = store.store(&blocks).wait();
    assert_eq!(words(&outcomes), ["ok", "failed", "failed", "failed", "in use", "failed"]);
    let text = |at: usize| outcomes[at].as_ref().unwrap_err().to_string();
    assert!(text(1).contains("leave out byte 100"), "{}", text(1));
    assert!(text(2).contains("exceeds the region of 10000 bytes"), "{}", text(2));
    assert!(text(3).contains("end at byte 4097, and blocks have 4096"), "{}", text(3));
    // More than was stored.
    let more = [region.piece(500, 1, 100)];
    let outcomes = store.fetch(&[block(1, &more), block(1, &twice)]).wait();
    assert_eq!(words(&outcomes), ["failed", "ok"]);
    assert!(outcomes[0].as_ref().unwrap_err().to_string().contains("100 are stored"));
    assert_eq!((region.bytes_in_use(), store.len()), (0, 1));

    let text = |builder: BlockStoreBuilder| builder.open(bed.path("other")).unwrap_err().to_string();
    assert!(text(builder(&bed, 4097).limit_bytes(8191)).contains("no room for a block of 8192"));
    assert!(text(builder(&bed, 0)).contains("blocks have a length"));
    assert!(text(builder(&bed, 9).blocks_per_file(0)).contains("at least one block"));
    assert!(builder(&bed, 9).open(bed.path("no/folder")).is_err());
    let error = builder(&bed, 4096).open(bed.path("store")).unwrap_err().to_string();
    assert!(error.contains("another store has it open"), "{error}");
}

#[test]
fn a_passed_deadline_ends_only_its_block() {
    let bed = Bed::emulated();
    let store = builder(&bed, 4096).open(bed.path("store")).unwrap();
    let region = Region::new(vec![3_u8; 8192]);
    let (one, two) = ([region.piece(0, 4096, 0)], [region.piece(4096, 4096, 0)]);
    let late = block(1, &one).until(Instant::now());
    let soon = block(2, &two).until(Instant::now() + Duration::from_secs(60));
    assert_eq!(words(&store.store(&[late, soon]).wait()), ["deadline", "ok"]);
    assert!(store.contains(2) && !store.contains(1), "the engine never began the first");
}

#[test]
fn failures_of_the_gpu_fail_blocks_and_free_their_slots() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    const BLOCK: usize = 1 << 20;
    let store =
        builder(&bed, BLOCK).limit_bytes(4 * BLOCK as u64).checksums(true).open(bed.path("s")).unwrap();
    let mut memory = bed.device.alloc(4 * BLOCK).unwrap();
    let bytes = pattern(4 * BLOCK);
    memory.copy_from_host(0, &bytes).unwrap();
    let region = Region::new(memory);
    let pieces: Vec<_> = (0..4).map(|at| [region.piece(at * BLOCK, BLOCK, 0)]).collect();
    let blocks: Vec<_> = (0..).zip(&pieces).map(|(key, pieces)| block(key, pieces)).collect();
    for round in 0..6 {
        emulator.fault("cudaMemcpyAsync", &format!("after={round} times=3 err=700"));
        let outcomes = store.store(&blocks).wait();
        emulator.control("clear");
        for (key, outcome) in (0..).zip(&outcomes) {
            assert!(matches!(outcome, Ok(()) | Err(BlockError::Failed(_))), "{outcome:?}");
            assert!(outcome.is_err() || store.contains(key));
        }
        assert!(region.bytes_in_use() == 0);
        for key in store.keys() {
            let at = key as usize * BLOCK;
            assert!(get(&store, key, BLOCK).unwrap() == bytes[at..][..BLOCK], "round {round}, block {key}");
        }
        // All slots can be used again.
        assert_eq!(words(&store.store(&blocks).wait()), ["ok"; 4]);
        emulator.fault("cudaMemcpyAsync", &format!("after={round} times=3 err=700"));
        let outcomes = store.fetch(&blocks).wait();
        emulator.control("clear");
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(()) | Err(BlockError::Failed(_)))));
        assert_eq!(store.len(), 4, "a failed fetch removes no block");
    }
}

#[test]
fn the_folder_says_what_was_stored() {
    let bed = Bed::emulated();
    let folder = bed.path("store");
    let open = || builder(&bed, 5000).limit_bytes(9 * 8192).blocks_per_file(4).open(&folder);
    let mut model: HashMap<u128, Vec<u8>> = HashMap::new();
    for round in 0..3 {
        let store = open().unwrap();
        assert_eq!(store.recovery().whole, model.len());
        for (key, bytes) in &model {
            assert!(get(&store, *key, bytes.len()).unwrap() == *bytes, "round {round}, block {key}");
        }
        for key in 0..3 {
            let key = 3 * round + key;
            put(&store, key, contents(key, 4000 + key as usize));
            model.insert(key, contents(key, 4000 + key as usize));
        }
        if round == 1 {
            assert_eq!(store.remove(&[3, 99]), 1);
            model.remove(&3);
            store.close().unwrap();
        }
    }
    // Blocks of another length are refused. A lower limit leaves the first slots, and no more bytes.
    let error = builder(&bed, 5001).blocks_per_file(4).open(&folder).unwrap_err().to_string();
    assert!(error.contains("4 blocks of 5000 bytes"), "{error}");
    let store = builder(&bed, 5000).limit_bytes(2 * 8192).blocks_per_file(4).open(&folder).unwrap();
    assert!(store.len() <= 2);
    for key in store.keys() {
        assert!(get(&store, key, 4000).unwrap() == model[&key][..4000]);
    }
    assert!(!folder.join("blocks-00001").exists());
    assert_eq!(fs::metadata(folder.join("blocks-00000")).unwrap().len(), 2 * 8192);
}
