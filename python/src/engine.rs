//! The class `Engine`.

use std::collections::BTreeMap;

use gpufile::cli_support::word_of_route;
use gpufile::{DirectIo, EngineBuilder, RouteKind, RoutePolicy};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{self, value_of};
use crate::error::{exception, not_pickled};
use crate::release::Detached;

/// Settings and worker threads for files.
///
/// An omitted argument takes the value of its environment variable, or its default. Files without an engine use that of the
/// process, ``Engine.default()``. Lengths are in bytes. A number beyond its limits raises ``ValueError``: ``threads`` is 1 to
/// 1024, ``bounce_buffer_bytes`` 1 to 1 GiB, and ``chunk_bytes`` and ``bounce_memory_bytes`` at least 1.
#[pyclass(frozen, module = "gpufile")]
pub struct Engine(pub Detached<gpufile::Engine>);

/// The words for policies, and for the uses of `O_DIRECT`.
const POLICIES: [(&str, RoutePolicy); 3] =
    [("auto", RoutePolicy::Auto), ("cufile", RoutePolicy::RequireCufile), ("posix", RoutePolicy::PosixOnly)];
const DIRECT: [(&str, DirectIo); 3] =
    [("auto", DirectIo::Auto), ("always", DirectIo::Always), ("never", DirectIo::Never)];

/// Returns each name of a setting in ``kvikio.defaults``, with the argument of ``Engine`` that it stands for.
#[pyfunction]
pub fn kvikio_settings() -> BTreeMap<&'static str, &'static str> {
    gpufile::cli_support::kvikio_settings().collect()
}

