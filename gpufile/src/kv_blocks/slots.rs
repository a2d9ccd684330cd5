//! The slots of a store in memory: which have which blocks, which are in use, and which is the oldest. No I/O.

use std::collections::HashMap;
use std::mem;

use crate::kv_blocks::entry::Entry;

/// A slot of the files, by its number.
pub type Slot = u32;

const NONE: Slot = Slot::MAX;

/// The slots. Those that no call has used yet are not in the vector.
pub struct Slots {
    limit: u32,
    slots: Vec<State>,
    by_key: HashMap<u128, Slot>,
    free: Vec<Slot>,
    /// The ends of the list of blocks that may be evicted: the least and the most recently used.
    oldest: Slot,
    newest: Slot,
    next_generation: u64,
    /// False if a block keeps its slot until it is removed or replaced.
    evicts: bool,
    /// The keys of evicted blocks that no caller has taken.
    evicted: Vec<u128>,
    pub stats: Stats,
}

/// The counts of a store or a reader since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The blocks that fetches found.
    pub hits: u64,
    /// The blocks that fetches did not find.
    pub misses: u64,
    /// The blocks that were evicted. A reader evicts none.
    pub evictions: u64,
    /// The bytes of the blocks whose store ended well.
    pub bytes_stored: u64,
    /// The bytes that fetches of blocks asked for, and got.
    pub bytes_fetched: u64,
}

struct State {
    phase: Phase,
    readers: u32,
    /// The number of calls that pinned the block.
    pins: u32,
    /// True if the index may have an entry of the slot.
    has_entry: bool,
    /// The neighbours in the list of blocks that may be evicted.
    older: Slot,
    newer: Slot,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Free,
    /// A call is writing a block to it.
    Writing,
    Whole(Entry),
    /// No longer a block. Free when its entry is cleared and its last reader has gone.
    Retired {
        is_cleared: bool,
    },
}

impl Default for Slots {
    fn default() -> Self {
        Self::new(0, true)
    }
}

impl Slots {
    /// Returns free slots. Blocks are evicted only if `evicts` is true.
    pub fn new(limit: u32, evicts: bool) -> Self {
        let (slots, by_key, free, evicted) = (Vec::new(), HashMap::new(), Vec::new(), Vec::new());
        let (next_generation, stats) = (1, Stats::default());
        Self {
            limit,
            slots,
            by_key,
            free,
            oldest: NONE,
            newest: NONE,
            next_generation,
            evicts,
            evicted,
            stats,
        }
    }

