//! Safetensors models for the package `gpufile.safetensors`.
//!
//! A [`Checkpoint`] has the headers of a model. It plans [`Group`]s: tensors that lie in one allocation. The package
//! allocates the memory of each group, starts a read, and makes the views of the tensors while the bytes arrive.
//! `layout` places tensors in a group, `save` writes files.

mod layout;
mod save;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use cufile::OwnedPart;
use gpufile::formats::safetensors::{self, Header, TensorInfo};
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
use layout::{Layout, Stretch};
pub use save::{save_safetensors, serialize_safetensors};

/// The headers of a safetensors file, or of a model in several.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Checkpoint {
    checkpoint: Arc<safetensors::Checkpoint>,
}

/// Tensors of one file that lie in one allocation.
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

    /// Plans the groups of all tensors, or of those with these names. A group has at most `limit_bytes` bytes, or one
    /// tensor.
    #[pyo3(signature = (names = None, limit_bytes = None))]
    fn groups(
        &self,
        py: Python<'_>,
        names: Option<Vec<String>>,
        limit_bytes: Option<u64>,
    ) -> PyResult<Vec<Group>> {
        let limit_bytes = limit_bytes.unwrap_or(u64::MAX);
        let layouts = py.detach(|| {
            let chosen = names.map(|names| self.choose(&names)).transpose()?;
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

impl Checkpoint {
    /// Returns the numbers of the tensors with these names: for each file, in the order of the file.
    fn choose(&self, names: &[String]) -> Result<Vec<Vec<u32>>, Refusal> {
        let mut wanted: HashSet<_> = names.iter().map(String::as_str).collect();
        let mut chosen = Vec::new();
        for (_, header) in self.checkpoint.files() {
            let numbers = (0..).zip(header.tensors()).filter(|(_, info)| wanted.remove(info.name));
            chosen.push(numbers.map(|(number, _)| number).collect());
        }
        match wanted.into_iter().min() {
            Some(missing) => Err(Refusal::Missing(missing.to_owned())),
            None => Ok(chosen),
        }
    }
}

/// The reason why no group can be planned.
enum Refusal {
    /// There is no such tensor.
    Missing(String),
    /// The tensors have more bytes than memory can have.
    Size,
}

impl Refusal {
    fn exception(self, py: Python<'_>) -> PyErr {
        match self {
            Refusal::Missing(name) => safetensor_error(py, format!("File does not contain tensor {name}")),
            Refusal::Size => PyMemoryError::new_err("the tensors have more bytes than memory can have"),
        }
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

#[pymethods]
impl Group {
    /// The number of bytes that the memory needs.
    #[getter]
    fn len_bytes(&self) -> usize {
        self.layout.len_bytes
    }

    /// Returns the tensors in runs of one type: the type, and for each tensor the name, the shape, the strides and the
    /// start in the memory, the latter two in elements. Packed elements count in bytes.
    fn table<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let runs = PyList::empty(py);
        let mut run: Option<(Dtype, Bound<'py, PyList>)> = None;
        let mut shapes = HashMap::new();
        let mut places = self.layout.places.iter().peekable();
        for (number, info) in (0..).zip(self.source.header().tensors()) {
            let Some((_, start)) = places.next_if(|place| place.0 == number) else { continue };
            let rows = match &run {
                Some((dtype, rows)) if *dtype == info.dtype => rows,
                _ => {
                    let rows = PyList::empty(py);
                    runs.append((info.dtype.name(), &rows))?;
                    &run.insert((info.dtype, rows)).1
                }
            };
            let (shape, strides) = match shapes.entry((info.shape, info.dtype.size_bits() < 8)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(shape_and_strides(py, &info)?),
            };
            let element_bytes = info.dtype.size_bits().div_ceil(8) as usize;
            rows.append((info.name, &*shape, &*strides, start / element_bytes))?;
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

/// Returns shape and strides in elements. Those of packed types count the bytes of the last axis.
fn shape_and_strides<'py>(
    py: Python<'py>,
    info: &TensorInfo<'_>,
) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyTuple>)> {
    let Some(shape) = layout::stored_shape(info) else {
        let text = format!(
            "tensor {:?}: {} elements are packed into bytes, so the last axis must have whole bytes; its shape is {:?}",
            info.name, info.dtype, info.shape
        );
        return Err(safetensor_error(py, text));
    };
    let strides = layout::strides(&shape);
    Ok((PyTuple::new(py, shape)?, PyTuple::new(py, strides)?))
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
