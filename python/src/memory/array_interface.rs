//! The dictionaries `__cuda_array_interface__` and `__array_interface__`.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::{Access, Claimed, contiguous_bytes, objects, read_only};

/// Returns the memory that an object describes by one of the dictionaries. `None` if it has neither.
pub(super) fn claimed(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Option<Claimed>> {
    let py = object.py();
    if let Some(fields) = object.getattr_opt(intern!(py, "__cuda_array_interface__"))? {
        return of(fields.cast::<PyDict>()?, access, true).map(Some);
    }
    match object.getattr_opt(intern!(py, "__array_interface__"))? {
        Some(fields) => of(fields.cast::<PyDict>()?, access, false).map(Some),
        None => Ok(None),
    }
}

fn of(fields: &Bound<'_, PyDict>, access: Access, is_on_gpu: bool) -> PyResult<Claimed> {
    let required = |key: &str| {
        let value = fields.get_item(key)?.filter(|value| !value.is_none());
        value.ok_or_else(|| PyValueError::new_err(format!("the array interface has no {key:?}")))
    };
    if fields.get_item("mask")?.is_some_and(|mask| !mask.is_none()) {
        return Err(PyValueError::new_err(
            "masked arrays are not supported: their masked elements have no bytes",
        ));
    }
    let (address, is_read_only): (usize, bool) = required("data")?.extract()?;
    let shape: Vec<usize> = required("shape")?.extract()?;
    let strides = fields.get_item("strides")?.filter(|strides| !strides.is_none());
    let strides: Option<Vec<isize>> =
        strides.map(|strides| strides.cast::<PyTuple>()?.extract()).transpose()?;
    let typestr: String = required("typestr")?.extract()?;
    let fields_of_records = fields.get_item("descr")?.filter(|descr| !descr.is_none());
    if has_objects(&typestr) || fields_of_records.map_or(Ok(false), |descr| any_has_objects(&descr))? {
        return Err(objects());
    }
    let len_bytes = contiguous_bytes(&shape, strides.as_deref(), item_bytes(&typestr)?)?;
    if access == Access::Write && is_read_only && len_bytes > 0 {
        return Err(read_only());
    }
    let stream = fields.get_item("stream")?.filter(|stream| !stream.is_none());
    let stream = stream.map(|stream| stream.extract::<usize>()).transpose()?;
    Ok(Claimed { address, len_bytes, is_on_gpu, stream })
}

fn has_objects(typestr: &str) -> bool {
    typestr.get(1..2) == Some("O")
}

/// Returns whether one of the fields refers to objects. A field has a name, and a type string or fields.
fn any_has_objects(fields: &Bound<'_, PyAny>) -> PyResult<bool> {
    for field in fields.try_iter()? {
        let kind = field?.get_item(1)?;
        let found = match kind.cast::<PyList>() {
            Ok(fields) => any_has_objects(fields)?,
            Err(_) => has_objects(&kind.extract::<String>()?),
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the length of one element in bytes, which a type string such as `<f4` ends with.
fn item_bytes(typestr: &str) -> PyResult<usize> {
    let digits = typestr.get(2..).and_then(|rest| rest.split('[').next());
    // Characters of `U` take 4 bytes each.
    let unit = if typestr.get(1..2) == Some("U") { 4 } else { 1 };
    let count = digits.and_then(|digits| digits.parse::<usize>().ok());
    count
        .and_then(|count| count.checked_mul(unit))
        .ok_or_else(|| PyValueError::new_err(format!("{typestr:?} is not the type of an array")))
}
