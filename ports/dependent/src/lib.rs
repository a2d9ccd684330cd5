//! Copies files through the memory of a GPU. On other systems than Linux, copying fails with `Unsupported`.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod gpu;

#[cfg(target_os = "linux")]
pub use gpu::{copy, copy_with};

/// Copies a file.
///
/// # Errors
/// Always `Unsupported`: there is no GPU path on this system.
#[cfg(not(target_os = "linux"))]
pub fn copy(_from: &std::path::Path, _to: &std::path::Path) -> std::io::Result<u64> {
    Err(std::io::ErrorKind::Unsupported.into())
}
