//! Rings of ordinary memory, of whose slots only the addresses are used.

use std::sync::Arc;

use super::relay::ring::{Ring, Rings, Turn, slot_bytes_for};

const MIB: usize = 1 << 20;
const WORDS_BYTES: usize = 4096;

fn ring(slot_bytes: usize) -> (Ring, usize) {
    let mut memory = vec![0u64; WORDS_BYTES / 8];
    let start = memory.as_mut_ptr();
    (Ring::over(start.cast(), slot_bytes, Box::new(memory)), start.addr())
}

fn take(rings: &Rings, key: (u32, usize), slot_bytes: usize) -> Option<Arc<Ring>> {
    rings.take_for(key, slot_bytes, || Ok(ring(slot_bytes).0))
}

fn again(rings: &Rings, key: (u32, usize), slot_bytes: usize) -> Option<Arc<Ring>> {
    rings.take_for(key, slot_bytes, || panic!("none is made"))
}

fn bytes(slot_bytes: usize) -> usize {
    WORDS_BYTES + 2 * slot_bytes
}

#[test]
fn slot_size_follows_the_transfer_length() {
    for (len_bytes, slot_bytes) in [
        (0, 0),
        (1, MIB),
        (3 * MIB, MIB),
        (3 * MIB + 1, 8 * MIB),
        (192 * MIB, 8 * MIB),
        (192 * MIB + 1, 48 * MIB),
        (usize::MAX, 48 * MIB),
    ] {
        assert_eq!(slot_bytes_for(len_bytes), slot_bytes, "{len_bytes}");
    }
}

#[test]
fn slots_alternate_and_words_have_separate_cache_lines() {
    let (ring, start) = ring(100);
    let mut turns = ring.turns();
    let numbers = |turn: Turn| (ring.to_stream(turn).1, ring.to_host(turn).1);
    for (slot, number) in [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)] {
        let turn = turns.take();
        assert_eq!((numbers(turn), numbers(turn.before())), ((number, number), (number - 1, number - 1)));
        let words = [ring.to_stream(turn).0, ring.to_host(turn).0].map(|word| word.addr() - start);
        assert_eq!(words, [[0, 64], [128, 192]][slot]);
        assert_eq!(ring.slot(turn).addr() - start, 4096 + 100 * slot);
        assert_eq!(ring.slot(turn.before()), ring.slot(turn));
    }
    assert_eq!(ring.slot_bytes(), 100);
}

#[test]
fn handing_over_a_slot_changes_its_owner() {
    let (ring, _) = ring(100);
    for _ in 0..3 {
        let [first, second] = [(); 2].map(|()| ring.turns().take());
        assert!(ring.is_with_stream(first.before()) && ring.is_with_host(first.before()));
        assert!(!ring.is_with_stream(first) && !ring.is_with_host(first));
        ring.hand_to_stream(first);
        assert!(ring.is_with_stream(first) && ring.is_with_stream(first.before()));
        assert!(!ring.is_with_host(first));
        ring.hand_to_host(first);
        assert!(ring.is_with_host(first) && ring.is_with_host(first.before()));
        assert!(!ring.is_with_stream(second), "the other slot has words of its own");
        ring.hand_to_host(second);
        assert!(ring.is_with_host(second) && !ring.is_with_stream(second));
        ring.hand_to_stream(second);
    }
}

#[test]
fn transfers_of_one_stream_share_a_ring() {
    let rings = Rings::default();
    let one = take(&rings, (0, 1), MIB).unwrap();
    assert!(Arc::ptr_eq(&one, &again(&rings, (0, 1), MIB).unwrap()));
    let longer = take(&rings, (0, 1), 8 * MIB).unwrap();
    let other = take(&rings, (0, 2), MIB).unwrap();
    let other_gpu = take(&rings, (1, 1), MIB).unwrap();
    assert!([&longer, &other, &other_gpu].into_iter().all(|ring| !Arc::ptr_eq(&one, ring)));
    one.release();
    assert_eq!(rings.free_idle(), 0, "it has another transfer");
    one.release();
    assert!(Arc::ptr_eq(&one, &again(&rings, (0, 3), MIB).unwrap()), "any stream gets an idle one");
    assert!(Arc::ptr_eq(&one, &again(&rings, (0, 3), MIB).unwrap()));
    other.release();
    assert_eq!((rings.free_idle(), rings.free_idle()), (bytes(MIB), 0));
    [&longer, &other_gpu, &one, &one].into_iter().for_each(|ring| ring.release());
    assert_eq!(rings.free_idle(), bytes(8 * MIB) + 2 * bytes(MIB));
}

#[test]
fn rings_respect_the_memory_limit() {
    const LIMIT: usize = 400 * MIB;
    let rings = Rings::default();
    // Four rings take almost all of the memory.
    let lent: Vec<_> = (0..4).map(|stream| take(&rings, (0, stream), 48 * MIB).unwrap()).collect();
    assert!(again(&rings, (0, 4), 48 * MIB).is_none());
    take(&rings, (0, 5), 7 * MIB).unwrap();
    // An idle ring is freed for one that does not fit beside it.
    lent[2].release();
    take(&rings, (0, 6), 8 * MIB).unwrap();
    assert_eq!(rings.free_idle(), 0);
    let left = LIMIT - 3 * bytes(48 * MIB) - bytes(7 * MIB) - bytes(8 * MIB);
    let most = (left - WORDS_BYTES) / 2;
    assert!(again(&rings, (0, 7), most + 1).is_none());
    take(&rings, (0, 7), most).unwrap().release();
    assert_eq!(rings.free_idle(), bytes(most));
    assert!(take(&rings, (0, 7), most).is_some(), "what was freed counts no more");
}

#[test]
fn failed_ring_creation_takes_no_memory() {
    let rings = Rings::default();
    for _ in 0..10 {
        assert!(rings.take_for((0, 1), 48 * MIB, || Err(cufile::Error::NoDevice)).is_none());
    }
    assert!((0..4).all(|stream| take(&rings, (0, stream), 48 * MIB).is_some()));
}
