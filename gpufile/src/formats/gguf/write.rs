use super::block_type::GgmlType;
use super::cursor::{FORMAT, MAX_HEADER_LEN, syntax};
use super::header::{Header, Table, alignment_of};
use super::metadata::Metadata;
use super::parse::{MAGIC, MOST_AXES, check_name};
use super::values;
use crate::formats::FormatError;
use crate::formats::clip::clip;

/// A tensor for [`Header::build`], without its bytes.
///
/// ```
/// use gpufile::formats::gguf::{GgmlType, NewTensor};
///
/// let tensor = NewTensor { name: "output.weight", ggml_type: GgmlType::Q6K, shape: &[32000, 4096] };
/// assert_eq!(tensor.shape[1] % tensor.ggml_type.block_elements(), 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewTensor<'a> {
    /// The name, of at most 63 bytes, as ggml reads them.
    pub name: &'a str,
    /// The type of the elements, or of the blocks of elements.
    pub ggml_type: GgmlType,
    /// The length of each axis, in elements, the slowest first. At most four axes; none for a scalar.
    pub shape: &'a [u64],
}

impl Header {
    /// Lays out a new file of version 3. Returns its header, and the bytes before the data.
    ///
    /// The tensors lie in the file in the order given, each at a multiple of `general.alignment` in the metadata, or of 32
    /// bytes.
    ///
    /// # Errors
    /// [`FormatError::DuplicateTensor`], [`FormatError::PartialBlock`], [`FormatError::SizeOverflow`],
    /// [`FormatError::FileOverflow`], [`FormatError::HeaderTooLarge`]; [`FormatError::Syntax`] for an empty key, a wrong
    /// alignment, a name of more than 63 bytes, or too many axes.
    pub fn build(metadata: Metadata, tensors: &[NewTensor<'_>]) -> Result<(Self, Vec<u8>), FormatError> {
        const VERSION: u32 = 3;
        let alignment = alignment_of(&metadata)?;
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        head.extend((tensors.len() as u64).to_le_bytes());
        head.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata.iter() {
            if key.is_empty() {
                return Err(syntax(head.len() as u64, "a key of the metadata is empty".to_owned()));
            }
            values::write_string(&mut head, key);
            values::write(&mut head, value);
        }
        let mut table = Table::default();
        let mut start = 0_u64;
        for tensor in tensors {
            put_tensor(&mut head, tensor, start)?;
            check_len(&head)?;
            table.push(tensor.name, tensor.ggml_type, tensor.shape.iter().rev().copied(), start)?;
            let len_bytes = table.entries.last().map_or(0, |entry| entry.len_bytes);
            let end = start.checked_add(len_bytes).and_then(|end| end.checked_next_multiple_of(alignment));
            start = end.ok_or_else(|| FormatError::FileOverflow { tensor: clip(tensor.name) })?;
        }
        check_len(&head)?;
        let head_len = head.len() as u64;
        if head_len.next_multiple_of(alignment).checked_add(start).is_none() {
            let tensor = tensors.last().map_or(String::new(), |tensor| clip(tensor.name));
            return Err(FormatError::FileOverflow { tensor });
        }
        let header = Self::new(VERSION, metadata, table, head_len, u64::MAX)?;
        head.resize(header.data_start() as usize, 0);
        Ok((header, head))
    }
}

fn put_tensor(head: &mut Vec<u8>, tensor: &NewTensor<'_>, start: u64) -> Result<(), FormatError> {
    let &NewTensor { name, ggml_type, shape } = tensor;
    check_name(name, head.len() as u64)?;
    if shape.len() > MOST_AXES as usize {
        let message = format!("{} axes are more than {MOST_AXES}", shape.len());
        let (tensor, offset) = (Some(clip(name)), head.len() as u64);
        return Err(FormatError::Syntax { format: FORMAT, tensor, offset, message });
    }
    values::write_string(head, name);
    head.extend((shape.len() as u32).to_le_bytes());
    head.extend(shape.iter().rev().flat_map(|axis| axis.to_le_bytes()));
    head.extend(ggml_type.number().to_le_bytes());
    head.extend(start.to_le_bytes());
    Ok(())
}

fn check_len(head: &[u8]) -> Result<(), FormatError> {
    let len_bytes = head.len() as u64;
    match len_bytes > MAX_HEADER_LEN {
        true => Err(FormatError::HeaderTooLarge { format: FORMAT, len_bytes, limit_bytes: MAX_HEADER_LEN }),
        false => Ok(()),
    }
}
