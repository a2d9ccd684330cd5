//! The tensors that lie in one allocation, as Python makes views of them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpufile::formats::safetensors::{self, Header, TensorInfo, TensorSlice};
use gpufile::formats::{Dtype, FormatError};
use gpufile::{IoBuf, IoBufMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyList, PyTuple};

use super::choice::Refusal;
use super::layout::{self, Layout, Place};
use super::safetensor_error;
use crate::memory::{Access, Memory};
use crate::release::Detached;

/// Tensors of one file, and slices of them, that lie in one allocation.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Group {
    pub source: Source,
    pub layout: Layout,
}

/// The header that a group comes from.
pub enum Source {
    File { checkpoint: Detached<Arc<safetensors::Checkpoint>>, file: usize },
    Bytes(Header),
}

impl Source {
    fn header(&self) -> &Header {
        match self {
            Source::File { checkpoint, file } => {
                checkpoint.files().nth(*file).expect("a group of a file of its checkpoint").1
            }
            Source::Bytes(header) => header,
        }
    }
}

/// Tensors of one type that follow each other in the memory, as lists for Python.
struct Run<'py> {
    dtype: Dtype,
    /// In elements.
    end: usize,
    lens: Bound<'py, PyList>,
    names: Bound<'py, PyList>,
    shapes: Bound<'py, PyList>,
}

impl<'py> Run<'py> {
    fn new(py: Python<'py>, dtype: Dtype, start: usize) -> Self {
        let list = || PyList::empty(py);
        Self { dtype, end: start, lens: list(), names: list(), shapes: list() }
    }

    /// Appends a tensor, and the gap before it. `start` and `len` are in elements.
    fn append(&mut self, name: &str, shape: &Bound<'py, PyTuple>, start: usize, len: usize) -> PyResult<()> {
        // A tensor without elements has no place.
        if len > 0 && start > self.end {
            let gap = start - self.end;
            self.push(None, &PyTuple::new(shape.py(), [gap])?, gap)?;
        }
        self.push(Some(name), shape, len)
    }

    fn push(&mut self, name: Option<&str>, shape: &Bound<'py, PyTuple>, len: usize) -> PyResult<()> {
        self.end += len;
        self.lens.append(len)?;
        self.names.append(name)?;
        self.shapes.append(shape)
    }
}

#[pymethods]
impl Group {
    /// The number of bytes that the memory needs.
    #[getter]
    fn len_bytes(&self) -> usize {
        self.layout.len_bytes
    }

    /// Returns the end of the longest part from `start` on that one read may have, and the number of its reads of
    /// adjacent bytes. It has at most so many of both.
    fn step(&self, start: usize, most_bytes: usize, most_reads: usize) -> (usize, usize) {
        self.layout.step(start, most_bytes, most_reads)
    }

    /// Returns the tensors in runs of one type, as they follow each other in the memory: the type, the start of the
    /// run, and lists of the lengths, names and shapes. Starts and lengths are in elements, and packed elements count
    /// in bytes. A gap between tensors has the name `None`.
    fn table<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let runs = PyList::empty(py);
        let mut open: Option<Run<'py>> = None;
        let mut shapes = HashMap::new();
        let mut places = self.layout.places.iter().peekable();
        for (number, info) in (0..).zip(self.source.header().tensors()) {
            let Some(Place { chosen, start }) = places.next_if(|place| place.chosen.number == number) else {
                continue;
            };
            let start = start / layout::element_bytes(&info) as usize;
            let run = match &mut open {
                Some(run) if run.dtype == info.dtype => run,
                _ => {
                    let run = Run::new(py, info.dtype, start);
                    runs.append((info.dtype.name(), start, &run.lens, &run.names, &run.shapes))?;
                    open.insert(run)
                }
            };
            let (shape, len) = match shapes.entry((info.shape, info.dtype.size_bits(), &chosen.slice)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(shape_of(py, &info, chosen.slice.as_ref())?),
            };
            run.append(info.name, shape, start, *len)?;
        }
        Ok(runs)
    }

    /// Returns name, type, shape and bytes of each tensor in the bytes of a file.
    fn contents<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let header = self.source.header();
        let contents = PyList::empty(py);
        for info in header.tensors() {
            let range = header.in_file(info.offsets.clone());
            let bytes = data.get(range.start as usize..range.end as usize).ok_or_else(other_bytes)?;
            let content = PyDict::new(py);
            content.set_item("dtype", info.dtype.name())?;
            content.set_item("shape", info.shape)?;
            content.set_item("data", PyByteArray::new(py, bytes))?;
            contents.append((info.name, content))?;
        }
        Ok(contents)
    }

    /// Copies the tensors from the bytes of a file to memory.
    fn copy(&self, data: &[u8], memory: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut memory = Memory::of(memory, Access::Write)?.part(0, Some(self.layout.len_bytes))?;
        if !memory.location().is_host_accessible {
            return Err(PyValueError::new_err(
                "the bytes can be copied only to host memory, but this memory is on a GPU",
            ));
        }
        for stretch in self.layout.within(0, self.layout.len_bytes) {
            let from = stretch.file_offset as usize;
            let source = data.get(from..from + stretch.len_bytes);
            let source = source.ok_or_else(other_bytes)?;
            // SAFETY: the stretch lies in the memory, which has the bytes of the layout and which the object keeps.
            unsafe {
                let target = memory.as_mut_ptr().add(stretch.buffer_offset);
                target.copy_from_nonoverlapping(source.as_ptr(), source.len());
            }
        }
        Ok(())
    }
}

fn other_bytes() -> PyErr {
    PyValueError::new_err("these are not the bytes for which the group was planned")
}

/// Returns the shape of a tensor or of a slice of it, and the number of elements. Those of packed types count the bytes
/// of the last axis.
fn shape_of<'py>(
    py: Python<'py>,
    info: &TensorInfo<'_>,
    slice: Option<&TensorSlice>,
) -> PyResult<(Bound<'py, PyTuple>, usize)> {
    let whole = || Some(layout::stored_shape(info)?.into_iter().map(|axis| (0, axis)).collect());
    let Some(bounds) = slice.map_or_else(whole, |slice| layout::bounds_of(info, slice)) else {
        let text = format!(
            "tensor {:?}: {} elements are packed into bytes, so the last axis must fill whole bytes; the shape is {:?}",
            info.name, info.dtype, info.shape
        );
        return Err(safetensor_error(py, text));
    };
    let len = layout::part_bytes(info, &bounds) / layout::element_bytes(info);
    Ok((PyTuple::new(py, bounds.iter().map(|(start, stop)| stop - start))?, len as usize))
}

/// Parses the bytes of a file. Returns the group of all tensors, and the metadata.
#[pyfunction]
pub fn parse_safetensors(py: Python<'_>, data: &[u8]) -> PyResult<(Group, Option<BTreeMap<String, String>>)> {
    let failed = |error: FormatError| safetensor_error(py, format!("Error while deserializing: {error}"));
    let len_bytes = data.len() as u64;
    let head_bytes = safetensors::head_len(data, len_bytes).map_err(failed)? as usize;
    let header = Header::parse(&data[..head_bytes], len_bytes).map_err(failed)?;
    let layouts = Layout::of(&header, None, u64::MAX).ok_or_else(|| Refusal::Size.exception(py))?;
    let layout = layouts.into_iter().next().unwrap_or_default();
    let metadata = Some(header.metadata().clone()).filter(|metadata| !metadata.is_empty());
    Ok((Group { source: Source::Bytes(header), layout }, metadata))
}
