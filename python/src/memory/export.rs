//! Exports of the buffer protocol.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use pyo3::ffi;
use pyo3::prelude::*;

/// An export of an object's memory. The object neither frees nor moves its memory while the export exists.
///
/// pyo3's type for this refuses exports without strides, such as those of ctypes.
pub(super) struct Export(Box<ffi::Py_buffer>);

// SAFETY: an export may be used from any thread, and `drop` attaches to the interpreter before it ends it.
unsafe impl Send for Export {}
// SAFETY: as above; shared references only read its fields.
unsafe impl Sync for Export {}

impl Export {
    /// Exports the memory of an object.
    ///
    /// # Errors
    /// The exception of the object.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::uninit());
        // SAFETY: the call fills the structure, or fails.
        let status =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO) };
        match status {
            // SAFETY: filled above. The box keeps it at one address, which exporters rely on.
            0 => Ok(Self(unsafe { view.assume_init() })),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    pub fn address(&self) -> usize {
        self.0.buf.addr()
    }

    pub fn len_bytes(&self) -> usize {
        self.0.len.unsigned_abs()
    }

    pub fn is_read_only(&self) -> bool {
        self.0.readonly != 0
    }

    /// Returns whether the elements refer to Python's objects. Fields of records have their names between colons.
    pub fn has_objects(&self) -> bool {
        if self.0.format.is_null() {
            return false;
        }
        // SAFETY: the exporter keeps the string until the export is released.
        let format = unsafe { CStr::from_ptr(self.0.format) }.to_string_lossy();
        format.split(':').step_by(2).any(|types| types.contains('O'))
    }

    /// Returns whether the bytes lie without gaps, in C's or in Fortran's order.
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the export is filled.
        unsafe { ffi::PyBuffer_IsContiguous(&*self.0, b'A' as _) == 1 }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // Without an interpreter, nothing is left to release.
        Python::try_attach(|_| {
            // SAFETY: the thread is attached, and the export is released here and nowhere else.
            unsafe { ffi::PyBuffer_Release(&mut *self.0) };
        });
    }
}
