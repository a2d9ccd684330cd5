//! The chunks of a transfer, and the order of its entries.
//!
//! The entries form one sequence of bytes, and a chunk is a stretch of it: a part of a large range, or many small ranges. Many
//! entries are ordered so that neighbours in the file come together.

use std::num::NonZero;
use std::ops::Range;

use super::overlap::overlap;
use super::schedule::{Plan, Schedule};
use super::transfer::{Entries, IoRange, Segment, Transfer};
use crate::direction::Direction;
use crate::memory::{Memory, Place};
use crate::open_file::outcome::EntryStop;
use crate::open_file::{Method, OpenFile};

/// The beginning of a chunk: an entry's position in the chosen order, and a number of bytes into that entry.
#[derive(Clone, Copy)]
struct Cut {
    at: usize,
    skip_bytes: usize,
}

/// The chunks of a transfer. The lists keep their memory.
#[derive(Default)]
pub(crate) struct Chunks {
    /// The numbers of the entries in the chosen order; empty for the caller's order.
    order: Vec<u32>,
    /// The beginnings of the chunks, and the end.
    cuts: Vec<Cut>,
    /// True if the chunks of each place follow one another, and there are several places.
    are_by_place: bool,
    /// Files, offsets and numbers of entries, to be sorted. Ranges of one file are numbers.
    keys: Vec<(usize, u64, u32)>,
    numbers: Vec<u64>,
}

/// The alignment in bytes of the file offsets at which large ranges are cut. With it, `O_DIRECT` needs no
/// over-read there.
const CUT_ALIGNMENT: u64 = 4096;

impl Chunks {
    /// Plans a transfer, prepares a write after checking each range, and cuts the entries into chunks. For `bytes_before` and
    /// `busy`, see [`Plan::of_read`].
    ///
    /// # Errors
    /// The first range that does not lie in its buffer.
    pub fn plan(
        &mut self,
        transfer: &Transfer<'_>,
        bytes_before: usize,
        busy: impl FnOnce(u64) -> Option<(usize, usize)>,
    ) -> Result<Plan, EntryStop> {
        let plan = match transfer.direction {
            Direction::Read => Plan::of_read(transfer, bytes_before, busy),
            Direction::Write => match transfer.entries.out_of_range() {
                None => Plan::of_write(transfer),
                Some(refused) => return Err(refused),
            },
        };
        self.cut_anew(transfer, &plan)?;
        Ok(plan)
    }

    /// Orders the entries and cuts them into chunks.
    ///
    /// # Errors
    /// The first range that does not lie in its buffer.
    pub fn cut_anew(&mut self, transfer: &Transfer<'_>, plan: &Plan) -> Result<(), EntryStop> {
        let Plan { method, schedule, order } = plan;
        self.order.clear();
        // The caller's order is usually good. Cutting shows whether it is, and whether a range is out of
        // range.
        let given = self.cut(transfer, schedule);
        if !given.in_range {
            let bad = transfer.entries.out_of_range();
            return Err(bad.expect("one of the ranges is out of range"));
        }
        let is_mapped = matches!(method, Method::Mapping(_));
        let gains = !is_mapped && given.gains_by_file_order();
        if gains {
            self.sort_by_file(&transfer.entries);
        }
        self.are_by_place = given.is_mixed && !order.is_fixed();
        if self.are_by_place {
            self.sort_by_place(&transfer.entries);
        }
        if gains || self.are_by_place {
            self.cut(transfer, schedule);
        }
        Ok(())
    }

    /// Returns an entry that overlaps another in memory. Ignores long lists of ranges of a GPU.
    pub fn overlap(&mut self, entries: &Entries<'_>) -> Option<EntryStop> {
        const LONG: usize = 4096;
        // Two threads must not write the same bytes of the host. On a GPU they may, and either comes last. Looking for
        // overlaps would take longer than reading.
        if let Entries::Ranges { memory, ranges, .. } = entries
            && memory.place != Place::Host
            && ranges.len() >= LONG
        {
            return None;
        }
        overlap(entries, &mut self.numbers)
            .map(|(one, other)| EntryStop::refused(other, entries.overlaps(one)))
    }

