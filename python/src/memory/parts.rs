//! Tensors over parts of one memory, each as a capsule of DLPack. What imports a capsule makes a storage of its own for it.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

use gpufile::IoBuf;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::dlpack::{CPU, CUDA, Tensor};
use super::{Access, Memory};

/// The name of capsules that every version of a library imports.
const NAME: &CStr = c"dltensor";

/// The content of a capsule, as DLPack defines it.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    // DLPack ends here.
    shape: Vec<i64>,
    _memory: Arc<Memory>,
}

/// Returns capsules of tensors that follow each other in the memory from a byte on. All have the type that DLPack names by
/// this code and number of bits. Each keeps the memory.
#[pyfunction]
pub fn dlpack_parts<'py>(
    memory: &Bound<'py, PyAny>,
    code: u8,
    bits: u8,
    start: usize,
    shapes: Vec<Vec<usize>>,
) -> PyResult<Bound<'py, PyList>> {
    let py = memory.py();
    let memory = Arc::new(Memory::of(memory, Access::Write)?);
    let (device_type, device_id) = match memory.device() {
        None => (CPU, 0),
        Some(device) => (CUDA, i32::try_from(device.ordinal())?),
    };
    let item_bytes = usize::from(bits / 8);
    let mut at = start;
    let capsules = PyList::empty(py);
    for shape in shapes {
        let extent = |bytes: usize, axis: &usize| bytes.checked_mul(*axis);
        let len_bytes = shape.iter().try_fold(item_bytes, extent).filter(|_| item_bytes > 0);
        let end = len_bytes.and_then(|len_bytes| at.checked_add(len_bytes));
        let end = end.filter(|end| *end <= memory.len_bytes());
        let end = end.ok_or_else(|| PyValueError::new_err("the tensors exceed the memory"))?;
        let shape: Vec<i64> = shape.into_iter().map(i64::try_from).collect::<Result<_, _>>()?;
        let mut managed = Box::new(Managed {
            tensor: Tensor {
                // One without elements has no place, or it would seem to share the next one's.
                data: ptr::with_exposed_provenance_mut(if at == end { 0 } else { memory.address + at }),
                device_type,
                device_id,
                ndim: i32::try_from(shape.len())?,
                type_code: code,
                type_bits: bits,
                type_lanes: 1,
                shape: ptr::null(),
                // In C's order.
                strides: ptr::null(),
                byte_offset: 0,
            },
            context: ptr::null_mut(),
            deleter: Some(delete),
            shape,
            _memory: memory.clone(),
        });
        managed.tensor.shape = managed.shape.as_ptr();
        let managed = Box::into_raw(managed);
        // SAFETY: the capsule owns the tensor from here on.
        let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(delete_unused)) };
        if capsule.is_null() {
            // SAFETY: nobody else has it.
            unsafe { delete(managed) };
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a new reference.
        capsules.append(unsafe { Bound::from_owned_ptr(py, capsule) })?;
        at = end;
    }
    Ok(capsules)
}

/// Deletes a tensor, and with the last one the memory. Any thread may call this.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: `dlpack_parts` made the box, and the owner of the tensor calls this once.
    drop(unsafe { Box::from_raw(managed) });
}

/// Deletes the tensor of a capsule that nothing imported: an import gives the capsule another name.
unsafe extern "C" fn delete_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, with a capsule of `dlpack_parts`, which has its tensor as long as it has the name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
