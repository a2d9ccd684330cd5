//! The chunks of an array: those that meet a region, and their extents.

use std::ops::Range;

use zarrs::array::DataType;
use zarrs::storage::StoreKey;

use super::error::ZarrError;
use super::store::FileStore;
use crate::formats::dtype::array_bits;

pub(super) type ZarrsArray = zarrs::array::Array<FileStore>;

/// The most bytes of an array. As many fit into a Rust allocation, and no sum of two indices overflows.
const MAX_ARRAY_BYTES: u64 = i64::MAX as u64;

/// The most bytes that a chunk may have. zarrs multiplies the number of its elements by small numbers.
const MAX_CHUNK_BYTES: u64 = 1 << 48;

#[derive(Debug, Clone, Copy)]
pub(super) struct Element {
    pub bytes: usize,
    /// The length of the numbers in it that have a byte order, or 1.
    pub number_bytes: usize,
}

pub(super) fn element(array: &ZarrsArray) -> Result<Element, ZarrError> {
    let data_type = array.data_type();
    let bytes = match data_type.fixed_size() {
        Some(0) => return Err(ZarrError::Unsupported { what: "elements without bytes" }),
        Some(bytes) => bytes,
        None => return Err(ZarrError::Unsupported { what: "elements of different lengths" }),
    };
    let number_bytes = match data_type {
        DataType::RawBits(_) => 1,
        DataType::Extension(_) => return Err(ZarrError::Unsupported { what: "data types of other crates" }),
        _ if data_type.name().starts_with("complex") => bytes / 2,
        _ => bytes,
    };
    Ok(Element { bytes, number_bytes })
}

pub(super) fn array_bytes(array: &ZarrsArray, element: Element) -> Result<u64, ZarrError> {
    size("the array", array.shape(), element.bytes, MAX_ARRAY_BYTES)
}

pub(super) fn chunk_bytes(shape: &[u64], element: Element) -> Result<u64, ZarrError> {
    size("a chunk", shape, element.bytes, MAX_CHUNK_BYTES)
}

fn size(what: &'static str, shape: &[u64], element_bytes: usize, limit_bytes: u64) -> Result<u64, ZarrError> {
    // An axis of length 0 must not hide that the others are too long.
    let without_zeros: Vec<_> = shape.iter().map(|&axis| axis.max(1)).collect();
    let most = array_bits(&without_zeros, element_bytes as u128 * 8).map(|bits| (bits / 8) as u64);
    match most.filter(|&most| most <= limit_bytes) {
        Some(_) if shape.contains(&0) => Ok(0),
        Some(most) => Ok(most),
        None => Err(ZarrError::SizeOverflow { what, limit_bytes }),
    }
}

/// Returns the number of bytes of the longest chunk, if the grid is one of zarrs.
///
/// Checks the lengths of chunks that a grid lists, because zarrs adds and multiplies them unchecked. Where a sum
/// wraps around, chunks overlap or lie outside of the array.
pub(super) fn longest_chunk_bytes(array: &ZarrsArray, element: Element) -> Result<u64, ZarrError> {
    let metadata = array.chunk_grid().create_metadata();
    let axes =
        metadata.configuration().and_then(|configuration| configuration.get("chunk_shape")?.as_array());
    let mut longest = Vec::new();
    for axis in axes.into_iter().flatten() {
        let lens = axis.as_array().map_or(std::slice::from_ref(axis), Vec::as_slice);
        let lens = lens.iter().map(|len| len.as_u64().unwrap_or(u64::MAX));
        lens.clone().try_fold(0u64, u64::checked_add).ok_or(NO_GRID)?;
        longest.push(lens.max().unwrap_or(0));
    }
    chunk_bytes(&longest, element)
}

/// The start of a chunk, and its length along each axis, including the part beyond the array.
#[derive(Debug, Clone)]
pub(super) struct Extent {
    pub origin: Vec<u64>,
    pub shape: Vec<u64>,
    pub len_bytes: u64,
}

