//! DLPack's exchange API: functions in C that export the tensors of a class, without calls of Python's. torch has them since
//! 2.10, and takes a tenth of the time of `__dlpack__`.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};

use super::dlpack::{VERSIONED, Versioned};

const NAME: &CStr = c"dlpack_exchange_api";
const MAJOR: u32 = 1;

/// The functions of a class. They live as long as the process.
#[derive(Clone, Copy)]
pub(super) struct Exchange(NonNull<Functions>);

#[repr(C)]
struct Functions {
    major: u32,
    minor: u32,
    /// Functions of an older version.
    previous: *mut Functions,
    allocate: *const c_void,
    export: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut *mut Versioned) -> c_int>,
    import: *const c_void,
    describe: *const c_void,
    current_stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

impl Exchange {
    /// Returns the functions of a class. `None` if it has none, or none of this version, or a `__dlpack__` that is newer than
    /// those of a class that it derives from.
    pub fn of(class: &Bound<'_, PyType>) -> Option<Self> {
        const FUNCTIONS: &str = "__dlpack_c_exchange_api__";
        let has = |class: &Bound<'_, PyAny>, name: &str| {
            class.getattr("__dict__").and_then(|names| names.contains(name)).unwrap_or(false)
        };
        let definer = class.mro().iter().find(|class| has(class, "__dlpack__"))?;
        let capsule = definer.getattr(FUNCTIONS).ok().filter(|_| has(&definer, FUNCTIONS))?;
        let capsule = capsule.cast::<PyCapsule>().ok()?;
        let mut next: *mut Functions = capsule.pointer_checked(Some(NAME)).ok()?.as_ptr().cast();
        loop {
            let functions = NonNull::new(next)?;
            // SAFETY: DLPack defines the content of capsules by this name, of which the version and the pointer to older
            // functions are the same in all versions.
            unsafe {
                if (*next).major == MAJOR {
                    return Some(Self(functions));
                }
                next = (*next).previous;
            }
        }
    }

    fn functions(&self) -> &Functions {
        // SAFETY: the version is that of the structure, which lives as long as the process.
        unsafe { self.0.as_ref() }
    }

    /// Returns a capsule of an object of the class, as its `__dlpack__` would, but waits for no stream.
    pub fn capsule<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        let export =
            self.functions().export.ok_or_else(|| PyBufferError::new_err("a function is missing"))?;
        let mut managed = ptr::null_mut();
        // SAFETY: the functions are those of the class of the object. The call fills `managed`, or fails.
        if unsafe { export(object.as_ptr(), &mut managed) } != 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: the capsule owns the tensor from here on. Python refuses null.
        let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), VERSIONED.as_ptr(), Some(delete)) };
        // SAFETY: a new reference, or null with an exception.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
    }

    /// Returns the stream of the work on a device that the library of the class has begun.
    pub fn current_stream(&self, py: Python<'_>, device_type: i32, device_id: i32) -> PyResult<usize> {
        let current_stream = self.functions().current_stream;
        let current_stream = current_stream.ok_or_else(|| PyBufferError::new_err("a function is missing"))?;
        let mut stream = ptr::null_mut();
        // SAFETY: the call fills `stream`, or fails.
        match unsafe { current_stream(device_type, device_id, &mut stream) } {
            0 => Ok(stream.addr()),
            _ => Err(PyErr::fetch(py)),
        }
    }
}

unsafe extern "C" fn delete(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, with a capsule that `Exchange::capsule` made, whose tensor nobody else deletes.
    unsafe {
        let managed: *mut Versioned = ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast();
        if let Some(deleter) = managed.as_ref().and_then(|managed| managed.deleter) {
            deleter(managed);
        }
    }
}
