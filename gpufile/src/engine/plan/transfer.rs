//! Transfers: the ranges of files, and the memory that their bytes go to or come from.

use std::ops::Range;
#[cfg(test)]
use std::sync::LazyLock;
use std::{fmt, io, ptr};

use crate::direction::Direction;
use crate::error::{Cause, Error, Result};
use crate::memory::{Memory, Place};
use crate::open_file::OpenFile;
use crate::open_file::outcome::{EntryStop, Stop};
use crate::route::trace::{Facts, Request};
use crate::settings::Settings;
use crate::storage::Span;

/// The largest file offset of the kernel, in bytes.
pub(crate) const FILE_LIMIT: u64 = libc::off_t::MAX as u64;

/// A range of a file, and the part of a buffer to or from which its bytes are moved.
///
/// ```
/// use gpufile::{File, IoRange};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, "abcdef")?;
/// let mut buffer = vec![b'-'; 4];
/// let range = IoRange { file_offset: 4, buffer_offset: 1, len_bytes: 2 };
/// File::open(&path)?.read_many(&mut buffer, &[range])?;
/// assert_eq!(buffer, b"-ef-");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoRange {
    /// The start of the range in the file, in bytes.
    pub file_offset: u64,
    /// The start of the range in the buffer, in bytes.
    pub buffer_offset: usize,
    /// The length of the range, in bytes.
    pub len_bytes: usize,
}

/// Returns the error beyond the [limit](FILE_LIMIT).
pub(crate) fn beyond_limit() -> Cause {
    io::Error::from_raw_os_error(libc::EOVERFLOW).into()
}

impl IoRange {
    /// Returns whether the range lies in a buffer of `buffer_bytes` bytes, and where the kernel can address it.
    #[inline]
    pub(crate) fn lies_within(&self, buffer_bytes: usize) -> bool {
        let (buffer_end, buffer_wraps) = self.buffer_offset.overflowing_add(self.len_bytes);
        let (file_end, file_wraps) = self.file_offset.overflowing_add(self.len_bytes as u64);
        // This code has no branches, because a transfer may have a million ranges.
        !(buffer_wraps | (buffer_end > buffer_bytes) | file_wraps | (file_end > FILE_LIMIT))
    }
}

impl IoRange {
    /// Returns why the range does not [lie within](Self::lies_within) the buffer.
    #[cold]
    fn refusal(&self, buffer_bytes: usize) -> Cause {
        let Self { file_offset, buffer_offset, len_bytes } = *self;
        match file_offset.checked_add(len_bytes as u64) {
            Some(end) if end <= FILE_LIMIT => Cause::Invalid(format!(
                "its memory starts at byte {buffer_offset} and exceeds the buffer of {buffer_bytes} bytes"
            )),
            _ => beyond_limit(),
        }
    }
}

/// A part of one entry: bytes of a file, and their memory.
#[derive(Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub file: &'a OpenFile,
    pub offset: u64,
    pub ptr: *mut u8,
    pub len_bytes: usize,
    pub entry: usize,
}

impl<'a> Segment<'a> {
    /// Returns the segment of a whole range.
    #[inline]
    pub fn of_range(file: &'a OpenFile, memory: &Memory, range: &IoRange, entry: usize) -> Self {
        Self {
            file,
            offset: range.file_offset,
            ptr: memory.ptr.wrapping_add(range.buffer_offset),
            len_bytes: range.len_bytes,
            entry,
        }
    }

    /// Returns the span of these bytes, for a transfer through a mapping of the file.
    pub fn span(&self) -> Span {
        Span { offset: self.offset, len_bytes: self.len_bytes, ptr: self.ptr }
    }
}

/// One entry of a transfer over several files or buffers.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub file: &'a OpenFile,
    pub offset: u64,
    pub memory: Memory,
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, offset, len_bytes) = (&self.file.path, self.offset, self.memory.len_bytes);
        write!(f, "{len_bytes} bytes at {offset} of {path:?}")
    }
}

