//! The module `gpufile._gpufile`: files and memory for the Python package `gpufile`.
//!
//! `memory` turns Python objects into memory, `error` turns errors into exceptions, and `file` has the class `File`. The
//! public names and their docs are in the package, in `python/gpufile`.

mod error;
mod file;
mod memory;

use pyo3::prelude::*;

/// The native part of gpufile. Import `gpufile` instead.
#[pymodule]
mod _gpufile {
    #[pymodule_export]
    use crate::file::File;
}
