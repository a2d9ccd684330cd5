//! The command line.

use std::ffi::OsString;
use std::process::ExitCode;

use pyo3::prelude::*;

/// Runs the program ``gpufile`` with its arguments, of which the first is its name. Returns its exit status.
#[pyfunction]
pub fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    let status = py.detach(|| gpufile_cli::run(arguments));
    // An exit code does not tell its number, but codes can be compared.
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == status).unwrap_or(u8::MAX)
}
