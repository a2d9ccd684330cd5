//! The class `File`.

#![allow(
    clippy::disallowed_types,
    reason = "threads hold it only with Python's lock, which a thread that forks has"
)]

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use gpufile::remote::RemoteFile;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::cached::Cached;
use crate::engine::Engine;
use crate::error::{closed, exception, not_pickled, os_error};
use crate::flight::future;
use crate::many::Outcomes;
use crate::memory::{Access, Memory, type_name};
use crate::opening::{check_kind, duplicate, options, path_of, with_engine};
use crate::release::Detached;
use crate::route::Route;
use crate::transfer::{OnStream, Transfer};
use crate::{arguments, interrupts, many, single, stream};

/// An open file that is read into and written from host and GPU memory.
///
/// Reads and writes are positional, so threads can share a file. A buffer is any object with contiguous memory that
/// has the buffer protocol, ``__dlpack__``, ``__cuda_array_interface__`` or ``__array_interface__``. Do not use a buffer
/// while a transfer uses it. Offsets and lengths are in bytes.
///
/// Ctrl-C ends a call at once. The transfer ends soon after it, and uses the buffer until then.
#[pyclass(frozen, subclass, module = "gpufile")]
pub struct File {
    /// `None` after `close`.
    file: RwLock<Option<Detached<gpufile::File>>>,
    cached: Cached,
    path: PathBuf,
    mode: String,
}

impl File {
    pub fn get(&self) -> PyResult<gpufile::File> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        file.as_deref().cloned().ok_or_else(closed)
    }

    fn new_like(&self, file: gpufile::File) -> Self {
        Self::of(file, self.path.clone(), self.mode.clone())
    }

    fn of(file: gpufile::File, path: PathBuf, mode: String) -> Self {
        let cached = Cached::of(&file);
        Self { file: RwLock::new(Some(Detached::new(file))), cached, path, mode }
    }

    pub fn read_only(file: gpufile::File) -> Self {
        let path = file.path().to_owned();
        Self::of(file, path, "r".to_owned())
    }

    pub fn remote(file: RemoteFile) -> Self {
        Self::read_only(file.into())
    }
}

#[pymethods]
impl File {
    /// Opens a file.
    ///
    /// The modes are those of Python's ``open``, always binary, except ``"a"``: every write names its offset, so
    /// appending is not supported.
    #[new]
    #[pyo3(signature = (path, mode = "r", *, engine = None))]
    fn new(path: &Bound<'_, PyAny>, mode: &str, engine: Option<&Bound<'_, Engine>>) -> PyResult<Self> {
        let (py, path) = (path.py(), path_of(path, "path")?);
        py.detach(|| check_kind(&path)).map_err(|errno| os_error(py, errno, &path))?;
        let options = with_engine(options(mode)?, engine);
        let file = py.detach(|| options.open(&path)).map_err(|error| exception(py, &error))?;
        Ok(Self::of(file, path, mode.to_owned()))
    }

    /// Returns a file for a descriptor, or for an object with ``fileno``. The caller keeps the descriptor, and may close it
    /// at once.
    ///
    /// The access is that of the descriptor. Transfers neither use nor change the position of the file.
    #[staticmethod]
    #[pyo3(signature = (fd, *, engine = None))]
    fn from_fd(fd: &Bound<'_, PyAny>, engine: Option<&Bound<'_, Engine>>) -> PyResult<Self> {
        let py = fd.py();
        let number = if fd.hasattr("fileno")? { fd.call_method0("fileno")? } else { fd.clone() };
        let number: i32 = number.extract().map_err(|error: PyErr| match () {
            // No descriptor has such a number.
            () if error.is_instance_of::<PyOverflowError>(py) => {
                os_error(py, libc::EBADF, Path::new(&format!("descriptor {number}")))
            }
            () if error.is_instance_of::<PyTypeError>(py) => {
                let text =
                    format!("fd: expected a descriptor, or an object with fileno, not {}", type_name(fd));
                PyTypeError::new_err(text)
            }
            () => error,
        })?;
        let (fd, mode) = duplicate(number)
            .map_err(|errno| os_error(py, errno, Path::new(&format!("descriptor {number}"))))?;
        let options = with_engine(gpufile::File::options(), engine);
        let file = py.detach(|| options.open_fd(fd)).map_err(|error| exception(py, &error))?;
        let path = file.path().to_owned();
        Ok(Self::of(file, path, mode.to_owned()))
    }

