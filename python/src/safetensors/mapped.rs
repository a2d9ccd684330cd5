//! Tensors in mappings of their files.

use std::collections::HashSet;
use std::ptr;

use gpufile::File;
use gpufile::formats::safetensors::{Checkpoint, Header, TensorInfo};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};

use super::group::{element_bytes, shape_of, table};
use super::{safetensor_error, visible};
use crate::mapping::Mapping;

/// The mapping of each file of a checkpoint, once it is used.
pub struct Mapped(Vec<PyOnceLock<Py<Mapping>>>);

/// Mappings with their tables, and the names of tensors that must be read.
pub type Tables<'py> = (Vec<(Py<Mapping>, Bound<'py, PyList>)>, Vec<String>);

/// The number of a file, its mapping, and type, shape and start of a tensor.
pub type Place<'py> = (usize, Py<Mapping>, &'static str, Bound<'py, PyTuple>, u64);

impl Mapped {
    pub fn new(files: usize) -> Self {
        Self((0..files).map(|_| PyOnceLock::new()).collect())
    }

    /// Maps the files of tensors.
    pub fn tables<'py>(
        &self,
        py: Python<'py>,
        checkpoint: &Checkpoint,
        names: Option<Vec<String>>,
    ) -> PyResult<Tables<'py>> {
        let chosen: Option<HashSet<&str>> =
            names.as_ref().map(|names| names.iter().map(String::as_str).collect());
        if let Some(missing) = chosen.iter().flatten().find(|name| checkpoint.tensor(name).is_none()) {
            let text = format!("File does not contain tensor {}", visible(missing));
            return Err(safetensor_error(py, text));
        }
        let is_chosen =
            |info: &TensorInfo<'_>| chosen.as_ref().is_none_or(|chosen| chosen.contains(info.name));
        let (mut tables, mut others) = (Vec::new(), Vec::new());
        for (number, (file, header)) in checkpoint.files().enumerate() {
            let infos = header.tensors().filter(is_chosen);
            let (here, unaligned): (Vec<_>, Vec<_>) = infos.partition(|info| is_aligned(header, info));
            others.extend(unaligned.into_iter().map(|info| info.name.to_owned()));
            if here.is_empty() {
                continue;
            }
            let start = |info: &TensorInfo<'_>| header.in_file(info.offsets.clone()).start as usize;
            let places = here.into_iter().map(|info| (info.clone(), None, start(&info)));
            tables.push((self.mapping(py, number, file, header)?, table(py, places)?));
        }
        Ok((tables, others))
    }

    pub fn place<'py>(
        &self,
        py: Python<'py>,
        checkpoint: &Checkpoint,
        name: &str,
    ) -> PyResult<Option<Place<'py>>> {
        let found = checkpoint.tensor(name).zip(file_of(checkpoint, name));
        let Some((info, (number, file, header))) = found.filter(|(info, of)| is_aligned(of.2, info)) else {
            return Ok(None);
        };
        let (shape, _) = shape_of(py, &info, None)?;
        let mapping = self.mapping(py, number, file, header)?;
        Ok(Some((number, mapping, info.dtype.name(), shape, header.in_file(info.offsets.clone()).start)))
    }

    fn mapping(&self, py: Python<'_>, number: usize, file: &File, header: &Header) -> PyResult<Py<Mapping>> {
        let map = || Py::new(py, Mapping::of(py, file, header.file_len_bytes())?);
        self.0[number].get_or_try_init(py, map).map(|mapping| mapping.clone_ref(py))
    }
}

fn file_of<'a>(checkpoint: &'a Checkpoint, name: &str) -> Option<(usize, &'a File, &'a Header)> {
    let (file, _) = checkpoint.file_of(name)?;
    let (number, (file, header)) = checkpoint.files().enumerate().find(|(_, of)| ptr::eq(of.0, file))?;
    Some((number, file, header))
}

/// Returns whether a tensor can be viewed where the file has it.
fn is_aligned(header: &Header, info: &TensorInfo<'_>) -> bool {
    header.in_file(info.offsets.clone()).start.is_multiple_of(element_bytes(info))
}
