//! Verifying a model, and names as they are shown.

use std::path::PathBuf;

use gpufile::formats::safetensors::Verify;
use pyo3::prelude::*;

use super::format_exception;
use crate::interrupts;
use crate::opening::{path_argument, path_of};

/// The paths of the files, the numbers of tensors, of their bytes and of compared files, the warnings, and the problems.
type Outcome = (Vec<PathBuf>, usize, u64, usize, Vec<String>, Vec<String>);

/// Verifies a model as the commands of the program do. Ctrl-C ends the wait.
#[pyfunction]
pub fn verify_model(
    py: Python<'_>,
    paths: Vec<Bound<'_, PyAny>>,
    contents: bool,
    hash_list: Option<Bound<'_, PyAny>>,
) -> PyResult<Outcome> {
    let paths: Vec<PathBuf> = paths.iter().map(path_argument).collect::<PyResult<_>>()?;
    let list = hash_list.map(|list| path_of(&list, "hash_list")).transpose()?;
    let verify = move || {
        let verify = Verify::new().contents(contents);
        let verify = match list {
            Some(list) => verify.hash_list(list).map_err(Box::new)?,
            None => verify,
        };
        Ok(verify.run(&paths))
    };
    let found = interrupts::run(py, verify)?.map_err(|error| format_exception(py, error))?;
    let warnings = found.warnings.iter().map(ToString::to_string).collect();
    let problems = found.problems.iter().map(ToString::to_string).collect();
    Ok((found.files, found.tensors, found.len_bytes, found.hashed, warnings, problems))
}

/// Returns a text with its hidden characters escaped.
#[pyfunction]
pub fn visible(text: &str) -> String {
    gpufile::formats::visible(text).into_owned()
}
