//! The checked header of a file. `parse` and `write` make headers.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::formats::clip::clip;
use crate::formats::dtype::array_bits;
use crate::formats::{Dtype, FormatError, rows};

/// The most bytes that the JSON object of a header may have. This is the format's own limit; it applies to an index
/// too.
pub const MAX_HEADER_LEN: u64 = 100_000_000;

/// The key of a header that is not a tensor.
pub(super) const METADATA: &str = "__metadata__";

pub(super) const FORMAT: &str = "safetensors";

/// The bytes before the JSON object.
pub(in crate::formats::safetensors) const LENGTH_BYTES: u64 = 8;

/// The header of a safetensors file: checked when it was [parsed](Self::parse) or [built](Self::build).
///
/// The ranges of the tensors cover the data of the file without gaps and overlaps. The header of a
/// [`Checkpoint`](super::super::Checkpoint) with an index has only the tensors that the index assigns to the file.
///
/// ```
/// use std::collections::BTreeMap;
/// use gpufile::formats::Dtype;
/// use gpufile::formats::safetensors::{Header, NewTensor};
///
/// # fn main() -> Result<(), gpufile::formats::FormatError> {
/// let bias = NewTensor { name: "bias", dtype: Dtype::F32, shape: &[4] };
/// let (header, start_of_file) = Header::build(&[bias], BTreeMap::new())?;
/// assert_eq!(header.data_start(), start_of_file.len() as u64);
/// assert_eq!((header.tensors().len(), header.data_len_bytes()), (1, 16));
/// assert_eq!(header.get("bias").unwrap().offsets, 0..16);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Header {
    table: Table,
    /// Indices of `table.entries`, by name.
    by_name: Vec<u32>,
    metadata: Option<BTreeMap<String, String>>,
    data_start: u64,
    data_len: u64,
}

/// One tensor of a [`Header`].
///
/// ```
/// # use std::collections::BTreeMap;
/// # use gpufile::formats::Dtype;
/// # use gpufile::formats::safetensors::{Header, NewTensor};
/// # fn main() -> Result<(), gpufile::formats::FormatError> {
/// # let new = [NewTensor { name: "w", dtype: Dtype::F16, shape: &[4, 8] }];
/// # let (header, _) = Header::build(&new, BTreeMap::new())?;
/// let tensor = header.get("w").unwrap();
/// assert_eq!((tensor.dtype, tensor.shape, tensor.len_bytes()), (Dtype::F16, &[4, 8][..], 64));
/// assert_eq!(tensor.slice_rows(1..3)?, 16..48);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo<'a> {
    /// The name.
    pub name: &'a str,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The length of each axis, in elements, the slowest first. Empty for a scalar.
    pub shape: &'a [u64],
    /// The range of the tensor, in bytes from the start of the data: see [`Header::in_file`].
    pub offsets: Range<u64>,
}

