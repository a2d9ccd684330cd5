//! The chunks of a transfer, and the order of its entries.
//!
//! The entries of a transfer, one after the other, form one sequence of bytes. A chunk is a stretch of that
//! sequence: a part of a large range, or many small ranges that share a bounce buffer. This module orders the
//! entries so that neighbours in memory or in the file come together.

use std::num::NonZero;

use super::schedule::Schedule;
use super::transfer::{Entries, IoRange, Segment, Transfer};
use crate::memory::{Memory, Place};
use crate::open_file::OpenFile;

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
    keys: Vec<(usize, u64, u32)>,
}

/// The reason why a transfer cannot be carried out as the caller asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The range with this number does not lie in the buffer, or ends behind the limit of the file.
    OutOfRange(usize),
    /// These two entries write the same memory.
    Overlap(usize, usize),
}

/// The alignment in bytes of the file offsets at which large ranges are cut. With it, `O_DIRECT` needs no
/// over-read there.
const CUT_ALIGNMENT: u64 = 4096;

impl Chunks {
    /// Orders the entries and cuts them into chunks.
    ///
    /// # Errors
    /// [`Refused`] if a range does not lie in its buffer, or if two entries of a read overlap in memory.
    pub fn cut_anew(&mut self, transfer: &Transfer<'_>, schedule: &Schedule) -> Result<(), Refused> {
        self.order.clear();
        // The caller's order is usually good. Cutting shows whether it is, and whether a range is out of
        // range.
        let given = self.cut(transfer, schedule);
        if !given.in_range {
            let bad = transfer.entries.out_of_range();
            return Err(Refused::OutOfRange(bad.expect("one of the ranges is out of range")));
        }
        if self.sort(transfer, &given)? {
            self.cut(transfer, schedule);
        }
        Ok(())
    }

    /// Returns whether the caller's order was kept. If so, each entry lies behind the one before it in
    /// memory.
    pub fn keeps_order(&self) -> bool {
        self.order.is_empty()
    }

    pub fn count(&self) -> usize {
        self.cuts.len() - 1
    }

    /// Returns the number of bytes of memory that the lists take.
    pub fn kept_bytes(&self) -> usize {
        size_of::<u32>() * self.order.capacity()
            + size_of::<Cut>() * self.cuts.capacity()
            + size_of::<(usize, u64, u32)>() * self.keys.capacity()
    }

