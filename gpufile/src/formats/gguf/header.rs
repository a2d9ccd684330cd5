//! The checked header of a file. `parse` and `write` make headers.

use std::fmt;
use std::ops::Range;

use super::block_type::GgmlType;
use super::cursor::{FORMAT, syntax};
use super::metadata::Metadata;
use super::value::Value;
use crate::formats::clip::clip;
use crate::formats::{FormatError, rows};

/// The alignment of a file whose metadata has none, in bytes.
const DEFAULT_ALIGNMENT: u64 = 32;

const ALIGNMENT: &str = "general.alignment";

/// The header of a GGUF file: checked when it was [parsed](Self::parse) or [built](Self::build).
///
/// The ranges of the tensors lie in the file, are aligned, and do not overlap.
///
/// ```
/// use gpufile::formats::gguf::{GgmlType, Header, Metadata, NewTensor};
///
/// # fn main() -> Result<(), gpufile::formats::FormatError> {
/// let tensors = [NewTensor { name: "w", ggml_type: GgmlType::Q4_0, shape: &[4, 64] }];
/// let metadata = Metadata::from_iter([("general.architecture", "llama")]);
/// let (header, mut file) = Header::build(metadata, &tensors)?;
/// file.resize(header.file_len_bytes() as usize, 0);
///
/// let header = Header::parse(&file, file.len() as u64)?;
/// let w = header.get("w").unwrap();
/// assert_eq!((w.ggml_type, w.shape, w.len_bytes()), (GgmlType::Q4_0, &[4, 64][..], 4 * 2 * 18));
/// assert_eq!(w.range.start, header.data_start());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Header {
    pub(super) version: u32,
    pub(super) metadata: Metadata,
    pub(super) alignment: u64,
    table: Table,
    /// Indices of `table.entries`, by name.
    by_name: Vec<u32>,
    data_start: u64,
}

/// One tensor of a [`Header`].
///
/// ```
/// # use gpufile::formats::gguf::{GgmlType, Header, Metadata, NewTensor};
/// # fn main() -> Result<(), gpufile::formats::FormatError> {
/// # let new = [NewTensor { name: "w", ggml_type: GgmlType::F16, shape: &[4, 8] }];
/// # let (header, _) = Header::build(Metadata::new(), &new)?;
/// let w = header.get("w").unwrap();
/// assert_eq!((w.len_bytes(), w.elements()), (64, 32));
/// assert_eq!(w.slice_rows(1..3)?, w.range.start + 16..w.range.start + 48);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo<'a> {
    /// The name.
    pub name: &'a str,
    /// The type of the elements, or of the blocks of elements.
    pub ggml_type: GgmlType,
    /// The length of each axis, in elements, the slowest first: the reverse of the order in the file. Empty for a scalar.
    pub shape: &'a [u64],
    /// The range of the tensor, in bytes from the start of the file.
    pub range: Range<u64>,
}

/// The tensors of a header in the making. All names lie in one allocation, and all axes in another. Indices are 32 bits
/// because a header has at most [`MAX_HEADER_LEN`](super::MAX_HEADER_LEN) bytes.
#[derive(Clone, Default)]
pub(super) struct Table {
    pub names: String,
    pub axes: Vec<u64>,
    pub entries: Vec<Entry>,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub name: Range<u32>,
    pub axes: Range<u32>,
    pub ggml_type: GgmlType,
    /// In bytes from the start of the data; in a header, from the start of the file.
    pub start: u64,
    pub len_bytes: u64,
}

impl Header {
    /// Checks the tensors against each other and against the length of the file.
    pub(super) fn new(
        version: u32,
        metadata: Metadata,
        mut table: Table,
        head_len: u64,
        file_len: u64,
    ) -> Result<Self, FormatError> {
        let alignment = alignment_of(&metadata)?;
        // A header has fewer than 2^28 bytes, and an alignment fewer than 2^32.
        let data_start = head_len.next_multiple_of(alignment);
        let data_len = file_len.saturating_sub(data_start);
        table.entries.sort_by_key(|entry| (entry.start, entry.len_bytes));
        for entry in &mut table.entries {
            let tensor = || clip(&table.names[entry.name.start as usize..entry.name.end as usize]);
            if !entry.start.is_multiple_of(alignment) {
                let message = format!(
                    "the tensor's offset {} is not a multiple of the alignment {alignment}",
                    entry.start
                );
                let (tensor, offset) = (Some(tensor()), head_len);
                return Err(FormatError::Syntax { format: FORMAT, tensor, offset, message });
            }
            let end = entry.start.saturating_add(entry.len_bytes);
            if end > data_len {
                return Err(FormatError::PastEnd { tensor: tensor(), end, data_len });
            }
            entry.start += data_start;
        }
        table.check_overlaps()?;
        let by_name = table.by_name()?;
        Ok(Self { version, metadata, alignment, table, by_name, data_start })
    }