    pub fn count(&self) -> usize {
        self.cuts.len() - 1
    }

    /// Calls `share` with each place and the chunks of its workers. If chunks are carried out in order, the workers of one place
    /// get all.
    pub fn for_shares(&self, transfer: &Transfer<'_>, mut share: impl FnMut(Place, Range<usize>)) {
        let count = self.count();
        if !self.are_by_place {
            return share(transfer.entries.place(), 0..count);
        }
        let mut start = 0;
        while start < count {
            let place = self.place(transfer, start);
            let end = (start..count).find(|chunk| self.place(transfer, *chunk) != place).unwrap_or(count);
            share(place, start..end);
            start = end;
        }
    }

    /// Returns the bytes of memory that the lists take.
    pub fn kept_bytes(&self) -> usize {
        size_of::<u32>() * self.order.capacity()
            + size_of::<Cut>() * self.cuts.capacity()
            + size_of::<(usize, u64, u32)>() * self.keys.capacity()
            + size_of::<u64>() * self.numbers.capacity()
    }

    /// Returns the positions of the entries in a chunk, in the chosen order. Other chunks may have parts of the first
    /// and of the last.
    pub fn positions(&self, chunk: usize) -> Range<usize> {
        let (start, end) = (self.cuts[chunk], self.cuts[chunk + 1]);
        start.at..end.at + usize::from(end.skip_bytes > 0)
    }

    /// Returns the segments of a chunk that are at these positions, in order.
    pub fn segments<'p>(
        &'p self,
        transfer: &'p Transfer<'p>,
        chunk: usize,
        positions: Range<usize>,
    ) -> impl Iterator<Item = Segment<'p>> + Clone {
        let (start, end) = (self.cuts[chunk], self.cuts[chunk + 1]);
        positions
            .map(move |at| {
                let mut segment = transfer.entries.get(self.entry(at));
                if at == end.at {
                    segment.len_bytes = end.skip_bytes;
                }
                if at == start.at {
                    segment.offset += start.skip_bytes as u64;
                    segment.ptr = segment.ptr.wrapping_add(start.skip_bytes);
                    segment.len_bytes -= start.skip_bytes;
                }
                segment
            })
            .filter(|segment| segment.len_bytes > 0)
    }

    /// Returns the place of a chunk's memory. A chunk has memory of one place.
    pub fn place(&self, transfer: &Transfer<'_>, chunk: usize) -> Place {
        transfer.entries.memory(self.entry(self.cuts[chunk].at)).place
    }

    /// Returns the position of byte number `bytes` of a chunk's segments at these positions, and the number of the entry's bytes
    /// before it.
    pub fn locate(
        &self,
        transfer: &Transfer<'_>,
        chunk: usize,
        positions: Range<usize>,
        bytes: usize,
    ) -> (usize, usize) {
        let mut left = bytes;
        for at in positions.clone() {
            let Some(segment) = self.segments(transfer, chunk, at..at + 1).next() else { continue };
            if left < segment.len_bytes {
                let entry = transfer.entries.get(segment.entry);
                return (at, segment.ptr.addr() - entry.ptr.addr() + left);
            }
            left -= segment.len_bytes;
        }
        // The chunk has only empty entries, so no byte of it was transferred.
        debug_assert_eq!(bytes, 0, "a chunk stops before its end");
        (positions.start, 0)
    }

    pub fn entry(&self, at: usize) -> usize {
        self.order.get(at).map_or(at, |entry| *entry as usize)
    }

    /// Sorts the entries by file and offset. Ranges of one file become numbers if their offsets allow it, which takes a third of
    /// the time.
    fn sort_by_file(&mut self, entries: &Entries<'_>) {
        let count = entries.len();
        self.order.clear();
        if let Entries::Ranges { ranges, .. } = entries {
            let bits = usize::BITS - count.leading_zeros();
            let last = ranges.iter().map(|range| range.file_offset).max().unwrap_or(0);
            if last.leading_zeros() >= bits {
                self.numbers.clear();
                let numbers = (0..).zip(*ranges).map(|(entry, range)| range.file_offset << bits | entry);
                self.numbers.extend(numbers);
                self.numbers.sort_unstable();
                let entry = |number: &u64| (number & ((1 << bits) - 1)) as u32;
                self.order.extend(self.numbers.iter().map(entry));
                return;
            }
        }
        self.keys.clear();
        self.keys.extend((0..count).map(|entry| {
            let Segment { file, offset, .. } = entries.get(entry);
            (std::ptr::from_ref(file).addr(), offset, entry as u32)
        }));
        self.keys.sort_unstable();
        self.order.extend(self.keys.iter().map(|(.., entry)| entry));
    }

    /// Brings the entries of each place together, in the order chosen so far.
    fn sort_by_place(&mut self, entries: &Entries<'_>) {
        if self.order.is_empty() {
            self.order.extend(0..entries.len() as u32);
        }
        self.order.sort_by_key(|entry| entries.memory(*entry as usize).place);
    }

    /// Cuts the entries in the order chosen so far, and surveys them.
    fn cut(&mut self, transfer: &Transfer<'_>, schedule: &Schedule) -> Survey {
        let Self { order, cuts, .. } = self;
        let entries = &transfer.entries;
        let with_place = |entry| (entries.get(entry), entries.memory(entry).place);
        match entries {
            // Each case has a separate loop, because a transfer may have a million entries.
            _ if !order.is_empty() => {
                cut(cuts, order.iter().map(|entry| with_place(*entry as usize)), schedule)
            }
            Entries::Ranges { file, memory, ranges } => cut_ranges(cuts, file, memory, ranges, schedule),
            Entries::Requests(each) => cut(cuts, (0..each.len()).map(with_place), schedule),
        }
    }
}

