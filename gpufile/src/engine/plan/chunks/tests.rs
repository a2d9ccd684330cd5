//! Chunks compared with a model that goes through the entries byte range by byte range.

use std::num::NonZero;
use std::ptr;
use std::sync::Arc;

use super::super::schedule::Order;
use super::super::transfer::{Entry, FILE_LIMIT};
use super::*;
use crate::direction::Direction;
use crate::open_file::{Mapping, Method};
use crate::settings::Settings;

/// The address of the tests' buffers, from which nothing is read.
const BASE: usize = 1 << 32;

fn open() -> OpenFile {
    OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default())
}

fn memory(address: usize, len_bytes: usize, place: Place) -> Memory {
    let mut memory = Memory::on_host(ptr::without_provenance_mut(address), len_bytes);
    memory.place = place;
    memory
}

fn entry(file: &OpenFile, offset: u64, address: usize, len_bytes: usize) -> Entry<'_> {
    Entry { file, offset, memory: memory(BASE + address, len_bytes, Place::Host) }
}

/// Returns the plan of a schedule. A chunk that is held back comes last.
fn calls(schedule: Schedule) -> Plan {
    let order = if schedule.last_bytes > 0 { Order::LastAlone { at_once: None } } else { Order::ANY };
    Plan { method: Method::Calls, schedule, order }
}

/// A generator of numbers that look random, and are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn schedule(&mut self) -> Schedule {
        let is_graded = self.below(4) == 0;
        let chunk_bytes = match is_graded {
            true => self.of(&[300 << 10, 1 << 20, 4 << 20]),
            false => 1 + self.below(50_000),
        };
        Schedule {
            chunk_bytes,
            most_entries: NonZero::new(self.of(&[0, 0, 0, 1, 3, 64, 100])),
            is_graded,
            chunks_before: self.below(3),
            last_bytes: self.of(&[0, 0, 1, 100, 4096]),
            ..Schedule::default()
        }
    }

    fn len_bytes(&mut self, schedule: &Schedule) -> usize {
        match self.below(6) {
            0 => 0,
            1 => self.below(100),
            2 => self.of(&[4095, 4096, 4097, 8192]),
            3 => self.below(3 * schedule.chunk_bytes),
            _ => self.below(20_000),
        }
    }
}

/// A part of an entry: the entry's number, the number of its bytes before the part, and the part's length in
/// bytes.
type Part = (usize, usize, usize);

/// Returns the expected chunks of entries in this order.
fn model(entries: &[(u64, usize, Place)], order: &[usize], schedule: &Schedule) -> Vec<Vec<Part>> {
    let mut chunks: Vec<Vec<Part>> = vec![Vec::new()];
    let mut room = schedule.chunk_len(0);
    let most_entries = schedule.most_entries.map_or(usize::MAX, NonZero::get);
    let mut entries_left = most_entries;
    let mut place_before = None;
    // The number of the last entry's bytes before the last chunk.
    let mut begun = 0;
    for &number in order {
        let (offset, len_bytes, place) = entries[number];
        if place_before.is_some_and(|before| before != place) || entries_left == 0 {
            chunks.push(Vec::new());
            room = schedule.chunk_len(chunks.len() - 1);
            entries_left = most_entries;
        }
        place_before = Some(place);
        begun = 0;
        while len_bytes - begun > room {
            let (start, most) = (offset + begun as u64, offset + (begun + room) as u64);
            let aligned = most / 4096 * 4096;
            let cut = if aligned > start { aligned } else { most };
            let len = (cut - start) as usize;
            chunks.last_mut().unwrap().push((number, begun, len));
            begun += len;
            chunks.push(Vec::new());
            room = schedule.chunk_len(chunks.len() - 1);
            entries_left = most_entries;
        }
        room -= len_bytes - begun;
        entries_left -= 1;
        chunks.last_mut().unwrap().push((number, begun, len_bytes - begun));
    }
    if let Some(&last) = order.last().filter(|_| schedule.last_bytes > 0) {
        let len_bytes = entries[last].1;
        if len_bytes > begun + schedule.last_bytes {
            let held_back = len_bytes - schedule.last_bytes;
            *chunks.last_mut().unwrap().last_mut().unwrap() = (last, begun, held_back - begun);
            chunks.push(vec![(last, held_back, schedule.last_bytes)]);
        }
    }
    chunks.iter_mut().for_each(|chunk| chunk.retain(|(.., len)| *len > 0));
    chunks
}

