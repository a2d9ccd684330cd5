use super::block_type::{GgmlType, unknown};
use super::cursor::{Cursor, FORMAT, syntax};
use super::header::{Header, Table};
use super::metadata::Metadata;
use super::values;
use crate::formats::FormatError;
use crate::formats::clip::clip;

pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// The most axes of a tensor, as in ggml.
pub(super) const MOST_AXES: u32 = 4;

/// The most bytes of a tensor's name. ggml keeps a zero behind it.
const LONGEST_NAME: usize = 63;

/// The fewest bytes of an entry of the metadata: an empty key, a type and a truth value.
const LEAST_ENTRY: u64 = 8 + 4 + 1;

/// The fewest bytes of a tensor: an empty name, no axes, a type and an offset.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

impl Header {
    /// Parses and checks a header. `head` is the start of the file, `file_len` the length of the whole file in bytes.
    ///
    /// A header does not say how long it is. If `head` ends before it does, the error is [`FormatError::Truncated`], with
    /// the number of bytes that are needed at least.
    ///
    /// Bytes between tensors and behind them are ignored.
    ///
    /// # Errors
    /// [`FormatError`], with the name of the tensor if the error is in one. Versions other than 2 and 3, big-endian files,
    /// unknown types, arrays of arrays, names of more than 63 bytes, and headers beyond [`MAX_HEADER_LEN`](super::MAX_HEADER_LEN) are errors.
    pub fn parse(head: &[u8], file_len: u64) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(head, file_len);
        let start = &head[..head.len().min(MAGIC.len())];
        if !MAGIC.starts_with(start) {
            return Err(FormatError::OtherFormat { format: FORMAT, expected: "GGUF" });
        }
        cursor.take(MAGIC.len() as u64)?;
        let version = version(&mut cursor)?;
        let (tensors, entries) = (cursor.u64()?, cursor.u64()?);
        cursor.expect(
            tensors.saturating_mul(LEAST_TENSOR).saturating_add(entries.saturating_mul(LEAST_ENTRY)),
        )?;
        let metadata = (0..entries).map(|_| {
            let offset = cursor.offset();
            let key = cursor.string()?;
            match key {
                "" => Err(syntax(offset, "a key of the metadata is empty".to_owned())),
                key => Ok((key.to_owned(), values::read(&mut cursor)?)),
            }
        });
        let metadata = Metadata::of(metadata.collect::<Result<_, _>>()?)?;
        let mut table = Table::default();
        for _ in 0..tensors {
            tensor(&mut cursor, &mut table)?;
        }
        Header::new(version, metadata, table, cursor.offset(), file_len)
    }
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32, FormatError> {
    let offset = cursor.offset();
    let version = cursor.u32()?;
    match version {
        2 | 3 => Ok(version),
        _ if version & 0xffff == 0 && version != 0 => Err(syntax(
            offset,
            "the file is big-endian, which is not supported; convert it to little-endian".to_owned(),
        )),
        _ => Err(syntax(offset, format!("version {version} is not supported, only versions 2 and 3"))),
    }
}

/// Checks that ggml reads a name, which begins at this offset.
pub(super) fn check_name(name: &str, offset: u64) -> Result<(), FormatError> {
    if name.len() <= LONGEST_NAME {
        return Ok(());
    }
    let message = format!("its name has {} bytes, but ggml reads at most {LONGEST_NAME}", name.len());
    Err(FormatError::Syntax { format: FORMAT, tensor: Some(clip(name)), offset, message })
}

fn tensor(cursor: &mut Cursor<'_>, table: &mut Table) -> Result<(), FormatError> {
    let offset = cursor.offset();
    let name = cursor.string()?;
    check_name(name, offset)?;
    let offset = cursor.offset();
    let axes = cursor.u32()?;
    if axes > MOST_AXES {
        let message = format!("{axes} axes are more than {MOST_AXES}");
        return Err(FormatError::Syntax { format: FORMAT, tensor: Some(clip(name)), offset, message });
    }
    let axes = cursor.take(u64::from(axes) * 8)?.as_chunks().0;
    let offset = cursor.offset();
    let number = cursor.u32()?;
    let Some(ggml_type) = GgmlType::from_number(number) else {
        let (dtype, problem) = unknown(number);
        let (tensor, offset) = (Some(clip(name)), Some(offset));
        return Err(FormatError::UnsupportedDtype { tensor, dtype, problem, offset });
    };
    let start = cursor.u64()?;
    table.push(name, ggml_type, axes.iter().map(|axis| u64::from_le_bytes(*axis)), start)
}
