//! The chunks of a transfer, and the order of its entries.
//!
//! The entries of a transfer, one after the other, form one sequence of bytes. A chunk is a stretch of that
//! sequence: a part of a large range, or many small ranges that share a bounce buffer. This module orders the
//! entries so that neighbours in the file come together, if there are many.

use std::num::NonZero;
use std::ops::Range;

use super::overlap::overlap;
use super::schedule::{Plan, Schedule};
use super::transfer::{Entries, IoRange, Segment, Transfer};
use crate::direction::Direction;
use crate::memory::{Memory, Place};
use crate::open_file::outcome::EntryStop;
use crate::open_file::{Method, OpenFile};

/// The beginning of a chunk: the position of an entry in the chosen order, and a number of bytes into that
/// entry.
#[derive(Clone, Copy)]
struct Cut {
    at: usize,
    skip_bytes: usize,
}

/// The chunks of a transfer. The lists keep their memory for the next transfer.
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
    /// Plans a transfer, prepares a write, and cuts the entries into chunks. The range of each entry is checked before a
    /// write is prepared. For `busy`, see [`Plan::of_read`].
    ///
    /// # Errors
    /// The first range that does not lie in its buffer.
    pub fn plan(
        &mut self,
        transfer: &Transfer<'_>,
        busy: impl FnOnce(u64) -> Option<(usize, usize)>,
    ) -> Result<Plan, EntryStop> {
        let plan = match transfer.direction {
            Direction::Read => Plan::of_read(transfer, busy),
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

    /// Returns an entry that overlaps another in memory, if there is one. Does not look into long lists of ranges of a GPU.
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

    /// Calls `share` with each place whose workers get chunks, and with these chunks. If the chunks are carried
    /// out in order, the workers of one place get all of them.
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

    /// Returns the number of bytes of memory that the lists take.
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

    /// Returns the place of a chunk's memory. A chunk has memory of one place only.
    pub fn place(&self, transfer: &Transfer<'_>, chunk: usize) -> Place {
        transfer.entries.memory(self.entry(self.cuts[chunk].at)).place
    }

    /// Returns the position that contains byte number `bytes` of a chunk's segments at these positions, and the number of
    /// the entry's bytes before that byte.
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

    /// Returns the number of the entry at a position.
    pub fn entry(&self, at: usize) -> usize {
        self.order.get(at).map_or(at, |entry| *entry as usize)
    }

    /// Sorts the entries by file and offset. Ranges of one file are numbers, which are sorted in a third of the
    /// time, if their offsets allow it.
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
struct Room {
    bytes: usize,
    entries: usize,
}

impl Room {
    /// Returns the room of the chunk that begins at the last of the cuts.
    fn of_last(cuts: &[Cut], schedule: &Schedule) -> Self {
        let entries = schedule.most_entries.map_or(usize::MAX, NonZero::get);
        Self { bytes: schedule.chunk_len(cuts.len() - 1), entries }
    }
}

/// Cuts ranges of one buffer into chunks. Ends early if a range is out of range.
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

/// Cuts off the end of the last entry that the schedule holds back, if the last chunk has more of the entry.
/// Then adds the end of all chunks.
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
        let end = segment.offset.wrapping_add((skip_bytes + room.bytes) as u64);
        let beyond = (end % CUT_ALIGNMENT) as usize;
        skip_bytes += if beyond < room.bytes { room.bytes - beyond } else { room.bytes };
        cuts.push(Cut { at, skip_bytes });
        *room = Room::of_last(cuts, schedule);
    }
    room.bytes -= segment.len_bytes - skip_bytes;
    room.entries -= 1;
}

/// The facts about the entries in one order that decide whether another order is better.
struct Survey {
    /// True if each entry begins behind the end of the one before in the file, as far as it is the same file.
    file_ascends: bool,
    /// True if every entry is in range.
    in_range: bool,
    /// True if the memory of the entries is at several places.
    is_mixed: bool,
    /// The range of the file that the entries lie in, and the sum of their lengths in bytes. For several files,
    /// these are sums over stretches of entries of one file.
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
    /// Counts an entry.
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

    /// Returns whether sorting the entries by file joins so many of them that it is worth its time. It is if
    /// they fill half of the range that they lie in, because then most have a neighbour.
    fn gains_by_file_order(&self) -> bool {
        !self.file_ascends && self.total_bytes >= self.spanned() / 2
    }
}

#[cfg(test)]
mod tests;