/// Compares chunks with the model, one by one.
fn check(found: &Chunks, transfer: &Transfer<'_>, plan: &Plan, case: &str) {
    let count = transfer.entries.len();
    let entries: Vec<_> = (0..count)
        .map(|number| {
            let segment = transfer.entries.get(number);
            (segment.offset, segment.len_bytes, transfer.entries.memory(number).place)
        })
        .collect();
    let order: Vec<_> = (0..count).map(|at| found.entry(at)).collect();
    let mut numbers = order.clone();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..count), "{case}: each entry once");
    let expected = model(&entries, &order, &plan.schedule);
    assert_eq!(found.count(), expected.len(), "{case}");
    for (chunk, parts) in expected.iter().enumerate() {
        let segments: Vec<Part> = found
            .segments(transfer, chunk, found.positions(chunk))
            .map(|segment| {
                let whole = transfer.entries.get(segment.entry);
                let skipped = segment.ptr.addr() - whole.ptr.addr();
                assert_eq!(segment.offset, whole.offset + skipped as u64, "{case}");
                (segment.entry, skipped, segment.len_bytes)
            })
            .collect();
        assert_eq!(segments, *parts, "{case}, chunk {chunk}");
        let mut bytes = 0;
        for &(number, skipped, len) in parts {
            assert_eq!(found.place(transfer, chunk), entries[number].2, "{case}, chunk {chunk}");
            for within in [0, len / 2, len - 1] {
                let whole = found.positions(chunk);
                let (at, done_bytes) = found.locate(transfer, chunk, whole, bytes + within);
                let located = (found.entry(at), done_bytes);
                assert_eq!(located, (number, skipped + within), "{case}, chunk {chunk}");
            }
            bytes += len;
        }
        assert!(bytes <= plan.schedule.chunk_len(chunk), "{case}, chunk {chunk}");
    }
    check_shares(found, transfer, plan, case);
}

/// Checks that the workers of each place get the chunks of that place; those of one place get all chunks if they
/// are carried out in order.
fn check_shares(found: &Chunks, transfer: &Transfer<'_>, plan: &Plan, case: &str) {
    let mut shares = Vec::new();
    found.for_shares(transfer, |place, chunks| shares.push((place, chunks)));
    if plan.order.is_fixed() || shares.len() == 1 {
        return assert_eq!(shares, [(transfer.entries.place(), 0..found.count())], "{case}");
    }
    let mut end = 0;
    for (number, (place, chunks)) in shares.iter().enumerate() {
        assert_eq!(chunks.start, end, "{case}");
        end = chunks.end;
        assert!(shares[..number].iter().all(|(other, _)| other != place), "{case}: {place:?} twice");
        assert!(chunks.clone().all(|chunk| found.place(transfer, chunk) == *place), "{case}: {place:?}");
    }
    assert_eq!(end, found.count(), "{case}");
}

#[test]
fn chunks_of_entries_match_the_model() {
    let files = [open(), open()];
    let mut chunks = Chunks::default();
    for seed in 0..1000 {
        let mut random = Random(seed);
        let schedule = random.schedule();
        let (mut entries, mut offset, mut address) = (Vec::new(), random.below(9000) as u64, 0);
        for _ in 0..random.below(40) {
            let len_bytes = random.len_bytes(&schedule);
            let place =
                random.of(&[Place::Host, Place::Host, Place::Host, Place::Device(0), Place::Device(1)]);
            let file = &files[usize::from(random.below(10) == 0)];
            entries.push(Entry { file, offset, memory: memory(BASE + address, len_bytes, place) });
            address += len_bytes + random.of(&[0, 0, 256, 70_001]);
            offset = match random.below(3) {
                0 => random.below(1 << 30) as u64,
                _ => offset + (len_bytes + random.of(&[0, 0, 1, 3000])) as u64,
            };
        }
        if random.below(3) == 0 {
            entries.reverse();
        }
        let direction = if random.below(2) == 0 { Direction::Read } else { Direction::Write };
        let transfer = Transfer::for_test(direction, Entries::Requests(&entries));
        chunks.cut_anew(&transfer, &calls(schedule)).unwrap();
        check(&chunks, &transfer, &calls(schedule), &format!("seed {seed}"));
    }
}

