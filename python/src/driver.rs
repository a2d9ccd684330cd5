//! The cuFile driver of the process, for programs that configure it.

use cufile::fork::Mutex;
use cufile::{Controls, Driver, DriverProperties, Library};
use gpufile::Engine;
use pyo3::exceptions::{PyKeyError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments;
use crate::error::{cuda_exception, exception};

static OPEN: Mutex<Vec<Driver>> = Mutex::of_static(Vec::new());

static SETTINGS: Mutex<Settings> =
    Mutex::of_static(Settings { poll_mode: None, max_cache_bytes: None, max_pinned_bytes: None });

/// Settings of the driver, which libcufile discards when the driver closes.
#[derive(Clone, Copy, Default)]
struct Settings {
    /// The state of polling, and the most bytes of a transfer that it is for.
    poll_mode: Option<(bool, u64)>,
    max_cache_bytes: Option<u64>,
    max_pinned_bytes: Option<u64>,
}

impl Settings {
    /// Sets them again after a close. Does nothing if other code keeps the driver open, which then still has them.
    fn renew() -> cufile::Result<()> {
        match SETTINGS.lock().apply() {
            Err(cufile::Error::InUse { .. }) => Ok(()),
            renewed => renewed,
        }
    }

    fn apply(self) -> cufile::Result<()> {
        let library = Library::load()?;
        let params = library.params();
        if let Some((enabled, threshold_bytes)) = self.poll_mode {
            params.set_poll_mode(enabled, threshold_bytes)?;
        }
        self.max_cache_bytes.map_or(Ok(()), |bytes| params.set_max_cache_size(bytes))?;
        self.max_pinned_bytes.map_or(Ok(()), |bytes| params.set_max_pinned_memory(bytes))
    }

    /// Changes the settings of the program, unless libcufile refuses them.
    fn change(change: impl FnOnce(&mut Self)) -> cufile::Result<()> {
        let mut settings = SETTINGS.lock();
        let mut changed = *settings;
        change(&mut changed);
        changed.apply()?;
        *settings = changed;
        Ok(())
    }
}

fn open() -> gpufile::Result<Driver> {
    Ok(Driver::builder().cuda(Engine::global().cuda()?.clone()).open()?)
}

/// Opens the cuFile driver and keeps it open until ``close_driver``. Without this call, transfers open it when needed.
#[pyfunction]
pub fn open_driver(py: Python<'_>) -> PyResult<()> {
    let driver = py.detach(open).map_err(|error| exception(py, &error))?;
    OPEN.lock().push(driver);
    Ok(())
}

/// Closes what ``open_driver`` opened. The driver stays open while other openings remain.
#[pyfunction]
pub fn close_driver(py: Python<'_>) -> PyResult<()> {
    let driver = OPEN.lock().pop();
    let driver = driver.ok_or_else(|| PyRuntimeError::new_err("open_driver has not been called"))?;
    py.detach(|| driver.close()).map_err(|failed| cuda_exception(py, failed.error))?;
    py.detach(Settings::renew).map_err(|error| cuda_exception(py, error))
}

/// Returns the version of libcufile: major and minor.
#[pyfunction]
pub fn libcufile_version(py: Python<'_>) -> PyResult<(u32, u32)> {
    let library = py.detach(Library::load).map_err(|error| cuda_exception(py, error))?;
    let version = library.version();
    Ok((version.major, version.minor))
}

/// Returns the properties of the cuFile driver. Opens the driver if it is not open. Lengths are in bytes.
#[pyfunction]
pub fn driver_properties(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let ask = || {
        // This opening ends here.
        let properties = open()?.properties();
        Settings::renew()?;
        Ok(properties?)
    };
    let properties = py.detach(ask).map_err(|error| exception(py, &error))?;
    let DriverProperties { controls, nvidia_fs, file_systems, .. } = &properties;
    let dict = PyDict::new(py);
    dict.set_item("has_direct_path", nvidia_fs.is_some() && !file_systems.is_empty())?;
    dict.set_item("nvidia_fs", nvidia_fs)?;
    dict.set_item("allow_compat_mode", controls.contains(Controls::COMPAT_MODE))?;
    dict.set_item("poll_mode", controls.contains(Controls::POLL_MODE))?;
    dict.set_item("poll_threshold_bytes", properties.poll_threshold_bytes)?;
    dict.set_item("max_device_cache_bytes", properties.max_device_cache_bytes)?;
    dict.set_item("per_buffer_cache_bytes", properties.per_buffer_cache_bytes)?;
    dict.set_item("max_device_pinned_bytes", properties.max_device_pinned_bytes)?;
    Ok(dict)
}

/// Sets polling for transfers up to a length, for the next opening of the driver.
#[pyfunction]
pub fn set_poll_mode(
    py: Python<'_>,
    enabled: bool,
    #[pyo3(from_py_with = arguments::threshold_bytes)] threshold_bytes: u64,
) -> PyResult<()> {
    let change = || Settings::change(|settings| settings.poll_mode = Some((enabled, threshold_bytes)));
    py.detach(change).map_err(|error| cuda_exception(py, error))
}

/// Sets a limit, ``"max_device_cache_bytes"`` or ``"max_device_pinned_bytes"``, for the next opening of the driver.
#[pyfunction]
pub fn set_driver_limit(
    py: Python<'_>,
    name: &str,
    #[pyo3(from_py_with = arguments::bytes)] bytes: u64,
) -> PyResult<()> {
    let change: fn(&mut Settings, u64) = match name {
        "max_device_cache_bytes" => |settings, bytes| settings.max_cache_bytes = Some(bytes),
        "max_device_pinned_bytes" => |settings, bytes| settings.max_pinned_bytes = Some(bytes),
        _ => return Err(PyKeyError::new_err(name.to_owned())),
    };
    py.detach(|| Settings::change(|settings| change(settings, bytes)))
        .map_err(|error| cuda_exception(py, error))
}
