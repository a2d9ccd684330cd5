//! Plans of loads: the rule of a placement, which is called in Python, and the groups of each device.

use gpufile::formats::safetensors::{self, Cut, Share, TensorInfo, TensorSlice, planning};
use gpufile::formats::{Error, Result};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyString, PyTuple, PyType};

use super::format_exception;
use super::group::{Group, bounds_of};

/// The tensors of a load, with the devices that get them.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Plan {
    plan: planning::Plan,
    devices: usize,
}

enum Refusal {
    /// An exception of the rule, or of what it returned.
    Raised(PyErr),
    Format(Box<Error>),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Format(Box::new(error))
    }
}

impl Plan {
    /// Plans a load of these tensors, or of all. Calls the rule for each, with its name, type and shape. Without a rule,
    /// each device gets all.
    pub fn new(
        py: Python<'_>,
        checkpoint: &safetensors::Checkpoint,
        names: Option<&[String]>,
        rule: Option<&Bound<'_, PyAny>>,
        devices: usize,
    ) -> PyResult<Self> {
        let plan = match rule {
            Some(rule) => {
                checkpoint.plan(names, devices, |info| share_of(rule, info, devices).map_err(Refusal::Raised))
            }
            None => py.detach(|| checkpoint.plan(names, devices, |_| Ok(Share::All))),
        };
        let plan = plan.map_err(|refusal| match refusal {
            Refusal::Raised(exception) => exception,
            Refusal::Format(error) => format_exception(py, error),
        })?;
        Ok(Self { plan, devices })
    }
}

#[pymethods]
impl Plan {
    /// Returns the names of the tensors, in the order of the files.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.plan.tensors().map(|tensor| tensor.name))
    }

    /// Returns a number that differs if other bytes would be read, or would go to other devices.
    fn number(&self) -> u64 {
        self.plan.number()
    }

    /// Returns the groups of the tensors that each device gets whole. A group has at most `limit_bytes` bytes, or one
    /// tensor.
    #[pyo3(signature = (limit_bytes = None))]
    pub fn shared(&self, py: Python<'_>, limit_bytes: Option<u64>) -> PyResult<Vec<Group>> {
        groups(py, limit_bytes, |limit_bytes| self.plan.shared(limit_bytes))
    }

    /// Returns the groups of the tensors and slices that this device gets alone, as `shared`.
    #[pyo3(signature = (device, limit_bytes = None))]
    fn own(&self, py: Python<'_>, device: usize, limit_bytes: Option<u64>) -> PyResult<Vec<Group>> {
        if device >= self.devices {
            let text = format!("there is no device {device}, because the plan has {} devices", self.devices);
            return Err(PyValueError::new_err(text));
        }
        groups(py, limit_bytes, |limit_bytes| self.plan.own(device, limit_bytes))
    }
}

fn groups(
    py: Python<'_>,
    limit_bytes: Option<u64>,
    plan: impl FnOnce(usize) -> Result<Vec<planning::Group>> + Send,
) -> PyResult<Vec<Group>> {
    let limit_bytes = limit_bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
    let groups =
        py.detach(|| plan(limit_bytes).map_err(Box::new)).map_err(|error| format_exception(py, error))?;
    Ok(groups.into_iter().map(Group::from).collect())
}

/// Calls the rule for a tensor, and checks what it returns.
fn share_of(rule: &Bound<'_, PyAny>, info: &TensorInfo<'_>, devices: usize) -> PyResult<Share> {
    static SHARE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = rule.py();
    let returned = rule.call1((info.name, info.dtype.name(), PyTuple::new(py, info.shape)?))?;
    let name = PyString::new(py, info.name).repr()?;
    if !returned.is_instance(SHARE.import(py, "gpufile.safetensors._placement", "Share")?)? {
        let text =
            format!("tensor {name}: the rule of the placement returned {}, not a Share", returned.repr()?);
        return Err(PyTypeError::new_err(text));
    }
    let refused = |text| Err(PyValueError::new_err(format!("tensor {name}: {text}")));
    let below =
        |value: &Bound<'_, PyAny>, end: usize| value.extract().ok().filter(|value: &usize| *value < end);
    let (kind, device, axis, cut): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) =
        returned.extract()?;
    match kind.extract().unwrap_or("") {
        "balanced" => Ok(Share::Balanced),
        "all" => Ok(Share::All),
        "on" => match below(&device, devices) {
            Some(device) => Ok(Share::On(device)),
            None => {
                refused(format!("cannot place it on device {device}, because the list has {devices} devices"))
            }
        },
        "slice" => {
            let axes = info.shape.len();
            let position = |axis: isize| {
                if axis < 0 { axes.checked_add_signed(axis) } else { usize::try_from(axis).ok() }
            };
            let Some(axis) = axis.extract().ok().and_then(position).filter(|&axis| axis < axes) else {
                return refused(format!(
                    "cannot slice axis {axis} of a tensor with {axes} axes; place it on one device or on all"
                ));
            };
            let cut = match cut.extract().unwrap_or("") {
                "chunks" => Cut::Chunks,
                "even" => Cut::Even,
                _ => return refused(format!("cannot cut \"{cut}\"; the cuts are \"chunks\" and \"even\"")),
            };
            for device in 0..devices {
                let slice = TensorSlice { axis, range: cut.range(info.shape[axis], device, devices) };
                if bounds_of(info, &slice).is_none() {
                    let TensorSlice { axis, range } = slice;
                    let text = format!(
                        "the {} elements from {} to {} of axis {axis}",
                        info.dtype, range.start, range.end
                    );
                    return refused(
                        text + " do not fill whole bytes; slice another axis, or place the tensor on one device or on all",
                    );
                }
            }
            Ok(Share::Slice { axis, cut })
        }
        _ => refused(format!("there is no share of kind {}", kind.repr()?)),
    }
}