/// The entries of a transfer.
#[derive(Clone, Copy)]
pub(crate) enum Entries<'a> {
    /// Ranges of one file and one buffer. `Chunks` checks that they [lie within](IoRange::lies_within) it.
    Ranges { file: &'a OpenFile, memory: Memory, ranges: &'a [IoRange] },
    /// Entries with a file and a buffer each. The kernel can address their ends.
    Requests(&'a [Entry<'a>]),
}

impl<'a> Entries<'a> {
    /// Returns the file of the entries, if there is only one.
    pub fn only_file(&self) -> Option<&'a OpenFile> {
        match *self {
            Entries::Ranges { file, .. } => Some(file),
            Entries::Requests([first, others @ ..])
                if others.iter().all(|entry| ptr::eq(entry.file, first.file)) =>
            {
                Some(first.file)
            }
            Entries::Requests(_) => None,
        }
    }

    /// Returns some of the entries.
    pub fn part(&self, range: Range<usize>) -> Self {
        match *self {
            Entries::Ranges { file, memory, ranges } => {
                Entries::Ranges { file, memory, ranges: &ranges[range] }
            }
            Entries::Requests(entries) => Entries::Requests(&entries[range]),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Entries::Ranges { ranges, .. } => ranges.len(),
            Entries::Requests(entries) => entries.len(),
        }
    }

    pub fn lens(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).map(|entry| self.get(entry).len_bytes)
    }

    #[inline]
    pub fn get(&self, entry: usize) -> Segment<'a> {
        match *self {
            Entries::Ranges { file, memory, ranges, .. } => {
                Segment::of_range(file, &memory, &ranges[entry], entry)
            }
            Entries::Requests(entries) => {
                let one = &entries[entry];
                Segment {
                    file: one.file,
                    offset: one.offset,
                    ptr: one.memory.ptr,
                    len_bytes: one.memory.len_bytes,
                    entry,
                }
            }
        }
    }

    #[inline]
    pub fn memory(&self, entry: usize) -> &Memory {
        match self {
            Entries::Ranges { memory, .. } => memory,
            Entries::Requests(entries) => &entries[entry].memory,
        }
    }

    /// Returns the first range that is out of range.
    pub fn out_of_range(&self) -> Option<EntryStop> {
        let Entries::Ranges { memory, ranges, .. } = self else { return None };
        let entry = ranges.iter().position(|range| !range.lies_within(memory.len_bytes));
        entry.and_then(|entry| self.refusal(entry))
    }

    pub fn refusal(&self, entry: usize) -> Option<EntryStop> {
        match self {
            Entries::Ranges { memory, ranges, .. } if !ranges[entry].lies_within(memory.len_bytes) => {
                Some(EntryStop::refused(entry, ranges[entry].refusal(memory.len_bytes)))
            }
            _ => None,
        }
    }

    pub fn overlaps(&self, other: usize) -> Cause {
        Cause::Invalid(format!("its memory overlaps the memory of entry {other}"))
    }

    /// Returns the error of the entry that stopped.
    #[cold]
    pub fn error(&self, direction: Direction, EntryStop { entry, stop }: EntryStop) -> Error {
        let Segment { file, offset, len_bytes, .. } = self.get(entry);
        file.error(direction, offset, len_bytes, stop)
    }

    #[cold]
    pub fn error_of_list(&self, direction: Direction, stop: EntryStop) -> Error {
        Error::Entry { entry: stop.entry, error: Box::new(self.error(direction, stop)) }
    }

    /// Returns the outcome of one entry that stopped. A read may be short at the end of the file.
    pub fn outcome(&self, direction: Direction, stop: EntryStop) -> Result<usize> {
        match stop.stop {
            Stop { done_bytes, cause: None } if direction == Direction::Read => Ok(done_bytes),
            _ => Err(self.error(direction, stop)),
        }
    }

    /// Returns the place that decides how the transfer is cut: a GPU if any of the memory is on one. Bounce buffers limit
    /// its chunks; those of host memory may be as short.
    pub fn place(&self) -> Place {
        match self {
            Entries::Ranges { memory, .. } => memory.place,
            Entries::Requests(entries) => {
                let mut places = entries.iter().map(|entry| entry.memory.place);
                places.find(|place| *place != Place::Host).unwrap_or(Place::Host)
            }
        }
    }

    /// Returns the GPUs of the memory. Each has the bit of its ordinal; those from 63 on share a bit.
    pub fn gpus(&self) -> u64 {
        let bit = |place| match place {
            Place::Host => 0,
            Place::Device(ordinal) => 1 << ordinal.min(u64::BITS - 1),
        };
        match self {
            Entries::Ranges { memory, .. } => bit(memory.place),
            Entries::Requests(entries) => {
                entries.iter().fold(0, |gpus, entry| gpus | bit(entry.memory.place))
            }
        }
    }

    /// Returns the number of bytes of all entries. Estimates it for more than 64 entries.
    pub fn total_bytes(&self) -> usize {
        const LOOKED_AT: usize = 64;
        let count = self.len();
        let step = count.div_ceil(LOOKED_AT).max(1);
        let looked_at = (0..count).step_by(step);
        let sum = looked_at.fold(0usize, |sum, entry| sum.saturating_add(self.get(entry).len_bytes));
        sum.saturating_mul(step)
    }
}