    /// Returns the segments of a chunk, in order.
    pub fn segments<'p>(
        &'p self,
        transfer: &'p Transfer<'p>,
        chunk: usize,
    ) -> impl Iterator<Item = Segment<'p>> + Clone {
        let (start, end) = (self.cuts[chunk], self.cuts[chunk + 1]);
        let last = if end.skip_bytes > 0 { end.at + 1 } else { end.at };
        (start.at..last)
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

    /// Returns the entry that contains byte number `bytes` of a chunk, and the number of the entry's bytes
    /// before that byte.
    pub fn locate(&self, transfer: &Transfer<'_>, chunk: usize, bytes: usize) -> (usize, usize) {
        let mut left = bytes;
        for segment in self.segments(transfer, chunk) {
            if left < segment.len_bytes {
                let entry = transfer.entries.get(segment.entry);
                return (segment.entry, segment.ptr.addr() - entry.ptr.addr() + left);
            }
            left -= segment.len_bytes;
        }
        // The chunk has only empty entries, so no byte of it was transferred.
        debug_assert_eq!(bytes, 0, "a chunk stops before its end");
        (self.entry(self.cuts[chunk].at), 0)
    }

    fn entry(&self, at: usize) -> usize {
        self.order.get(at).map_or(at, |entry| *entry as usize)
    }

    /// Replaces the caller's order if another is better. Returns whether it did.
    fn sort(&mut self, transfer: &Transfer<'_>, given: &Joins) -> Result<bool, Refused> {
        if given.memory_ascends && (given.memory >= given.file || given.file_ascends) {
            return Ok(false);
        }
        self.sort_by(transfer, |segment| (0, segment.ptr.addr() as u64));
        let mut by_memory = Joins::default();
        let mut file = std::ptr::null();
        for entry in &self.order {
            let segment = transfer.entries.get(*entry as usize);
            let same_file = std::ptr::eq(file, segment.file);
            by_memory.count(same_file, segment.offset, segment.ptr.addr(), segment.len_bytes);
            file = segment.file;
        }
        if transfer.method.is_read() && !by_memory.memory_ascends {
            return Err(self.overlap(transfer));
        }
        // A copy to the GPU costs more than a read from the page cache. So memory decides the order unless
        // the file's order joins more entries.
        if by_memory.file > by_memory.memory || given.file > by_memory.memory {
            self.sort_by(transfer, |segment| (std::ptr::from_ref(segment.file).addr(), segment.offset));
        }
        Ok(true)
    }

    fn sort_by(&mut self, transfer: &Transfer<'_>, key: impl Fn(&Segment<'_>) -> (usize, u64)) {
        let entries = &transfer.entries;
        self.keys.clear();
        self.keys.extend((0..entries.len()).map(|entry| {
            let (file, place) = key(&entries.get(entry));
            (file, place, entry as u32)
        }));
        self.keys.sort_unstable();
        self.order.clear();
        self.order.extend(self.keys.iter().map(|(.., entry)| entry));
    }

    /// Returns the first two entries that overlap, in the order of memory.
    #[cold]
    fn overlap(&self, transfer: &Transfer<'_>) -> Refused {
        let mut before: Option<Segment<'_>> = None;
        for entry in &self.order {
            let segment = transfer.entries.get(*entry as usize);
            if segment.len_bytes == 0 {
                continue;
            }
            if let Some(before) =
                before.filter(|before| before.ptr.addr() + before.len_bytes > segment.ptr.addr())
            {
                return Refused::Overlap(before.entry.min(segment.entry), before.entry.max(segment.entry));
            }
            before = Some(segment);
        }
        unreachable!("the entries overlap")
    }

    /// Cuts the entries in the order chosen so far, and counts their joins.
    fn cut(&mut self, transfer: &Transfer<'_>, schedule: &Schedule) -> Joins {
        let Self { order, cuts, .. } = self;
        let entries = &transfer.entries;
        let with_place = |entry| (entries.get(entry), entries.memory(entry).place);
        match entries {
            // Each case has a separate loop, because a transfer may have a million entries.
            _ if !order.is_empty() => {
                cut(cuts, order.iter().map(|entry| with_place(*entry as usize)), schedule)
            }
            Entries::Ranges { file, memory, ranges, file_limit } => {
                cut_ranges(cuts, file, memory, ranges, *file_limit, schedule)
            }
            Entries::Each(each) => cut(cuts, (0..each.len()).map(with_place), schedule),
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
    file_limit: u64,
    schedule: &Schedule,
) -> Joins {
    // Most blocks fit as a whole into the rest of a chunk, so the loop visits only a few blocks' ranges
    // twice.
    const BLOCK: usize = 64;
    cuts.clear();
    cuts.push(Cut { at: 0, skip_bytes: 0 });
    let mut joins = Joins::default();
    let mut room = Room::of_last(cuts, schedule);
    for (number, block) in ranges.chunks(BLOCK).enumerate() {
        let mut block_bytes = 0usize;
        for range in block {
            joins.in_range &= range.lies_within(memory.len_bytes, file_limit);
            joins.count(true, range.file_offset, range.buffer_offset, range.len_bytes);
            block_bytes = block_bytes.wrapping_add(range.len_bytes);
        }
        if !joins.in_range {
            return joins;
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
    end_cuts(cuts, ranges.len(), &joins, schedule);
    joins
}

/// Cuts these segments into chunks, and counts the joins that the segments have in this order.
fn cut<'a>(
    cuts: &mut Vec<Cut>,
    segments: impl ExactSizeIterator<Item = (Segment<'a>, Place)>,
    schedule: &Schedule,
) -> Joins {
    cuts.clear();
    cuts.push(Cut { at: 0, skip_bytes: 0 });
    let count = segments.len();
    let mut joins = Joins::default();
    let mut room = Room::of_last(cuts, schedule);
    let mut before: Option<(*const OpenFile, Place)> = None;
    for (at, (segment, place)) in segments.enumerate() {
        let same_file = before.is_some_and(|(file, _)| std::ptr::eq(file, segment.file));
        joins.count(same_file, segment.offset, segment.ptr.addr(), segment.len_bytes);
        if before.is_some_and(|(_, before)| before != place) {
            cuts.push(Cut { at, skip_bytes: 0 });
            room = Room::of_last(cuts, schedule);
        }
        before = Some((segment.file, place));
        cut_within(cuts, at, &segment, &mut room, schedule);
    }
    end_cuts(cuts, count, &joins, schedule);
    joins
}

/// Cuts off the end of the last entry that the schedule holds back, if the last chunk has more of the entry.
/// Then adds the end of all chunks.
fn end_cuts(cuts: &mut Vec<Cut>, count: usize, joins: &Joins, schedule: &Schedule) {
    if schedule.last_bytes > 0 && count > 0 {
        let begun = cuts.last().filter(|cut| cut.at == count - 1).map_or(0, |cut| cut.skip_bytes);
        if joins.last_len_bytes > begun + schedule.last_bytes {
            let skip_bytes = joins.last_len_bytes - schedule.last_bytes;
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

/// The number of entries that begin where the one before them ends, in the file and in memory. Also notes
/// whether all entries ascend.
struct Joins {
    file: usize,
    memory: usize,
    file_ascends: bool,
    /// True if each entry begins behind the end of the one before, so that none overlap.
    memory_ascends: bool,
    /// True if every entry is in range.
    in_range: bool,
    /// The end in the file of the entry counted last, the end in memory of the last entry that is not empty,
    /// and the length in bytes of the entry counted last.
    file_end: u64,
    memory_end: usize,
    last_len_bytes: usize,
}

impl Default for Joins {
    fn default() -> Self {
        Self {
            file: 0,
            memory: 0,
            file_ascends: true,
            memory_ascends: true,
            in_range: true,
            file_end: 0,
            memory_end: 0,
            last_len_bytes: 0,
        }
    }
}

impl Joins {
    /// Counts an entry. `same_file` is true if the entry before it has the same file.
    #[inline]
    fn count(&mut self, same_file: bool, offset: u64, address: usize, len_bytes: usize) {
        self.file += usize::from(same_file & (offset == self.file_end));
        self.file_ascends &= !same_file | (offset >= self.file_end);
        self.memory += usize::from(address == self.memory_end);
        self.memory_ascends &= (address >= self.memory_end) | (len_bytes == 0);
        self.file_end = offset.wrapping_add(len_bytes as u64);
        // An empty entry may lie anywhere, so it must not hide the end of the entry before it.
        self.memory_end = if len_bytes == 0 { self.memory_end } else { address.wrapping_add(len_bytes) };
        self.last_len_bytes = len_bytes;
    }
}

#[cfg(test)]
mod tests;
