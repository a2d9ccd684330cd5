use std::ffi::CStr;
use std::mem::MaybeUninit;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::release::{self, Reference};

/// An export of an object's memory. The object neither frees nor moves its memory while the export exists.
///
/// pyo3's type for this refuses exports without strides, such as those of ctypes.
pub(super) struct Export(Option<release::Export>);

impl Export {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::uninit());
        // SAFETY: the call fills the structure, or fails.
        let status =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO) };
        match status {
            // SAFETY: filled above. The box keeps it at one address, which exporters rely on.
            0 => Ok(Self(Some(release::Export(unsafe { view.assume_init() })))),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    fn view(&self) -> &ffi::Py_buffer {
        &self.0.as_ref().expect("taken by the drop only").0
    }

    pub fn address(&self) -> usize {
        self.view().buf.addr()
    }

    pub fn len_bytes(&self) -> usize {
        self.view().len.unsigned_abs()
    }

    pub fn is_read_only(&self) -> bool {
        self.view().readonly != 0
    }

    /// Returns whether the elements refer to Python's objects. Fields of records have their names between colons.
    pub fn has_objects(&self) -> bool {
        if self.view().format.is_null() {
            return false;
        }
        // SAFETY: the exporter keeps the string until the export is released.
        let format = unsafe { CStr::from_ptr(self.view().format) }.to_string_lossy();
        format.split(':').step_by(2).any(|types| types.contains('O'))
    }

    /// Returns whether the bytes lie without gaps, in C's order.
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the export is filled.
        unsafe { ffi::PyBuffer_IsContiguous(self.view(), b'C' as _) == 1 }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.0.take().map(Reference::Export).into_iter().for_each(Reference::release);
    }
}
