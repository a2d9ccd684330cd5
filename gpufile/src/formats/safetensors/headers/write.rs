use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use super::header::{Entry, FORMAT, Header, LENGTH_BYTES, MAX_HEADER_LEN, METADATA, Table};
use crate::formats::clip::clip;
use crate::formats::{Dtype, FormatError};

/// A tensor of a new file, for [`Header::build`].
///
/// ```
/// use std::collections::BTreeMap;
/// use gpufile::formats::Dtype;
/// use gpufile::formats::safetensors::{Header, NewTensor};
///
/// # fn main() -> Result<(), gpufile::formats::FormatError> {
/// let small = NewTensor { name: "a", dtype: Dtype::U8, shape: &[3] };
/// let large = NewTensor { name: "b", dtype: Dtype::F64, shape: &[] };
/// let (header, _) = Header::build(&[small, large], BTreeMap::new())?;
/// let names: Vec<_> = header.tensors().map(|tensor| tensor.name).collect();
/// assert_eq!(names, ["b", "a"]); // the largest elements come first
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewTensor<'a> {
    /// The name.
    pub name: &'a str,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The length of each axis, in elements, the slowest first. Empty for a scalar.
    pub shape: &'a [u64],
}

impl Header {
    /// Lays out a new file. Returns its header, and the bytes before the data.
    ///
    /// The order is that of the `safetensors` library: the types with the largest elements first, then by name. The
    /// data starts at a multiple of eight bytes, which aligns every tensor to its elements.
    ///
    /// # Errors
    /// [`FormatError::UnsupportedDtype`] for [`Dtype::C128`], [`FormatError::DuplicateTensor`],
    /// [`FormatError::ReservedName`], [`FormatError::SizeOverflow`], [`FormatError::PartialByte`],
    /// [`FormatError::FileOverflow`], [`FormatError::HeaderTooLarge`].
    pub fn build(
        tensors: &[NewTensor<'_>],
        metadata: BTreeMap<String, String>,
    ) -> Result<(Self, Vec<u8>), FormatError> {
        let mut ranked = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            if tensor.name == METADATA {
                return Err(FormatError::ReservedName { name: METADATA.to_owned() });
            }
            let Some(rank) = tensor.dtype.safetensors_rank() else {
                return Err(FormatError::UnsupportedDtype {
                    tensor: Some(clip(tensor.name)),
                    dtype: tensor.dtype.name().to_owned(),
                    problem: "is not in safetensors",
                    offset: None,
                });
            };
            ranked.push((Reverse(rank), tensor));
        }
        ranked.sort_by_key(|&(rank, tensor)| (rank, tensor.name));
        Self::in_order(ranked.into_iter().map(|(_, tensor)| *tensor), metadata, 0)
    }

    /// Lays out a new file whose tensors lie in this order. At least `least_bytes` bytes are before the data.
    ///
    /// # Errors
    /// As [`build`](Self::build), except for what it checks of types and names.
    pub(in crate::formats::safetensors) fn in_order<'t>(
        tensors: impl IntoIterator<Item = NewTensor<'t>>,
        metadata: BTreeMap<String, String>,
        least_bytes: usize,
    ) -> Result<(Self, Vec<u8>), FormatError> {
        let mut table = Table::default();
        let mut data_len = 0;
        for tensor in tensors {
            table.append(&tensor, &mut data_len)?;
        }
        let head = head(&table, &metadata, least_bytes)?;
        let data_start = head.len() as u64;
        if let (None, Some(last)) = (data_start.checked_add(data_len), table.entries.last()) {
            return Err(FormatError::FileOverflow { tensor: clip(table.name(last)) });
        }
        let metadata = (!metadata.is_empty()).then_some(metadata);
        let header = Header::new(table, metadata, data_start, data_len);
        Ok((header.map_err(|mut errors| errors.swap_remove(0))?, head))
    }
}

impl Table {
    /// Appends a tensor to a file that has `data_len` bytes of data so far.
    fn append(&mut self, tensor: &NewTensor<'_>, data_len: &mut u64) -> Result<(), FormatError> {
        let (name, axes) = (self.names.len(), self.axes.len());
        self.names.push_str(tensor.name);
        self.axes.extend(tensor.shape);
        let (Ok(name_end), Ok(axes_end)) = (u32::try_from(self.names.len()), u32::try_from(self.axes.len()))
        else {
            return Err(too_large((self.names.len() + self.axes.len()) as u64));
        };
        let mut entry = Entry {
            name: name as u32..name_end,
            axes: axes as u32..axes_end,
            dtype: tensor.dtype,
            start: *data_len,
            end: *data_len,
        };
        let Some(end) = data_len.checked_add(self.shape_bytes(&entry)?) else {
            return Err(FormatError::FileOverflow { tensor: clip(tensor.name) });
        };
        (entry.end, *data_len) = (end, end);
        self.entries.push(entry);
        Ok(())
    }
}

fn head(
    table: &Table,
    metadata: &BTreeMap<String, String>,
    least_bytes: usize,
) -> Result<Vec<u8>, FormatError> {
    let mut json = String::from("{");
    if !metadata.is_empty() {
        let _ = write!(json, "{}:{{", quoted(METADATA));
        for (key, value) in metadata {
            let _ = write!(json, "{}:{},", quoted(key), quoted(value));
        }
        json.pop();
        json.push_str("},");
    }
    for entry in &table.entries {
        let tensor = table.info(entry);
        let _ = write!(json, r#"{}:{{"dtype":"{}","shape":["#, quoted(tensor.name), tensor.dtype);
        for (index, axis) in tensor.shape.iter().enumerate() {
            let _ = write!(json, "{}{axis}", if index == 0 { "" } else { "," });
        }
        let _ = write!(json, r#"],"data_offsets":[{},{}]}},"#, entry.start, entry.end);
    }
    if json.ends_with(',') {
        json.pop();
    }
    json.push('}');
    let len = json.len().max(least_bytes.saturating_sub(LENGTH_BYTES as usize)).next_multiple_of(8);
    if len as u64 > MAX_HEADER_LEN {
        return Err(too_large(len as u64));
    }
    let mut head = Vec::with_capacity(LENGTH_BYTES as usize + len);
    head.extend_from_slice(&(len as u64).to_le_bytes());
    head.extend_from_slice(json.as_bytes());
    head.resize(LENGTH_BYTES as usize + len, b' ');
    Ok(head)
}

fn quoted(text: &str) -> serde_json::Value {
    text.into()
}

fn too_large(len_bytes: u64) -> FormatError {
    FormatError::HeaderTooLarge { format: FORMAT, len_bytes, limit_bytes: MAX_HEADER_LEN }
}
