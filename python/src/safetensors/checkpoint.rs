//! The headers of a model, the plans of groups, and the reads into them.

use std::collections::HashMap;
use std::iter::Peekable;
use std::path::PathBuf;
use std::slice::Iter;
use std::sync::Arc;

use cufile::OwnedPart;
use gpufile::formats::safetensors;
use gpufile::{Engine, Request};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::choice::{self, Refusal, Slices};
use super::format_exception;
use super::group::{Group, Source};
use super::layout::{Chosen, Layout};
use super::runs::Stretch;
use crate::cached::Cached;
use crate::error::exception;
use crate::future::Future;
use crate::interrupts;
use crate::memory::{Access, Memory, wait_for_streams};
use crate::opening::path_of;
use crate::release::Detached;
use crate::transfer::{self, Transfer};

/// The headers of a safetensors file, or of a model in several.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Checkpoint {
    checkpoint: Detached<Arc<safetensors::Checkpoint>>,
}

#[pymethods]
impl Checkpoint {
    /// Opens a file, a folder or an index, or several files.
    #[new]
    fn new(py: Python<'_>, paths: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let paths: Vec<PathBuf> = paths.iter().map(path_of).collect::<PyResult<_>>()?;
        let open = || match &paths[..] {
            [path] => safetensors::Checkpoint::open(path).map_err(Box::new),
            paths => {
                safetensors::Checkpoint::open_with(paths, &gpufile::OpenOptions::new()).map_err(Box::new)
            }
        };
        let checkpoint = py.detach(open).map_err(|error| format_exception(py, error))?;
        Ok(Self { checkpoint: Detached::new(Arc::new(checkpoint)) })
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
            let source = Source::File { checkpoint: Detached::new(Arc::clone(&self.checkpoint)), file };
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
        let layout = layout.ok_or_else(|| PyValueError::new_err("the part is not within the tensor"))?;
        let source = Source::File { checkpoint: Detached::new(Arc::clone(&self.checkpoint)), file };
        Ok(Group { source, layout })
    }

    /// Reads a group into the start of its memory, and waits. Ctrl-C ends the wait.
    fn read_now(&self, group: &Bound<'_, Group>, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, Group { source, layout }) = (group.py(), group.get());
        if let (Some(stretch), Source::File { checkpoint, file }) = (layout.only_stretch(), source) {
            let file = checkpoint.files().nth(*file).expect("a group of a file of its checkpoint").0;
            let mut memory = Memory::of(object, Access::Write)?.part(0, Some(layout.len_bytes))?;
            wait_for_streams(py, [&memory])?;
            let cached = Cached::of(file);
            if !interrupts::is_main_thread(py) || cached.is_memory(&memory) {
                let read = py.detach(|| file.read_exact_at(&mut memory, stretch.file_offset));
                return read.map_err(|error| exception(py, &error));
            }
            let read = cached.read(py, file, &mut memory, stretch.file_offset);
            if read == Some(layout.len_bytes) {
                return Ok(());
            }
        }
        let mut start = 0;
        while start < layout.len_bytes {
            let (stop, _) = layout.step(start, usize::MAX, layout.most_stretches());
            self.read(py, vec![(group.clone(), object.clone(), start, stop)])?.result(py, None)?;
            start = stop;
        }
        Ok(())
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
                return Err(PyValueError::new_err("the group belongs to another checkpoint"));
            };
            if !Arc::ptr_eq(checkpoint, &self.checkpoint) {
                return Err(PyValueError::new_err("the group belongs to another checkpoint"));
            }
            let memory = Memory::of(&object, Access::Write)?.part(0, Some(layout.len_bytes))?;
            let most = layout.most_stretches();
            if layout.step(start, stop.saturating_sub(start), most).0 < stop.min(layout.len_bytes) {
                let text = format!(
                    "bytes {start} to {stop} of the group are in more than {most} places of its file; load them in steps"
                );
                return Err(PyValueError::new_err(text));
            }
            let stretches: Vec<_> = layout.within(start, stop).collect();
            let ranges = stretches.iter().map(Stretch::in_buffer);
            wait_for_streams(py, [&memory])?;
            let buffers = OwnedPart::ranges(memory, ranges);
            requests.extend(stretches.iter().zip(buffers).map(|(stretch, buffer)| Request {
                file: files[*file].clone(),
                buffer,
                offset: stretch.file_offset,
            }));
        }
        let engine = files.first().map_or_else(|| Engine::global(), |file| file.engine()).clone();
        transfer::start(py, 0, move || Transfer::new(engine.read_many_async(requests))).map(Future::new)
    }
}
