//! The headers of files of other formats than safetensors: models in GGUF files, and arrays in `.npy` files.
//!
//! The package allocates memory, and reads into it with the returned files.

use std::path::PathBuf;

use gpufile::formats::gguf::{self, Array, TensorInfo, Value};
use gpufile::formats::npy::{NpyFile, Order};
use gpufile::formats::{Error, Result};
use gpufile::remote::RemoteOptions;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::file::File;
use crate::interrupts;
use crate::opening::path_of;
use crate::remote::{open_exception, source_of};
use crate::safetensors::format_exception;

/// Name, type and shape of a tensor, the shape of its bytes if frameworks lack the type, and number of the file and place in it.
type Tensor<'py> =
    (String, &'static str, Bound<'py, PyTuple>, Option<Bound<'py, PyTuple>>, usize, (u64, u64));
/// The files, the metadata and the tensors of a model.
type Model<'py> = (Vec<File>, Bound<'py, PyDict>, Vec<Tensor<'py>>);
/// The file, numpy's text for the type, whether the first axis is the fastest, the shape, and the place of the elements.
type Npy<'py> = (File, String, bool, Bound<'py, PyTuple>, (u64, u64));

enum Source {
    Path(PathBuf),
    Url(String, Box<RemoteOptions>),
}

impl Source {
    fn of(
        path: &Bound<'_, PyAny>,
        is_url: bool,
        storage_options: Option<Vec<(String, String)>>,
    ) -> PyResult<Self> {
        if is_url {
            let (address, options) = source_of(path, storage_options)?;
            return Ok(Self::Url(address, Box::new(options)));
        }
        Ok(Self::Path(path_of(path, "file")?))
    }

    /// Opens the source. Ctrl-C ends the wait.
    fn open<T: Send + 'static>(
        self,
        py: Python<'_>,
        local: fn(PathBuf) -> Result<T>,
        remote: fn(&str, &RemoteOptions) -> Result<T>,
    ) -> PyResult<T> {
        let open = move || match self {
            Self::Path(path) => local(path).map_err(Box::new),
            Self::Url(address, options) => remote(&address, &options).map_err(Box::new),
        };
        interrupts::run(py, open)?.map_err(|error| match *error {
            Error::File(error) => open_exception(py, &error),
            Error::Format { .. } | Error::DuplicateTensor { .. } => PyValueError::new_err(error.to_string()),
            error => format_exception(py, Box::new(error)),
        })
    }
}

/// Opens a model in a GGUF file, or in the files of a split one. Returns the files, the metadata, and the tensors.
#[pyfunction]
#[pyo3(signature = (path, is_url, storage_options))]
pub fn open_gguf<'py>(
    path: &Bound<'py, PyAny>,
    is_url: bool,
    #[pyo3(from_py_with = crate::arguments::storage_options)] storage_options: Option<Vec<(String, String)>>,
) -> PyResult<Model<'py>> {
    let py = path.py();
    let source = Source::of(path, is_url, storage_options)?;
    let model = source.open(py, gguf::Model::open, gguf::Model::open_url_with)?;
    let metadata = PyDict::new(py);
    for (key, value) in model.metadata().iter() {
        metadata.set_item(key, value_of(py, value)?)?;
    }
    let mut tensors = Vec::new();
    for (number, (_, header)) in model.files().enumerate() {
        for info in header.tensors() {
            let shape = PyTuple::new(py, info.shape)?;
            let place = (info.range.start, info.range.end);
            tensors.push((
                info.name.to_owned(),
                info.ggml_type.name(),
                shape,
                rows(py, &info)?,
                number,
                place,
            ));
        }
    }
    let files = model.files().map(|(file, _)| File::read_only(file.clone())).collect();
    Ok((files, metadata, tensors))
}

/// Returns the shape of the bytes of a tensor of blocks: the last axis counts bytes.
fn rows<'py>(py: Python<'py>, info: &TensorInfo<'_>) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let block = info.ggml_type.block_elements();
    if block == 1 {
        return Ok(None);
    }
    let mut shape = info.shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = *last / block * info.ggml_type.block_bytes();
    }
    Ok(Some(PyTuple::new(py, shape)?))
}

fn value_of<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! object {
        ($($kind:ident)*) => {
            match value {
                $(Value::$kind(value) => Ok(value.into_pyobject(py)?.to_owned().into_any()),)*
                Value::Array(array) => list_of(py, array),
            }
        };
    }
    object!(U8 I8 U16 I16 U32 I32 U64 I64 F32 F64 Bool String)
}

fn list_of<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! list {
        ($($kind:ident)*) => {
            match array {
                $(Array::$kind(items) => PyList::new(py, items)?,)*
                Array::Strings(strings) => PyList::new(py, strings.iter())?,
            }
        };
    }
    Ok(list!(U8 I8 U16 I16 U32 I32 U64 I64 F32 F64 Bool).into_any())
}

/// Opens an array in a `.npy` file. Returns the file, and what its header says.
#[pyfunction]
#[pyo3(signature = (path, is_url, storage_options))]
pub fn open_npy<'py>(
    path: &Bound<'py, PyAny>,
    is_url: bool,
    #[pyo3(from_py_with = crate::arguments::storage_options)] storage_options: Option<Vec<(String, String)>>,
) -> PyResult<Npy<'py>> {
    let py = path.py();
    let source = Source::of(path, is_url, storage_options)?;
    let npy = source.open(py, NpyFile::open, NpyFile::open_url_with)?;
    let header = npy.header();
    let shape = PyTuple::new(py, header.shape())?;
    let (start, len_bytes) = (header.data_start(), header.data_len_bytes());
    let is_fortran = header.order() == Order::Fortran;
    let file = File::read_only(npy.file().clone());
    Ok((file, header.descr().to_string(), is_fortran, shape, (start, start + len_bytes)))
}
