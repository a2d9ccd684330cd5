//! Memory to load into, allocated with an error instead of an abort, and the check of its length.

use std::alloc::{Layout, alloc_zeroed};
use std::io::{self, ErrorKind::OutOfMemory};
use std::path::Path;

use super::{Error, Result};
use crate::cuda::{Device, DeviceBuffer};

/// Returns zeros on the host to load a file into.
///
/// # Errors
/// [`Error::Memory`] if the host has no room. `vec!` would end the process.
pub(super) fn zeroed(path: &Path, len_bytes: usize) -> Result<Vec<u8>> {
    let none = || out_of_memory(path, len_bytes as u64);
    if len_bytes == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<u8>(len_bytes).map_err(|_| none())?;
    // SAFETY: the layout has bytes.
    let bytes = unsafe { alloc_zeroed(layout) };
    if bytes.is_null() {
        return Err(none());
    }
    // SAFETY: allocated with the layout of so many bytes, all of which are zeros.
    Ok(unsafe { Vec::from_raw_parts(bytes, len_bytes, len_bytes) })
}

/// Returns zeros on the host with room for a layout of tensors, and the offset of the layout, which is aligned to 64 bytes.
pub(super) fn zeroed_aligned(path: &Path, layout_bytes: usize) -> Result<(Vec<u8>, usize)> {
    /// A line of the processor's cache.
    const ALIGNMENT: usize = 64;
    let buffer = zeroed(path, layout_bytes.saturating_add(ALIGNMENT - 1))?;
    // A vector of bytes may start anywhere.
    let start = buffer.as_ptr().addr().wrapping_neg() % ALIGNMENT;
    Ok((buffer, start))
}

pub(super) fn allocate(path: &Path, device: &Device, len_bytes: usize) -> Result<DeviceBuffer> {
    device.alloc(len_bytes).map_err(|error| Error::Memory {
        path: path.to_owned(),
        len_bytes: len_bytes as u64,
        cause: error.into(),
    })
}

/// Converts a length of memory in bytes to `usize`.
pub(super) fn addressable(path: &Path, len_bytes: u64) -> Result<usize> {
    usize::try_from(len_bytes).map_err(|_| out_of_memory(path, len_bytes))
}

pub(super) fn out_of_memory(path: &Path, len_bytes: u64) -> Error {
    Error::Memory { path: path.to_owned(), len_bytes, cause: io::Error::from(OutOfMemory).into() }
}

pub(super) fn check_len(
    path: &Path,
    array: impl FnOnce() -> String,
    needed_bytes: u64,
    buffer_bytes: usize,
) -> Result<()> {
    match buffer_bytes as u64 == needed_bytes {
        true => Ok(()),
        false => Err(Error::BufferSize { path: path.to_owned(), array: array(), needed_bytes, buffer_bytes }),
    }
}

pub(super) fn check_room(path: &Path, layout_bytes: usize, buffer_bytes: usize) -> Result<()> {
    let array = || "the tensors with their alignment".to_owned();
    match buffer_bytes >= layout_bytes {
        true => Ok(()),
        false => check_len(path, array, layout_bytes as u64, buffer_bytes),
    }
}
