//! How a transfer is cut into chunks.
//!
//! All entries of a transfer, one after the other, count as one sequence of bytes, and a chunk is a stretch of it: a part
//! of a large range, or many small ranges that share a bounce buffer. The order of the entries is chosen so that
//! neighbours in memory or in the file come together.

use super::{Cutting, Transfer};
use crate::memory::Place;
use crate::open_file::OpenFile;

/// A part of one entry: bytes of a file, and where they lie in memory.
#[derive(Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub file: &'a OpenFile,
    pub offset: u64,
    pub ptr: *mut u8,
    pub len_bytes: usize,
    /// The entry's number as the caller gave it.
    pub entry: usize,
}

/// Where a chunk begins: so many bytes into an entry, counted in the chosen order.
#[derive(Clone, Copy)]
struct Cut {
    at: usize,
    skip_bytes: usize,
}

/// The chunks of a transfer. Keeps its memory when it is made anew.
#[derive(Default)]
pub(crate) struct Plan {
    /// The numbers of the entries in the chosen order; empty if that is the caller's.
    order: Vec<u32>,
    /// The beginnings of the chunks, and the end.
    cuts: Vec<Cut>,
    keys: Vec<(usize, u64, u32)>,
}

/// Two entries write the same memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overlap(pub usize, pub usize);

/// File offsets at which large ranges are cut are multiples of this, so that O_DIRECT needs no over-read there.
const CUT_ALIGNMENT: u64 = 4096;

impl Plan {
    /// Orders the entries and cuts them into chunks.
    ///
    /// # Errors
    /// That two entries of a read overlap in memory.
    pub fn make(&mut self, transfer: &Transfer<'_>, cutting: &Cutting) -> Result<(), Overlap> {
        self.order.clear();
        // Most often the caller's order is good, which shows while cutting.
        let given = self.cut(transfer, cutting);
        if transfer.entries.len() > 1 && self.sort(transfer, &given)? {
            self.cut(transfer, cutting);
        }
        Ok(())
    }

    pub fn chunks(&self) -> usize {
        self.cuts.len() - 1
    }

    /// The parts of entries that make up a chunk, in order.
    pub fn segments<'p>(
        &'p self,
        transfer: &'p Transfer<'p>,
        chunk: usize,
    ) -> impl Iterator<Item = Segment<'p>> {
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

    /// Where a chunk's memory lies, which is the same for all of it.
    pub fn place(&self, transfer: &Transfer<'_>, chunk: usize) -> Place {
        transfer.entries.memory(self.entry(self.cuts[chunk].at)).place
    }

    /// The entry that `bytes` bytes into a chunk belongs to, and how many of the entry's bytes come before.
    pub fn locate(&self, transfer: &Transfer<'_>, chunk: usize, bytes: usize) -> (usize, usize) {
        let mut left = bytes;
        for segment in self.segments(transfer, chunk) {
            if left < segment.len_bytes {
                let entry = transfer.entries.get(segment.entry);
                return (segment.entry, segment.ptr.addr() - entry.ptr.addr() + left);
            }
            left -= segment.len_bytes;
        }
        unreachable!("a chunk stops before its end");
    }

    fn entry(&self, at: usize) -> usize {
        self.order.get(at).map_or(at, |entry| *entry as usize)
    }

    /// Chooses another order than the caller's if that is better, and says whether it did.
    fn sort(&mut self, transfer: &Transfer<'_>, given: &Joins) -> Result<bool, Overlap> {
        if given.memory_ascends && (given.memory >= given.file || given.file_ascends) {
            return Ok(false);
        }
        self.sort_by(transfer, |segment| (0, segment.ptr.addr() as u64));
        let mut by_memory = Joins::default();
        for entry in &self.order {
            by_memory.count(&transfer.entries.get(*entry as usize));
        }
        if transfer.is_read() && !by_memory.memory_ascends {
            return Err(self.overlap(transfer));
        }
        // A copy to the GPU costs more than a read from the page cache, so that memory decides unless the file gains.
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

    /// The first two entries, ordered by memory, of which one begins within the other.
    #[cold]
    fn overlap(&self, transfer: &Transfer<'_>) -> Overlap {
        let mut before: Option<Segment<'_>> = None;
        for entry in &self.order {
            let segment = transfer.entries.get(*entry as usize);
            if segment.len_bytes == 0 {
                continue;
            }
            if let Some(before) =
                before.filter(|before| before.ptr.addr() + before.len_bytes > segment.ptr.addr())
            {
                return Overlap(before.entry.min(segment.entry), before.entry.max(segment.entry));
            }
            before = Some(segment);
        }
        unreachable!("the entries overlap")
    }

    /// Cuts the entries, in the order chosen so far, and counts their joins on the way.
    fn cut(&mut self, transfer: &Transfer<'_>, cutting: &Cutting) -> Joins {
        self.cuts.clear();
        self.cuts.push(Cut { at: 0, skip_bytes: 0 });
        let count = transfer.entries.len();
        let mut joins = Joins::default();
        let mut room = cutting.chunk_len(0);
        let mut place = None;
        for at in 0..count {
            let segment = transfer.entries.get(self.entry(at));
            joins.count(&segment);
            let its_place = transfer.entries.memory(segment.entry).place;
            if place.is_some_and(|place| place != its_place)
                && self.cuts.last().is_some_and(|cut| cut.at < at)
            {
                self.cuts.push(Cut { at, skip_bytes: 0 });
                room = cutting.chunk_len(self.cuts.len() - 1);
            }
            place = Some(its_place);
            let mut skip_bytes = 0;
            while segment.len_bytes - skip_bytes > room {
                let end = segment.offset + (skip_bytes + room) as u64;
                let beyond = (end % CUT_ALIGNMENT) as usize;
                skip_bytes += if beyond < room { room - beyond } else { room };
                self.cuts.push(Cut { at, skip_bytes });
                room = cutting.chunk_len(self.cuts.len() - 1);
            }
            room -= segment.len_bytes - skip_bytes;
            let held_back = cutting.last_bytes;
            if held_back > 0 && at + 1 == count && segment.len_bytes - skip_bytes > held_back {
                self.cuts.push(Cut { at, skip_bytes: segment.len_bytes - held_back });
            }
        }
        self.cuts.push(Cut { at: count, skip_bytes: 0 });
        joins
    }
}

/// How many entries continue where the one before them ended, and whether all follow each other.
struct Joins {
    file: usize,
    memory: usize,
    file_ascends: bool,
    /// Each entry begins behind the end of the one before, so that none overlap.
    memory_ascends: bool,
    /// Of the entry counted last: its file, and where it ends.
    before: (*const OpenFile, u64, usize),
}

impl Default for Joins {
    fn default() -> Self {
        Self {
            file: 0,
            memory: 0,
            file_ascends: true,
            memory_ascends: true,
            before: (std::ptr::null(), 0, 0),
        }
    }
}

impl Joins {
    #[inline]
    fn count(&mut self, segment: &Segment<'_>) {
        let (file, file_end, memory_end) = self.before;
        let same_file = std::ptr::eq(file, segment.file);
        let address = segment.ptr.addr();
        self.file += usize::from(same_file && segment.offset == file_end);
        self.file_ascends &= !same_file || segment.offset >= file_end;
        self.memory += usize::from(address == memory_end);
        self.memory_ascends &= address >= memory_end || segment.len_bytes == 0;
        self.before = (segment.file, segment.offset + segment.len_bytes as u64, address + segment.len_bytes);
    }
}
