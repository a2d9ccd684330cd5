//! Tests of block stores on a storage that does not answer: a FUSE file system whose process is stopped. They need root and
//! bindfs, and say so where these are missing; `CUFILE_REQUIRE_MOUNTS=1` makes them fail there.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use gpufile::kv_blocks::{Block, BlockError, BlockStore, BlockTransfer, Region};
use gpufile::{Engine, OpenOptions};
use testkit::alone;
use testkit::bed::{Bed, pattern};
use testkit::in_flight::{Tracked, soon};
use testkit::refusing::{CALLS, ERRORS, RefusingMount};
use testkit::stoppable::StoppableMount;

const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 24;
/// No store evicts a block that a fetch asks for.
const SLOTS: usize = 3 * BLOCKS;
/// The time that blocks have. A busy machine pauses threads for a second and more.
const PATIENCE: Duration = Duration::from_millis(300);
const LATE: Duration = Duration::from_secs(10);

/// Returns options with an engine that only this store uses.
fn options(bed: &Bed) -> OpenOptions {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(2).build();
    OpenOptions::new().engine(&engine)
}

fn open(bed: &Bed, folder: &Path) -> BlockStore {
    try_open(bed, folder).unwrap()
}

fn try_open(bed: &Bed, folder: &Path) -> gpufile::Result<BlockStore> {
    let builder = BlockStore::builder(BLOCK).limit_bytes((SLOTS * BLOCK) as u64).blocks_per_file(8);
    builder.files(&options(bed)).open(folder)
}

/// Fetches or stores the blocks with these keys, into or from the same places of a region.
fn start<B>(
    store: &BlockStore,
    region: &Region<B>,
    keys: std::ops::Range<usize>,
    deadline: Option<Duration>,
    is_store: bool,
) -> BlockTransfer {
    let pieces: Vec<_> = keys.clone().map(|key| [region.piece(key * BLOCK, BLOCK, 0)]).collect();
    let deadline = deadline.map(|after| Instant::now() + after);
    let blocks: Vec<_> =
        keys.zip(&pieces).map(|(key, pieces)| Block::new(key as u128, pieces).until(deadline)).collect();
    if is_store { store.store(&blocks) } else { store.fetch(&blocks) }
}

/// Removes the cached bytes of the store's files, so that reads ask the file system.
fn drop_cache(folder: &Path) {
    use std::os::fd::AsRawFd;
    for entry in fs::read_dir(folder).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        file.sync_all().unwrap();
        // SAFETY: takes integers; the descriptor is open.
        assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    }
}

/// Returns the number of threads of this process that belong to block stores.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let name = |task: io::Result<fs::DirEntry>| fs::read_to_string(task.unwrap().path().join("comm"));
    tasks.filter_map(|task| name(task).ok()).filter(|name| name.starts_with("gpufile-kv")).count()
}

fn require(outcomes: &[Result<(), BlockError>], ends: fn(&BlockError) -> bool) {
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(ends)), "{outcomes:?}");
}

fn is_deadline(error: &BlockError) -> bool {
    matches!(error, BlockError::Deadline)
}

fn is_cancelled(error: &BlockError) -> bool {
    matches!(error, BlockError::Cancelled)
}

