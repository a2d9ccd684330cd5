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

    /// Returns the elements of a contiguous export, each made of 8 bytes.
    fn copied<T>(&self, of_bytes: fn([u8; 8]) -> T) -> Vec<T> {
        let start = self.view().buf.cast::<[u8; 8]>().cast_const();
        // SAFETY: the export has as many bytes. They lie at any address, and the calling thread has Python's lock.
        (0..self.len_bytes() / 8).map(|at| of_bytes(unsafe { start.add(at).read_unaligned() })).collect()
    }

    /// Returns whether the bytes lie without gaps, in C's order.
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the export is filled.
        unsafe { ffi::PyBuffer_IsContiguous(self.view(), b'C' as _) == 1 }
    }
}

/// The elements of an array of integers of 64 bits, of any shape.
pub enum Integers {
    Signed(Vec<i64>),
    Unsigned(Vec<u64>),
}

/// Returns the elements of an array of integers. `None` for other objects, and for integers of other lengths.
pub fn integers_of(object: &Bound<'_, PyAny>) -> Option<Integers> {
    // Not of each list, whose refusal would make an exception.
    // SAFETY: the object is alive.
    let has_buffer = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1;
    let export = has_buffer.then(|| Export::of(object).ok()).flatten()?;
    if export.view().format.is_null() || export.view().itemsize != 8 || !export.is_contiguous() {
        return None;
    }
    // SAFETY: the exporter keeps the string until the export is released.
    let format = unsafe { CStr::from_ptr(export.view().format) }.to_bytes();
    match format.strip_prefix(b"@").unwrap_or(format) {
        b"l" | b"q" => Some(Integers::Signed(export.copied(i64::from_ne_bytes))),
        b"L" | b"Q" => Some(Integers::Unsigned(export.copied(u64::from_ne_bytes))),
        _ => None,
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.0.take().map(Reference::Export).into_iter().for_each(Reference::release);
    }
}
