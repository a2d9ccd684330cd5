//! The headers of a model, the plans of groups, and the reads into them.

use std::ops::Range;
use std::path::PathBuf;

use cufile::OwnedPart;
use gpufile::formats::safetensors::{self, TensorInfo, planning};
use gpufile::formats::{Error, FormatError};
use gpufile::{Engine, File, IoBuf, Request};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyList, PyTuple};

use super::format_exception;
use super::group::{Group, file_bounds, stored_shape};
use super::mapped::{Mapped, Place, Tables};
use super::plan::Plan;
use crate::cached::Cached;
use crate::error::exception;
use crate::flight::Flight;
use crate::interrupts;
use crate::memory::{Access, Known, Memory, wait_for_streams};
use crate::opening::path_argument;
use crate::release::Detached;
use crate::remote::{open_exception, source_of};
use crate::transfer::{self, Transfer};
use crate::{arguments, engine};

type Short<'py> = (&'static str, Bound<'py, PyTuple>, Bound<'py, PyByteArray>);

/// The headers of a safetensors file, or of a model in several.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Checkpoint {
    checkpoint: Detached<safetensors::Checkpoint>,
    /// The short reads of each file, which copy bytes of the page cache.
    cached: Vec<Cached>,
    mapped: Mapped,
}

type Info<'py> = (&'static str, Bound<'py, PyTuple>, (u64, u64));

/// A tensor, and the elements from start to stop along each axis, or all.
type Part = (String, Option<Vec<(u64, u64)>>);

impl Checkpoint {
    /// Opens a model. Ctrl-C ends the wait.
    fn of(
        py: Python<'_>,
        open: impl FnOnce() -> Result<safetensors::Checkpoint, Box<Error>> + Send + 'static,
    ) -> PyResult<Self> {
        let checkpoint = interrupts::run(py, open)?.map_err(|error| match *error {
            Error::File(error) => open_exception(py, &error),
            error => format_exception(py, Box::new(error)),
        })?;
        let cached: Vec<_> = checkpoint.files().map(|(file, _)| Cached::of(file)).collect();
        let mapped = Mapped::new(cached.len());
        Ok(Self { checkpoint: Detached::new(checkpoint), cached, mapped })
    }

    fn file_of(&self, group: &planning::Group) -> PyResult<&File> {
        let other = || PyValueError::new_err("the group belongs to another checkpoint");
        let (file, header) = self.checkpoint.files().nth(group.file()).ok_or_else(other)?;
        if std::ptr::eq(header, group.header()) { Ok(file) } else { Err(other()) }
    }

    fn file_bounds(&self, name: &str, stored: &[(u64, u64)]) -> PyResult<Vec<Range<u64>>> {
        let bounds = match self.checkpoint.tensor(name) {
            Some(info) => file_bounds(&info, stored),
            None => Some(stored.iter().map(|(start, stop)| *start..*stop).collect()),
        };
        bounds.ok_or_else(outside)
    }
}