impl Extent {
    pub fn of(array: &ZarrsArray, indices: &[u64], element: Element) -> Result<Self, ZarrError> {
        let grid = array.chunk_grid();
        match (grid.chunk_origin(indices), grid.chunk_shape_u64(indices)) {
            (Ok(Some(origin)), Ok(Some(shape))) => {
                let len_bytes = chunk_bytes(&shape, element)?;
                Ok(Self { origin, shape, len_bytes })
            }
            _ => Err(NO_GRID),
        }
    }

    /// Returns the extent itself, if it has an element in the region, and its end can be counted.
    pub fn meeting(self, region: &[Range<u64>]) -> Result<Self, ZarrError> {
        let meets = |((&origin, &len), wanted): ((&u64, &u64), &Range<u64>)| {
            origin < wanted.end && origin.checked_add(len).is_some_and(|end| end > wanted.start)
        };
        if self.origin.iter().zip(&self.shape).zip(region).all(meets) { Ok(self) } else { Err(NO_GRID) }
    }

    /// Returns the extent of the chunk that has the element at these indices.
    pub fn at(array: &ZarrsArray, at: &[u64], element: Element) -> Result<Self, ZarrError> {
        let Ok(Some(indices)) = array.chunk_grid().chunk_indices(at) else { return Err(NO_GRID) };
        Self::of(array, &indices, element)
    }

    /// Returns the length in bytes of runs in a region with such chunks, except at the region's edges.
    pub fn usual_run_bytes(&self, region: &[Range<u64>], element_bytes: usize) -> usize {
        let mut run_bytes = element_bytes;
        for (&chunk_len, wanted) in self.shape.iter().zip(region).rev() {
            let region_len = wanted.end - wanted.start;
            run_bytes = run_bytes.saturating_mul(chunk_len.min(region_len) as usize);
            if chunk_len != region_len {
                break;
            }
        }
        run_bytes
    }
}

const NO_GRID: ZarrError = ZarrError::Unsupported { what: "chunk grids without chunks for some elements" };

/// The chunks that have elements in a region, in C order.
#[derive(Debug)]
pub(super) struct Chunks<'a> {
    array: &'a ZarrsArray,
    first: Vec<u64>,
    counts: Vec<u64>,
}

impl<'a> Chunks<'a> {
    /// Returns the chunks of a region, which must not be empty.
    pub fn meeting(array: &'a ZarrsArray, region: &[Range<u64>]) -> Result<Self, ZarrError> {
        let start: Vec<_> = region.iter().map(|wanted| wanted.start).collect();
        let last: Vec<_> = region.iter().map(|wanted| wanted.end - 1).collect();
        let grid = array.chunk_grid();
        let (Ok(Some(first)), Ok(Some(last))) = (grid.chunk_indices(&start), grid.chunk_indices(&last))
        else {
            return Err(NO_GRID);
        };
        let counts = first.iter().zip(&last).map(|(first, last)| last - first + 1).collect();
        Ok(Self { array, first, counts })
    }

    /// Returns the number of chunks. It is at most the number of elements of the region.
    pub fn count(&self) -> u64 {
        self.counts.iter().product()
    }

    pub fn indices(&self, mut number: u64) -> Vec<u64> {
        let mut indices = self.first.clone();
        for (index, count) in indices.iter_mut().zip(&self.counts).rev() {
            *index += number % count;
            number /= count;
        }
        indices
    }

    pub fn key(&self, indices: &[u64]) -> StoreKey {
        self.array.chunk_key(indices)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "a region of one axis")]

    use super::*;

    #[test]
    fn chunks_outside_the_region_are_refused() {
        let meets = |origin, len| {
            let extent = Extent { origin: vec![origin], shape: vec![len], len_bytes: len };
            extent.meeting(&[100..200]).is_ok()
        };
        for (origin, len) in [(0, 101), (100, 1), (150, 10), (199, 1000)] {
            assert!(meets(origin, len), "{len} at {origin}");
        }
        for (origin, len) in [(0, 100), (200, 1), (150, u64::MAX), (u64::MAX, 1), (0, 0)] {
            assert!(!meets(origin, len), "{len} at {origin}");
        }
    }
}