/// The request of one call.
#[derive(Clone)]
pub(crate) struct Transfer<'a> {
    pub direction: Direction,
    pub entries: Entries<'a>,
    pub settings: &'a Settings,
    pub choices: Choices,
}

/// The choices of a caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choices {
    /// The length of the chunks in bytes, if the caller set it.
    pub chunk_bytes: Option<usize>,
    pub growth: Growth,
    /// True if the calling thread carries out the transfer alone.
    pub is_inline: bool,
    /// True if each entry has an outcome, so that an entry that stops does not stop the others.
    pub each: bool,
}

/// The means by which a file becomes longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// The engine may allocate blocks before the write begins, which takes time.
    MayAllocate,
    /// The engine may do so, but the call writes other files too.
    BesideOthers,
    /// The write alone lengthens the file.
    AsWritten,
}

impl<'a> Transfer<'a> {
    pub fn of_file(
        direction: Direction,
        file: &'a OpenFile,
        memory: Memory,
        ranges: &'a [IoRange],
        choices: Choices,
    ) -> Self {
        let entries = Entries::Ranges { file, memory, ranges };
        Self { direction, entries, settings: &file.settings, choices }
    }

    pub fn each(self) -> Self {
        Self { choices: Choices { each: true, ..self.choices }, ..self }
    }

    /// Returns the outcomes of all entries. `stops` may have several of one entry.
    pub fn outcomes(&self, stops: Vec<EntryStop>) -> Vec<Result<usize>> {
        let mut outcomes: Vec<_> = self.entries.lens().map(Ok).collect();
        for (entry, outcome) in self.incomplete(stops) {
            outcomes[entry] = outcome;
        }
        outcomes
    }

    /// Returns the numbers and the outcomes of the entries that stopped, in their order. `stops` may have several of one
    /// entry.
    pub fn incomplete(&self, mut stops: Vec<EntryStop>) -> impl Iterator<Item = (usize, Result<usize>)> {
        // The chunks of a long entry stop one by one. The first counts.
        stops.sort_by_key(|stop| (stop.entry, stop.stop.done_bytes));
        stops.dedup_by_key(|stop| stop.entry);
        stops.into_iter().map(|stop| (stop.entry, self.entries.outcome(self.direction, stop)))
    }

    /// Returns the only GPU of a read, and its bytes as [`total_bytes`](Entries::total_bytes) has them.
    pub fn gpu_read(&self) -> Option<(Place, usize)> {
        let is_one = self.direction == Direction::Read && self.entries.gpus().is_power_of_two();
        is_one.then(|| (self.entries.place(), self.entries.total_bytes()))
    }

    /// Returns whether the caller or the settings chose the length of the chunks.
    pub fn has_asked_lengths(&self) -> bool {
        self.choices.chunk_bytes.or(self.settings.chunk_bytes).is_some()
    }
}

