//! Safetensors models for the package `gpufile.safetensors`.
//!
//! A [`Checkpoint`] has the headers of a model. It plans [`Group`]s: tensors that lie in one allocation. The package
//! allocates the memory of each group, starts a read, and makes the views of the tensors while the bytes arrive.
//! `choice` finds the tensors and slices of a load, `layout` places them in a group, `save` writes files.

mod choice;
mod layout;
mod save;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::iter::Peekable;
use std::path::PathBuf;
use std::slice::Iter;
use std::sync::Arc;

use cufile::OwnedPart;
use gpufile::formats::safetensors::{self, Header, TensorInfo, TensorSlice};
use gpufile::formats::{Dtype, Error, FormatError};
use gpufile::{Engine, IoBuf, IoBufMut, OwnedRequest};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyDict, PyList, PyTuple, PyType};

use crate::error::exception;
use crate::future::Future;
use crate::memory::{Access, Memory, wait_for_streams};
use crate::transfer::Transfer;
use choice::{Refusal, Slices};
use layout::{Chosen, Layout, Place, Stretch};
pub use save::{save_safetensors, serialize_safetensors};

/// The headers of a safetensors file, or of a model in several.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Checkpoint {
    checkpoint: Arc<safetensors::Checkpoint>,
}

/// Tensors of one file, and slices of them, that lie in one allocation.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Group {
    source: Source,
    layout: Layout,
}

/// The header that a group comes from.
enum Source {
    File { checkpoint: Arc<safetensors::Checkpoint>, file: usize },
    Bytes(Header),
}

#[pymethods]
impl Checkpoint {
    /// Opens a file, a folder or an index, or several files.
    #[new]
    fn new(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Self> {
        let open = || match &paths[..] {
            [path] => safetensors::Checkpoint::open(path).map_err(Box::new),
            paths => safetensors::Checkpoint::open_many(paths).map_err(Box::new),
        };
        let checkpoint = py.detach(open).map_err(|error| format_exception(py, error))?;
        Ok(Self { checkpoint: Arc::new(checkpoint) })
    }

    fn __len__(&self) -> usize {
        self.checkpoint.len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }

    /// The paths of the files.
    #[getter]
    fn files(&self) -> Vec<PathBuf> {
        self.checkpoint.files().map(|(file, _)| file.path().to_owned()).collect()
    }

    /// The number of bytes of all tensors.
    #[getter]
    fn len_bytes(&self) -> u64 {
        self.checkpoint.len_bytes()
    }

    /// Returns the names of the tensors, file by file, in the order of their places in the file.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.checkpoint.tensors().map(|tensor| tensor.name).collect::<Vec<_>>())
    }