    /// Returns the version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the alignment of the tensors in the file, in bytes: `general.alignment`, or 32.
    pub fn alignment(&self) -> u64 {
        self.alignment
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

    pub(super) fn len(&self) -> usize {
        self.table.entries.len()
    }

    pub(super) fn nth(&self, number: u32) -> TensorInfo<'_> {
        self.table.info(&self.table.entries[number as usize])
    }

    pub(super) fn tensor_bytes(&self) -> u64 {
        self.table.entries.iter().map(|entry| entry.len_bytes).sum()
    }

    pub(super) fn by_name(&self) -> &[u32] {
        &self.by_name
    }

    /// Returns the start of the data, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Returns the end of the last tensor with its padding, in bytes from the start of the file. Writers make files of
    /// this length. The parsed file may be shorter by the padding, or longer.
    pub fn file_len_bytes(&self) -> u64 {
        let end = self.table.entries.last().map_or(0, |last| last.start + last.len_bytes);
        end.max(self.data_start).checked_next_multiple_of(self.alignment).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("version", &self.version)
            .field("tensors", &self.len())
            .field("metadata", &self.metadata.len())
            .field("alignment", &self.alignment)
            .field("data_start", &self.data_start)
            .finish()
    }
}

/// Returns the alignment that the metadata gives.
///
/// # Errors
/// [`FormatError::Syntax`] if it is not a power of two of 32 bits.
pub(super) fn alignment_of(metadata: &Metadata) -> Result<u64, FormatError> {
    match metadata.get(ALIGNMENT) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(alignment)) if alignment.is_power_of_two() => Ok((*alignment).into()),
        Some(other) => {
            // An array may be long.
            let found = other.as_u64().map_or("not such a number".to_owned(), |found| found.to_string());
            Err(syntax(0, format!("{ALIGNMENT} must be a power of two of 32 bits, but is {found}")))
        }
    }
}

impl TensorInfo<'_> {
    /// Returns the number of bytes of the tensor.
    pub fn len_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the number of elements: the product of the axes, 1 for a scalar.
    pub fn elements(&self) -> u64 {
        // Elements of quantised types are smaller than a byte.
        self.shape.iter().fold(1, |product: u64, &axis| product.saturating_mul(axis))
    }

    /// Returns the range of `rows`, in bytes from the start of the file. `rows` are indices along the first axis.
    ///
    /// # Errors
    /// [`FormatError::NoSuchSlice`], also for a scalar, which has no first axis;
    /// [`FormatError::PartialBlock`] if the tensor has one axis, and the rows do not start and end at whole
    /// blocks.
    pub fn slice_rows(&self, rows: Range<u64>) -> Result<Range<u64>, FormatError> {
        let available = rows::available(self.name, self.shape, &rows)?;
        let block_elements = self.ggml_type.block_elements();
        let is_whole = [rows.start, rows.end].iter().all(|row| row.is_multiple_of(block_elements));
        if self.shape.len() == 1 && !is_whole {
            let (tensor, dtype) = (clip(self.name), self.ggml_type.name());
            return Err(FormatError::PartialBlock { tensor, dtype, block_elements, elements: rows });
        }
        let at = |row: u64| {
            let bytes = u128::from(row) * u128::from(self.len_bytes()) / u128::from(available.max(1));
            // At most the tensor's own length.
            self.range.start + bytes as u64
        };
        Ok(at(rows.start)..at(rows.end))
    }
}

impl Table {
    fn name(&self, entry: &Entry) -> &str {
        &self.names[entry.name.start as usize..entry.name.end as usize]
    }

    fn info(&self, entry: &Entry) -> TensorInfo<'_> {
        TensorInfo {
            name: self.name(entry),
            ggml_type: entry.ggml_type,
            shape: &self.axes[entry.axes.start as usize..entry.axes.end as usize],
            range: entry.start..entry.start + entry.len_bytes,
        }
    }

    /// Appends a tensor, whose `axes` are in the order of the file, the fastest first.
    pub fn push(
        &mut self,
        name: &str,
        ggml_type: GgmlType,
        axes: impl DoubleEndedIterator<Item = u64>,
        start: u64,
    ) -> Result<(), FormatError> {
        let (name_start, axes_start) = (self.names.len(), self.axes.len());
        self.names.push_str(name);
        self.axes.extend(axes.rev());
        let len_bytes = ggml_type.tensor_bytes(name, &self.axes[axes_start..])?;
        self.entries.push(Entry {
            name: name_start as u32..self.names.len() as u32,
            axes: axes_start as u32..self.axes.len() as u32,
            ggml_type,
            start,
            len_bytes,
        });
        Ok(())
    }

    /// Checks that no tensor begins inside another. The entries must be sorted by their start.
    fn check_overlaps(&self) -> Result<(), FormatError> {
        let (mut covered, mut previous) = (0, "");
        for entry in &self.entries {
            let name = self.name(entry);
            if entry.start < covered {
                let (tensor, other) = (clip(name), clip(previous));
                return Err(FormatError::Overlap { tensor, other, offset: entry.start });
            }
            (covered, previous) = (entry.start + entry.len_bytes, name);
        }
        Ok(())
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
