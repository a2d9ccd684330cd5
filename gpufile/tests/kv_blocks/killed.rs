//! Tests that a killed process leaves only whole blocks, and all that it was told were stored. Readers in other processes get
//! no wrong byte, whichever process is killed.
//!
//! The long campaign kills at 200 moments:
//!
//! ```text
//! CUFILE_TEST_KILLS=200 cargo test --package gpufile --features kv-blocks --test kv_blocks killed:: -- --nocapture
//! ```

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gpufile::kv_blocks::{Block, BlockError, BlockStore, BlockStoreBuilder, Region};
use gpufile::{Engine, OpenOptions};
use testkit::random::Random;
use testkit::this_test;

/// The variables that make a process store or read blocks until it is killed: the folder, the number of slots, and the round.
const FOLDER: &str = "CUFILE_TEST_KILLED_FOLDER";
const SLOTS: &str = "CUFILE_TEST_KILLED_SLOTS";
const ROUND: &str = "CUFILE_TEST_KILLED_ROUND";
const READS: &str = "CUFILE_TEST_KILLED_READS";
const BEGUN: &str = "opens the store";

const KEYS: usize = 40;
const THREADS: usize = 3;
const BLOCK: usize = 300_001;
const SLOT: u64 = 303_104;
/// With fewer slots than keys, each store evicts a block.
const FEW: u64 = 24;
const MANY: u64 = 64;

fn builder(slots: u64, has_checksums: bool) -> BlockStoreBuilder {
    let engine = Engine::builder().threads(2).chunk_bytes(100_000).build();
    let builder = BlockStore::builder(BLOCK).limit_bytes(slots * SLOT).blocks_per_file(5);
    builder.checksums(has_checksums).files(&OpenOptions::new().engine(&engine))
}

/// Returns the folders of a store: two for every other one.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let one = folder.join("one");
    if folder.join("striped").exists() { vec![one, folder.join("two")] } else { vec![one] }
}

fn open(folder: &Path, slots: u64, round: u64) -> BlockStore {
    builder(slots, round % 5 == 3).open_striped(folders(folder)).unwrap()
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
    let store = open(Path::new(&folder), slots, round);
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
            let blocks = [0, 1].map(|at| Block::new(keys[at] as u128, &pieces[at]));
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

/// Reads blocks beside the process that stores them, until the process is killed. Prints `BEGUN` when it has the store, and then
/// the key of each block whose bytes are those of one version.
fn read_until_killed() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let (paths, round) = (folders(Path::new(&folder)), env::var(ROUND).unwrap().parse().unwrap());
    let open = || builder(1, false).open_reader(&paths).ok();
    let reader = iter::from_fn(|| Some(open())).flatten().next().expect("a store is there soon");
    println!("{BEGUN}");
    let region = Region::new(vec![0_u8; 3 * BLOCK]);
    let mut random = Random::new(round);
    loop {
        let keys = [0, 1, 2].map(|_| random.below(KEYS));
        // Any version may be there, so the end of a block is that of the shortest.
        let lens = keys.map(|_| [8, len_of(999)][random.below(2)]);
        let pieces = [0, 1, 2].map(|at| [region.piece(at * BLOCK, lens[at], 0)]);
        let blocks = [0, 1, 2].map(|at| Block::new(keys[at] as u128, &pieces[at]));
        for (at, outcome) in reader.fetch(&blocks).wait().into_iter().enumerate() {
            match outcome {
                Ok(()) => {}
                Err(BlockError::Missing) => continue,
                Err(error) => panic!("block {}: {error}", keys[at]),
            }
            let found = region.access(|bytes| bytes[at * BLOCK..][..lens[at]].to_vec()).unwrap();
            let mut expected = vec![0; lens[at]];
            fill(keys[at], u64::from_le_bytes(found[..8].try_into().unwrap()), &mut expected);
            assert!(found == expected, "block {} has bytes of two versions", keys[at]);
            std::io::stdout().write_all(format!("{}\n", keys[at]).as_bytes()).unwrap();
        }
    }
}

/// A process that stores or reads blocks.
struct Process {
    process: Child,
    lines: Option<JoinHandle<String>>,
}

impl Drop for Process {
    /// Ends a process whose test failed.
    fn drop(&mut self) {
        let _ = self.process.kill();
    }
}