/// The room that is left in the chunk to be cut next.
#[derive(PartialEq, Eq)]
struct Room {
    bytes: usize,
    entries: usize,
}

impl Room {
    fn of_last(cuts: &[Cut], schedule: &Schedule) -> Self {
        let entries = schedule.most_entries.map_or(usize::MAX, NonZero::get);
        Self { bytes: schedule.chunk_len(cuts.len() - 1), entries }
    }
}

/// Cuts ranges of one buffer into chunks. Ends early at one that is out of range.
fn cut_ranges(
    cuts: &mut Vec<Cut>,
    file: &OpenFile,
    memory: &Memory,
    ranges: &[IoRange],
    schedule: &Schedule,
) -> Survey {
    // Most blocks fit as a whole into the rest of a chunk, so the loop visits only a few blocks' ranges
    // twice.
    const BLOCK: usize = 64;
    cuts.clear();
    cuts.push(Cut { at: 0, skip_bytes: 0 });
    let mut survey = Survey::default();
    let mut room = Room::of_last(cuts, schedule);
    for (number, block) in ranges.chunks(BLOCK).enumerate() {
        let mut block_bytes = 0usize;
        for range in block {
            survey.in_range &= range.lies_within(memory.len_bytes);
            survey.count(range.file_offset, range.len_bytes);
            block_bytes = block_bytes.wrapping_add(range.len_bytes);
        }
        if !survey.in_range {
            return survey;
        }
        if block_bytes <= room.bytes && block.len() <= room.entries {
            room.bytes -= block_bytes;
            room.entries -= block.len();
            continue;
        }
        for (at, range) in (number * BLOCK..).zip(block) {
            let segment = Segment::of_range(file, memory, range, at);
            cut_within(cuts, at, &segment, &mut room, schedule);
        }
    }
    end_cuts(cuts, ranges.len(), &survey, schedule);
    survey
}

