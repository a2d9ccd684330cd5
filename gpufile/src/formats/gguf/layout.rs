//! The places of tensors in one allocation, and the ranges of files that fill it. Nothing is read here.

use std::ops::Range;

use super::catalog::{Catalog, Id};

/// The least alignment in bytes. Kernels load 16 bytes at once.
const LEAST_ALIGNMENT: u64 = 16;

/// The most alignment in bytes. A file may ask for gigabytes.
const MOST_ALIGNMENT: u64 = 4096;

/// The alignment of the first bytes from a file, as CUDA's allocations have it.
const FILE_ALIGNMENT: usize = 256;

/// A tensor in memory. The range is in bytes, and `0..0` if there are none.
#[derive(Debug)]
pub(super) struct Place {
    pub id: Id,
    pub range: Range<usize>,
}

/// A range of a file, and the range of the memory that it fills. Both have the same length.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fill {
    pub file: u32,
    pub start: u64,
    pub in_buffer: Range<usize>,
}

/// Tensors in one allocation, in the order of the files.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub places: Vec<Place>,
    pub fills: Vec<Fill>,
    pub len_bytes: usize,
}

impl Layout {
    /// Returns the layout of these tensors, which are in the order of the files. `None` beyond the address
    /// space.
    pub fn of(catalog: &Catalog, ids: impl IntoIterator<Item = Id>) -> Option<Self> {
        let mut layout = Self::default();
        for id in ids {
            let info = catalog.info(id);
            let len_bytes = usize::try_from(info.len_bytes()).ok()?;
            let mut range = 0..0;
            if len_bytes > 0 {
                let alignment = catalog.header(id.file).alignment().clamp(LEAST_ALIGNMENT, MOST_ALIGNMENT);
                range = layout.room(id.file, alignment as usize, len_bytes)?;
                layout.fill(id.file, info.range.start, range.clone());
            }
            layout.places.push(Place { id, range });
        }
        Some(layout)
    }

    fn room(&self, file: u32, alignment: usize, len_bytes: usize) -> Option<Range<usize>> {
        let is_first = self.fills.last().is_none_or(|last| last.file != file);
        let alignment = if is_first { FILE_ALIGNMENT.max(alignment) } else { alignment };
        let start = self.len_bytes.checked_next_multiple_of(alignment)?;
        Some(start..start.checked_add(len_bytes)?)
    }

    /// Fills a range of the memory. If the gap before it is the same in the file and in memory, it is read too, so that
    /// adjacent tensors are one range.
    fn fill(&mut self, file: u32, start: u64, in_buffer: Range<usize>) {
        self.len_bytes = in_buffer.end;
        let joins = |last: &&mut Fill| {
            last.file == file && start - last.start == (in_buffer.start - last.in_buffer.start) as u64
        };
        match self.fills.last_mut().filter(joins) {
            Some(last) => last.in_buffer.end = in_buffer.end,
            None => self.fills.push(Fill { file, start, in_buffer }),
        }
    }

    pub fn find(&self, id: Id) -> Option<&Place> {
        let found = self.places.binary_search_by_key(&id, |place| place.id).ok()?;
        Some(&self.places[found])
    }

    pub fn read_bytes(&self) -> u64 {
        self.fills.iter().map(|fill| fill.in_buffer.len() as u64).sum()
    }
}
