//! Tests that a killed process leaves only whole blocks, and all that it was told were stored.
//!
//! The long campaign kills at 200 moments:
//!
//! ```text
//! CUFILE_TEST_KILLS=200 cargo test --package gpufile --features kv-blocks --test kv_blocks killed:: -- --nocapture
//! ```

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use gpufile::kv_blocks::{Block, BlockStore, Region};
use gpufile::{Engine, OpenOptions};
use testkit::random::Random;
use testkit::this_test;

/// The variables that make a process store blocks until it is killed: the folder, the number of slots, and the round.
const FOLDER: &str = "CUFILE_TEST_KILLED_FOLDER";
const SLOTS: &str = "CUFILE_TEST_KILLED_SLOTS";
const ROUND: &str = "CUFILE_TEST_KILLED_ROUND";
const BEGUN: &str = "opens the store";

const KEYS: usize = 40;
const THREADS: usize = 3;
const BLOCK: usize = 300_001;
const SLOT: u64 = 303_104;
/// With fewer slots than keys, each store evicts a block.
const FEW: u64 = 24;
const MANY: u64 = 64;

fn open(folder: &Path, slots: u64, has_checksums: bool) -> BlockStore {
    let engine = Engine::builder().threads(2).chunk_bytes(100_000).build();
    let builder = BlockStore::builder(BLOCK).limit_bytes(slots * SLOT).blocks_per_file(5);
    builder.checksums(has_checksums).files(&OpenOptions::new().engine(&engine)).open(folder).unwrap()
}

/// Returns the length of a block. Each version has another.
fn len_of(version: u64) -> usize {
    BLOCK - (version % 1000) as usize
}

/// Fills memory with the bytes of a version of a block: the version, and then words that depend on it and on the place.
fn fill(key: usize, version: u64, bytes: &mut [u8]) {
    let seed = version.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key as u64;
    for (at, word) in (0_u64..).zip(bytes.chunks_mut(8)) {
        let value = if at == 0 { version } else { seed ^ at };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// Stores blocks until the process is killed. Prints `BEGUN` before it opens the store, and then the key and the version of
/// each block that was stored.
fn store_until_killed() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let number = |name| env::var(name).unwrap().parse::<u64>().unwrap();
    let (slots, round) = (number(SLOTS), number(ROUND));
    println!("{BEGUN}");
    let store = open(Path::new(&folder), slots, round % 4 == 3);
    let work = |thread: usize| {
        let mut random = Random::new(round << 8 | thread as u64);
        let region = Region::new(vec![0_u8; 2 * BLOCK]);
        for count in 1.. {
            let version = round * 1_000_000 + count;
            // Each key belongs to one thread, which therefore knows the order of its versions.
            let keys = [0, 1].map(|_| random.below(KEYS / THREADS) * THREADS + thread);
            let pieces = [0, 1].map(|at| {
                let len_bytes = len_of(version + at as u64);
                let cut = 1 + random.below(len_bytes - 1);
                let start = at * BLOCK;
                [region.piece(start + cut, len_bytes - cut, cut), region.piece(start, cut, 0)]
            });
            let filled = region.access(|bytes| {
                for at in 0..2 {
                    let version = version + at as u64;
                    fill(keys[at], version, &mut bytes[at * BLOCK..][..len_of(version)]);
                }
            });
            filled.expect("no transfer uses the memory");
            let blocks =
                [0, 1].map(|at| Block { key: keys[at] as u128, pieces: &pieces[at], deadline: None });
            // Two versions of one key in one call have no order.
            let blocks = if keys[0] == keys[1] { &blocks[..1] } else { &blocks[..] };
            for (at, outcome) in store.store(blocks).wait().into_iter().enumerate() {
                outcome.unwrap();
                let line = format!("{} {}\n", keys[at], version + at as u64);
                std::io::stdout().write_all(line.as_bytes()).unwrap();
            }
            if slots == FEW && random.below(5) == 0 {
                store.remove(&[keys[0] as u128]);
            }
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|thread| drop(scope.spawn(move || work(thread)))));
}

/// Lets a process open the store and fill it for so long, and kills it. Returns the lines of the blocks that it stored.
fn kill_one(folder: &Path, slots: u64, round: u64, after: Duration) -> String {
    let mut command = this_test();
    command.stdout(Stdio::piped());
    command.env(FOLDER, folder).env(SLOTS, slots.to_string()).env(ROUND, round.to_string());
    let mut process = command.spawn().unwrap();
    let mut pipe = BufReader::new(process.stdout.take().unwrap());
    // A processor may take long to start a process.
    pipe.by_ref().lines().map(Result::unwrap).find(|line| line.ends_with(BEGUN)).expect("the process begins");
    let reader = thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    });
    thread::sleep(after);
    assert!(process.try_wait().unwrap().is_none(), "the process ended before it was killed");
    process.kill().unwrap();
    process.wait().unwrap();
    reader.join().unwrap()
}

/// Returns the version of each block of a folder, all of whose bytes are right.
fn versions(folder: &Path, slots: u64, round: u64) -> HashMap<usize, u64> {
    let store = open(folder, slots, round % 4 == 3);
    let recovery = store.recovery();
    assert_eq!((recovery.damaged, recovery.unsynced), (0, 0), "round {round}: {recovery:?}");
    let region = Region::new(vec![0_u8; BLOCK]);
    let mut found = HashMap::new();
    for key in store.keys() {
        let fetch = |len_bytes: usize| {
            let pieces = [region.piece(0, len_bytes, 0)];
            let outcome =
                store.fetch(&[Block { key, pieces: &pieces, deadline: None }]).wait().pop().unwrap();
            outcome.unwrap_or_else(|error| panic!("round {round}, block {key}: {error}"));
            region.access(|bytes| bytes[..len_bytes].to_vec()).unwrap()
        };
        let version = u64::from_le_bytes(fetch(8).try_into().unwrap());
        let mut expected = vec![0; len_of(version)];
        fill(key as usize, version, &mut expected);
        assert!(fetch(expected.len()) == expected, "round {round}: block {key} is wrong");
        found.insert(key as usize, version);
    }
    found
}

#[test]
fn killed_processes_leave_whole_blocks() {
    store_until_killed();
    let kills = env::var("CUFILE_TEST_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let seed = env::var("CUFILE_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random = Random::new(seed);
    let folder = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (few, many) = (folder(), folder());
    let mut stored: HashMap<usize, u64> = HashMap::new();
    let (mut acknowledged, mut seen) = (0, 0);
    for round in 1..=kills {
        let (folder, slots) = if round % 2 == 0 { (few.path(), FEW) } else { (many.path(), MANY) };
        let after = Duration::from_micros(20_000 + random.below(250_000) as u64);
        let text = kill_one(folder, slots, round, after);
        let found = versions(folder, slots, round);
        seen += found.len();
        assert!(found.len() as u64 <= slots);
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let lines = lines.filter_map(|(key, version)| Some((key.parse().ok()?, version.parse().ok()?)));
        for (key, version) in lines {
            acknowledged += 1;
            if slots == MANY {
                stored.insert(key, version);
            }
        }
        if slots == MANY {
            for (key, version) in &stored {
                let there = found.get(key);
                assert!(there.is_some_and(|there| there >= version), "round {round}, block {key}: {there:?}");
            }
        }
    }
    println!("{kills} kills, {acknowledged} blocks stored, {seen} blocks found whole");
    assert!(acknowledged > 0 && seen > 0, "{acknowledged} {seen}");
}
