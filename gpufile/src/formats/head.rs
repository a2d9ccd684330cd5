//! Reading the header of a file: the bytes before the data.

use super::memory::{addressable, zeroed};
use super::{Error, FormatError, Result};
use crate::File;

/// Reads the header of a file, and returns it with the length of the file in bytes. `head_len` takes the first
/// `prefix_bytes` and the length of the file, and returns the length of the header.
pub(super) fn read(
    file: &File,
    prefix_bytes: usize,
    head_len: impl FnOnce(&[u8], u64) -> Result<u64, FormatError>,
) -> Result<(Vec<u8>, u64)> {
    let file_len = file.len_bytes()?;
    let mut prefix = vec![0; prefix_bytes];
    let read = file.read_at(&mut prefix, 0)?;
    let head_len = head_len(&prefix[..read], file_len).map_err(|error| malformed(file, error))?;
    let mut head = zeroed(file.path(), addressable(file.path(), head_len)?)?;
    let known = read.min(head.len());
    let (known, rest) = head.split_at_mut(known);
    known.copy_from_slice(&prefix[..known.len()]);
    file.read_exact_at(rest, known.len() as u64)?;
    Ok((head, file_len))
}

/// Returns the error of a file that does not conform to its format.
pub(super) fn malformed(file: &File, error: FormatError) -> Error {
    Error::Format { path: file.path().to_owned(), error }
}
