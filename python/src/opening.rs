//! The ways to name a file that is to be opened: paths, modes and descriptors of Python.

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use gpufile::OpenOptions;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::engine::Engine;
use crate::memory::type_name;

/// Returns the path that a string, bytes or an object with `__fspath__` stands for.
pub fn path_of(object: &Bound<'_, PyAny>, name: impl Display) -> PyResult<PathBuf> {
    Ok(text_of(object, name)?.1)
}

/// Returns the argument `path` as a keyword of a function.
pub fn path_argument(object: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    path_of(object, "path")
}

/// Returns a path as text or bytes, as `os.fspath` does, for the argument of this name.
#[pyfunction]
#[pyo3(name = "path_of", signature = (path, argument))]
pub fn checked_path<'py>(path: &Bound<'py, PyAny>, argument: &str) -> PyResult<Bound<'py, PyAny>> {
    Ok(text_of(path, argument)?.0)
}

/// Returns whether a text is the address of an object on a server.
#[pyfunction]
#[pyo3(name = "is_address", signature = (text))]
pub fn is_address(text: &Bound<'_, PyString>) -> bool {
    // A text with lone surrogates stands for a path.
    text.to_str().is_ok_and(|text| gpufile::is_address(text.as_bytes()))
}

fn text_of<'py>(object: &Bound<'py, PyAny>, name: impl Display) -> PyResult<(Bound<'py, PyAny>, PathBuf)> {
    let py = object.py();
    // SAFETY: the thread is attached, and the call returns a new reference or raises.
    let text = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyOS_FSPath(object.as_ptr())) };
    let text = text.map_err(|error| match error.is_instance_of::<PyTypeError>(py) {
        true => {
            let hint = if object.hasattr("read").unwrap_or(false) { "; an open file is no path" } else { "" };
            let kind = type_name(object);
            PyTypeError::new_err(format!(
                "{name}: expected str, bytes or os.PathLike object, not {kind}{hint}"
            ))
        }
        false => error,
    })?;
    let path: PathBuf = match text.cast::<PyBytes>() {
        Ok(bytes) => OsStr::from_bytes(bytes.as_bytes()).into(),
        Err(_) => text.extract()?,
    };
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(PyValueError::new_err(format!("{name}: embedded null byte, which no path has")));
    }
    match gpufile::check_path(&path) {
        Err(gpufile::Error::Open { path, cause, .. }) => {
            let hint = "gpufile.RemoteFile, safe_open, load_model and save_file take addresses";
            Err(PyValueError::new_err(format!("{name} is {path:?}: {cause}; {hint}")))
        }
        _ => Ok((text, path)),
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

pub fn with_engine(options: OpenOptions, engine: Option<&Bound<'_, Engine>>) -> OpenOptions {
    match engine {
        Some(engine) => options.engine(&engine.get().0),
        None => options,
    }
}
