//! The tensors that lie in one allocation, as Python makes views of them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use gpufile::formats::safetensors::{self, Header, TensorInfo, TensorSlice, planning};
use gpufile::formats::{Dtype, FormatError};
use gpufile::{IoBuf, IoBufMut};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyList, PyTuple};

use super::safetensor_error;
use crate::memory::{Access, HostCopy, Memory, copy_all};

/// Tensors of one file, and slices of them, that lie in one allocation.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Group {
    pub group: planning::Group,
}

impl From<planning::Group> for Group {
    fn from(group: planning::Group) -> Self {
        Self { group }
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
        self.group.len_bytes()
    }

    /// Returns the end of the longest part from `start` on that has at most `most_bytes` bytes and takes at most
    /// `most_reads` reads. Also returns the number of these reads.
    fn step(&self, start: usize, most_bytes: usize, most_reads: usize) -> (usize, usize) {
        self.group.step(start, most_bytes, most_reads)
    }

    /// Returns the tensors in runs of one type, as they follow each other in the memory: the type, the start of the
    /// run, and lists of the lengths, names and shapes. Starts and lengths are in elements, and packed elements count
    /// in bytes. A gap between tensors has the name `None`.
    fn table<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        table(py, self.group.places())
    }

    /// Returns name, type, shape and bytes of each tensor in the bytes of a file.
    fn contents<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let header = self.group.header();
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
    fn copy(&self, py: Python<'_>, data: &[u8], memory: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut memory = Memory::of(memory, Access::Write)?.part(0, Some(self.group.len_bytes()))?;
        if !memory.location().is_host_accessible {
            return Err(PyValueError::new_err(
                "the bytes can be copied only to host memory, but this memory is on a GPU",
            ));
        }
        let mut copies = Vec::new();
        for stretch in self.group.within(0..self.group.len_bytes()) {
            let from = stretch.file_offset as usize;
            let source = data.get(from..from + stretch.len_bytes).ok_or_else(other_bytes)?;
            let target = memory.as_mut_ptr().wrapping_add(stretch.buffer_offset);
            copies.push(HostCopy { source: source.as_ptr(), target, len_bytes: source.len() });
        }
        // SAFETY: the stretches lie in the memory, which has the bytes of the layout and which the object keeps, in different
        // places. The caller has the bytes.
        py.detach(|| unsafe { copy_all(&copies) });
        Ok(())
    }
}

/// Returns the runs of tensors and parts of them whose places in the memory, in bytes, follow each other.
pub fn table<'py, 'a>(
    py: Python<'py>,
    places: impl Iterator<Item = (TensorInfo<'a>, Option<&'a [Range<u64>]>, usize)>,
) -> PyResult<Bound<'py, PyList>> {
    let runs = PyList::empty(py);
    let mut open: Option<Run<'py>> = None;
    let mut shapes = HashMap::new();
    for (info, bounds, start) in places {
        let start = start / element_bytes(&info) as usize;
        let run = match &mut open {
            Some(run) if run.dtype == info.dtype => run,
            _ => {
                let run = Run::new(py, info.dtype, start);
                runs.append((info.dtype.name(), start, &run.lens, &run.names, &run.shapes))?;
                open.insert(run)
            }
        };
        let (shape, len) = match shapes.entry((info.shape, info.dtype.size_bits(), bounds)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(shape_of(py, &info, bounds)?),
        };
        run.append(info.name, shape, start, *len)?;
    }
    Ok(runs)
}

fn other_bytes() -> PyErr {
    PyValueError::new_err("these are not the bytes for which the group was planned")
}

