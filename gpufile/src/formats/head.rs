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

pub(super) fn malformed(file: &File, error: FormatError) -> Error {
    Error::Format { path: file.path().to_owned(), error }
}

/// Reads the start of a file until `parse` finds a whole header in it. `parse` takes what was read and the length of the
/// file, and returns [`FormatError::Truncated`] if it needs more.
pub(super) fn read_until<T>(file: &File, parse: impl Fn(&[u8], u64) -> Result<T, FormatError>) -> Result<T> {
    const FIRST_BYTES: u64 = 1 << 20;
    /// The growth from one try to the next.
    const TIMES: u64 = 4;
    let file_len = file.len_bytes()?;
    let (mut head, mut len_bytes) = (Vec::new(), FIRST_BYTES.min(file_len));
    loop {
        let mut longer = zeroed(file.path(), addressable(file.path(), len_bytes)?)?;
        let (known, rest) = longer.split_at_mut(head.len());
        known.copy_from_slice(&head);
        file.read_exact_at(rest, known.len() as u64)?;
        head = longer;
        match parse(&head, file_len) {
            Err(FormatError::Truncated { needed_bytes, .. })
                if needed_bytes <= file_len && len_bytes < file_len =>
            {
                len_bytes = needed_bytes.max(len_bytes.saturating_mul(TIMES)).min(file_len);
            }
            parsed => return parsed.map_err(|error| malformed(file, error)),
        }
    }
}
