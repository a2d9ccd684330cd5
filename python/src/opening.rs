//! The ways to name a file that is to be opened: paths, modes and descriptors of Python.

use std::ffi::OsStr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use gpufile::OpenOptions;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine::Engine;

/// Returns the path that a string, bytes or an object with `__fspath__` stands for.
pub fn path_of(object: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    // SAFETY: the thread is attached, and the call returns a new reference or raises.
    let path = unsafe { Bound::from_owned_ptr_or_err(object.py(), ffi::PyOS_FSPath(object.as_ptr())) }?;
    let path = match path.cast::<PyBytes>() {
        Ok(bytes) => OsStr::from_bytes(bytes.as_bytes()).into(),
        Err(_) => path.extract::<PathBuf>()?,
    };
    match path.as_os_str().as_bytes().contains(&0) {
        true => Err(PyValueError::new_err("embedded null byte")),
        false => Ok(path),
    }
}

/// Refuses a folder, and a FIFO: opening one waits for another process, and it has no offsets.
pub fn check_kind(path: &Path) -> Result<(), i32> {
    // Opening tells the error.
    fs::metadata(path).map_or(Ok(()), |status| refuse(status.file_type()))
}

fn refuse(kind: fs::FileType) -> Result<(), i32> {
    match kind {
        _ if kind.is_dir() => Err(libc::EISDIR),
        _ if kind.is_fifo() => Err(libc::ESPIPE),
        _ => Ok(()),
    }
}

/// Duplicates a descriptor. Also returns the mode that stands for its access.
///
/// # Errors
/// The operating system's, for no descriptor, or one of a folder or a FIFO.
pub fn duplicate(number: RawFd) -> Result<(OwnedFd, &'static str), i32> {
    let last = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: the call takes integers; the kernel checks the number.
    let duplicate = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if duplicate < 0 {
        return Err(last());
    }
    // SAFETY: the call has made it, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(duplicate) };
    // SAFETY: the call takes integers, and cannot fail for an open descriptor.
    let mode = match unsafe { libc::fcntl(duplicate, libc::F_GETFL) } & libc::O_ACCMODE {
        libc::O_RDONLY => "r",
        libc::O_WRONLY => "w",
        _ => "r+",
    };
    let file = fs::File::from(fd);
    let status = file.metadata().map_err(|_| last())?;
    refuse(status.file_type())?;
    Ok((file.into(), mode))
}

/// Returns the options that a mode of Python's `open` stands for.
pub fn options(mode: &str) -> PyResult<OpenOptions> {
    let options = gpufile::File::options();
    let options = match mode.replace('b', "").as_str() {
        "r" => options.read(true),
        "r+" => options.read(true).write(true),
        "w" => options.write(true).create(true).truncate(true),
        "w+" => options.read(true).write(true).create(true).truncate(true),
        "x" => options.write(true).create_new(true),
        "x+" => options.read(true).write(true).create_new(true),
        "a" | "a+" => {
            return Err(PyValueError::new_err(format!(
                "{mode:?} appends, but each write here has its own offset: use \"r+\", and write at file.size(); \"x\" \
                 makes a file that does not exist"
            )));
        }
        _ => {
            return Err(PyValueError::new_err(format!(
                "{mode:?} is not a mode: use \"r\", \"r+\", \"w\", \"w+\", \"x\" or \"x+\""
            )));
        }
    };
    Ok(options)
}

/// Returns the options with the engine that a call names.
pub fn with_engine(options: OpenOptions, engine: Option<&Bound<'_, Engine>>) -> OpenOptions {
    match engine {
        Some(engine) => options.engine(&engine.get().0),
        None => options,
    }
}
