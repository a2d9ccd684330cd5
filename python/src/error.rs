//! Exceptions for errors of `gpufile`.

use std::io::ErrorKind;
use std::path::Path;

use gpufile::remote::RemoteError;
use gpufile::{Cause, Error};
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Returns the exception for an error.
///
/// A file that cannot be opened gives the `OSError` of its errno, for example `FileNotFoundError`. A failed
/// transfer gives a `gpufile.TransferError`.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::Open { path, cause, .. } | Error::File { path, cause, .. } => match error.raw_os_error() {
            Some(errno) => os_error(py, errno, path),
            None => os_error_with(errno_of(error), cause.to_string(), path),
        },
        Error::Transfer { path, .. } => transfer_error(py, error, Some(path), None),
        Error::Entry { entry, error: inner, .. } => {
            let path = if let Error::Transfer { path, .. } = &**inner { Some(&**path) } else { None };
            transfer_error(py, error, path, Some(*entry))
        }
        _ => transfer_error(py, error, None, None),
    }
}

/// Returns the exception for a failed save to `path`. The end of `text`, after that of the error, tells which data is in
/// place, and what was left.
pub fn save_exception(py: Python<'_>, path: &Path, error: &Error, text: &str) -> PyErr {
    match error {
        Error::Open { cause, .. } | Error::File { cause, .. } => {
            let of_errno = error.raw_os_error().and_then(|errno| strerror(py, errno).ok());
            let (_, after) = text.split_once(&error.to_string()).unwrap_or_default();
            os_error_with(errno_of(error), of_errno.unwrap_or_else(|| cause.to_string()) + after, path)
        }
        _ => transfer_error_with(py, error, text.to_owned(), Some(path), None),
    }
}

pub fn cuda_exception(py: Python<'_>, error: cufile::Error) -> PyErr {
    exception(py, &Error::from(error))
}

pub fn os_error(py: Python<'_>, errno: i32, path: &Path) -> PyErr {
    let text = strerror(py, errno).unwrap_or_default();
    os_error_with(Some(errno), text, path)
}

pub fn os_error_with(errno: Option<i32>, text: String, path: &Path) -> PyErr {
    PyOSError::new_err((errno, text, path.as_os_str().to_owned()))
}

/// Returns the text of an errno without its number, which the exception adds.
fn strerror(py: Python<'_>, errno: i32) -> PyResult<String> {
    py.import("os")?.call_method1("strerror", (errno,))?.extract()
}

fn transfer_error(py: Python<'_>, error: &Error, path: Option<&Path>, entry: Option<usize>) -> PyErr {
    transfer_error_with(py, error, error.to_string(), path, entry)
}

fn transfer_error_with(
    py: Python<'_>,
    error: &Error,
    text: String,
    path: Option<&Path>,
    entry: Option<usize>,
) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let arguments = (errno_of(error), text, path.map(|path| path.as_os_str().to_owned()));
        let value = transfer_error_type(py)?.call1(arguments)?;
        value.setattr("bytes_done", error.bytes_done())?;
        value.setattr("entry", entry)?;
        Ok(PyErr::from_value(value))
    };
    make().unwrap_or_else(|failure| failure)
}

/// Returns the errno of an error, or the one that says the same as a cause without errno.
fn errno_of(error: &Error) -> Option<i32> {
    error.raw_os_error().or(match error.cause() {
        Cause::Invalid(_) => Some(libc::EINVAL),
        Cause::NoCufile(_) => Some(libc::ENOTSUP),
        Cause::EndedEarly { .. } => Some(libc::EIO),
        Cause::Remote(error) => Some(errno_of_remote(error)),
        Cause::Io(error) if error.kind() == ErrorKind::InvalidInput => Some(libc::EINVAL),
        Cause::Io(error) if error.kind() == ErrorKind::Unsupported => Some(libc::ENOTSUP),
        _ => None,
    })
}

/// Returns the errno that says the same as an error of a server, so that Python chooses the class, such as
/// `FileNotFoundError`.
fn errno_of_remote(error: &RemoteError) -> i32 {
    if let RemoteError::Connection(error) = error
        && let Some(errno) = error.raw_os_error()
    {
        return errno;
    }
    match error.kind() {
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::StaleNetworkFileHandle => libc::ESTALE,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => libc::EIO,
    }
}

pub fn transfer_error_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.import(py, "gpufile._error", "TransferError")
}

/// Returns the exception that Python's own files raise after `close`.
pub fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file")
}

/// The refusal to pickle an object of a class, with what a program does instead.
pub fn not_pickled(class: &str, instead: &str) -> PyErr {
    PyTypeError::new_err(format!("cannot pickle '{class}' object: {instead}"))
}