impl Transfer<'_> {
    /// Begins the span of the transfer.
    pub fn request(&self) -> Request {
        Request::begin(|| {
            let (entries, place) = (&self.entries, self.entries.place());
            let bytes = entries.lens().map(|len_bytes| len_bytes as u64).sum();
            let route =
                if entries.len() == 0 { Request::HOST } else { entries.get(0).file.route_word(place) };
            Facts { direction: self.direction, bytes, ranges: entries.len(), route }
        })
    }
}

/// The text of a transfer for profilers.
impl fmt::Display for Transfer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.direction.verb();
        match self.entries.len() {
            1 => write!(f, "gpufile: {verb} of {} bytes", self.entries.get(0).len_bytes),
            count => write!(f, "gpufile: {verb} of {count} ranges"),
        }
    }
}

#[cfg(test)]
impl<'a> Transfer<'a> {
    pub fn for_test(direction: Direction, entries: Entries<'a>) -> Self {
        static SETTINGS: LazyLock<Settings> = LazyLock::new(Settings::default);
        let choices =
            Choices { chunk_bytes: None, growth: Growth::MayAllocate, is_inline: false, each: false };
        Self { direction, entries, settings: &SETTINGS, choices }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(place: Place, len_bytes: usize) -> Memory {
        let mut memory = Memory::on_host(std::ptr::dangling_mut(), len_bytes);
        memory.place = place;
        memory
    }

    fn a_file() -> OpenFile {
        OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default())
    }

    #[test]
    fn range_checks_cover_buffer_and_file() {
        const BUFFER: usize = 1000;
        const FILE: u64 = FILE_LIMIT;
        // The offsets of ranges of 10 bytes, in the buffer and in the file.
        let in_buffer = [(0, true), (990, true), (991, false), (usize::MAX - 9, false), (usize::MAX, false)];
        let in_file =
            [(0, true), (FILE - 10, true), (FILE - 9, false), (u64::MAX - 9, false), (u64::MAX, false)];
        for (buffer_offset, buffer_fits) in in_buffer {
            for (file_offset, file_fits) in in_file {
                let range = IoRange { file_offset, buffer_offset, len_bytes: 10 };
                assert_eq!(range.lies_within(BUFFER), buffer_fits && file_fits, "{range:?}");
            }
        }
        let none = IoRange { file_offset: FILE, buffer_offset: BUFFER, len_bytes: 0 };
        assert!(none.lies_within(BUFFER));
    }

    #[test]
    fn entries_have_sizes_places_and_files() {
        let file = &a_file();
        let range = |buffer_offset| IoRange { file_offset: 0, buffer_offset, len_bytes: 10 };
        let ranges = [range(0), range(91), range(90)];
        let entries = Entries::Ranges { file, memory: memory(Place::Host, 100), ranges: &ranges };
        assert_eq!(
            (entries.len(), entries.total_bytes(), entries.out_of_range().map(|stop| stop.entry)),
            (3, 30, Some(1))
        );
        let entries = Entries::Ranges { file, memory: memory(Place::Host, 101), ranges: &ranges };
        assert!(entries.place() == Place::Host && entries.out_of_range().is_none());

        let entry = |len_bytes| Entry { file, offset: 0, memory: memory(Place::Host, len_bytes) };
        let each = [entry(1), entry(20), entry(300)];
        let entries = Entries::Requests(&each);
        assert_eq!((entries.len(), entries.total_bytes()), (3, 321));
        assert!(entries.out_of_range().is_none());
        assert_eq!((entries.place(), entries.memory(1).len_bytes), (Place::Host, 20));
        let mixed = [entry(1), Entry { memory: memory(Place::Device(3), 1), ..entry(1) }];
        assert_eq!(Entries::Requests(&mixed).place(), Place::Device(3));
        // The number is an estimate for more than 64 entries.
        let many = vec![entry(7); 1000];
        let total = Entries::Requests(&many).total_bytes();
        assert!((7000..7200).contains(&total), "{total}");
    }
}