    /// Makes all further generations at least `first`.
    pub fn begin_generations(&mut self, first: u64) {
        self.next_generation = self.next_generation.max(first);
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn contains(&self, key: u128) -> bool {
        self.by_key.contains_key(&key)
    }

    pub fn keys(&self) -> impl Iterator<Item = u128> {
        self.by_key.keys().copied()
    }

    /// Takes over the entries of an index, of the slots from 0 on. Blocks of the oldest generation are evicted first. Returns
    /// the slots whose entries must be cleared, because another has the same key.
    pub fn restore(&mut self, entries: &[Option<Entry>]) -> Vec<Slot> {
        self.slots.extend(entries.iter().map(|_| State::free()));
        let mut whole: Vec<_> =
            (0..).zip(entries).filter_map(|(slot, entry)| Some((slot, (*entry)?))).collect();
        whole.sort_by_key(|(_, entry)| entry.generation);
        self.next_generation = whole.last().map_or(1, |(_, entry)| entry.generation + 1);
        let mut superseded = Vec::new();
        for (slot, entry) in whole {
            if let Some(older) = self.by_key.insert(entry.key, slot) {
                self.unlink(older);
                self.state(older).phase = Phase::Free;
                superseded.push(older);
            }
            let state = self.state(slot);
            (state.phase, state.has_entry) = (Phase::Whole(entry), true);
            self.link(slot);
        }
        let is_free = |slot: &Slot| self.slots[*slot as usize].phase == Phase::Free;
        self.free = (0..self.slots.len() as Slot).rev().filter(is_free).collect();
        superseded.sort_unstable();
        superseded
    }

    /// Returns whether an entry says that the disk has its block.
    pub fn has_durable(&self) -> bool {
        self.slots.iter().any(|state| matches!(state.phase, Phase::Whole(Entry { is_durable: true, .. })))
    }

    /// Finds a block, and keeps its slot from being reused until [`end_read`](Self::end_read).
    pub fn begin_read(&mut self, key: u128) -> Option<(Slot, Entry)> {
        let Some(slot) = self.by_key.get(&key).copied() else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        self.hold(slot);
        let state = self.state(slot);
        state.readers += 1;
        match state.phase {
            Phase::Whole(entry) => Some((slot, entry)),
            _ => unreachable!("keys lead to whole blocks"),
        }
    }

    /// Ends a read. The block is then the most recently used.
    pub fn end_read(&mut self, slot: Slot) {
        self.state(slot).readers -= 1;
        self.release(slot);
    }

    /// Keeps a block from being evicted until [`unpin`](Self::unpin) is called as often. Returns false if there is no
    /// such block.
    pub fn pin(&mut self, key: u128) -> bool {
        let Some(slot) = self.by_key.get(&key).copied() else { return false };
        self.hold(slot);
        self.state(slot).pins += 1;
        true
    }

    /// Ends one call of [`pin`](Self::pin). Returns false if the block is not pinned.
    pub fn unpin(&mut self, key: u128) -> bool {
        let Some(slot) = self.by_key.get(&key).copied() else { return false };
        if self.state(slot).pins == 0 {
            return false;
        }
        self.state(slot).pins -= 1;
        self.release(slot);
        true
    }

    /// Returns the keys of the blocks that were evicted since the last call.
    pub fn take_evicted(&mut self) -> Vec<u128> {
        mem::take(&mut self.evicted)
    }

    /// Takes a slot to write to, that of the least recently used block if no other is free. Returns `None` if all are in use.
    /// If the second value is true, the index may have an entry of the slot, which must be cleared first.
    pub fn begin_write(&mut self) -> Option<(Slot, bool)> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if (self.slots.len() as u64) < u64::from(self.limit) => {
                self.slots.push(State::free());
                (self.slots.len() - 1) as Slot
            }
            None if self.oldest == NONE || !self.evicts => return None,
            None => {
                let slot = self.oldest;
                self.unlink(slot);
                let Phase::Whole(entry) = self.state(slot).phase else {
                    unreachable!("the list has whole blocks")
                };
                self.by_key.remove(&entry.key);
                self.evicted.push(entry.key);
                self.stats.evictions += 1;
                slot
            }
        };
        let state = self.state(slot);
        state.phase = Phase::Writing;
        Some((slot, state.has_entry))
    }

    pub fn next_generation(&mut self) -> u64 {
        self.next_generation += 1;
        self.next_generation - 1
    }

    /// Notes that the index may have an entry of a slot that is being written, or that it has none.
    pub fn set_has_entry(&mut self, slot: Slot, has_entry: bool) {
        self.state(slot).has_entry = has_entry;
    }

    /// Makes a written slot a block. Returns the slot of an older block with the same key. If another call has stored a newer
    /// one, returns this slot. The entry of the returned slot must be cleared, and then [`cleared`](Self::cleared) called.
    pub fn publish(&mut self, slot: Slot, entry: Entry) -> Option<Slot> {
        let state = self.state(slot);
        (state.phase, state.has_entry, state.pins) = (Phase::Whole(entry), true, 0);
        let other = self.by_key.get(&entry.key).copied();
        let generation = |slot: Slot| match self.slots[slot as usize].phase {
            Phase::Whole(entry) => entry.generation,
            _ => 0,
        };
        if other.is_some_and(|other| generation(other) > entry.generation) {
            self.state(slot).phase = Phase::Retired { is_cleared: false };
            return Some(slot);
        }
        // The pins are those of the key.
        let pins = other.map_or(0, |other| self.state(other).pins);
        let older = other.and_then(|_| self.remove(entry.key));
        self.by_key.insert(entry.key, slot);
        self.state(slot).pins = pins;
        self.release(slot);
        older
    }

    /// Removes a block. Returns its slot, whose entry must be cleared; then [`cleared`](Self::cleared) frees it.
    pub fn remove(&mut self, key: u128) -> Option<Slot> {
        let slot = self.by_key.remove(&key)?;
        self.hold(slot);
        let state = self.state(slot);
        (state.phase, state.pins) = (Phase::Retired { is_cleared: false }, 0);
        Some(slot)
    }

    /// Removes a block if it is still in this slot.
    pub fn remove_from(&mut self, slot: Slot, key: u128) -> Option<Slot> {
        if self.by_key.get(&key) == Some(&slot) { self.remove(key) } else { None }
    }

    /// Frees a removed slot, when its last reader has gone. Its entry was cleared, or could not be.
    pub fn cleared(&mut self, slot: Slot, has_entry: bool) {
        let state = self.state(slot);
        (state.phase, state.has_entry) = (Phase::Retired { is_cleared: true }, has_entry);
        self.free_if_unused(slot);
    }

    /// Frees a slot that could not be written.
    pub fn abandon(&mut self, slot: Slot) {
        self.state(slot).phase = Phase::Free;
        self.free.push(slot);
    }

    /// Takes a block that gets its first reader or pin, or that is removed, from the list of those that may be evicted.
    fn hold(&mut self, slot: Slot) {
        if self.state(slot).may_be_evicted() {
            self.unlink(slot);
        }
    }

    /// Puts a block without readers and pins into the list, and frees the slot of one that was removed.
    fn release(&mut self, slot: Slot) {
        if self.state(slot).may_be_evicted() {
            self.link(slot);
        } else {
            self.free_if_unused(slot);
        }
    }

    fn free_if_unused(&mut self, slot: Slot) {
        let state = self.state(slot);
        if state.readers == 0 && state.phase == (Phase::Retired { is_cleared: true }) {
            self.abandon(slot);
        }
    }

    fn state(&mut self, slot: Slot) -> &mut State {
        &mut self.slots[slot as usize]
    }

    /// Makes a block the most recently used of the list.
    fn link(&mut self, slot: Slot) {
        let older = self.newest;
        let state = self.state(slot);
        (state.older, state.newer) = (older, NONE);
        match older {
            NONE => self.oldest = slot,
            _ => self.state(older).newer = slot,
        }
        self.newest = slot;
    }

    /// Takes a block from the list.
    fn unlink(&mut self, slot: Slot) {
        let State { older, newer, .. } = *self.state(slot);
        match older {
            NONE => self.oldest = newer,
            _ => self.state(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.state(newer).older = older,
        }
    }
}