impl Process {
    fn start(folder: &Path, slots: u64, round: u64, reads: bool) -> Self {
        let mut command = this_test();
        command.stdout(Stdio::piped());
        command.env(FOLDER, folder).env(SLOTS, slots.to_string()).env(ROUND, round.to_string());
        if reads {
            command.env(READS, "1");
        }
        let mut process = command.spawn().unwrap();
        let mut pipe = BufReader::new(process.stdout.take().unwrap());
        // A processor may take long to start a process.
        let mut lines = pipe.by_ref().lines().map(Result::unwrap);
        lines.find(|line| line.ends_with(BEGUN)).expect("the process begins");
        let lines = thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).unwrap();
            text
        });
        Self { process, lines: Some(lines) }
    }

    /// Kills the process. Returns the lines that it has printed.
    fn kill(mut self) -> String {
        assert!(self.process.try_wait().unwrap().is_none(), "the process ended before it was killed");
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.lines.take().unwrap().join().unwrap()
    }
}

/// Returns folders for stores with few and with many slots, and the same for striped ones.
fn two_of_each() -> [tempfile::TempDir; 4] {
    [false, false, true, true].map(|is_striped| {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        if is_striped {
            fs::write(folder.path().join("striped"), "").unwrap();
        }
        folder
    })
}

/// Returns the version of each block of a folder, all of whose bytes are right.
fn versions(folder: &Path, slots: u64, round: u64) -> HashMap<usize, u64> {
    let store = open(folder, slots, round);
    let recovery = store.recovery();
    assert_eq!((recovery.damaged, recovery.unsynced), (0, 0), "round {round}: {recovery:?}");
    let region = Region::new(vec![0_u8; BLOCK]);
    let mut found = HashMap::new();
    for key in store.keys() {
        let fetch = |len_bytes: usize| {
            let pieces = [region.piece(0, len_bytes, 0)];
            let outcome = store.fetch(&[Block::new(key, &pieces)]).wait().pop().unwrap();
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
    let [few, many, striped_few, striped_many] = two_of_each();
    let mut stored: HashMap<(bool, usize), u64> = HashMap::new();
    let (mut acknowledged, mut seen) = (0, 0);
    for round in 1..=kills {
        let (folder, slots) = match round % 4 {
            0 => (&striped_few, FEW),
            1 => (&many, MANY),
            2 => (&few, FEW),
            _ => (&striped_many, MANY),
        };
        let (folder, is_striped) = (folder.path(), matches!(round % 4, 0 | 3));
        let process = Process::start(folder, slots, round, false);
        thread::sleep(Duration::from_micros(20_000 + random.below(250_000) as u64));
        let text = process.kill();
        let found = versions(folder, slots, round);
        seen += found.len();
        assert!(found.len() as u64 <= slots);
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let lines = lines.filter_map(|(key, version)| Some((key.parse().ok()?, version.parse().ok()?)));
        for (key, version) in lines {
            acknowledged += 1;
            if slots == MANY {
                stored.insert((is_striped, key), version);
            }
        }
        if slots == MANY {
            for ((_, key), version) in stored.iter().filter(|((striped, _), _)| *striped == is_striped) {
                let there = found.get(key);
                assert!(there.is_some_and(|there| there >= version), "round {round}, block {key}: {there:?}");
            }
        }
    }
    println!("{kills} kills, {acknowledged} blocks stored, {seen} blocks found whole");
    assert!(acknowledged > 0 && seen > 0, "{acknowledged} {seen}");
}

#[test]
fn readers_get_whole_blocks_whoever_is_killed() {
    match env::var_os(READS) {
        Some(_) => read_until_killed(),
        None => store_until_killed(),
    }
    let kills = env::var("CUFILE_TEST_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let seed = env::var("CUFILE_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random = Random::new(seed);
    let [single, _, striped, _] = two_of_each();
    let mut right = 0;
    for folder in [single.path(), striped.path()] {
        let mut store = Process::start(folder, FEW, 1, false);
        let mut reader = Process::start(folder, FEW, 1, true);
        for round in 2..=1 + kills / 2 {
            thread::sleep(Duration::from_micros(20_000 + random.below(250_000) as u64));
            if random.below(3) == 0 {
                right += reader.kill().lines().count();
                reader = Process::start(folder, FEW, round, true);
            } else {
                store.kill();
                store = Process::start(folder, FEW, round, false);
            }
        }
        store.kill();
        right += reader.kill().lines().count();
        versions(folder, FEW, 1);
    }
    println!("{kills} kills, {right} blocks read whole");
    assert!(right > 0);
}