#[test]
fn chunks_of_ranges_match_the_model() {
    let file = open();
    let mut chunks = Chunks::default();
    for seed in 0..400 {
        let mut random = Random(seed);
        let schedule = random.schedule();
        let (mut ranges, mut offset, mut address) = (Vec::new(), random.below(9000) as u64, 0);
        let is_tiny = random.below(2) == 0;
        // There are more entries than [`Chunks`] visits at a time.
        for _ in 0..random.below(300) {
            let len_bytes = if is_tiny { random.below(200) } else { random.len_bytes(&schedule) };
            ranges.push(IoRange { file_offset: offset, buffer_offset: address, len_bytes });
            address += len_bytes + random.of(&[0, 0, 256]);
            offset += (len_bytes + random.of(&[0, 0, 1, 3000])) as u64;
        }
        if random.below(4) == 0 {
            ranges.reverse();
        }
        let memory = memory(BASE, address, Place::Host);
        let entries = Entries::Ranges { file: &file, memory, ranges: &ranges };
        let transfer = Transfer::for_test(Direction::Read, entries);
        chunks.cut_anew(&transfer, &calls(schedule)).unwrap();
        check(&chunks, &transfer, &calls(schedule), &format!("seed {seed}"));
    }
}

/// Returns the order of entries of one file, given by offset, address and length; `None` for the caller's
/// order.
fn order_at(
    place: Place,
    direction: Direction,
    method: Method,
    entries: &[(u64, usize, usize)],
) -> Result<Option<Vec<usize>>, EntryStop> {
    let file = open();
    let entries: Vec<_> = entries
        .iter()
        .map(|&(offset, address, len_bytes)| Entry {
            memory: memory(BASE + address, len_bytes, place),
            ..entry(&file, offset, address, len_bytes)
        })
        .collect();
    let mut chunks = Chunks::default();
    let schedule = Schedule { chunk_bytes: 1000, ..Schedule::default() };
    let transfer = Transfer::for_test(direction, Entries::Requests(&entries));
    chunks.cut_anew(&transfer, &Plan { method, ..calls(schedule) })?;
    check(&chunks, &transfer, &calls(schedule), "ordered");
    let order = (0..entries.len()).map(|at| chunks.entry(at)).collect();
    Ok((!chunks.order.is_empty()).then_some(order))
}

#[test]
fn dense_entries_are_sorted_by_file() {
    for place in [Place::Host, Place::Device(0)] {
        for direction in [Direction::Read, Direction::Write] {
            let order = |entries: &[_]| order_at(place, direction, Method::Calls, entries).unwrap();
            let backward = [(300, 0, 100), (200, 500, 100), (100, 1000, 100), (0, 1500, 100)];
            assert_eq!(order(&backward), Some(vec![3, 2, 1, 0]));
            // Half of the range that the entries lie in is theirs.
            let half = [(300, 0, 100), (0, 500, 100)];
            assert_eq!(order(&half), Some(vec![1, 0]));
            let sparse = [(302, 0, 100), (0, 500, 100)];
            assert_eq!(order(&sparse), None);
            let forward = [(0, 1500, 100), (100, 1000, 100), (200, 500, 100)];
            assert_eq!(order(&forward), None);
        }
    }
}

#[test]
fn entries_of_each_place_come_together_in_their_order() {
    let file = open();
    let places = [Place::Device(1), Place::Host, Place::Device(0), Place::Device(1), Place::Device(0)];
    let entries: Vec<_> = (0..5)
        .map(|n| Entry { file: &file, offset: 9000 * n, memory: memory(BASE, 100, places[n as usize]) })
        .collect();
    let transfer = Transfer::for_test(Direction::Read, Entries::Requests(&entries));
    let mut chunks = Chunks::default();
    let order_with = |chunks: &mut Chunks, plan: &Plan| {
        chunks.cut_anew(&transfer, plan).unwrap();
        check(chunks, &transfer, plan, "places");
        (0..5).map(|at| chunks.entry(at)).collect::<Vec<_>>()
    };
    let schedule = Schedule { chunk_bytes: 1000, ..Schedule::default() };
    assert_eq!(order_with(&mut chunks, &calls(schedule)), [1, 2, 4, 0, 3]);
    assert_eq!(order_with(&mut chunks, &Plan { order: Order::Serial, ..calls(schedule) }), [0, 1, 2, 3, 4]);
}

#[test]
fn mappings_are_used_in_the_order_given() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(400).unwrap();
    let mapping = Arc::new(Mapping::for_read(&file, 400).unwrap());
    let backward = [(300, 0, 100), (200, 500, 100), (100, 1000, 100), (0, 1500, 100)];
    for direction in [Direction::Read, Direction::Write] {
        let method = Method::Mapping(mapping.clone());
        assert_eq!(order_at(Place::Host, direction, method, &backward).unwrap(), None);
    }
}

