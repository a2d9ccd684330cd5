//! Tensors of DLPack: the capsules of `__dlpack__`, and those that classes make in C.

use std::ffi::{CStr, c_void};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyType};
use pyo3::{ffi, intern};

use super::exchange::Exchange;
use super::{Access, Claimed, contiguous_bytes, read_only};

/// The devices whose memory can take part in transfers.
pub(super) const CPU: i32 = 1;
pub(super) const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// CUDA's null stream, as a consumer names it.
const LEGACY_STREAM: usize = 1;

const FLAG_READ_ONLY: u64 = 1;

#[repr(C)]
pub(super) struct Tensor {
    pub data: *mut c_void,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub type_code: u8,
    pub type_bits: u8,
    pub type_lanes: u16,
    pub shape: *const i64,
    pub strides: *const i64,
    pub byte_offset: u64,
}

/// The content of a capsule `dltensor_versioned`, up to the tensor.
#[repr(C)]
pub(super) struct Versioned {
    major: u32,
    minor: u32,
    manager_context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

pub(super) const VERSIONED: &CStr = c"dltensor_versioned";

/// The attributes and keywords that the objects of a class understand beside `__dlpack__`, as far as they are known.
#[derive(Default)]
pub(super) struct Dialect {
    exchange: Option<Exchange>,
    lacks_is_neg: bool,
    lacks_is_cpu: bool,
    /// True for producers before DLPack 1.0, which refuse its keywords.
    is_old: bool,
}

impl Dialect {
    /// Asks the class what its objects lack.
    pub fn learn(&mut self, class: &Bound<'_, PyType>) {
        let lacks = |name| matches!(class.hasattr(name), Ok(false));
        // Objects of classes with this method may have any attribute.
        let is_plain = lacks("__getattr__");
        self.lacks_is_neg = is_plain && lacks("is_neg");
        self.lacks_is_cpu = is_plain && lacks("is_cpu");
        self.exchange = Exchange::of(class);
    }
}

/// Returns the memory that an object describes by DLPack, and the capsule that keeps the memory allocated. `None` if
/// the object has no `__dlpack__`.
pub(super) fn claimed(
    object: &Bound<'_, PyAny>,
    access: Access,
    dialect: &mut Dialect,
) -> PyResult<Option<(Claimed, Py<PyAny>)>> {
    let py = object.py();
    let Some(export) = object.getattr_opt(intern!(py, "__dlpack__"))? else { return Ok(None) };
    // torch's tensors say so beside DLPack: the numbers are the negated bytes.
    if !dialect.lacks_is_neg
        && let Some(is_negated) = object.getattr_opt(intern!(py, "is_neg"))?
    {
        if is_negated.call0()?.is_truthy()? {
            return Err(PyBufferError::new_err(
                "the tensor has its negative bit set: pass tensor.resolve_neg()",
            ));
        }
        dialect.exchange = dialect.exchange.or_else(|| Exchange::of(&object.get_type()));
    }
    let capsule = match exchanged(object, dialect)? {
        None => exported(object, &export, dialect)?,
        exchanged => exchanged,
    };
    let Some((capsule, stream)) = capsule else { return Ok(None) };
    let (tensor, flags) = tensor(&capsule)?;
    let is_on_gpu = is_gpu(tensor.device_type)?;
    let item_bits = usize::from(tensor.type_bits) * usize::from(tensor.type_lanes);
    if item_bits == 0 || !item_bits.is_multiple_of(8) {
        return Err(PyBufferError::new_err(format!(
            "elements of {item_bits} bits are not supported: pass a view as bytes"
        )));
    }
    let item_bytes = item_bits / 8;
    let wrong = || PyValueError::new_err("the tensor has no shape, or a negative extent");
    let ndim = usize::try_from(tensor.ndim).map_err(|_| wrong())?;
    let shape: Vec<usize> = elements(tensor.shape, ndim).ok_or_else(wrong)?;
    let strides: Option<Vec<isize>> =
        if tensor.strides.is_null() { None } else { elements(tensor.strides, ndim) };
    let strides = strides.map(|strides| {
        strides.into_iter().map(|stride| stride.saturating_mul(item_bytes as isize)).collect::<Vec<_>>()
    });
    let len_bytes = contiguous_bytes(&shape, strides.as_deref(), item_bytes)?;
    if access == Access::Write && flags & FLAG_READ_ONLY != 0 {
        return Err(read_only());
    }
    let address = tensor.data.addr().checked_add(tensor.byte_offset as usize);
    let address =
        address.ok_or_else(|| PyValueError::new_err("the address of the tensor is out of range"))?;
    Ok(Some((Claimed { address, len_bytes, is_on_gpu, stream }, capsule.unbind())))
}

fn is_gpu(device_type: i32) -> PyResult<bool> {
    match device_type {
        CPU | CUDA_HOST => Ok(false),
        CUDA | CUDA_MANAGED => Ok(true),
        other => Err(PyBufferError::new_err(format!(
            "the memory is on a device of DLPack type {other}: only the host and CUDA GPUs are supported"
        ))),
    }
}

/// A capsule, and for a tensor of a GPU the stream with work that writes to it.
type Exported<'py> = (Bound<'py, PyAny>, Option<usize>);

