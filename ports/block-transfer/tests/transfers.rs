//! Tests of the plugin on the libcufile that `CUFILE_LIBRARY` names, or on the system's.

#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use block_transfer::{Agent, Descriptor, Direction, Refused};

const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 700;
const MINUTE: Duration = Duration::from_secs(60);

/// Returns bytes that tell their place.
fn pattern(start: usize, len_bytes: usize) -> Vec<u8> {
    (start..start + len_bytes).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

fn agent() -> (Agent, File, usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("blocks");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("a file");
    let mut agent = Agent::new(0, BLOCK, BLOCKS).expect("an agent");
    let number = agent.add_file(file.try_clone().expect("a descriptor")).expect("a registered file");
    (agent, file, number)
}

#[test]
fn blocks_are_stored_and_loaded_in_any_order() {
    let (mut agent, file, number) = agent();
    for block in 0..BLOCKS {
        agent.fill(block, &pattern(block * BLOCK, BLOCK)).expect("filled");
    }
    let at = |block: usize, place: usize| Descriptor { block, file: number, offset: (place * BLOCK) as u64 };
    // Every block once, far from its neighbours.
    let list: Vec<_> = (0..BLOCKS).map(|place| at(place * 11 % BLOCKS, place)).collect();
    let mut storing = agent.start(Direction::Store, &list).expect("started");
    assert!(agent.poll(&mut storing, MINUTE).expect("stored"));
    let outcomes = agent.finish(storing).expect("finished");
    assert_eq!(outcomes.len(), BLOCKS);
    assert!(outcomes.values().all(|bytes| matches!(bytes, Ok(BLOCK))), "{outcomes:?}");
    for (place, at) in list.iter().enumerate() {
        let mut found = vec![0; BLOCK];
        file.read_exact_at(&mut found, (place * BLOCK) as u64).expect("what was stored");
        assert!(found == pattern(at.block * BLOCK, BLOCK), "block {}", at.block);
    }
    // Back into other blocks, by polling, with the same batches.
    let list: Vec<_> = (0..BLOCKS).map(|place| at(BLOCKS - 1 - place, place)).collect();
    let mut loading = agent.start(Direction::Load, &list).expect("started");
    while !agent.poll(&mut loading, Duration::ZERO).expect("polled") {
        std::thread::yield_now();
    }
    assert!(agent.finish(loading).expect("finished").values().all(|bytes| matches!(bytes, Ok(BLOCK))));
    for (place, at) in list.iter().enumerate() {
        let stored = place * 11 % BLOCKS;
        assert!(agent.contents(at.block).expect("back") == pattern(stored * BLOCK, BLOCK), "{place}");
    }
}

#[test]
fn blocks_in_flight_cannot_be_used() {
    let (mut agent, _, file) = agent();
    let list = [0, 1].map(|block| Descriptor { block, file, offset: (block * BLOCK) as u64 });
    let storing = agent.start(Direction::Store, &list).expect("started");
    assert!(matches!(agent.contents(1), Err(Refused::Block(1))));
    assert!(matches!(agent.fill(0, b"x"), Err(Refused::Block(0))));
    assert!(matches!(agent.start(Direction::Load, &list[..1]), Err(Refused::Block(0))));
    assert_eq!(agent.finish(storing).expect("cancelled").len(), 2);
    agent.contents(1).expect("back after the transfer");
}

#[test]
fn refused_transfers_leave_all_blocks_in_place() {
    let (mut agent, _, file) = agent();
    let at = |block, file| Descriptor { block, file, offset: 0 };
    for (list, word) in [
        (vec![at(3, file), at(BLOCKS, file)], "Block(700)"),
        (vec![at(3, file), at(3, file)], "Block(3)"),
        (vec![at(3, file), at(4, file + 1)], "File(1)"),
    ] {
        let refused = agent.start(Direction::Load, &list).expect_err("a wrong list");
        assert_eq!(format!("{refused:?}"), word);
        agent.contents(3).expect("in place");
    }
    let beyond = Descriptor { block: 3, file, offset: u64::MAX };
    assert!(matches!(agent.start(Direction::Load, &[beyond]), Err(Refused::Cufile(_))));
    agent.contents(3).expect("in place");
}

#[test]
fn short_counts_show_the_end_of_the_file() {
    let (mut agent, contents, file) = agent();
    contents.write_all_at(&pattern(0, BLOCK + 100), 0).expect("written");
    let list = [0, 1, 2].map(|block| Descriptor { block, file, offset: (block * BLOCK) as u64 });
    let mut loading = agent.start(Direction::Load, &list).expect("started");
    assert!(agent.poll(&mut loading, MINUTE).expect("loaded"));
    let outcomes = agent.finish(loading).expect("finished");
    let bytes: Vec<_> = outcomes.values().map(|bytes| *bytes.as_ref().expect("no error")).collect();
    assert_eq!(bytes, [BLOCK, 100, 0]);
    assert!(agent.contents(1).expect("back")[..100] == pattern(BLOCK, 100));
}

#[test]
fn failed_transfers_give_their_blocks_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("read-only");
    std::fs::write(&path, pattern(0, BLOCK)).expect("a file");
    let mut agent = Agent::new(0, BLOCK, 2).expect("an agent");
    let file = agent.add_file(File::open(path).expect("a file")).expect("a registered file");
    let list = [0, 1].map(|block| Descriptor { block, file, offset: 0 });
    for _ in 0..2 {
        let mut storing = agent.start(Direction::Store, &list).expect("started");
        assert!(agent.poll(&mut storing, MINUTE).expect("ended"));
        let outcomes = agent.finish(storing).expect("finished");
        assert!(outcomes.values().all(Result::is_err), "{outcomes:?}");
    }
    let mut loading = agent.start(Direction::Load, &list).expect("started");
    assert!(agent.poll(&mut loading, MINUTE).expect("loaded"));
    assert!(agent.finish(loading).expect("finished").values().all(|bytes| matches!(bytes, Ok(BLOCK))));
    assert!(agent.contents(1).expect("back") == pattern(0, BLOCK));
}