/// Cuts these segments into chunks, and surveys them in this order.
fn cut<'a>(
    cuts: &mut Vec<Cut>,
    segments: impl ExactSizeIterator<Item = (Segment<'a>, Place)>,
    schedule: &Schedule,
) -> Survey {
    cuts.clear();
    cuts.push(Cut { at: 0, skip_bytes: 0 });
    let count = segments.len();
    let mut survey = Survey::default();
    let mut room = Room::of_last(cuts, schedule);
    let mut before: Option<(*const OpenFile, Place)> = None;
    for (at, (segment, place)) in segments.enumerate() {
        if before.is_some_and(|(file, _)| !std::ptr::eq(file, segment.file)) {
            survey.next_file();
        }
        survey.count(segment.offset, segment.len_bytes);
        if before.is_some_and(|(_, before)| before != place) {
            survey.is_mixed = true;
            cuts.push(Cut { at, skip_bytes: 0 });
            room = Room::of_last(cuts, schedule);
        }
        before = Some((segment.file, place));
        cut_within(cuts, at, &segment, &mut room, schedule);
    }
    end_cuts(cuts, count, &survey, schedule);
    survey
}

/// Cuts off the end of the last entry that the schedule holds back, if the last chunk has more. Then adds the end of all chunks.
fn end_cuts(cuts: &mut Vec<Cut>, count: usize, survey: &Survey, schedule: &Schedule) {
    if schedule.last_bytes > 0 && count > 0 {
        let begun = cuts.last().filter(|cut| cut.at == count - 1).map_or(0, |cut| cut.skip_bytes);
        if survey.last_len_bytes > begun + schedule.last_bytes {
            let skip_bytes = survey.last_len_bytes - schedule.last_bytes;
            cuts.push(Cut { at: count - 1, skip_bytes });
        }
    }
    cuts.push(Cut { at: count, skip_bytes: 0 });
}

/// Begins a new chunk for the segment if the last chunk has no room for another entry. Cuts the segment if it
/// is longer than the room in its chunk.
#[inline]
fn cut_within(cuts: &mut Vec<Cut>, at: usize, segment: &Segment<'_>, room: &mut Room, schedule: &Schedule) {
    if room.entries == 0 {
        cuts.push(Cut { at, skip_bytes: 0 });
        *room = Room::of_last(cuts, schedule);
    }
    let mut skip_bytes = 0;
    while segment.len_bytes - skip_bytes > room.bytes {
        if let Some(bytes) = packed_bytes(cuts, segment, skip_bytes, room, schedule) {
            if segment.len_bytes - skip_bytes <= bytes {
                break;
            }
            skip_bytes += bytes;
        } else {
            let end = segment.offset.wrapping_add((skip_bytes + room.bytes) as u64);
            let beyond = (end % CUT_ALIGNMENT) as usize;
            skip_bytes += if beyond < room.bytes { room.bytes - beyond } else { room.bytes };
        }
        cuts.push(Cut { at, skip_bytes });
        *room = Room::of_last(cuts, schedule);
    }
    room.bytes = room.bytes.saturating_sub(segment.len_bytes - skip_bytes);
    room.entries -= 1;
}

/// Returns the bytes of a segment for a chunk that is empty yet, if they may be more than the schedule says because the file has
/// them packed.
fn packed_bytes(
    cuts: &[Cut],
    segment: &Segment<'_>,
    skip_bytes: usize,
    room: &Room,
    schedule: &Schedule,
) -> Option<usize> {
    let is_new = schedule.counts_packed && *room == Room::of_last(cuts, schedule);
    let packed = segment.file.stored().filter(|_| is_new)?.packed()?;
    packed.chunk_bytes(segment.offset + skip_bytes as u64, room.bytes)
}

