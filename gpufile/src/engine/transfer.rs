//! What is to be transferred.

use std::fmt;
use std::sync::Arc;

use crate::memory::{Memory, Place};
use crate::open_file::{Mapping, OpenFile};

use super::plan::Segment;

/// A range of a file, and where in a buffer its bytes go or come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoRange {
    /// Where the range starts in the file, in bytes.
    pub file_offset: u64,
    /// Where it starts in the buffer, in bytes.
    pub buffer_offset: usize,
    /// How long it is, in bytes.
    pub len_bytes: usize,
}

impl IoRange {
    /// Whether it lies in a buffer of so many bytes, and ends no later than `file_limit`.
    #[inline]
    pub(crate) fn lies_within(&self, buffer_bytes: usize, file_limit: u64) -> bool {
        let (buffer_end, buffer_wraps) = self.buffer_offset.overflowing_add(self.len_bytes);
        let (file_end, file_wraps) = self.file_offset.overflowing_add(self.len_bytes as u64);
        // Without branches, because a transfer may have a million ranges.
        !(buffer_wraps | (buffer_end > buffer_bytes) | file_wraps | (file_end > file_limit))
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
    /// Ranges of one file and one buffer. None may end behind `file_limit`; the plan checks that, and that they lie in the
    /// buffer.
    Ranges { file: &'a OpenFile, memory: Memory, ranges: &'a [IoRange], file_limit: u64 },
    /// Entries with a file and a buffer each, whose ends the kernel can address.
    Each(&'a [Entry<'a>]),
}

impl<'a> Entries<'a> {
    pub fn len(&self) -> usize {
        match self {
            Entries::Ranges { ranges, .. } => ranges.len(),
            Entries::Each(entries) => entries.len(),
        }
    }

    #[inline]
    pub fn get(&self, entry: usize) -> Segment<'a> {
        match *self {
            Entries::Ranges { file, memory, ranges, .. } => {
                Segment::of_range(file, &memory, &ranges[entry], entry)
            }
            Entries::Each(entries) => {
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

    /// The buffer that an entry is part of.
    #[inline]
    pub fn memory(&self, entry: usize) -> &Memory {
        match self {
            Entries::Ranges { memory, .. } => memory,
            Entries::Each(entries) => &entries[entry].memory,
        }
    }

    /// The first range that does not lie where it must.
    pub fn out_of_range(&self) -> Option<usize> {
        match self {
            Entries::Ranges { memory, ranges, file_limit, .. } => {
                ranges.iter().position(|range| !range.lies_within(memory.len_bytes, *file_limit))
            }
            Entries::Each(_) => None,
        }
    }

    /// Where the memory lies, as far as it matters for how transfers are cut: bounce buffers limit the parts of device
    /// memory, and parts of host memory may as well be as short.
    pub fn place(&self) -> Place {
        match self {
            Entries::Ranges { memory, .. } => memory.place,
            Entries::Each(entries) => {
                let mut places = entries.iter().map(|entry| entry.memory.place);
                places.find(|place| *place != Place::Host).unwrap_or(Place::Host)
            }
        }
    }

    /// About how many bytes all entries have: exactly, unless they are very many.
    pub fn total_bytes(&self) -> usize {
        const LOOKED_AT: usize = 64;
        let count = self.len();
        let step = count.div_ceil(LOOKED_AT).max(1);
        let looked_at = (0..count).step_by(step);
        let sum = looked_at.fold(0usize, |sum, entry| sum.saturating_add(self.get(entry).len_bytes));
        sum.saturating_mul(step)
    }
}

/// Which way the bytes go, and by what on the file's side.
#[derive(Clone)]
pub(crate) enum Side {
    /// From the file, by system calls or cuFile.
    Read,
    /// From a mapping of the one file, by copying.
    ReadMapping(Arc<Mapping>),
    /// To the file.
    Write,
    /// To a mapping of the one file where that works, all but the last chunk.
    WriteMapping(Arc<Mapping>),
}

/// What is to be transferred.
#[derive(Clone)]
pub(crate) struct Transfer<'a> {
    pub side: Side,
    pub entries: Entries<'a>,
}

impl Transfer<'_> {
    /// The block device of the first file.
    pub fn device(&self) -> u64 {
        match &self.entries {
            Entries::Ranges { file, .. } => file.device,
            Entries::Each(entries) => entries.first().map_or(0, |entry| entry.file.device),
        }
    }

    pub fn is_read(&self) -> bool {
        matches!(self.side, Side::Read | Side::ReadMapping(_))
    }
}