    /// Returns the metadata of all files. `None` if they have none.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let entries = PyDict::new(py);
        for (key, value) in self.checkpoint.files().flat_map(|(_, header)| header.metadata()) {
            entries.set_item(key, value)?;
        }
        Ok(Some(entries).filter(|entries| !entries.is_empty()))
    }

    /// Returns type and shape of a tensor, as the file has them. `None` if there is no such tensor.
    fn info<'py>(
        &self,
        py: Python<'py>,
        name: &str,
    ) -> PyResult<Option<(&'static str, Bound<'py, PyTuple>)>> {
        let info = self.checkpoint.tensor(name);
        info.map(|info| Ok((info.dtype.name(), PyTuple::new(py, info.shape)?))).transpose()
    }

    /// Returns name, type, shape and number of bytes of all tensors, or of those with these names, in the order of
    /// `names()`.
    #[pyo3(signature = (names = None))]
    fn tensors<'py>(&self, py: Python<'py>, names: Option<Vec<String>>) -> PyResult<Bound<'py, PyList>> {
        let chosen = names.map(|names| choice::choose(&self.checkpoint, &names, None)).transpose();
        let chosen = chosen.map_err(|refusal| refusal.exception(py))?;
        let tensors = PyList::empty(py);
        for (file, (_, header)) in self.checkpoint.files().enumerate() {
            let mut chosen = chosen.as_ref().map(|chosen| chosen[file].iter().peekable());
            for (number, info) in (0..).zip(header.tensors()) {
                let is_chosen = |chosen: &mut Peekable<Iter<'_, Chosen>>| {
                    chosen.next_if(|chosen| chosen.number == number).is_some()
                };
                if chosen.as_mut().is_none_or(is_chosen) {
                    let shape = PyTuple::new(py, info.shape)?;
                    tensors.append((info.name, info.dtype.name(), shape, info.len_bytes()))?;
                }
            }
        }
        Ok(tensors)
    }

    /// Plans the groups of all tensors, or of those with these names. A group has at most `limit_bytes` bytes, or one
    /// tensor.
    ///
    /// `slices` has an axis and a cut, "chunks" or "even", of tensors that are cut into slices. The groups then have the
    /// slice for this place out of so many, by default for 0 out of 1.
    #[pyo3(signature = (names = None, limit_bytes = None, slices = None, place = None))]
    fn groups(
        &self,
        py: Python<'_>,
        names: Option<Vec<String>>,
        limit_bytes: Option<u64>,
        slices: Option<HashMap<String, (usize, String)>>,
        place: Option<(usize, usize)>,
    ) -> PyResult<Vec<Group>> {
        let limit_bytes = limit_bytes.unwrap_or(u64::MAX);
        let layouts = py.detach(|| {
            let slices = slices.map(|slices| Slices { slices, place: place.unwrap_or((0, 1)) });
            let chosen =
                names.map(|names| choice::choose(&self.checkpoint, &names, slices.as_ref())).transpose()?;
            let all = self.checkpoint.files().enumerate().map(|(file, (_, header))| {
                let chosen = chosen.as_ref().map(|chosen| &chosen[file][..]);
                Ok((file, Layout::of(header, chosen, limit_bytes).ok_or(Refusal::Size)?))
            });
            all.collect::<Result<Vec<_>, Refusal>>()
        });
        let layouts = layouts.map_err(|refusal| refusal.exception(py))?;
        let group = |file, layout| {
            let source = Source::File { checkpoint: Arc::clone(&self.checkpoint), file };
            Group { source, layout }
        };
        let groups = layouts
            .into_iter()
            .flat_map(|(file, layouts)| layouts.into_iter().map(move |layout| (file, layout)));
        Ok(groups.map(|(file, layout)| group(file, layout)).collect())
    }

    /// Plans a group of a part of one tensor: the elements from start to stop along each axis. The last axis of types
    /// with packed elements counts bytes.
    fn part(&self, py: Python<'_>, name: &str, bounds: Vec<(u64, u64)>) -> PyResult<Group> {
        let missing = || Refusal::Missing(name.to_owned()).exception(py);
        let (_, header) = self.checkpoint.file_of(name).ok_or_else(missing)?;
        let info = header.get(name).ok_or_else(missing)?;
        let file =
            self.checkpoint.files().position(|(_, other)| std::ptr::eq(header, other)).ok_or_else(missing)?;
        let start = header.in_file(info.offsets.clone()).start;
        let layout = py.detach(|| Layout::of_part(&info, start, &bounds));
        let layout = layout.ok_or_else(|| PyValueError::new_err("the part does not lie in the tensor"))?;
        let source = Source::File { checkpoint: Arc::clone(&self.checkpoint), file };
        Ok(Group { source, layout })
    }

    /// Reads a group into the start of its memory, and waits. Ctrl-C ends the wait for a long read.
    fn read_now(&self, group: &Bound<'_, Group>, object: &Bound<'_, PyAny>) -> PyResult<()> {
        /// The longest read, in bytes, that a signal waits for.
        const SHORT_BYTES: usize = 16 << 20;
        let (py, Group { source, layout }) = (group.py(), group.get());
        let (true, [stretch], Source::File { checkpoint, file }) =
            (layout.len_bytes <= SHORT_BYTES, &layout.stretches[..], source)
        else {
            let part = (group.clone(), object.clone(), 0, layout.len_bytes);
            return self.read(py, vec![part])?.result(py, None).map(drop);
        };
        let file = checkpoint.files().nth(*file).expect("a group of a file of its checkpoint").0;
        let mut memory = Memory::of(object, Access::Write)?.part(0, Some(layout.len_bytes))?;
        let read = || {
            wait_for_streams([&memory])?;
            file.read_exact_at(&mut memory, stretch.file_offset)
        };
        py.detach(read).map_err(|error| exception(py, &error))
    }

    /// Starts to read groups, each into the start of its memory. Of each group, reads the bytes from start to stop in
    /// its memory.
    fn read(
        &self,
        py: Python<'_>,
        parts: Vec<(Bound<'_, Group>, Bound<'_, PyAny>, usize, usize)>,
    ) -> PyResult<Future> {
        let files: Vec<_> = self.checkpoint.files().map(|(file, _)| file).collect();
        let mut requests = Vec::new();
        for (group, object, start, stop) in parts {
            let Group { source: Source::File { checkpoint, file }, layout, .. } = group.get() else {
                return Err(PyValueError::new_err("the group is not of this checkpoint"));
            };
            if !Arc::ptr_eq(checkpoint, &self.checkpoint) {
                return Err(PyValueError::new_err("the group is not of this checkpoint"));
            }
            let memory = Memory::of(&object, Access::Write)?.part(0, Some(layout.len_bytes))?;
            let stretches: Vec<_> = layout.within(start, stop).collect();
            let ranges = stretches.iter().map(Stretch::in_buffer);
            py.detach(|| wait_for_streams([&memory])).map_err(|error| exception(py, &error.into()))?;
            let buffers = OwnedPart::ranges(memory, ranges);
            requests.extend(stretches.iter().zip(buffers).map(|(stretch, buffer)| OwnedRequest {
                file: files[*file].clone(),
                offset: stretch.file_offset,
                buffer,
            }));
        }
        let future = py.detach(|| match files.first() {
            Some(file) => file.engine().read_many_async(requests),
            None => Engine::global().read_many_async(requests),
        });
        Ok(Future::new(Transfer::new(future)))
    }
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
        if !memory.is_host_accessible() {
            return Err(PyValueError::new_err("the memory is on a GPU"));
        }
        for stretch in &self.layout.stretches {
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
    PyValueError::new_err("these are not the bytes that the group was planned for")
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
            "tensor {:?}: {} elements are packed into bytes, so the last axis must have whole bytes; its shape is {:?}",
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

/// Returns the exception for an error of a format.
fn format_exception(py: Python<'_>, error: Box<Error>) -> PyErr {
    match *error {
        Error::File(error) | Error::Save { error, .. } => exception(py, &error),
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
