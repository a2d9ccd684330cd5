use std::ffi::OsStr;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;

use gpufile::Cause;
use gpufile::trusted::PrivateFolder;
use pyo3::prelude::*;

use crate::error::os_error_with;

/// Opens a folder that no other user may open, or makes it. Returns a descriptor, which the caller closes.
///
/// Raises ``PermissionError`` if another user could have put sockets there, and ``OSError`` if it cannot be opened.
#[pyfunction]
pub fn private_folder(py: Python<'_>, path: PathBuf) -> PyResult<i32> {
    let open = || -> Result<PrivateFolder, Cause> {
        let folder = PrivateFolder::open(&path, false, is_socket)?;
        folder.make_private()?;
        Ok(folder)
    };
    match py.detach(open) {
        Ok(folder) => Ok(OwnedFd::from(folder).into_raw_fd()),
        Err(Cause::Io(error)) => Err(os_error_with(error.raw_os_error(), error.to_string(), &path)),
        Err(cause) => Err(os_error_with(Some(libc::EACCES), cause.to_string(), &path)),
    }
}

/// Returns whether a name is that of a model, as `_handed.py` makes it.
fn is_socket(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == 32 && name.iter().all(u8::is_ascii_hexdigit)
}