impl State {
    fn free() -> Self {
        Self { phase: Phase::Free, readers: 0, pins: 0, has_entry: false, older: NONE, newer: NONE }
    }

    /// Returns whether the list of blocks that may be evicted has the block.
    fn may_be_evicted(&self) -> bool {
        matches!(self.phase, Phase::Whole(_)) && self.readers == 0 && self.pins == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u128, generation: u64) -> Entry {
        Entry { key, generation, len_bytes: 1, checksum: None, is_durable: false }
    }

    /// Stores a block as a call does, and returns its slot.
    fn store(slots: &mut Slots, key: u128) -> Slot {
        let (slot, _) = slots.begin_write().unwrap();
        let generation = slots.next_generation();
        if let Some(older) = slots.publish(slot, entry(key, generation)) {
            slots.cleared(older, false);
        }
        slot
    }

    fn sorted(slots: &Slots) -> Vec<u128> {
        let mut keys: Vec<_> = slots.keys().collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn the_least_recently_used_block_is_evicted() {
        let mut slots = Slots::new(3, true);
        let of: Vec<_> = (0..3).map(|key| store(&mut slots, key)).collect();
        let (slot, _) = slots.begin_read(0).unwrap();
        slots.end_read(slot);
        assert_eq!(slots.begin_write(), Some((of[1], true)), "block 1 is the oldest");
        assert_eq!(sorted(&slots), [0, 2]);
        slots.abandon(of[1]);
        assert_eq!(store(&mut slots, 7), of[1], "free slots come first");
        assert_eq!(sorted(&slots), [0, 2, 7]);
    }

    #[test]
    fn slots_with_readers_are_not_reused() {
        let mut slots = Slots::new(2, true);
        let (one, two) = (store(&mut slots, 1), store(&mut slots, 2));
        assert_eq!(slots.begin_read(1).unwrap().0, one);
        assert_eq!(slots.begin_read(1).unwrap().0, one);
        // A removed block and one that was replaced keep their slots for their readers.
        assert_eq!(slots.remove(1), Some(one));
        slots.cleared(one, false);
        assert_eq!(slots.begin_read(2).unwrap().0, two);
        assert_eq!(slots.begin_write(), None);
        slots.end_read(one);
        assert_eq!(slots.begin_write(), None);
        slots.end_read(one);
        assert_eq!(slots.begin_write(), Some((one, false)));
        assert_eq!(slots.publish(one, entry(2, 9)), Some(two));
        slots.end_read(two);
        // Both blocks of the slots are gone only when the entry is cleared, too.
        let (slot, _) = slots.begin_read(2).unwrap();
        assert_eq!((slot, slots.begin_write()), (one, None));
        slots.cleared(two, true);
        assert_eq!(slots.begin_write(), Some((two, true)));
    }

    #[test]
    fn of_two_stores_the_newer_generation_stays() {
        let mut slots = Slots::new(2, true);
        let (first, second) = (slots.begin_write().unwrap().0, slots.begin_write().unwrap().0);
        assert_eq!(slots.publish(first, entry(1, 6)), None);
        assert_eq!(slots.publish(second, entry(1, 5)), Some(second));
        slots.cleared(second, false);
        assert_eq!((slots.begin_read(1).unwrap().0, slots.len()), (first, 1));
        assert_eq!(slots.remove_from(second, 1), None);
    }

    #[test]
    fn restored_entries_keep_order_and_newest_generations() {
        let mut slots = Slots::new(5, true);
        let entries = [Some(entry(1, 4)), None, Some(entry(2, 3)), Some(entry(1, 9))];
        assert_eq!(slots.restore(&entries), [0]);
        assert_eq!((sorted(&slots), slots.next_generation()), (vec![1, 2], 10));
        let order: Vec<_> = (0..5).map(|_| slots.begin_write().unwrap()).collect();
        assert_eq!(order, [(0, true), (1, false), (4, false), (2, true), (3, true)]);
        assert_eq!((slots.begin_write(), slots.len()), (None, 0));
    }

    #[test]
    fn pinned_blocks_are_evicted_after_the_last_unpin() {
        let mut slots = Slots::new(2, true);
        let (one, two) = (store(&mut slots, 1), store(&mut slots, 2));
        assert!(slots.pin(1) && slots.pin(1) && !slots.pin(9) && !slots.unpin(2));
        assert_eq!(slots.begin_write(), Some((two, true)));
        assert_eq!((slots.begin_write(), slots.take_evicted()), (None, vec![2]));
        // A block that replaces a pinned one is pinned, and a reader changes nothing.
        assert_eq!(slots.publish(two, entry(1, 9)), Some(one));
        slots.cleared(one, false);
        slots.begin_read(1).unwrap();
        assert!(slots.unpin(1));
        slots.end_read(two);
        assert_eq!((slots.begin_write(), slots.begin_write()), (Some((one, false)), None));
        assert!(slots.unpin(1) && !slots.unpin(1));
        assert_eq!((slots.begin_write(), slots.take_evicted()), (Some((two, true)), vec![1]));
        assert_eq!(slots.stats.evictions, 2);
        // Removing a block ends its pins.
        slots.abandon(one);
        let three = store(&mut slots, 3);
        assert!(slots.pin(3));
        assert_eq!(slots.remove(3), Some(three));
        slots.cleared(three, false);
        assert_eq!((store(&mut slots, 3), slots.unpin(3)), (three, false));
    }

    #[test]
    fn stores_that_do_not_evict_have_no_room() {
        let mut slots = Slots::new(1, false);
        let one = store(&mut slots, 1);
        assert_eq!((slots.begin_write(), slots.contains(1)), (None, true));
        assert_eq!(slots.remove(1), Some(one));
        slots.cleared(one, true);
        assert_eq!((slots.begin_write(), slots.take_evicted()), (Some((one, true)), vec![]));
    }

    #[test]
    fn generations_begin_where_no_opening_was() {
        let mut slots = Slots::new(2, true);
        slots.restore(&[Some(entry(1, 50))]);
        slots.begin_generations(40);
        assert_eq!(slots.next_generation(), 51);
        slots.begin_generations(90);
        assert_eq!((slots.next_generation(), slots.next_generation()), (90, 91));
    }
}