    /// Reads from ``offset`` into the buffer, and returns the number of bytes.
    ///
    /// The number is less than ``length`` only if the file ends there. By default, ``length`` is the rest of the buffer.
    #[pyo3(signature = (buffer, offset = 0, length = None, *, buffer_offset = 0))]
    fn read_into(
        &self,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offset)] offset: u64,
        #[pyo3(from_py_with = arguments::length)] length: Option<usize>,
        #[pyo3(from_py_with = arguments::buffer_offset)] buffer_offset: usize,
    ) -> PyResult<usize> {
        let file = self.get()?;
        let memory = Memory::of(buffer, Access::Write)?.part(buffer_offset, length)?;
        single::read(buffer.py(), file, self.cached, memory, offset)
    }

    /// Reads like ``read_into``, and raises ``TransferError`` if the file ends before all bytes are read. ``bytes_done`` of
    /// the error tells how many there were.
    #[pyo3(signature = (buffer, offset = 0, length = None, *, buffer_offset = 0))]
    fn read_exact(
        &self,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offset)] offset: u64,
        #[pyo3(from_py_with = arguments::length)] length: Option<usize>,
        #[pyo3(from_py_with = arguments::buffer_offset)] buffer_offset: usize,
    ) -> PyResult<()> {
        let file = self.get()?;
        let memory = Memory::of(buffer, Access::Write)?.part(buffer_offset, length)?;
        single::read_exact(buffer.py(), file, self.cached, memory, offset)
    }

    /// Writes the buffer to ``offset``, and returns the number of bytes.
    #[pyo3(signature = (buffer, offset = 0, length = None, *, buffer_offset = 0))]
    fn write_from(
        &self,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offset)] offset: u64,
        #[pyo3(from_py_with = arguments::length)] length: Option<usize>,
        #[pyo3(from_py_with = arguments::buffer_offset)] buffer_offset: usize,
    ) -> PyResult<usize> {
        let file = self.get()?;
        let memory = Memory::of(buffer, Access::Read)?.part(buffer_offset, length)?;
        single::write(buffer.py(), file, self.cached, memory, offset)
    }

    /// Starts a read like ``read_into``, and returns at once.
    #[pyo3(signature = (buffer, offset = 0, length = None, *, buffer_offset = 0))]
    fn read_into_async(
        &self,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offset)] offset: u64,
        #[pyo3(from_py_with = arguments::length)] length: Option<usize>,
        #[pyo3(from_py_with = arguments::buffer_offset)] buffer_offset: usize,
    ) -> PyResult<Py<PyAny>> {
        let file = self.get()?;
        let memory = Memory::of(buffer, Access::Write)?.part(buffer_offset, length)?;
        future(buffer.py(), single::start_read(buffer.py(), file, self.cached, memory, offset)?)
    }

    /// Starts a write like ``write_from``, and returns at once.
    #[pyo3(signature = (buffer, offset = 0, length = None, *, buffer_offset = 0))]
    fn write_from_async(
        &self,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offset)] offset: u64,
        #[pyo3(from_py_with = arguments::length)] length: Option<usize>,
        #[pyo3(from_py_with = arguments::buffer_offset)] buffer_offset: usize,
    ) -> PyResult<Py<PyAny>> {
        let file = self.get()?;
        let memory = Memory::of(buffer, Access::Read)?.part(buffer_offset, length)?;
        future(buffer.py(), single::start_write(buffer.py(), file, self.cached, memory, offset)?)
    }

    /// Reads like ``read_into``, after the work already in the stream. Later work in the stream waits for the read.
    ///
    /// ``stream`` is a ``cudaStream_t`` as an integer, or an object with ``__cuda_stream__``, ``cuda_stream`` or ``ptr``.
    /// If you pass an integer, keep the stream alive until the transfer has ended. If the file ends early, the rest of GPU
    /// memory gets zeros.
    #[pyo3(signature = (buffer, stream, offset = 0, length = None, *, buffer_offset = 0))]
    fn read_into_on_stream(
        &self,
        buffer: &Bound<'_, PyAny>,
        stream: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offset)] offset: u64,
        #[pyo3(from_py_with = arguments::length)] length: Option<usize>,
        #[pyo3(from_py_with = arguments::buffer_offset)] buffer_offset: usize,
    ) -> PyResult<Py<PyAny>> {
        let file = self.get()?;
        let mut memory = Memory::of(buffer, Access::Write)?.part(buffer_offset, length)?;
        let stream = stream::of(stream, &mut memory)?;
        let start = move || file.read_at_on_stream(&stream, memory, offset);
        future(buffer.py(), Transfer::new(OnStream(Some(buffer.py().detach(start)))))
    }

    /// Writes like ``write_from``, after the work already in the stream. Later work in the stream waits for the write.
    /// ``stream`` is as for ``read_into_on_stream``.
    #[pyo3(signature = (buffer, stream, offset = 0, length = None, *, buffer_offset = 0))]
    fn write_from_on_stream(
        &self,
        buffer: &Bound<'_, PyAny>,
        stream: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offset)] offset: u64,
        #[pyo3(from_py_with = arguments::length)] length: Option<usize>,
        #[pyo3(from_py_with = arguments::buffer_offset)] buffer_offset: usize,
    ) -> PyResult<Py<PyAny>> {
        let file = self.get()?;
        let mut memory = Memory::of(buffer, Access::Read)?.part(buffer_offset, length)?;
        let stream = stream::of(stream, &mut memory)?;
        let start = move || file.write_all_at_on_stream(&stream, memory, offset);
        future(buffer.py(), Transfer::new(OnStream(Some(buffer.py().detach(start)))))
    }

    /// Fills each buffer from its offset, in one call that is much faster than many. Returns the number of bytes.
    ///
    /// Raises ``TransferError`` with the ``entry`` that failed. A file that ends within an entry is a failure.
    fn read_many<'py>(
        &self,
        buffers: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::offsets)] offsets: Vec<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        many::complete((self.get()?, self.cached), buffers, offsets, Access::Write, Outcomes::One)
    }

    /// Writes each buffer to its offset, in one call that is much faster than many. Returns the number of bytes.
    ///
    /// Raises ``TransferError`` with the ``entry`` that failed.
    fn write_many<'py>(
        &self,
        buffers: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::offsets)] offsets: Vec<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        many::complete((self.get()?, self.cached), buffers, offsets, Access::Read, Outcomes::One)
    }

    /// Reads like ``read_many``, and returns the outcome of each entry: the number of bytes, or the exception.
    ///
    /// The number is less than the length of the buffer only if the file ends there.
    fn read_many_each<'py>(
        &self,
        buffers: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::offsets)] offsets: Vec<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        many::complete((self.get()?, self.cached), buffers, offsets, Access::Write, Outcomes::Each)
    }

    /// Writes like ``write_many``, and returns the outcome of each entry: the number of bytes, or the exception.
    fn write_many_each<'py>(
        &self,
        buffers: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::offsets)] offsets: Vec<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        many::complete((self.get()?, self.cached), buffers, offsets, Access::Read, Outcomes::Each)
    }

    /// Starts a read like ``read_many``, and returns at once.
    fn read_many_async(
        &self,
        buffers: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offsets)] offsets: Vec<u64>,
    ) -> PyResult<Py<PyAny>> {
        future(
            buffers.py(),
            many::start((self.get()?, self.cached), buffers, offsets, Access::Write, Outcomes::One)?,
        )
    }

    /// Starts a write like ``write_many``, and returns at once.
    fn write_many_async(
        &self,
        buffers: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offsets)] offsets: Vec<u64>,
    ) -> PyResult<Py<PyAny>> {
        future(
            buffers.py(),
            many::start((self.get()?, self.cached), buffers, offsets, Access::Read, Outcomes::One)?,
        )
    }

    /// Starts a read like ``read_many_each``, and returns at once. The future's result is the list of outcomes.
    fn read_many_each_async(
        &self,
        buffers: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offsets)] offsets: Vec<u64>,
    ) -> PyResult<Py<PyAny>> {
        future(
            buffers.py(),
            many::start((self.get()?, self.cached), buffers, offsets, Access::Write, Outcomes::Each)?,
        )
    }

    /// Starts a write like ``write_many_each``, and returns at once. The future's result is the list of outcomes.
    fn write_many_each_async(
        &self,
        buffers: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::offsets)] offsets: Vec<u64>,
    ) -> PyResult<Py<PyAny>> {
        future(
            buffers.py(),
            many::start((self.get()?, self.cached), buffers, offsets, Access::Read, Outcomes::Each)?,
        )
    }

    /// Returns the same open file, with another chunk length for its transfers.
    pub fn with_chunk_bytes(
        &self,
        #[pyo3(from_py_with = arguments::chunk_bytes_of_file)] chunk_bytes: usize,
    ) -> PyResult<Self> {
        if chunk_bytes == 0 {
            return Err(PyValueError::new_err("chunk_bytes is 0: expected at least 1"));
        }
        Ok(self.new_like(self.get()?.with_chunk_bytes(chunk_bytes)))
    }

    /// Returns the same open file, with another engine for its transfers.
    pub fn with_engine(&self, py: Python<'_>, engine: &Bound<'_, Engine>) -> PyResult<Self> {
        let (file, engine) = (self.get()?, &engine.get().0);
        let other = py.detach(|| file.with_engine(engine));
        other.map(|other| self.new_like(other)).map_err(|error| exception(py, &error))
    }

    /// Returns the route between the file and GPU memory, and why it is not a better one.
    fn route(&self, py: Python<'_>) -> PyResult<Route> {
        let file = self.get()?;
        Ok(py.detach(|| Route::new(file.route())))
    }

    /// Returns the length of the file.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.get()?;
        py.detach(|| file.len_bytes()).map_err(|error| exception(py, &error))
    }

    /// Changes the length of the file. New bytes are zeros.
    fn truncate(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::size)] size: u64) -> PyResult<()> {
        let file = self.get()?;
        py.detach(|| file.set_len(size)).map_err(|error| exception(py, &error))
    }

    /// Waits until the bytes of the file are durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.get()?;
        interrupts::run(py, move || file.sync_all())?.map_err(|error| exception(py, &error))
    }

    /// Returns the descriptor. It still belongs to this file.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.get()?.as_fd().as_raw_fd())
    }

    /// Closes the file. Transfers in flight keep it open until they end.
    fn close(&self) {
        let file = self.file.write().unwrap_or_else(PoisonError::into_inner).take();
        // Not under the lock.
        drop(file);
    }

    /// True after ``close``.
    #[getter]
    fn closed(&self) -> bool {
        self.file.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The path with which the file was opened.
    #[getter]
    fn name(&self) -> OsString {
        self.path.clone().into()
    }

    /// The mode that the file was opened with.
    #[getter]
    fn mode(&self) -> &str {
        &self.mode
    }

    fn __enter__(slf: Py<Self>) -> PyResult<Py<Self>> {
        slf.get().get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __reduce_ex__(slf: &Bound<'_, Self>, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        let name = format!("gpufile.{}", slf.get_type().qualname()?);
        Err(not_pickled(&name, "it belongs to its process; open it in the process that uses it"))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (file, class) = (slf.get(), slf.get_type().qualname()?);
        let state = if file.closed() { "closed " } else { "" };
        Ok(format!("<{state}gpufile.{class} {:?} mode={:?}>", file.path, file.mode))
    }
}