#[test]
fn stalled_storage_holds_up_no_caller() {
    alone(|| {
        let Some(mount) = StoppableMount::new() else { return };
        let bed = Bed::emulated();
        let folder = mount.path.join("store");
        let bytes = pattern(BLOCKS * BLOCK);
        let mut memory = bed.device.alloc(BLOCKS * BLOCK).unwrap();
        memory.copy_from_host(0, &bytes).unwrap();
        let device = Region::new(memory);
        let store = open(&bed, &folder);
        assert!(start(&store, &device, 0..BLOCKS, None, true).wait().iter().all(Result::is_ok));
        let other = Region::new(vec![0_u8; BLOCKS * BLOCK]);
        // A store on a storage that answers, for comparison.
        let healthy = open(&bed, &bed.path("healthy"));
        drop_cache(&folder);
        mount.stop();

        // Deadlines hold, on the GPU and on the host, for fetches and stores, running and waiting for their turn.
        let began = Instant::now();
        let (sender, receiver) = mpsc::channel();
        let calls: Vec<_> = (0..6)
            .map(|at| start(&store, &device, 2 * at..2 * at + 2, Some(PATIENCE), false))
            .chain((0..6).map(|at| start(&store, &other, 2 * at..2 * at + 2, Some(PATIENCE), at % 2 == 0)))
            .collect();
        start(&store, &device, 12..13, Some(PATIENCE), false)
            .on_end(move |outcomes| sender.send(outcomes).unwrap());
        let submitted = began.elapsed();
        for call in calls {
            require(&call.wait(), is_deadline);
        }
        require(&receiver.recv_timeout(LATE).unwrap(), is_deadline);
        let ended = began.elapsed();
        assert!(submitted < PATIENCE && ended >= PATIENCE && ended < LATE, "{submitted:?} {ended:?}");
        assert!(device.bytes_in_use() == 13 * BLOCK && other.bytes_in_use() == 12 * BLOCK);

        // Cancelling returns at once. A busy machine may pause one of the calls, but not all.
        let mut cancels = Vec::new();
        for at in 14..20 {
            let call = start(&store, &device, at..at + 1, Some(LATE * 6), false);
            thread::sleep(Duration::from_millis(20));
            assert!(!call.is_done());
            let began = Instant::now();
            let outcomes = call.cancel();
            cancels.push(began.elapsed());
            require(&outcomes, is_cancelled);
        }
        cancels.sort_unstable();
        assert!(cancels[2] <= Duration::from_millis(10), "{cancels:?}");
        println!(
            "13 calls in {submitted:?}, deadlines of {PATIENCE:?} after {ended:?}, cancelled in {cancels:?}"
        );

        // Dropping a transfer and its region frees nothing that the storage may still fill.
        let (tracked, life) = Tracked::new(BLOCKS * BLOCK);
        let region = Region::new(tracked);
        drop(start(&store, &region, 0..1, None, false));
        drop(region);
        // Memory in use is refused, and other calls do not wait either.
        let began = Instant::now();
        let refused = start(&store, &device, 0..1, None, false).wait();
        require(&refused, |error| matches!(error, BlockError::InUse));
        assert!(store.contains(23) && store.len() <= BLOCKS && device.access(|_| ()).is_none());
        assert_eq!(store.remove(&[22]), 1);
        assert!(began.elapsed() < LATE && !life.is_freed());
        // A store with another engine goes on.
        let region = Region::new(pattern(BLOCK));
        assert!(start(&healthy, &region, 0..1, None, true).wait()[0].is_ok());
        assert!(start(&healthy, &region, 0..1, None, false).wait()[0].is_ok());

        life.over.store(true, Ordering::SeqCst);
        mount.go_on();
        soon("the storage has answered", || device.bytes_in_use() + other.bytes_in_use() == 0);
        soon("the dropped memory is freed", || life.is_freed());
        // The store is as good as before. Stores whose deadline had passed may have replaced blocks.
        let fetched = start(&store, &other, 12..22, None, false).wait();
        assert!(fetched.iter().all(Result::is_ok), "{fetched:?}");
        other
            .access(|found| assert!(found[12 * BLOCK..22 * BLOCK] == bytes[12 * BLOCK..22 * BLOCK]))
            .unwrap();
        let all = start(&store, &device, 0..BLOCKS, None, true).wait();
        assert!(all.iter().all(Result::is_ok), "each slot can be used again: {all:?}");
        store.close().unwrap();
        drop(healthy);
        soon("the threads have ended", || threads() == 0);
        let store = open(&bed, &folder);
        assert_eq!(store.recovery().whole, BLOCKS);
    });
}