/// The tensors of a header in the making. All names lie in one allocation, and all axes in another, because models have
/// many short ones. Indices are 32 bits because a header has at most [`MAX_HEADER_LEN`] bytes.
#[derive(Clone, Default)]
pub(super) struct Table {
    pub(super) names: String,
    pub(super) axes: Vec<u64>,
    pub(super) entries: Vec<Entry>,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) name: Range<u32>,
    pub(super) axes: Range<u32>,
    pub(super) dtype: Dtype,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Header {
    /// Checks the tensors against each other and against `data_len`. Fields are in bytes.
    ///
    /// # Errors
    /// Everything that is wrong, at least one error.
    pub(super) fn new(
        mut table: Table,
        metadata: Option<BTreeMap<String, String>>,
        data_start: u64,
        data_len: u64,
    ) -> Result<Self, Vec<FormatError>> {
        /// A file may have millions of wrong tensors.
        const MOST_ERRORS: usize = 100;
        table.entries.sort_by_key(|entry| (entry.start, entry.end));
        let by_name = table.by_name().map_err(|error| vec![error])?;
        let sizes = table.entries.iter().map(|entry| table.check_size(entry, data_len));
        let errors: Vec<_> = sizes.filter_map(Result::err).take(MOST_ERRORS).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        table.check_cover(data_start, data_len).map_err(|error| vec![error])?;
        Ok(Self { table, by_name, metadata, data_start, data_len })
    }

    /// Returns the number of bytes of the tensors. Those that are left out do not count.
    pub(in crate::formats::safetensors) fn tensor_bytes(&self) -> u64 {
        self.table.entries.iter().map(|entry| entry.end - entry.start).sum()
    }

    /// Leaves out the tensors whose names `is_kept` refuses.
    pub(in crate::formats::safetensors) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        let Table { names, entries, .. } = &mut self.table;
        let name = |entry: &Entry| &names[entry.name.start as usize..entry.name.end as usize];
        entries.retain(|entry| is_kept(name(entry)));
        self.by_name = (0..entries.len() as u32).collect();
        self.by_name.sort_by(|a, b| name(&entries[*a as usize]).cmp(name(&entries[*b as usize])));
    }

    pub(in crate::formats::safetensors) fn sorted_names(&self) -> impl Iterator<Item = &str> {
        self.by_name.iter().map(|index| self.table.name(&self.table.entries[*index as usize]))
    }

    pub(in crate::formats::safetensors) fn len(&self) -> usize {
        self.table.entries.len()
    }

    /// Returns the tensors, in the order of their places in the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> + DoubleEndedIterator + Clone {
        self.table.entries.iter().map(|entry| self.table.info(entry))
    }

    /// Returns the tensor of that name.
    pub fn get(&self, name: &str) -> Option<TensorInfo<'_>> {
        let entry = |&index: &u32| &self.table.entries[index as usize];
        let found = self.by_name.binary_search_by(|index| self.table.name(entry(index)).cmp(name)).ok()?;
        Some(self.table.info(entry(&self.by_name[found])))
    }

    pub(in crate::formats::safetensors) fn nth(&self, number: u32) -> TensorInfo<'_> {
        self.table.info(&self.table.entries[number as usize])
    }

    pub(in crate::formats::safetensors) fn by_name(&self) -> &[u32] {
        &self.by_name
    }

    /// Returns the entries of `__metadata__`, which describe the file.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.metadata.as_ref().unwrap_or(&NONE)
    }

    /// Returns whether the header has `__metadata__`, with entries or without.
    pub fn has_metadata(&self) -> bool {
        self.metadata.is_some()
    }

    /// Returns the start of the data, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Returns the number of bytes of data.
    pub fn data_len_bytes(&self) -> u64 {
        self.data_len
    }

    /// Returns the length of the file, in bytes.
    pub fn file_len_bytes(&self) -> u64 {
        self.data_start + self.data_len
    }

    /// Converts offsets of a tensor, or of its rows, to bytes from the start of the file.
    pub fn in_file(&self, offsets: Range<u64>) -> Range<u64> {
        self.data_start + offsets.start..self.data_start + offsets.end
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("tensors", &self.len())
            .field("metadata", self.metadata())
            .field("data_start", &self.data_start)
            .field("data_len", &self.data_len)
            .finish()
    }
}