/// Returns the shape of a tensor or of a part of it, and the number of elements. Those of packed types count the bytes
/// of the last axis.
pub fn shape_of<'py>(
    py: Python<'py>,
    info: &TensorInfo<'_>,
    bounds: Option<&[Range<u64>]>,
) -> PyResult<(Bound<'py, PyTuple>, usize)> {
    let shape = match bounds {
        None => stored_shape(info),
        Some(bounds) => {
            let stored = stored_bounds(info, bounds);
            stored.map(|bounds| bounds.iter().map(|bound| bound.end - bound.start).collect())
        }
    };
    let Some(shape) = shape else {
        let text = format!(
            "tensor {:?}: {} elements are packed into bytes, so the last axis must fill whole bytes; the shape is {:?}",
            info.name, info.dtype, info.shape
        );
        return Err(safetensor_error(py, text));
    };
    // Without an empty axis, the tensor has at least as many elements, so nothing overflows.
    let len = if shape.contains(&0) { 0 } else { shape.iter().product::<u64>() };
    Ok((PyTuple::new(py, shape)?, len as usize))
}

/// Returns the length of each axis in memory. The last axis of packed types counts bytes; `None` if it has no whole
/// number of them.
pub fn stored_shape(info: &TensorInfo<'_>) -> Option<Vec<u64>> {
    let mut shape = info.shape.to_vec();
    let bits = u64::from(info.dtype.size_bits());
    if bits < 8 {
        let last = shape.last_mut()?;
        let last_bits = last.checked_mul(bits).filter(|last_bits| last_bits.is_multiple_of(8))?;
        *last = last_bits / 8;
    }
    Some(shape)
}

/// Returns the indices of a part along each axis in memory. The last axis of packed types counts bytes; `None` if the
/// part does not start and end at whole bytes.
fn stored_bounds(info: &TensorInfo<'_>, bounds: &[Range<u64>]) -> Option<Vec<Range<u64>>> {
    let bits = u64::from(info.dtype.size_bits());
    let mut stored = bounds.to_vec();
    if let Some(last) = stored.last_mut().filter(|_| bits < 8) {
        let bytes =
            |index: u64| index.checked_mul(bits).filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8);
        *last = bytes(last.start)?..bytes(last.end)?;
    }
    Some(stored)
}

/// Returns the indices of a slice along each axis in memory, as [`stored_bounds`].
pub fn bounds_of(info: &TensorInfo<'_>, slice: &TensorSlice) -> Option<Vec<Range<u64>>> {
    let mut bounds: Vec<_> = info.shape.iter().map(|&len| 0..len).collect();
    bounds[slice.axis] = slice.range.clone();
    stored_bounds(info, &bounds)
}

/// Returns the indices of a part in the file, along each axis, from those in memory. `None` if there are no such elements.
pub fn file_bounds(info: &TensorInfo<'_>, stored: &[(u64, u64)]) -> Option<Vec<Range<u64>>> {
    let bits = u64::from(info.dtype.size_bits());
    let mut bounds: Vec<_> = stored.iter().map(|(start, stop)| *start..*stop).collect();
    if let Some(last) = bounds.last_mut().filter(|_| bits < 8) {
        let elements =
            |bytes: u64| bytes.checked_mul(8).filter(|len| len.is_multiple_of(bits)).map(|len| len / bits);
        *last = elements(last.start)?..elements(last.end)?;
    }
    Some(bounds)
}

/// Returns the bytes of an element in memory. Packed elements count in bytes.
pub fn element_bytes(info: &TensorInfo<'_>) -> u64 {
    u64::from(info.dtype.size_bits().div_ceil(8))
}

/// Parses the bytes of a file. Returns the group of all tensors, and the metadata.
#[pyfunction]
pub fn parse_safetensors(py: Python<'_>, data: &[u8]) -> PyResult<(Group, Option<BTreeMap<String, String>>)> {
    let failed = |error: FormatError| safetensor_error(py, format!("Error while deserializing: {error}"));
    let len_bytes = data.len() as u64;
    let head_bytes = safetensors::head_len(data, len_bytes).map_err(failed)? as usize;
    let header = Header::parse(&data[..head_bytes], len_bytes).map_err(failed)?;
    let metadata = Some(header.metadata().clone()).filter(|metadata| !metadata.is_empty());
    let group = planning::Group::of_header(header)
        .ok_or_else(|| PyMemoryError::new_err("the tensors have more bytes than an address space has"))?;
    Ok((group.into(), metadata))
}
