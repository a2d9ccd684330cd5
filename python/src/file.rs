//! The class `File`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use gpufile::{IoBuf, OpenOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{closed, exception};
use crate::memory::{Access, Memory};

/// An open file, whose bytes go to and from host and GPU memory.
///
/// Reads and writes are positional, so threads can share a file. A buffer is any object with contiguous memory: by the
/// buffer protocol, ``__dlpack__``, ``__cuda_array_interface__`` or ``__array_interface__``. Leave a buffer alone
/// while a transfer uses it. Offsets and lengths are in bytes.
#[pyclass(frozen, module = "gpufile")]
pub struct File {
    /// `None` after `close`.
    file: RwLock<Option<gpufile::File>>,
    path: PathBuf,
    mode: String,
}

impl File {
    /// Returns the open file.
    ///
    /// # Errors
    /// `ValueError` after `close`.
    pub fn get(&self) -> PyResult<gpufile::File> {
        self.file.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)
    }
}

/// Returns the options that a mode of Python's `open` stands for.
fn options(mode: &str) -> PyResult<OpenOptions> {
    let options = gpufile::File::options();
    let options = match mode.replace('b', "").as_str() {
        "r" => options.read(true),
        "r+" => options.read(true).write(true),
        "w" => options.write(true).create(true).truncate(true),
        "w+" => options.read(true).write(true).create(true).truncate(true),
        "a" => options.write(true).create(true),
        "a+" => options.read(true).write(true).create(true),
        "x" => options.write(true).create_new(true),
        "x+" => options.read(true).write(true).create_new(true),
        _ => {
            return Err(PyValueError::new_err(format!(
                "{mode:?} is no mode: use \"r\", \"r+\", \"w\", \"w+\", \"a\", \"a+\", \"x\" or \"x+\""
            )));
        }
    };
    Ok(options)
}

#[pymethods]
impl File {
    /// Opens a file.
    ///
    /// The modes are those of Python's ``open``, always for bytes. ``"a"`` opens a file for writing and keeps its
    /// bytes; the offset of each write is its own.
    #[new]
    #[pyo3(signature = (path, mode = "r"))]
    fn new(py: Python<'_>, path: PathBuf, mode: &str) -> PyResult<Self> {
        let options = options(mode)?;
        let file = py.detach(|| options.open(&path)).map_err(|error| exception(py, &error))?;
        Ok(Self { file: RwLock::new(Some(file)), path, mode: mode.to_owned() })
    }

    /// Reads from ``offset`` into the buffer, and returns the number of bytes.
    ///
    /// The number is less than ``length`` only if the file ends there. ``length`` is the rest of the buffer by default.
    #[pyo3(signature = (buffer, offset = 0, length = None, *, buffer_offset = 0))]
    fn read_into(
        &self,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
        length: Option<usize>,
        buffer_offset: usize,
    ) -> PyResult<usize> {
        let (py, file) = (buffer.py(), self.get()?);
        let mut memory = Memory::of(buffer, Access::Write)?.part(buffer_offset, length)?;
        let read = || {
            memory.wait_for_stream()?;
            file.read_at(&mut memory, offset)
        };
        py.detach(read).map_err(|error| exception(py, &error))
    }

    /// Writes the buffer to ``offset``, and returns the number of bytes.
    #[pyo3(signature = (buffer, offset = 0, length = None, *, buffer_offset = 0))]
    fn write_from(
        &self,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
        length: Option<usize>,
        buffer_offset: usize,
    ) -> PyResult<usize> {
        let (py, file) = (buffer.py(), self.get()?);
        let memory = Memory::of(buffer, Access::Read)?.part(buffer_offset, length)?;
        let write = || {
            memory.wait_for_stream()?;
            file.write_all_at(&memory, offset)
        };
        py.detach(write).map_err(|error| exception(py, &error))?;
        Ok(memory.len_bytes())
    }

    /// Closes the file. Transfers in flight keep it open until they end.
    fn close(&self, py: Python<'_>) {
        let file = self.file.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(file));
    }

    /// True after ``close``.
    #[getter]
    fn closed(&self) -> bool {
        self.file.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The path that the file was opened by.
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
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed " } else { "" };
        format!("<{state}gpufile.File {:?} mode={:?}>", self.path, self.mode)
    }
}