/// Returns the word for a value.
fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, named)| *named == value).map_or("other", |(name, _)| name)
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
        gds_threshold_bytes = None, policy = None, direct_read = None, direct_write = None, overread = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        #[pyo3(from_py_with = arguments::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = arguments::chunk_bytes)] chunk_bytes: Option<usize>,
        #[pyo3(from_py_with = arguments::bounce_buffer_bytes)] bounce_buffer_bytes: Option<usize>,
        #[pyo3(from_py_with = arguments::bounce_memory_bytes)] bounce_memory_bytes: Option<usize>,
        #[pyo3(from_py_with = arguments::gds_threshold_bytes)] gds_threshold_bytes: Option<usize>,
        policy: Option<&Bound<'_, PyAny>>,
        direct_read: Option<&Bound<'_, PyAny>>,
        direct_write: Option<&Bound<'_, PyAny>>,
        overread: Option<bool>,
    ) -> PyResult<Self> {
        let settings = gpufile::Settings::from_env();
        let settings = settings.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let builder = gpufile::Engine::builder().settings(settings);
        let builder = given(builder, threads, EngineBuilder::threads);
        let builder = given(builder, chunk_bytes, EngineBuilder::chunk_bytes);
        let builder = given(builder, bounce_buffer_bytes, EngineBuilder::bounce_buffer_bytes);
        let builder = given(builder, bounce_memory_bytes, EngineBuilder::bounce_memory_bytes);
        let builder = given(builder, gds_threshold_bytes, EngineBuilder::gds_threshold_bytes);
        let policy = policy.map(|word| value_of("policy", &POLICIES, word)).transpose()?;
        let builder = given(builder, policy, EngineBuilder::policy);
        let direct_read = direct_read.map(|word| value_of("direct_read", &DIRECT, word)).transpose()?;
        let builder = given(builder, direct_read, EngineBuilder::direct_read);
        let direct_write = direct_write.map(|word| value_of("direct_write", &DIRECT, word)).transpose()?;
        let builder = given(builder, direct_write, EngineBuilder::direct_write);
        let builder = given(builder, overread, EngineBuilder::overread);
        let built = builder.try_build().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self(Detached::new(built)))
    }

    /// Returns the default engine of the process.
    #[staticmethod]
    #[pyo3(name = "default")]
    pub fn of_process() -> PyResult<Self> {
        let engine = gpufile::Engine::try_global();
        engine
            .cloned()
            .map(|engine| Self(Detached::new(engine)))
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Prepares transfers of the memory of these GPUs, by their ordinals, so that the first ones are as fast as later ones:
    /// CUDA's contexts, worker threads with their streams, and pinned memory.
    ///
    /// A server calls this before its first request. A program that loads one model and ends is faster without it.
    fn warm_up(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::devices)] devices: Vec<u32>,
    ) -> PyResult<()> {
        let warm_up = || -> gpufile::Result<()> {
            let cuda = self.0.cuda()?;
            let devices: Vec<_> =
                devices.iter().map(|ordinal| cuda.device(*ordinal)).collect::<Result<_, _>>()?;
            self.0.warm_up(&devices)
        };
        py.detach(warm_up).map_err(|error| exception(py, &error))
    }

    /// Frees memory that the engine keeps for later transfers, and returns the number of bytes.
    fn release_buffers(&self, py: Python<'_>) -> usize {
        py.detach(|| self.0.release_buffers())
    }

    /// Returns the counts of all transfers of the engine so far.
    ///
    /// ``host`` and the kinds of ``Route``, except ``unavailable``, have ``reads``, ``read_bytes``, ``writes`` and ``write_bytes``. ``continued_calls`` is the number of calls that continued where the kernel or cuFile
    /// had moved fewer bytes than asked, and ``pinned_bytes`` the pinned host memory of now. ``fallbacks`` has each reason
    /// against a better way, and how often it applied.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.0.stats());
        let dict = PyDict::new(py);
        for (name, traffic) in [
            ("host", stats.host),
            (word_of_route(RouteKind::Posix), stats.posix),
            (word_of_route(RouteKind::CufileCompat), stats.cufile_compat),
            (word_of_route(RouteKind::P2pDma), stats.p2p_dma),
            (word_of_route(RouteKind::Gds), stats.gds),
        ] {
            let counts = PyDict::new(py);
            counts.set_item("reads", traffic.reads)?;
            counts.set_item("read_bytes", traffic.read_bytes)?;
            counts.set_item("writes", traffic.writes)?;
            counts.set_item("write_bytes", traffic.write_bytes)?;
            dict.set_item(name, counts)?;
        }
        dict.set_item("continued_calls", stats.continued_calls)?;
        dict.set_item("pinned_bytes", stats.pinned_bytes)?;
        dict.set_item("fallbacks", stats.fallbacks)?;
        Ok(dict)
    }

    /// The number of worker threads.
    #[getter]
    fn threads(&self) -> usize {
        self.0.settings().threads
    }

    /// The length of chunks. None if the engine chooses.
    #[getter]
    fn chunk_bytes(&self) -> Option<usize> {
        self.0.settings().chunk_bytes
    }

    /// The length of a bounce buffer.
    #[getter]
    fn bounce_buffer_bytes(&self) -> usize {
        self.0.settings().bounce_buffer_bytes
    }

    /// The most memory that the bounce buffers for the host and for each GPU take.
    #[getter]
    fn bounce_memory_bytes(&self) -> usize {
        self.0.settings().bounce_memory_bytes()
    }

    /// The length below which transfers do not use GPUDirect Storage.
    #[getter]
    fn gds_threshold_bytes(&self) -> usize {
        self.0.settings().gds_threshold_bytes
    }

    /// The choice between cuFile and plain reads and writes: ``"auto"``, ``"cufile"`` or ``"posix"``.
    #[getter]
    fn policy(&self) -> &'static str {
        word(&POLICIES, self.0.settings().policy)
    }

    /// When reads use ``O_DIRECT``: ``"auto"``, ``"always"`` or ``"never"``.
    #[getter]
    fn direct_read(&self) -> &'static str {
        word(&DIRECT, self.0.settings().direct_read)
    }

    /// When writes use ``O_DIRECT``: ``"auto"``, ``"always"`` or ``"never"``.
    #[getter]
    fn direct_write(&self) -> &'static str {
        word(&DIRECT, self.0.settings().direct_write)
    }

    /// True if reads with ``O_DIRECT`` may read more than the requested range, up to the alignment.
    #[getter]
    fn overread(&self) -> bool {
        self.0.settings().overread
    }

    fn __repr__(&self) -> String {
        format!("<gpufile.Engine threads={} policy={:?}>", self.threads(), self.policy())
    }

    fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(not_pickled("gpufile.Engine", "its threads belong to its process; make another there"))
    }
}