/// Returns the memory of a group: one for all of it, or a list of parts, each with its start in the group. Parts that follow each
/// other in both are one.
fn memories_of(object: &Bound<'_, PyAny>, group: &planning::Group) -> PyResult<Vec<(usize, Memory)>> {
    let Ok(parts) = object.cast::<PyList>() else {
        return Ok(vec![(0, Memory::of(object, Access::Write)?.part(0, Some(group.len_bytes()))?)]);
    };
    let mut known = Known::default();
    let mut memories: Vec<(usize, Memory)> = Vec::with_capacity(parts.len());
    for part in parts {
        let (start, buffer): (usize, Bound<'_, PyAny>) = part.extract()?;
        let memory = Memory::beside(&mut known, &buffer, Access::Write)?;
        let memory = match memories.last_mut() {
            Some((at, last)) if *at + last.len_bytes() == start => last.join(memory, &known),
            _ => Some(memory),
        };
        memories.extend(memory.map(|memory| (start, memory)));
    }
    Ok(memories)
}

fn outside() -> PyErr {
    PyValueError::new_err("the part is not within the tensor")
}

#[pymethods]
impl Checkpoint {
    /// Opens a file, a folder or an index, or several files.
    #[new]
    fn new(py: Python<'_>, paths: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let paths: Vec<PathBuf> = paths.iter().map(path_argument).collect::<PyResult<_>>()?;
        let open = move || match &paths[..] {
            [path] => safetensors::Checkpoint::open(path).map_err(Box::new),
            paths => {
                safetensors::Checkpoint::open_with(paths, &gpufile::OpenOptions::new()).map_err(Box::new)
            }
        };
        Self::of(py, open)
    }

    /// Opens a file of a server, an index with the files beside it, or a folder of a bucket: by its address with the options
    /// of its store, or as an open `RemoteFile`, whose options then are those of all files.
    #[staticmethod]
    #[pyo3(signature = (url, storage_options = None))]
    fn open_url(
        url: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::storage_options)] storage_options: Option<Vec<(String, String)>>,
    ) -> PyResult<Self> {
        let (address, options) = source_of(url, storage_options)?;
        Self::of(url.py(), move || {
            safetensors::Checkpoint::open_url_with(&address, &options).map_err(Box::new)
        })
    }

    /// True if the files cannot be mapped: they are objects of a server, or have packed tensors.
    #[getter]
    fn is_remote(&self) -> bool {
        self.checkpoint.files().any(|(file, _)| file.storage().is_some())
    }

    fn __len__(&self) -> usize {
        self.checkpoint.tensors().len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }

    /// The paths of the files.
    #[getter]
    fn files(&self) -> Vec<PathBuf> {
        self.checkpoint.files().map(|(file, _)| file.path().to_owned()).collect()
    }

    /// Warnings about parts of the model that are not loaded.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.checkpoint.warnings().iter().map(ToString::to_string).collect()
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
        if !self.checkpoint.files().any(|(_, header)| header.has_metadata()) {
            return Ok(None);
        }
        let entries = PyDict::new(py);
        for (key, value) in self.checkpoint.files().flat_map(|(_, header)| header.metadata()) {
            entries.set_item(key, value)?;
        }
        Ok(Some(entries))
    }

    /// Returns type, shape and offsets of a tensor, as the file has them. `None` if there is no such tensor.
    fn info<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Info<'py>>> {
        let info = self.checkpoint.tensor(name);
        let make = |info: TensorInfo<'_>| {
            let offsets = (info.offsets.start, info.offsets.end);
            Ok((info.dtype.name(), PyTuple::new(py, info.shape)?, offsets))
        };
        info.map(make).transpose()
    }

    /// Returns type, shape and bytes of a short tensor, if the page cache has the bytes. `None` otherwise, and if there is
    /// no such tensor or its elements do not fill whole bytes.
    fn short<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Short<'py>>> {
        let (Some(info), Some((file, header))) =
            (self.checkpoint.tensor(name), self.checkpoint.file_of(name))
        else {
            return Ok(None);
        };
        let number = self.checkpoint.files().position(|(other, _)| std::ptr::eq(other, file));
        let (Some(shape), Some(number)) = (stored_shape(&info), number) else { return Ok(None) };
        let range = header.in_file(info.offsets.clone());
        let Ok(len_bytes) = usize::try_from(range.end - range.start) else { return Ok(None) };
        let bytes = self.cached[number].bytes(py, file, len_bytes, range.start)?;
        bytes.map(|bytes| Ok((info.dtype.name(), PyTuple::new(py, shape)?, bytes))).transpose()
    }

    /// Maps the files of all tensors, or of those with these names. Returns for each file the mapping and the table of its
    /// tensors, as that of a group, and then the names of those that do not lie at a multiple of their element's length.
    #[pyo3(signature = (names = None))]
    fn map<'py>(&self, py: Python<'py>, names: Option<Vec<String>>) -> PyResult<Tables<'py>> {
        self.mapped.tables(py, &self.checkpoint, names)
    }

    /// Maps the file of a tensor. Returns the number of the file, the mapping, and type, shape and start in bytes of the
    /// tensor. `None` if there is no such tensor, or it does not lie at a multiple of its element's length.
    fn map_tensor<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Place<'py>>> {
        self.mapped.place(py, &self.checkpoint, name)
    }

    /// Plans a load of all tensors, or of those with these names, to this number of devices. The rule is called for
    /// each tensor, with its name, type and shape, and returns its share. Without a rule, each device gets all
    /// tensors.
    #[pyo3(signature = (names = None, rule = None, devices = 1))]
    fn plan(
        &self,
        py: Python<'_>,
        names: Option<Vec<String>>,
        rule: Option<Bound<'_, PyAny>>,
        devices: usize,
    ) -> PyResult<Plan> {
        Plan::new(py, &self.checkpoint, names.as_deref(), rule.as_ref(), devices)
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
        self.plan(py, names, None, 1)?.shared(py, limit_bytes)
    }

    /// Plans a group of a part of one tensor: the elements from start to stop along each axis. The last axis of types
    /// with packed elements counts bytes.
    fn part(&self, py: Python<'_>, name: &str, bounds: Vec<(u64, u64)>) -> PyResult<Group> {
        let bounds = self.file_bounds(name, &bounds)?;
        let group = py.detach(|| self.checkpoint.part(name, &bounds).map_err(Box::new));
        group.map(Group::from).map_err(|error| match *error {
            Error::Format { error: FormatError::NoSuchSlice { .. }, .. } => outside(),
            error => format_exception(py, Box::new(error)),
        })
    }

    /// Plans the groups of tensors and of parts of them, in the order of the files: the elements from start to stop along
    /// each axis, or all. The last axis of types with packed elements counts bytes. A tensor may have several parts. A
    /// group has at most `limit_bytes` bytes, or one part.
    fn parts(&self, py: Python<'_>, parts: Vec<Part>, limit_bytes: u64) -> PyResult<Vec<Group>> {
        let in_file = |(name, stored): (String, Option<Vec<_>>)| {
            let bounds = stored.map(|stored| self.file_bounds(&name, &stored)).transpose()?;
            Ok((name, bounds))
        };
        let parts: Vec<_> = parts.into_iter().map(in_file).collect::<PyResult<_>>()?;
        let limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        let groups = py.detach(|| self.checkpoint.parts(parts, limit_bytes).map_err(Box::new));
        let groups = groups.map_err(|error| format_exception(py, error))?;
        Ok(groups.into_iter().map(Group::from).collect())
    }

    /// Reads a group into the start of its memory, and waits. Ctrl-C ends the wait.
    fn read_now(&self, group: &Bound<'_, Group>, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, Group { group: planned }) = (group.py(), group.get());
        let file = self.file_of(planned)?;
        if let Some(stretch) = planned.only_stretch() {
            if !interrupts::is_main_thread(py) {
                let read = |memory: &mut Memory| file.read_exact_at(memory, stretch.file_offset);
                return Memory::read_beside(object, planned.len_bytes(), read);
            }
            let mut memory = Memory::of(object, Access::Write)?.part(0, Some(planned.len_bytes()))?;
            wait_for_streams(py, [&memory])?;
            let cached = self.cached[planned.file()];
            if cached.is_memory(&memory) {
                let read = py.detach(|| file.read_exact_at(&mut memory, stretch.file_offset));
                return read.map_err(|error| exception(py, &error));
            }
            let read = cached.read(py, file, &mut memory, stretch.file_offset);
            if read == Some(planned.len_bytes()) {
                return Ok(());
            }
        }
        let mut start = 0;
        while start < planned.len_bytes() {
            let (stop, _) = planned.step(start, usize::MAX, planned.most_stretches());
            self.read(py, vec![(group.clone(), object.clone(), start, stop)], None)?.result(py, None)?;
            start = stop;
        }
        Ok(())
    }

    /// Starts to read groups, each into the start of its memory, or into a list of parts of it, each with its start in the
    /// group. Of each group, reads the bytes from start to stop in its memory. The engine is that of the files unless
    /// another one is given.
    #[pyo3(signature = (parts, engine = None))]
    fn read(
        &self,
        py: Python<'_>,
        parts: Vec<(Bound<'_, Group>, Bound<'_, PyAny>, usize, usize)>,
        engine: Option<&Bound<'_, engine::Engine>>,
    ) -> PyResult<Flight> {
        let engine = engine.map(|engine| &*engine.get().0);
        let mut requests = Vec::new();
        let (mut is_at_once, mut len_bytes) = (true, 0_usize);
        for (group, object, start, stop) in parts {
            let Group { group } = group.get();
            let mut file = self.file_of(group)?.clone();
            if let Some(engine) = engine {
                let other = py.detach(|| file.with_engine(engine));
                file = other.map_err(|error| exception(py, &error))?;
            }
            let most = group.most_stretches();
            if group.step(start, stop.saturating_sub(start), most).0 < stop.min(group.len_bytes()) {
                let text = format!(
                    "bytes {start} to {stop} of the group are in more than {most} places of its file; load them in steps"
                );
                return Err(PyValueError::new_err(text));
            }
            let memories = memories_of(&object, group)?;
            wait_for_streams(py, memories.iter().map(|(_, memory)| memory))?;
            for (at, memory) in memories {
                let stretches: Vec<_> =
                    group.within(start.max(at)..stop.min(at + memory.len_bytes())).collect();
                let ranges = stretches.iter().map(|stretch| {
                    let start = stretch.buffer_offset - at;
                    start..start + stretch.len_bytes
                });
                let buffers = OwnedPart::ranges(memory, ranges);
                requests.extend(stretches.iter().zip(buffers).map(|(stretch, buffer)| Request {
                    file: file.clone(),
                    buffer,
                    offset: stretch.file_offset,
                }));
            }
            len_bytes = len_bytes.saturating_add(stop.saturating_sub(start));
            is_at_once &= self.cached[group.file()].starts_at_once(Access::Write, len_bytes);
        }
        let engine = match (engine, self.checkpoint.files().next()) {
            (Some(engine), _) => engine.clone(),
            (None, Some((file, _))) => file.engine().clone(),
            (None, None) => Engine::global().clone(),
        };
        transfer::start(py, is_at_once, move || Transfer::new(engine.read_many_async(requests)))
            .map(Flight::new)
    }
}