/// Lets the class export the memory of an object in C. `None` if it cannot, or if its `__dlpack__` may refuse the object.
fn exchanged<'py>(object: &Bound<'py, PyAny>, dialect: &Dialect) -> PyResult<Option<Exported<'py>>> {
    let py = object.py();
    let Some(exchange) = dialect.exchange else { return Ok(None) };
    // torch's functions export such tensors, too.
    let is = |attribute| match object.getattr_opt(attribute)? {
        Some(value) if value.is_callable() => value.call0()?.is_truthy(),
        value => value.map_or(Ok(false), |value| value.is_truthy()),
    };
    if !dialect.lacks_is_neg && (is(intern!(py, "is_conj"))? || is(intern!(py, "requires_grad"))?) {
        return Ok(None);
    }
    // The exceptions of `__dlpack__` say more.
    let Ok(capsule) = exchange.capsule(object) else { return Ok(None) };
    let (tensor, _) = tensor(&capsule)?;
    let stream = match is_gpu(tensor.device_type)? {
        // The null stream is another one on each thread, where programs choose so.
        true => Some(exchange.current_stream(py, tensor.device_type, tensor.device_id)?.max(LEGACY_STREAM)),
        false => None,
    };
    Ok(Some((capsule, stream)))
}

/// Lets an object export its memory by `__dlpack__`. `None` if it has no `__dlpack_device__`.
fn exported<'py>(
    object: &Bound<'py, PyAny>,
    export: &Bound<'py, PyAny>,
    dialect: &mut Dialect,
) -> PyResult<Option<Exported<'py>>> {
    let py = object.py();
    let Some(device) = object.getattr_opt(intern!(py, "__dlpack_device__"))? else { return Ok(None) };
    // torch's tensors look for pinned memory when they name their device, which fails in a forked child of a process with
    // CUDA. They say more cheaply that they are the host's.
    let is_cpu = match dialect.lacks_is_cpu {
        true => None,
        false => object.getattr_opt(intern!(py, "is_cpu"))?,
    };
    let is_host = is_cpu.map_or(Ok(false), |is_cpu| is_cpu.is_truthy())?;
    let (device_type, _): (i32, i32) = if is_host { (CPU, 0) } else { device.call0()?.extract()? };
    let stream = is_gpu(device_type)?.then_some(LEGACY_STREAM);
    Ok(Some((capsule(export, stream, dialect)?, stream)))
}

/// Calls `__dlpack__` for the memory itself: a copy would be of no use to a read.
fn capsule<'py>(
    export: &Bound<'py, PyAny>,
    stream: Option<usize>,
    dialect: &mut Dialect,
) -> PyResult<Bound<'py, PyAny>> {
    let py = export.py();
    let arguments = PyDict::new(py);
    if let Some(stream) = stream {
        arguments.set_item(intern!(py, "stream"), stream)?;
    }
    if !dialect.is_old {
        let versioned = arguments.copy()?;
        versioned.set_item(intern!(py, "max_version"), (1, 0))?;
        versioned.set_item(intern!(py, "copy"), false)?;
        match export.call((), Some(&versioned)) {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {}
            outcome => return outcome,
        }
    }
    let capsule = export.call((), Some(&arguments))?;
    dialect.is_old = true;
    Ok(capsule)
}

fn tensor<'a>(capsule: &'a Bound<'_, PyAny>) -> PyResult<(&'a Tensor, u64)> {
    const OLD: &CStr = c"dltensor";
    let capsule = capsule.cast::<PyCapsule>()?;
    let content = |name: &CStr| {
        // SAFETY: `cast` found a capsule. The call checks the name.
        let pointer = unsafe {
            match ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) {
                1 => ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()),
                _ => std::ptr::null_mut(),
            }
        };
        (!pointer.is_null()).then_some(pointer)
    };
    if let Some(pointer) = content(VERSIONED) {
        // SAFETY: DLPack defines the content of capsules by this name, and the capsule owns it. The version comes
        // first in all of them.
        let major = unsafe { (*pointer.cast::<Versioned>()).major };
        if major != 1 {
            return Err(PyBufferError::new_err(format!(
                "DLPack version {major} is not supported: only version 1 is"
            )));
        }
        // SAFETY: as above, and this is the layout of version 1.
        let versioned = unsafe { &*pointer.cast::<Versioned>() };
        return Ok((&versioned.tensor, versioned.flags));
    }
    let pointer =
        content(OLD).ok_or_else(|| PyBufferError::new_err("__dlpack__ returned no DLPack capsule"))?;
    // SAFETY: as above; the tensor comes first in capsules by this name.
    Ok((unsafe { &*pointer.cast::<Tensor>() }, 0))
}

/// Returns `count` integers from `first` on. `None` if `first` is null, or if one does not fit the type.
fn elements<T: TryFrom<i64>>(first: *const i64, count: usize) -> Option<Vec<T>> {
    if count == 0 || first.is_null() {
        return (count == 0).then(Vec::new);
    }
    // SAFETY: the capsule has as many extents and strides as dimensions.
    let integers = unsafe { std::slice::from_raw_parts(first, count) };
    integers.iter().map(|integer| T::try_from(*integer).ok()).collect()
}