/// The facts about the entries in one order that decide for or against another.
struct Survey {
    /// True if each entry begins behind the end of the one before, if in the same file.
    file_ascends: bool,
    /// True if every entry is in range.
    in_range: bool,
    is_mixed: bool,
    /// The file's range with the entries, and the sum of their lengths in bytes. For several files, sums over stretches of
    /// entries of one file.
    file_start: u64,
    file_end: u64,
    spanned_bytes: u64,
    total_bytes: u64,
    /// The end in the file, and the length in bytes, of the entry counted last.
    last_file_end: u64,
    last_len_bytes: usize,
}

impl Default for Survey {
    fn default() -> Self {
        Self {
            file_ascends: true,
            in_range: true,
            is_mixed: false,
            file_start: u64::MAX,
            file_end: 0,
            spanned_bytes: 0,
            total_bytes: 0,
            last_file_end: 0,
            last_len_bytes: 0,
        }
    }
}

impl Survey {
    #[inline]
    fn count(&mut self, offset: u64, len_bytes: usize) {
        self.file_ascends &= offset >= self.last_file_end;
        self.last_file_end = offset.wrapping_add(len_bytes as u64);
        self.file_start = self.file_start.min(offset);
        self.file_end = self.file_end.max(self.last_file_end);
        self.total_bytes = self.total_bytes.wrapping_add(len_bytes as u64);
        self.last_len_bytes = len_bytes;
    }

    /// Notes that the next entry has another file than the one before.
    fn next_file(&mut self) {
        self.spanned_bytes = self.spanned();
        (self.file_start, self.file_end, self.last_file_end) = (u64::MAX, 0, 0);
    }

    fn spanned(&self) -> u64 {
        self.spanned_bytes.saturating_add(self.file_end.saturating_sub(self.file_start))
    }

    /// Returns whether sorting by file joins enough entries to be worth its time. It does if they fill half of their range,
    /// because then most have a neighbour.
    fn gains_by_file_order(&self) -> bool {
        !self.file_ascends && self.total_bytes >= self.spanned() / 2
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;
    use std::ptr;
    use std::sync::Arc;

    use super::super::schedule::Order;
    use super::super::transfer::{Entry, FILE_LIMIT};
    use super::*;
    use crate::direction::Direction;
    use crate::open_file::{Mapping, Method};
    use crate::settings::Settings;

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

    fn calls(schedule: Schedule) -> Plan {
        let order = if schedule.last_bytes > 0 { Order::LastAlone { at_once: None } } else { Order::ANY };
        Plan { method: Method::Calls, schedule, order }
    }

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
        assert_eq!(
            order_with(&mut chunks, &Plan { order: Order::Serial, ..calls(schedule) }),
            [0, 1, 2, 3, 4]
        );
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
                .map(|at| IoRange {
                    file_offset: base + 70 * at,
                    buffer_offset: 70 * at as usize,
                    len_bytes: 60,
                })
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
        assert!(
            [[2, 1, 0, 5, 4, 3], [5, 4, 3, 2, 1, 0]].iter().any(|expected| *expected == *dense),
            "{dense:?}"
        );
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
        let entries: Vec<_> =
            (0..40).map(|n| entry(&file, 5000 * (40 - n), 5000 * n as usize, 3000)).collect();
        let transfer = Transfer::for_test(Direction::Read, Entries::Requests(&entries));
        let mut chunks = Chunks::default();
        assert_eq!(chunks.kept_bytes(), 0);
        chunks.cut_anew(&transfer, &calls(Schedule { chunk_bytes: 1000, ..Schedule::default() })).unwrap();
        let capacities = [chunks.order.capacity(), chunks.cuts.capacity(), chunks.keys.capacity()];
        assert!(capacities[0] >= 40 && capacities[1] >= 121 && capacities[2] >= 40);
        assert_eq!(chunks.kept_bytes(), 4 * capacities[0] + 16 * capacities[1] + 24 * capacities[2]);
    }
}