#[test]
fn dropped_stores_end_when_the_storage_answers() {
    alone(|| {
        let Some(mount) = StoppableMount::new() else { return };
        let bed = Bed::emulated();
        let folder = mount.path.join("store");
        let store = open(&bed, &folder);
        let region = Region::new(pattern(BLOCKS * BLOCK));
        assert!(start(&store, &region, 0..4, None, true).wait().iter().all(Result::is_ok));
        drop_cache(&folder);
        mount.stop();
        let began = Instant::now();
        let writing = start(&store, &region, 4..8, Some(PATIENCE), true);
        let waiting: Vec<_> =
            (8..20).map(|at| start(&store, &region, at..at + 1, Some(PATIENCE), true)).collect();
        drop(store);
        require(&writing.wait(), is_deadline);
        waiting.into_iter().for_each(|call| require(&call.wait(), is_deadline));
        assert!(began.elapsed() < LATE && threads() > 0);
        mount.go_on();
        soon("the storage has answered", || region.bytes_in_use() == 0);
        soon("the threads have ended", || threads() == 0);
        // Nothing keeps the folder. What was written when the deadline had passed is whole.
        let store = open(&bed, &folder);
        let keys = store.keys();
        assert!(keys.len() >= 4 && (0..4).all(|key| keys.contains(&key)), "{keys:?}");
        let expected = pattern(BLOCKS * BLOCK);
        for key in keys {
            let key = key as usize;
            assert!(start(&store, &region, key..key + 1, None, false).wait()[0].is_ok());
            let found = region.access(|bytes| bytes[key * BLOCK..][..BLOCK].to_vec());
            assert!(found.unwrap() == expected[key * BLOCK..][..BLOCK], "block {key}");
        }
    });
}

/// Returns whether a store opens without a call, and whether it then stores blocks.
fn allowed(call: &str, errno: i32, has_old: bool) -> (bool, bool) {
    let is_new = !has_old;
    let is_missing = errno != libc::EPERM;
    match call {
        "create" | "mkdir" => (has_old, true),
        // The kernel opens folders then nevertheless, but lists no names.
        "list" => (errno == libc::ENOSYS && has_old, true),
        "flock" => (false, false),
        // The kernel then says that the file is synced.
        "fsync" => (errno == libc::ENOSYS, true),
        "fsync of folders" => (is_missing, true),
        "ftruncate" => (true, is_missing || has_old),
        "writes out of order" => (is_new, false),
        _ => (true, true),
    }
}

#[test]
fn blocks_on_mounts_that_refuse_calls_are_right_or_refused() {
    alone(|| {
        let bed = Bed::emulated();
        let bytes = pattern(4 * BLOCK);
        let require_whole = |store: &BlockStore, whole: std::ops::Range<usize>, context: &str| {
            let region = Region::new(vec![0_u8; 4 * BLOCK]);
            let outcomes = start(store, &region, 0..4, None, false).wait();
            let memory = region.access(|memory| memory.to_vec()).unwrap();
            for (key, outcome) in outcomes.iter().enumerate() {
                let at = key * BLOCK..(key + 1) * BLOCK;
                assert_eq!(outcome.is_ok(), whole.contains(&key), "{context}: block {key}: {outcome:?}");
                assert!(outcome.is_err() || memory[at.clone()] == bytes[at], "{context}: block {key}");
            }
        };
        for call in CALLS {
            let Some(mut mount) = RefusingMount::new() else { return };
            for errno in ERRORS {
                for has_old in [false, true] {
                    let context = format!("{call} {errno} {has_old}");
                    let folder = mount.path.join(format!("{errno}{has_old}"));
                    let region = Region::new(bytes.clone());
                    if has_old {
                        let stored = start(&open(&bed, &folder), &region, 0..2, None, true).wait();
                        assert!(stored.iter().all(Result::is_ok), "{context}: {stored:?}");
                    }
                    mount.refuse(call, errno);
                    let opened = try_open(&bed, &folder);
                    let (opens, stores) = allowed(call, errno, has_old);
                    assert_eq!(opened.is_ok(), opens, "{context}: {:?}", opened.err());
                    let mut whole = if has_old { 0..2 } else { 0..0 };
                    if let Ok(store) = opened {
                        let outcomes = start(&store, &region, 2..4, None, true).wait();
                        assert!(
                            outcomes.iter().all(|outcome| outcome.is_ok() == stores),
                            "{context}: {outcomes:?}"
                        );
                        whole.end = if stores { 4 } else { whole.end };
                        whole.start = if has_old || !stores { 0 } else { 2 };
                        require_whole(&store, whole.clone(), &context);
                        // An index that is written once cannot be marked as complete.
                        let closed = store.close();
                        assert_eq!(closed.is_ok(), call != "writes out of order", "{context}: {closed:?}");
                    }
                    let counts = mount.refuse_nothing();
                    assert!(opens || counts.written_bytes < BLOCK as u64, "{context}: {counts:?}");
                    require_whole(&open(&bed, &folder), whole, &context);
                }
            }
        }
    });
}
