//! Objects in the modules of a program, for `gpufile.safetensors.install`.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// Returns the places in modules that refer to objects of these addresses: the name of the module, and the name in it.
///
/// Counts no references. That would write to a program's hundreds of thousands of objects, and a forked process would copy
/// all of their pages.
#[pyfunction]
pub fn places_of(modules: &Bound<'_, PyDict>, identities: Vec<usize>) -> Vec<(String, String)> {
    let mut places = Vec::new();
    // SAFETY: the caller holds the dictionary, and the closure only compares addresses and copies text. The dictionary holds its
    // keys and modules, and a module its names, until this function returns.
    unsafe {
        each(modules.py(), modules.as_ptr(), |module_name, module| {
            if ffi::PyModule_Check(module) == 0 {
                return;
            }
            each(modules.py(), ffi::PyModule_GetDict(module), |name, value| {
                if identities.contains(&value.addr())
                    && let (Some(module_name), Some(name)) =
                        (text(modules.py(), module_name), text(modules.py(), name))
                {
                    places.push((module_name, name));
                }
            });
        });
    }
    places
}

/// Calls a function with each key and value of a dictionary, which nobody else can change meanwhile.
///
/// # Safety
/// The dictionary is alive. The function runs no code of Python, so that this thread keeps the interpreter's lock.
unsafe fn each(
    _: Python<'_>,
    dictionary: *mut ffi::PyObject,
    mut found: impl FnMut(*mut ffi::PyObject, *mut ffi::PyObject),
) {
    let (mut position, mut key, mut value) = (0, ptr::null_mut(), ptr::null_mut());
    // SAFETY: as promised.
    while unsafe { ffi::PyDict_Next(dictionary, &mut position, &mut key, &mut value) } != 0 {
        found(key, value);
    }
}

/// Returns the text of a key that is a string.
///
/// # Safety
/// The key is alive.
unsafe fn text(py: Python<'_>, key: *mut ffi::PyObject) -> Option<String> {
    // SAFETY: as promised.
    let key = unsafe { Bound::from_borrowed_ptr(py, key) };
    key.cast::<PyString>().ok().map(|text| text.to_string_lossy().into_owned())
}
