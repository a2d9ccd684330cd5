//! The class `Engine`. Its arguments and getters are those of the table of settings.

use std::collections::BTreeMap;
use std::fmt::Display;

use gpufile::{DirectIo, RouteKind, RoutePolicy};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{self, Argument, value_of};
use crate::error::{exception, not_pickled};
use crate::release::Detached;

/// Settings and worker threads for files.
///
/// An omitted argument takes the value of its environment variable, or its default. Files without an engine use that of the
/// process, ``Engine.default()``. Lengths are in bytes. A number beyond its limits raises ``ValueError``. The policy is ``"auto"``,
/// ``"cufile"`` or ``"posix"``, and the use of ``O_DIRECT`` is ``"auto"``, ``"always"`` or ``"never"``.
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
    let settings = gpufile::Settings::table().iter();
    settings.filter_map(|setting| Some((setting.kvikio?, setting.name))).collect()
}

fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, named)| *named == value).map_or("other", |(name, _)| name)
}

impl Argument for bool {
    fn of(value: &Bound<'_, PyAny>, _name: impl Display) -> PyResult<Self> {
        value.extract()
    }
}

impl Argument for RoutePolicy {
    fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self> {
        value_of(name, &POLICIES, value)
    }
}

impl Argument for DirectIo {
    fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self> {
        value_of(name, &DIRECT, value)
    }
}

trait Value {
    fn shown<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;
}

macro_rules! values {
    ($($type:ty: $value:ident => $shown:expr,)*) => {
        $(impl Value for $type {
            fn shown<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                let $value = self;
                $shown.into_bound_py_any(py)
            }
        })*
    };
}

values! {
    usize: number => number,
    Option<usize>: number => number,
    bool: is_on => is_on,
    RoutePolicy: policy => word(&POLICIES, policy),
    DirectIo: direct => word(&DIRECT, direct),
}

/// Returns the value of a setting: that of its field, or of its method if the field is not public.
macro_rules! value {
    ($settings:expr, $name:ident) => {
        $settings.$name
    };
    ($settings:expr, $name:ident, crate) => {
        $settings.$name()
    };
}

/// Makes the methods of the class. PyO3 takes them from one block.
macro_rules! make_methods {
    ($({
        $(#[doc = $doc:literal])* $(#[doc(alias = $alias:literal)])*
        pub $(($scope:tt))? $name:ident: $type:ty = $default:expr, $stated:literal;
        $(#[$set_doc:meta])* set: $argument:ty;
        $($rest:tt)*
    })*) => {
        mod given {
            use super::*;

            $(pub fn $name(value: &Bound<'_, PyAny>) -> PyResult<Option<$argument>> {
                Argument::of(value, stringify!($name))
            })*
        }

        #[pymethods]
        impl Engine {
            #[new]
            #[pyo3(signature = (*, $($name = None),*))]
            #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
            fn new(
                $(#[pyo3(from_py_with = given::$name)] $name: Option<$argument>,)*
            ) -> PyResult<Self> {
                let settings = gpufile::Settings::from_env();
                let settings = settings.map_err(|error| PyValueError::new_err(error.to_string()))?;
                let builder = gpufile::Engine::builder().settings(settings);
                $(let builder = match $name {
                    Some(value) => builder.$name(value),
                    None => builder,
                };)*
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

            /// Prepares transfers of the memory of these GPUs, by their ordinals, so that the first ones are as fast as later
            /// ones: CUDA's contexts, worker threads with their streams, and pinned memory.
            ///
            /// A server calls this before its first request. A program that loads one model and ends is faster without it.
            fn warm_up(
                &self,
                py: Python<'_>,
                #[pyo3(from_py_with = arguments::devices)] devices: Vec<u32>,
            ) -> PyResult<()> {
                py.detach(|| self.warm(&devices)).map_err(|error| exception(py, &error))
            }

            /// Frees memory that the engine keeps for later transfers, and returns the number of bytes.
            fn release_buffers(&self, py: Python<'_>) -> usize {
                py.detach(|| self.0.release_buffers())
            }

            /// Returns the counts of all transfers of the engine so far.
            ///
            /// ``host`` and the kinds of ``Route``, except ``unavailable``, have ``reads``, ``read_bytes``, ``writes`` and
            /// ``write_bytes``. ``continued_calls`` is the number of calls that continued where the kernel or cuFile had moved
            /// fewer bytes than asked, and ``pinned_bytes`` the pinned host memory of now. ``fallbacks`` has each reason
            /// against a better way, and how often it applied.
            fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                self.counts(py)
            }

            $(
                $(#[doc = $doc])*
                #[doc = concat!("\nThe default is ", $stated, ".")]
                #[getter]
                fn $name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                    value!(self.0.settings(), $name $(, $scope)?).shown(py)
                }
            )*

            fn __repr__(&self) -> String {
                let settings = self.0.settings();
                let policy = word(&POLICIES, settings.policy);
                format!("<gpufile.Engine threads={} policy={policy:?}>", settings.threads)
            }

            fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
                Err(not_pickled("gpufile.Engine", "its threads belong to its process; make another there"))
            }
        }
    };
}

gpufile::with_settings!(make_methods);

impl Engine {
    fn warm(&self, devices: &[u32]) -> gpufile::Result<()> {
        let cuda = self.0.cuda()?;
        let devices: Vec<_> =
            devices.iter().map(|ordinal| cuda.device(*ordinal)).collect::<Result<_, _>>()?;
        self.0.warm_up(&devices)
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.0.stats());
        let dict = PyDict::new(py);
        for (name, traffic) in [
            ("host", stats.host),
            (RouteKind::Posix.as_str(), stats.posix),
            (RouteKind::CufileCompat.as_str(), stats.cufile_compat),
            (RouteKind::P2pDma.as_str(), stats.p2p_dma),
            (RouteKind::Gds.as_str(), stats.gds),
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
}
