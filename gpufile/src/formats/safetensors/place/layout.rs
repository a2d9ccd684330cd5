//! The places of tensors and slices in one allocation, and the ranges of files that fill it. Nothing is read here.

use std::fmt;
use std::ops::Range;

use super::super::headers::header::TensorInfo;
use super::super::open::catalog::{Catalog, Id};
use super::runs::{Runs, TensorSlice};
use crate::formats::FormatError;

/// The alignment in bytes of everything that is at least as long. Kernels load 16 bytes at once, and some, such as
/// those of 8-bit matrices, refuse other addresses.
const ALIGNMENT: usize = 16;

/// The alignment of the first bytes from a file, as CUDA's allocations have it.
const FILE_ALIGNMENT: usize = 256;

#[derive(Debug)]
pub(in crate::formats::safetensors) struct Place {
    pub id: Id,
    /// `None` for a whole tensor.
    pub slice: Option<TensorSlice>,
    /// In bytes. `0..0` if there are none.
    pub range: Range<usize>,
}

/// Tensors and slices in one allocation.
///
/// Those of at least 16 bytes start at multiples of 16, shorter ones at multiples of their element, and the first of
/// each file at a multiple of 256.
#[derive(Default)]
pub(in crate::formats::safetensors) struct Layout {
    /// In the order of the files, and that of the memory.
    pub places: Vec<Place>,
    pub len_bytes: usize,
    /// The file of the last bytes.
    file: Option<u32>,
}

/// Runs of a file, and their place in memory, where they lie without gaps.
#[derive(Debug)]
pub(in crate::formats::safetensors) struct Fill {
    pub file: u32,
    /// In the file. There is at least one.
    pub runs: Runs,
    /// The start in memory, in bytes.
    pub at: usize,
}

/// Bytes that are adjacent in the file and in memory. All fields are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// The start in the file.
    pub file_offset: u64,
    /// The start in memory.
    pub buffer_offset: usize,
    /// The length.
    pub len_bytes: usize,
}

impl Layout {
    /// Returns the next place, for a tensor that follows all others in the order of the files, or for a slice
    /// of it. `None` beyond the address space.
    pub fn next(
        &self,
        info: &TensorInfo<'_>,
        id: Id,
        slice: Option<TensorSlice>,
    ) -> Result<Option<Place>, FormatError> {
        let len_bytes = match &slice {
            Some(slice) => Runs::of_slice(info, slice.axis, &slice.range)?.len_bytes(),
            None => info.len_bytes(),
        };
        Ok(self.room(info, id.file, len_bytes).map(|range| Place { id, slice, range }))
    }

    /// Returns the next range for bytes of a tensor of this file. `None` beyond the address space.
    pub fn room(&self, info: &TensorInfo<'_>, file: u32, len_bytes: u64) -> Option<Range<usize>> {
        let len_bytes = usize::try_from(len_bytes).ok()?;
        let alignment = match len_bytes {
            0 => return Some(0..0),
            _ if self.file != Some(file) => FILE_ALIGNMENT,
            ALIGNMENT.. => ALIGNMENT,
            _ => info.dtype.size_bits().div_ceil(8) as usize,
        };
        let start = self.len_bytes.checked_next_multiple_of(alignment)?;
        Some(start..start.checked_add(len_bytes)?)
    }

    /// Appends what [`next`](Self::next) returned.
    pub fn push(&mut self, place: Place) {
        self.occupy(place.id.file, &place.range);
        self.places.push(place);
    }

    /// Occupies what [`room`](Self::room) returned.
    pub fn occupy(&mut self, file: u32, range: &Range<usize>) {
        if !range.is_empty() {
            (self.len_bytes, self.file) = (range.end, Some(file));
        }
    }

    pub fn find(&self, id: Id) -> Option<&Place> {
        let found = self.places.binary_search_by_key(&id, |place| place.id).ok()?;
        Some(&self.places[found])
    }

    /// Returns the ranges of files that fill the memory, in its order. Those that are adjacent in both are joined.
    pub fn fills(&self, catalog: &Catalog) -> Vec<Fill> {
        let mut fills: Vec<Fill> = Vec::new();
        for Place { id, slice, range } in self.places.iter().filter(|place| !place.range.is_empty()) {
            let header = catalog.header(id.file);
            let info = header.nth(id.tensor);
            let runs = match slice {
                Some(slice) => Runs::of_slice(&info, slice.axis, &slice.range).expect("checked by next"),
                None => Runs::whole(&info),
            };
            let next = Fill {
                file: id.file,
                runs: runs.behind(header.in_file(info.offsets).start),
                at: range.start,
            };
            next.append_to(&mut fills);
        }
        fills
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors in {} bytes", self.places.len(), self.len_bytes)
    }
}

impl Fill {
    /// Appends this to a list. Joins it to the last element if both are adjacent in the file and in memory.
    pub fn append_to(self, fills: &mut Vec<Self>) {
        match fills.last_mut().filter(|last| last.is_continued_by(&self)) {
            Some(last) => last.runs.run_bytes += self.runs.run_bytes,
            None => fills.push(self),
        }
    }

    /// Returns whether both are single runs, and `next` follows this one in the file and in memory.
    fn is_continued_by(&self, next: &Self) -> bool {
        let is_one = self.runs.count() == 1 && next.runs.count() == 1;
        is_one
            && (self.file, self.in_buffer().end) == (next.file, next.at)
            && self.runs.start + self.runs.run_bytes == next.runs.start
    }

    pub fn in_buffer(&self) -> Range<usize> {
        self.at..self.at + self.runs.len_bytes() as usize
    }

    /// Returns the numbers of the runs that have bytes in this range of the memory.
    pub fn numbers(&self, range: &Range<usize>) -> Range<usize> {
        let Range { start, end } = self.in_buffer();
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from >= to {
            return 0..0;
        }
        let run_bytes = self.runs.run_bytes as usize;
        (from - start) / run_bytes..(to - start).div_ceil(run_bytes)
    }

    /// Returns the parts of the runs that lie in this range of the memory.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = Stretch> {
        self.numbers(&range).map(move |number| {
            let len_bytes = self.runs.run_bytes as usize;
            let start = self.at + number * len_bytes;
            let (from, to) = (range.start.max(start), range.end.min(start + len_bytes));
            let file_offset = self.runs.nth(number as u64) + (from - start) as u64;
            Stretch { file_offset, buffer_offset: from, len_bytes: to - from }
        })
    }
}