#[test]
fn ranges_of_one_file_are_sorted_at_any_offset() {
    let file = open();
    let mut random = Random(17);
    for base in [0, 1 << 20, 1 << 62] {
        let mut ranges: Vec<_> = (0..500)
            .map(|at| IoRange { file_offset: base + 70 * at, buffer_offset: 70 * at as usize, len_bytes: 60 })
            .collect();
        for at in 0..ranges.len() {
            let other = random.below(ranges.len());
            ranges.swap(at, other);
        }
        let memory = memory(BASE, 70 * 500, Place::Device(0));
        let entries = Entries::Ranges { file: &file, memory, ranges: &ranges };
        let transfer = Transfer::for_test(Direction::Read, entries);
        let mut chunks = Chunks::default();
        let schedule = Schedule { chunk_bytes: 1000, ..Schedule::default() };
        chunks.cut_anew(&transfer, &calls(schedule)).unwrap();
        check(&chunks, &transfer, &calls(schedule), "one file");
        let offsets = (0..500).map(|at| ranges[chunks.entry(at)].file_offset);
        assert!(offsets.eq((0..500).map(|at| base + 70 * at)));
    }
}

#[test]
fn entries_of_several_files_are_sorted_if_dense() {
    let files = [open(), open()];
    let order = |step: u64| {
        let entries: Vec<_> =
            (0..6).map(|n| entry(&files[n / 3], 9000 - step * n as u64, 1000 * n, 100)).collect();
        let mut chunks = Chunks::default();
        let schedule = Schedule { chunk_bytes: 1000, ..Schedule::default() };
        let transfer = Transfer::for_test(Direction::Write, Entries::Requests(&entries));
        chunks.cut_anew(&transfer, &calls(schedule)).unwrap();
        check(&chunks, &transfer, &calls(schedule), "two files");
        (0..6).map(|at| chunks.entry(at)).collect::<Vec<_>>()
    };
    let dense = order(100);
    assert!([[2, 1, 0, 5, 4, 3], [5, 4, 3, 2, 1, 0]].iter().any(|expected| *expected == *dense), "{dense:?}");
    assert_eq!(order(1000), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn refusals_name_the_first_range_out_of_bounds() {
    let file = open();
    let range = |file_offset, buffer_offset, len_bytes| IoRange { file_offset, buffer_offset, len_bytes };
    for bad in [
        range(0, 1000, 1),
        range(0, 999, 2),
        range(0, usize::MAX, 2),
        range(FILE_LIMIT, 0, 1),
        range(FILE_LIMIT - 1, 0, 2),
        range(u64::MAX, 0, 2),
    ] {
        for before in [0, 63, 64, 65, 200] {
            let mut ranges = vec![range(4990, 990, 10); before];
            ranges.extend([bad, bad]);
            let memory = memory(BASE, 1000, Place::Host);
            let entries = Entries::Ranges { file: &file, memory, ranges: &ranges };
            let transfer = Transfer::for_test(Direction::Write, entries);
            let schedule = Schedule { chunk_bytes: 100, ..Schedule::default() };
            let refused = Chunks::default().cut_anew(&transfer, &calls(schedule));
            assert_eq!(refused.map_err(|stop| stop.entry), Err(before), "{bad:?}");
        }
    }
}

#[test]
fn plans_count_the_memory_they_keep() {
    let file = open();
    // The entries go backward in the file, so that they are sorted.
    let entries: Vec<_> = (0..40).map(|n| entry(&file, 5000 * (40 - n), 5000 * n as usize, 3000)).collect();
    let transfer = Transfer::for_test(Direction::Read, Entries::Requests(&entries));
    let mut chunks = Chunks::default();
    assert_eq!(chunks.kept_bytes(), 0);
    chunks.cut_anew(&transfer, &calls(Schedule { chunk_bytes: 1000, ..Schedule::default() })).unwrap();
    let capacities = [chunks.order.capacity(), chunks.cuts.capacity(), chunks.keys.capacity()];
    assert!(capacities[0] >= 40 && capacities[1] >= 121 && capacities[2] >= 40);
    assert_eq!(chunks.kept_bytes(), 4 * capacities[0] + 16 * capacities[1] + 24 * capacities[2]);
}
