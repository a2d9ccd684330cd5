//! Tensors of one file in memory that the caller allocates, and the reads that fill it.

use std::ops::Range;
use std::sync::Arc;

use super::super::headers::header::{Header, TensorInfo};
use super::super::open::catalog::{Catalog, Id};
use super::super::open::files::ModelFiles;
use super::layout::{Fill, Layout, Place, Stretch};
use super::runs::{Runs, TensorSlice};
use crate::formats::memory::addressable;
use crate::formats::{Error, Result};

/// Tensors of one file and slices of them, or a part of one tensor, in one allocation.
#[derive(Debug)]
pub struct Group {
    catalog: Arc<Catalog>,
    file: u32,
    places: Vec<Place>,
    fills: Vec<Fill>,
}

impl Group {
    pub(super) fn new(catalog: Arc<Catalog>, file: u32, layout: Layout) -> Self {
        let fills = layout.fills(&catalog);
        Self { catalog, file, places: layout.places, fills }
    }

    /// Returns the group of all tensors of a header. Returns `None` if they have more bytes than an address space.
    pub fn of_header(header: Header) -> Option<Self> {
        let catalog = Catalog::new(vec![header]).expect("one header has no name twice");
        let mut layout = Layout::default();
        for id in catalog.ids() {
            let place = layout.next(&catalog.info(id), id, None).expect("whole tensors have whole bytes")?;
            layout.push(place);
        }
        Some(Self::new(Arc::new(catalog), 0, layout))
    }

    /// Returns the group of the elements of a tensor within these indices along each axis. It has no
    /// [`places`](Self::places).
    ///
    /// # Errors
    /// [`Error::Format`], [`Error::Memory`].
    pub(in crate::formats::safetensors) fn of_part(
        model: &ModelFiles,
        id: Id,
        bounds: &[Range<u64>],
    ) -> Result<Self> {
        let (path, header) = (model.file(id).path(), model.catalog.header(id.file));
        let info = header.nth(id.tensor);
        let runs = Runs::of(&info, bounds).map_err(|error| Error::Format { path: path.to_owned(), error })?;
        let len_bytes = addressable(path, runs.len_bytes())?;
        let fill = Fill { file: id.file, runs: runs.behind(header.in_file(info.offsets).start), at: 0 };
        let fills = if len_bytes == 0 { Vec::new() } else { vec![fill] };
        Ok(Self { catalog: model.catalog.clone(), file: id.file, places: Vec::new(), fills })
    }

    /// Returns the number of the file.
    pub fn file(&self) -> usize {
        self.file as usize
    }

    /// Returns the header of the file.
    pub fn header(&self) -> &Header {
        self.catalog.header(self.file)
    }

    /// Returns the number of bytes that the memory needs.
    pub fn len_bytes(&self) -> usize {
        self.fills.last().map_or(0, |fill| fill.in_buffer().end)
    }

    /// Returns the tensors, each with the slice if it is not whole, and its start in the memory in bytes.
    pub fn places(&self) -> impl ExactSizeIterator<Item = (TensorInfo<'_>, Option<&TensorSlice>, usize)> {
        let places = self.places.iter();
        places.map(|place| (self.catalog.info(place.id), place.slice.as_ref(), place.range.start))
    }

    /// Returns the only stretch, if there is only one.
    pub fn only_stretch(&self) -> Option<Stretch> {
        match &self.fills[..] {
            [fill] if fill.runs.count() == 1 => fill.within(fill.in_buffer()).next(),
            _ => None,
        }
    }

    /// Returns the parts of the stretches that lie in this range of the memory.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = Stretch> {
        self.fills_of(range.clone()).flat_map(move |fill| fill.within(range.clone()))
    }

    /// Returns the end of the longest part of the memory from `start` on that has at most so many bytes and stretches.
    /// Also returns the number of its stretches.
    pub fn step(&self, start: usize, most_bytes: usize, most_stretches: usize) -> (usize, usize) {
        let stop = start.saturating_add(most_bytes).min(self.len_bytes());
        let mut left = most_stretches;
        for fill in self.fills_of(start..stop) {
            let numbers = fill.numbers(&(start..stop));
            if numbers.len() > left {
                let reached = fill.at + (numbers.start + left) * fill.runs.run_bytes as usize;
                return (reached.max(start), most_stretches);
            }
            left -= numbers.len();
        }
        (stop, most_stretches - left)
    }

    /// Returns the most stretches that one read may have: enough to keep the engine busy, or those of whole tensors.
    pub fn most_stretches(&self) -> usize {
        (1 << 18).max(self.fills.len())
    }

    fn fills_of(&self, range: Range<usize>) -> impl Iterator<Item = &Fill> {
        let first = self.fills.partition_point(|fill| fill.in_buffer().end <= range.start);
        self.fills[first..].iter().take_while(move |fill| fill.at < range.end)
    }
}
