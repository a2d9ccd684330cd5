//! Saving tensors of Python.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::iter;
use std::path::PathBuf;

use gpufile::formats::safetensors::{self, Header, NewTensor, TensorData, planning};
use gpufile::formats::{Dtype, Error, SaveOptions};
use gpufile::remote::RemoteOptions;
use gpufile::{BufSlice, IoBuf};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};

use super::{format_exception, safetensor_error};
use crate::arguments;
use crate::memory::{Access, HostCopy, Known, Memory, copy_all, wait_for_streams};
use crate::opening::path_argument;
use crate::remote::{open_exception, with_storage_options};
use crate::upload::{next_piece, send};

/// Name, type, shape as the file has it, and memory.
type Item<'py> = (String, String, Vec<u64>, Bound<'py, PyAny>);

/// Name, type and shape as the file has it.
type Spec = (String, String, Vec<u64>);

struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    memory: Memory,
}

fn tensors<'py>(py: Python<'py>, items: Vec<Item<'py>>) -> PyResult<Vec<Tensor>> {
    let mut known = Known::default();
    let tensor = |(name, dtype, shape, object): Item<'py>| {
        let dtype = dtype_of(py, &name, &dtype)?;
        Ok(Tensor { name, dtype, shape, memory: Memory::beside(&mut known, &object, Access::Read)? })
    };
    items.into_iter().map(tensor).collect()
}

fn dtype_of(py: Python<'_>, name: &str, dtype: &str) -> PyResult<Dtype> {
    let unknown =
        || safetensor_error(py, format!("tensor {name:?}: the safetensors format has no type {dtype:?}"));
    Dtype::from_safetensors(dtype).ok_or_else(unknown)
}

/// Saves tensors to a file. Replaces an existing file as a whole. Returns the length of the file in bytes.
#[pyfunction]
#[pyo3(signature = (path, tensors, metadata, sync, remove_old_model, compress))]
pub fn save_safetensors(
    py: Python<'_>,
    #[pyo3(from_py_with = path_argument)] path: PathBuf,
    tensors: Vec<Item<'_>>,
    #[pyo3(from_py_with = arguments::metadata)] metadata: Option<BTreeMap<String, String>>,
    sync: bool,
    remove_old_model: bool,
    compress: bool,
) -> PyResult<u64> {
    let tensors = self::tensors(py, tensors)?;
    wait_for_streams(py, tensors.iter().map(|tensor| &tensor.memory))?;
    let save = || {
        let data = data_of(&tensors);
        let options = SaveOptions::new().sync(sync).metadata(metadata.unwrap_or_default());
        let options = options.remove_old_model(remove_old_model).compress(compress);
        safetensors::save(&path, &data, &options).map(|saved| saved.len_bytes).map_err(Box::new)
    };
    py.detach(save).map_err(|error| format_exception(py, error))
}

/// Saves tensors to an object of a store. Replaces an existing object as a whole. Returns the length of the object in bytes.
#[pyfunction]
#[pyo3(signature = (url, tensors, metadata, storage_options))]
pub fn save_safetensors_url(
    py: Python<'_>,
    url: String,
    tensors: Vec<Item<'_>>,
    #[pyo3(from_py_with = arguments::metadata)] metadata: Option<BTreeMap<String, String>>,
    #[pyo3(from_py_with = arguments::storage_options)] storage_options: Option<Vec<(String, String)>>,
) -> PyResult<u64> {
    let tensors = self::tensors(py, tensors)?;
    wait_for_streams(py, tensors.iter().map(|tensor| &tensor.memory))?;
    let remote = with_storage_options(RemoteOptions::new(), &url, storage_options);
    let options = SaveOptions::new().metadata(metadata.unwrap_or_default());
    let mut raised = None;
    // Handlers of signals run between the parts of the object, and while it waits for the server.
    let mut is_cancelled = || {
        raised = raised.take().or_else(|| Python::attach(|py| py.check_signals()).err());
        raised.is_some()
    };
    let saved = py.detach(|| {
        planning::save_url_unless(&url, &data_of(&tensors), &options, &remote, &mut is_cancelled)
            .map_err(Box::new)
    });
    match (raised, saved) {
        (Some(exception), Err(_)) => Err(exception),
        (_, Ok(saved)) => Ok(saved.len_bytes),
        (None, Err(error)) => Err(match &*error {
            Error::Save { error, .. } if error.kind() == ErrorKind::InvalidInput => open_exception(py, error),
            _ => format_exception(py, error),
        }),
    }
}

fn data_of(tensors: &[Tensor]) -> Vec<TensorData<'_>> {
    tensors
        .iter()
        .map(|Tensor { name, dtype, shape, memory }| {
            TensorData::new(name, *dtype, shape, BufSlice::new(memory, ..))
        })
        .collect()
}

