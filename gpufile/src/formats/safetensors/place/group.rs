//! Tensors of one file in memory that the caller allocates, and the reads that fill it.

use std::ops::Range;
use std::sync::Arc;

use super::super::headers::header::{Header, TensorInfo};
use super::super::open::catalog::{Catalog, Id};
use super::super::open::files::ModelFiles;
use super::layout::{Fill, Layout, Stretch};
use super::runs::Runs;
use crate::formats::memory::{addressable, out_of_memory};
use crate::formats::{Error, Result};

/// Tensors of one file and slices of them, or a part of one tensor, in one allocation.
#[derive(Debug)]
pub struct Group {
    catalog: Arc<Catalog>,
    file: u32,
    places: Vec<Member>,
    fills: Vec<Fill>,
}

/// The indices of a part of a tensor along each axis.
pub type Bounds = Vec<Range<u64>>;

#[derive(Debug)]
struct Member {
    id: Id,
    /// `None` for a whole tensor.
    bounds: Option<Bounds>,
    /// The start in the memory, in bytes.
    start: usize,
}

impl Group {
    pub(super) fn new(catalog: Arc<Catalog>, file: u32, layout: Layout) -> Self {
        let fills = layout.fills(&catalog);
        let places = layout.places.into_iter().map(|place| {
            let bounds = place.slice.map(|slice| {
                let shape = catalog.info(place.id).shape.iter();
                let mut bounds: Bounds = shape.map(|&len| 0..len).collect();
                bounds[slice.axis] = slice.range;
                bounds
            });
            Member { id: place.id, bounds, start: place.range.start }
        });
        let places = places.collect();
        Self { catalog, file, places, fills }
    }

    /// Returns the group of all tensors of a header. `None` beyond the address space.
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

    /// Returns the groups of these tensors, or of the elements within these indices along each axis, in the order of the
    /// files. A tensor may have several parts, which keep their order. A group has at most `limit_bytes` bytes, or one
    /// part.
    pub(in crate::formats::safetensors) fn of_parts(
        model: &ModelFiles,
        mut parts: Vec<(Id, Option<Bounds>)>,
        limit_bytes: usize,
    ) -> Result<Vec<Self>> {
        parts.sort_by_key(|(id, _)| *id);
        let mut groups = Vec::new();
        let mut open: Option<(Self, Layout)> = None;
        for (id, bounds) in parts {
            let (path, header) = (model.file(id).path(), model.catalog.header(id.file));
            let info = header.nth(id.tensor);
            let runs = match &bounds {
                Some(bounds) => {
                    Runs::of(&info, bounds).map_err(|error| Error::Format { path: path.to_owned(), error })?
                }
                None => Runs::whole(&info),
            };
            let room = |layout: &Layout| {
                layout.room(&info, id.file, runs.len_bytes()).ok_or_else(|| out_of_memory(path, u64::MAX))
            };
            let continued = match open.take() {
                Some((group, layout)) if group.file == id.file => {
                    let range = room(&layout)?;
                    if range.end <= limit_bytes {
                        Some((group, layout, range))
                    } else {
                        groups.push(group);
                        None
                    }
                }
                other => {
                    groups.extend(other.map(|(group, _)| group));
                    None
                }
            };
            let (mut group, mut layout, range) = match continued {
                Some(continued) => continued,
                None => {
                    let (catalog, layout) = (model.catalog.clone(), Layout::default());
                    let range = room(&layout)?;
                    (Self { catalog, file: id.file, places: Vec::new(), fills: Vec::new() }, layout, range)
                }
            };
            layout.occupy(id.file, &range);
            if !range.is_empty() {
                let runs = runs.behind(header.in_file(info.offsets.clone()).start);
                Fill { file: id.file, runs, at: range.start }.append_to(&mut group.fills);
            }
            group.places.push(Member { id, bounds, start: range.start });
            open = Some((group, layout));
        }
        groups.extend(open.map(|(group, _)| group));
        Ok(groups)
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

    /// Returns the tensors, each with the indices along each axis if it is not whole, and its start in the memory in
    /// bytes.
    pub fn places(&self) -> impl ExactSizeIterator<Item = (TensorInfo<'_>, Option<&[Range<u64>]>, usize)> {
        let places = self.places.iter();
        places.map(|place| (self.catalog.info(place.id), place.bounds.as_deref(), place.start))
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

    /// Returns the end of the longest part of the memory from `start` on that has at most `most_bytes` bytes and
    /// `most_stretches` stretches. Also returns the number of its stretches.
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
