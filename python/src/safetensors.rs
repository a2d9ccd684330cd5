//! Safetensors models for the package `gpufile.safetensors`.
//!
//! A [`Checkpoint`] has the headers of a model. A [`Plan`] of a load has [`Group`]s: tensors that lie in one allocation,
//! where gpufile places them. The package allocates the memory of each group, starts a read, and makes the views of the
//! tensors while the bytes arrive. `mapped` has the tensors in mappings of the files. `save` writes files.

mod checkpoint;
mod group;
mod mapped;
mod plan;
mod save;
mod verify;

use gpufile::formats::Error;
use pyo3::exceptions::{PyFileNotFoundError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::error::{exception, save_exception};
pub use checkpoint::Checkpoint;
pub use group::{Group, parse_safetensors};
pub use plan::Plan;
pub use save::{
    safetensors_order, save_safetensors, save_safetensors_pieces, save_safetensors_pieces_url,
    save_safetensors_url, serialize_safetensors,
};
pub use verify::{verify_model, visible};

pub fn format_exception(py: Python<'_>, error: Box<Error>) -> PyErr {
    match *error {
        Error::File(error) => exception(py, &error),
        Error::Tensor { error, .. } => exception(py, &error),
        Error::Save { ref path, error: ref cause, .. } => save_exception(py, path, cause, &error.to_string()),
        Error::NoModel { .. } | Error::Incomplete { .. } => {
            let exception = PyFileNotFoundError::new_err(error.to_string());
            match exception.value(py).setattr("errno", libc::ENOENT) {
                Ok(()) => exception,
                Err(failure) => failure,
            }
        }
        Error::NoSuchTensor { tensor, .. } => {
            safetensor_error(py, format!("File does not contain tensor {}", visible(&tensor)))
        }
        Error::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        Error::BufferSize { .. } => PyValueError::new_err(error.to_string()),
        error => safetensor_error(py, error.to_string()),
    }
}

fn safetensor_error(py: Python<'_>, text: String) -> PyErr {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match TYPE.import(py, "gpufile.safetensors._error", "SafetensorError") {
        Ok(class) => PyErr::from_type(class.clone(), text),
        Err(failure) => failure,
    }
}