/// Saves tensors to a file, like `save_safetensors`. Their bytes come from an iterator of lists of buffers, in the order of
/// `safetensors_order`. Each list is written before the next is asked for.
#[pyfunction]
#[pyo3(signature = (path, tensors, metadata, sync, pieces, compress = false))]
pub fn save_safetensors_pieces(
    py: Python<'_>,
    #[pyo3(from_py_with = path_argument)] path: PathBuf,
    tensors: Vec<Spec>,
    #[pyo3(from_py_with = arguments::metadata)] metadata: Option<BTreeMap<String, String>>,
    sync: bool,
    pieces: Bound<'_, PyIterator>,
    compress: bool,
) -> PyResult<u64> {
    let dtypes = dtypes_of(py, &tensors)?;
    let new = new_tensors(&tensors, &dtypes);
    let options = SaveOptions::new().sync(sync).metadata(metadata.unwrap_or_default()).compress(compress);
    let (pieces, mut raised) = (pieces.unbind(), None);
    let write = |appender: &mut planning::Appender<'_>| {
        loop {
            let memories = match Python::attach(|py| next_piece(py, &pieces)) {
                Ok(Some(memories)) => memories,
                Ok(None) => return Ok(()),
                Err(exception) => {
                    raised = Some(exception);
                    // The exception takes the place of this error.
                    return Err(appender.failed("the iterator of the bytes raised".to_owned()));
                }
            };
            let buffers: Vec<_> = memories.iter().map(|memory| BufSlice::new(memory, ..)).collect();
            appender.append(&buffers)?;
        }
    };
    let saved = py.detach(|| planning::save_appended(&path, &new, &options, write).map_err(Box::new));
    match (raised, saved) {
        (Some(exception), _) => Err(exception),
        (None, saved) => saved.map(|saved| saved.len_bytes).map_err(|error| format_exception(py, error)),
    }
}

/// Saves tensors to an object of a store, like `save_safetensors_pieces` to a file. An older object stays until all bytes arrived.
#[pyfunction]
#[pyo3(signature = (url, tensors, metadata, pieces, storage_options))]
pub fn save_safetensors_pieces_url(
    py: Python<'_>,
    url: String,
    tensors: Vec<Spec>,
    #[pyo3(from_py_with = arguments::metadata)] metadata: Option<BTreeMap<String, String>>,
    pieces: Bound<'_, PyIterator>,
    #[pyo3(from_py_with = arguments::storage_options)] storage_options: Option<Vec<(String, String)>>,
) -> PyResult<u64> {
    let dtypes = dtypes_of(py, &tensors)?;
    let built = Header::build(&new_tensors(&tensors, &dtypes), metadata.unwrap_or_default());
    let (header, head) =
        built.map_err(|error| safetensor_error(py, format!("Error while serializing: {error}")))?;
    let len_bytes = header.file_len_bytes();
    let options = with_storage_options(RemoteOptions::new(), &url, storage_options);
    send(py, || options.upload(&url, len_bytes), &head, pieces)?;
    Ok(len_bytes)
}

/// Returns the numbers of the tensors in the order that their bytes have in a file.
#[pyfunction]
#[pyo3(signature = (tensors, metadata))]
pub fn safetensors_order(
    py: Python<'_>,
    tensors: Vec<Spec>,
    #[pyo3(from_py_with = arguments::metadata)] metadata: Option<BTreeMap<String, String>>,
) -> PyResult<Vec<usize>> {
    let dtypes = dtypes_of(py, &tensors)?;
    let built = Header::build(&new_tensors(&tensors, &dtypes), metadata.unwrap_or_default());
    let (header, _) =
        built.map_err(|error| safetensor_error(py, format!("Error while serializing: {error}")))?;
    let numbers: HashMap<_, _> =
        tensors.iter().enumerate().map(|(number, (name, ..))| (&**name, number)).collect();
    Ok(header.tensors().map(|tensor| numbers[tensor.name]).collect())
}

fn dtypes_of(py: Python<'_>, tensors: &[Spec]) -> PyResult<Vec<Dtype>> {
    tensors.iter().map(|(name, dtype, _)| dtype_of(py, name, dtype)).collect()
}

fn new_tensors<'a>(tensors: &'a [Spec], dtypes: &[Dtype]) -> Vec<NewTensor<'a>> {
    let new = |((name, _, shape), dtype): (&'a Spec, &Dtype)| NewTensor { name, dtype: *dtype, shape };
    iter::zip(tensors, dtypes).map(new).collect()
}

/// Returns the bytes of a file with these tensors of the host.
#[pyfunction]
#[pyo3(signature = (tensors, metadata))]
pub fn serialize_safetensors<'py>(
    py: Python<'py>,
    tensors: Vec<Item<'py>>,
    #[pyo3(from_py_with = arguments::metadata)] metadata: Option<BTreeMap<String, String>>,
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
        let copy = |(start, memory): &(usize, &Memory)| {
            let target = &mut file[*start..*start + memory.len_bytes()];
            HostCopy { source: memory.as_ptr(), target: target.as_mut_ptr(), len_bytes: target.len() }
        };
        let copies: Vec<_> = parts.iter().map(copy).collect();
        // SAFETY: each memory has as many bytes, on the host, and its object keeps them. The targets are parts of the new
        // bytes, at different places.
        py.detach(|| unsafe { copy_all(&copies) });
        Ok(())
    };
    PyBytes::new_with(py, header.file_len_bytes() as usize, fill)
}
