//! Saving tensors of Python.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gpufile::formats::safetensors::{self, Header, NewTensor, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::{BufSlice, IoBuf};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{format_exception, safetensor_error};
use crate::memory::{Access, Memory, wait_for_streams};

/// Name, type, shape as the file has it, and memory.
type Item<'py> = (String, String, Vec<u64>, Bound<'py, PyAny>);

/// A tensor to save.
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    memory: Memory,
}

fn tensors(py: Python<'_>, items: Vec<Item<'_>>) -> PyResult<Vec<Tensor>> {
    let tensor = |(name, dtype, shape, object): Item<'_>| {
        let Some(dtype) = Dtype::from_safetensors(&dtype) else {
            return Err(safetensor_error(
                py,
                format!("tensor {name:?}: the safetensors format has no type {dtype:?}"),
            ));
        };
        Ok(Tensor { name, dtype, shape, memory: Memory::of(&object, Access::Read)? })
    };
    items.into_iter().map(tensor).collect()
}

/// Saves tensors to a file. Replaces an existing file as a whole. Returns the length of the file in bytes.
#[pyfunction]
#[pyo3(signature = (path, tensors, metadata, sync))]
pub fn save_safetensors(
    py: Python<'_>,
    path: PathBuf,
    tensors: Vec<Item<'_>>,
    metadata: Option<BTreeMap<String, String>>,
    sync: bool,
) -> PyResult<u64> {
    let tensors = self::tensors(py, tensors)?;
    wait_for_streams(py, tensors.iter().map(|tensor| &tensor.memory))?;
    let save = || {
        let data: Vec<_> = tensors
            .iter()
            .map(|Tensor { name, dtype, shape, memory }| {
                TensorData::new(name, *dtype, shape, BufSlice::new(memory, ..))
            })
            .collect();
        let options = SaveOptions::new().sync(sync).metadata(metadata.unwrap_or_default());
        safetensors::save(&path, &data, &options).map(|saved| saved.len_bytes).map_err(Box::new)
    };
    py.detach(save).map_err(|error| format_exception(py, error))
}

/// Returns the bytes of a file with these tensors of the host.
#[pyfunction]
#[pyo3(signature = (tensors, metadata))]
pub fn serialize_safetensors<'py>(
    py: Python<'py>,
    tensors: Vec<Item<'py>>,
    metadata: Option<BTreeMap<String, String>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let tensors = self::tensors(py, tensors)?;
    let new: Vec<_> = tensors
        .iter()
        .map(|Tensor { name, dtype, shape, .. }| NewTensor { name, dtype: *dtype, shape })
        .collect();
    let built = Header::build(&new, metadata.unwrap_or_default());
    let (header, head) =
        built.map_err(|error| safetensor_error(py, format!("Error while serializing: {error}")))?;
    let mut parts = Vec::with_capacity(tensors.len());
    for Tensor { name, memory, .. } in &tensors {
        let place = header.get(name).expect("a header has what it was built from");
        let needed = place.len_bytes();
        if memory.len_bytes() as u64 != needed || !memory.location().is_host_accessible {
            return Err(PyValueError::new_err(format!(
                "tensor {name:?} needs {needed} bytes of host memory, but has {}",
                memory.len_bytes()
            )));
        }
        parts.push((header.in_file(place.offsets).start as usize, memory));
    }
    let fill = |file: &mut [u8]| {
        file[..head.len()].copy_from_slice(&head);
        for (start, memory) in &parts {
            let target = &mut file[*start..*start + memory.len_bytes()];
            // SAFETY: the memory has as many bytes, on the host, and its object keeps them. The target is new.
            unsafe { target.as_mut_ptr().copy_from_nonoverlapping(memory.as_ptr(), target.len()) };
        }
        Ok(())
    };
    PyBytes::new_with(py, header.file_len_bytes() as usize, fill)
}
