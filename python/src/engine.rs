//! The class `Engine`.

use gpufile::{DirectIo, EngineBuilder, RoutePolicy};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Settings and worker threads for files.
///
/// An argument that is left out follows its environment variable, or its default. Files without an engine use that of the
/// process, ``Engine.default()``. Lengths are in bytes.
#[pyclass(frozen, module = "gpufile")]
pub struct Engine(pub gpufile::Engine);

fn policy(word: &str) -> PyResult<RoutePolicy> {
    match word {
        "auto" => Ok(RoutePolicy::Auto),
        "cufile" => Ok(RoutePolicy::RequireCufile),
        "posix" => Ok(RoutePolicy::PosixOnly),
        _ => Err(PyValueError::new_err(format!(
            "{word:?} is no policy: use \"auto\", \"cufile\" or \"posix\""
        ))),
    }
}

fn direct_io(word: &str) -> PyResult<DirectIo> {
    match word {
        "auto" => Ok(DirectIo::Auto),
        "always" => Ok(DirectIo::Always),
        "never" => Ok(DirectIo::Never),
        _ => Err(PyValueError::new_err(format!("{word:?}: use \"auto\", \"always\" or \"never\""))),
    }
}

/// Sets an argument that was given.
fn given<T>(
    builder: EngineBuilder,
    value: Option<T>,
    set: fn(EngineBuilder, T) -> EngineBuilder,
) -> EngineBuilder {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, threads = None, chunk_bytes = None, bounce_buffer_bytes = None, bounce_memory_bytes = None,
        gds_threshold_bytes = None, policy = None, direct_read = None, direct_write = None, overread = None,
        pool_per_block_device = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        threads: Option<usize>,
        chunk_bytes: Option<usize>,
        bounce_buffer_bytes: Option<usize>,
        bounce_memory_bytes: Option<usize>,
        gds_threshold_bytes: Option<usize>,
        policy: Option<&str>,
        direct_read: Option<&str>,
        direct_write: Option<&str>,
        overread: Option<bool>,
        pool_per_block_device: Option<bool>,
    ) -> PyResult<Self> {
        let settings = gpufile::Settings::from_env();
        let settings = settings.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let builder = gpufile::Engine::builder().settings(settings);
        let builder = given(builder, threads, EngineBuilder::threads);
        let builder = given(builder, chunk_bytes, EngineBuilder::chunk_bytes);
        let builder = given(builder, bounce_buffer_bytes, EngineBuilder::bounce_buffer_bytes);
        let builder = given(builder, bounce_memory_bytes, EngineBuilder::bounce_memory_bytes);
        let builder = given(builder, gds_threshold_bytes, EngineBuilder::gds_threshold_bytes);
        let builder = given(builder, policy.map(self::policy).transpose()?, EngineBuilder::policy);
        let builder = given(builder, direct_read.map(direct_io).transpose()?, EngineBuilder::direct_read);
        let builder = given(builder, direct_write.map(direct_io).transpose()?, EngineBuilder::direct_write);
        let builder = given(builder, overread, EngineBuilder::overread);
        let builder = given(builder, pool_per_block_device, EngineBuilder::pool_per_block_device);
        Ok(Self(builder.build()))
    }

    /// Returns the engine of the process.
    #[staticmethod]
    #[pyo3(name = "default")]
    fn of_process() -> PyResult<Self> {
        let engine = gpufile::Engine::try_global();
        engine.cloned().map(Self).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Frees memory that the engine keeps for later transfers, and returns the number of bytes.
    fn release_buffers(&self, py: Python<'_>) -> usize {
        py.detach(|| self.0.release_buffers())
    }

    /// The number of worker threads.
    #[getter]
    fn threads(&self) -> usize {
        self.0.settings().threads()
    }

    /// The length of chunks. None if the engine chooses.
    #[getter]
    fn chunk_bytes(&self) -> Option<usize> {
        self.0.settings().chunk_bytes()
    }

    /// The length of a bounce buffer.
    #[getter]
    fn bounce_buffer_bytes(&self) -> usize {
        self.0.settings().bounce_buffer_bytes()
    }

    /// The length below which transfers do not use GPUDirect Storage.
    #[getter]
    fn gds_threshold_bytes(&self) -> usize {
        self.0.settings().gds_threshold_bytes()
    }
}