impl TensorInfo<'_> {
    /// Returns the number of bytes of the tensor.
    pub fn len_bytes(&self) -> u64 {
        self.offsets.end - self.offsets.start
    }

    /// Returns the number of elements: the product of the axes, 1 for a scalar.
    pub fn elements(&self) -> u64 {
        // Some elements are smaller than a byte, and a header may be of a file that is too long for any disk.
        self.shape.iter().fold(1, |product: u64, &axis| product.saturating_mul(axis))
    }

    /// Returns the range of `rows`, in bytes from the start of the data, as [`offsets`](Self::offsets). `rows` are
    /// indices along the first axis.
    ///
    /// # Errors
    /// [`FormatError::NoSuchSlice`], also for a scalar, which has no first axis; [`FormatError::PartialByte`]
    /// if elements are smaller than a byte and the rows do not start and end at whole ones.
    pub fn slice_rows(&self, rows: Range<u64>) -> Result<Range<u64>, FormatError> {
        let available = rows::available(self.name, self.shape, &rows)?;
        let row_bits = u128::from(self.len_bytes()) * 8 / u128::from(available.max(1));
        let bits = u128::from(rows.start) * row_bits..u128::from(rows.end) * row_bits;
        if bits.start % 8 != 0 || bits.end % 8 != 0 {
            return Err(FormatError::PartialByte { tensor: clip(self.name), bits });
        }
        // Both are at most the tensor's own length.
        Ok(self.offsets.start + (bits.start / 8) as u64..self.offsets.start + (bits.end / 8) as u64)
    }
}

impl Table {
    pub(super) fn name(&self, entry: &Entry) -> &str {
        &self.names[entry.name.start as usize..entry.name.end as usize]
    }

    pub(super) fn info(&self, entry: &Entry) -> TensorInfo<'_> {
        TensorInfo {
            name: self.name(entry),
            dtype: entry.dtype,
            shape: &self.axes[entry.axes.start as usize..entry.axes.end as usize],
            offsets: entry.start..entry.end,
        }
    }

    /// Returns the number of bytes that shape and type say.
    pub(super) fn shape_bytes(&self, entry: &Entry) -> Result<u64, FormatError> {
        let TensorInfo { name, shape, dtype, .. } = self.info(entry);
        let Some(bits) = array_bits(shape, dtype.size_bits().into()) else {
            return Err(FormatError::SizeOverflow { tensor: Some(clip(name)) });
        };
        if bits % 8 != 0 {
            return Err(FormatError::PartialByte { tensor: clip(name), bits: 0..bits });
        }
        Ok((bits / 8) as u64)
    }

    fn check_size(&self, entry: &Entry, data_len: u64) -> Result<(), FormatError> {
        let &Entry { start, end, .. } = entry;
        let tensor = || clip(self.name(entry));
        let Some(len) = end.checked_sub(start) else {
            return Err(FormatError::Backwards { tensor: tensor(), start, end });
        };
        let shape_bytes = self.shape_bytes(entry)?;
        if len != shape_bytes {
            return Err(FormatError::SizeMismatch { tensor: tensor(), offsets: start..end, shape_bytes });
        }
        if end > data_len {
            return Err(FormatError::PastEnd { tensor: tensor(), end, data_len });
        }
        Ok(())
    }

    /// Checks that the entries cover the data without gaps or overlaps. They must be sorted by offsets, and none past
    /// the end.
    fn check_cover(&self, data_start: u64, data_len: u64) -> Result<(), FormatError> {
        let gap = |tensor, from: u64, to: u64| {
            Err(FormatError::Gap { tensor, offset: data_start + from, len_bytes: to - from })
        };
        let mut covered = 0;
        let mut previous = "";
        for entry in &self.entries {
            let name = self.name(entry);
            if entry.start < covered {
                let (tensor, other) = (clip(name), clip(previous));
                return Err(FormatError::Overlap { tensor, other, offset: data_start + entry.start });
            }
            if entry.start > covered {
                return gap(Some(clip(name)), covered, entry.start);
            }
            (covered, previous) = (entry.end, name);
        }
        if covered < data_len { gap(None, covered, data_len) } else { Ok(()) }
    }

    fn by_name(&self) -> Result<Vec<u32>, FormatError> {
        let name = |&index: &u32| self.name(&self.entries[index as usize]);
        let mut indices: Vec<u32> = (0..self.entries.len() as u32).collect();
        indices.sort_by(|a, b| name(a).cmp(name(b)));
        match indices.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            Some(pair) => Err(FormatError::DuplicateTensor { tensor: clip(name(&pair[0])) }),
            None => Ok(indices),
        }
    }
}
