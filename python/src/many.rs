//! Lists of buffers and offsets.

use gpufile::{File, IoBuf, Request};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::cached::Cached;
use crate::memory::{Access, Known, Memory, type_name, wait_for_streams};
use crate::transfer::{self, Transfer};

/// The outcome that the caller of a list asks for.
#[derive(Clone, Copy)]
pub enum Outcomes {
    /// One for the whole list.
    One,
    /// One for each entry.
    Each,
}

/// Returns the entries of a list: each buffer with its offset. Waits for the streams of the buffers.
fn requests(
    file: &File,
    buffers: &Bound<'_, PyAny>,
    offsets: Vec<u64>,
    access: Access,
) -> PyResult<Vec<Request<Memory>>> {
    let py = buffers.py();
    let mut known = Known::default();
    let memory = |(number, buffer)| {
        Memory::beside(&mut known, &buffer?, access).map_err(|error| at(number, py, error))
    };
    let Ok(list) = buffers.try_iter() else {
        let text = format!("buffers: expected buffers in a list, not {}", type_name(buffers));
        return Err(PyTypeError::new_err(text));
    };
    let memories: Vec<Memory> = list.enumerate().map(memory).collect::<PyResult<_>>()?;
    if memories.len() != offsets.len() {
        let (buffers, offsets) = (memories.len(), offsets.len());
        return Err(PyValueError::new_err(format!(
            "there are {buffers} buffers but {offsets} offsets; pass one offset for each buffer"
        )));
    }
    wait_for_streams(py, &memories)?;
    let request = |(buffer, offset)| Request { file: file.clone(), buffer, offset };
    Ok(memories.into_iter().zip(offsets).map(request).collect())
}

fn at(number: usize, py: Python<'_>, error: PyErr) -> PyErr {
    let class = error.get_type(py);
    match class.is(py.get_type::<PyTypeError>()) || class.is(py.get_type::<PyValueError>()) {
        true => PyErr::from_type(class, format!("buffers[{number}]: {}", error.value(py))),
        false => error,
    }
}

pub fn start(
    (file, cached): (File, Cached),
    buffers: &Bound<'_, PyAny>,
    offsets: Vec<u64>,
    access: Access,
    outcomes: Outcomes,
) -> PyResult<Transfer> {
    let (py, requests) = (buffers.py(), requests(&file, buffers, offsets, access)?);
    let lengths = requests.iter().map(|request| request.buffer.len_bytes());
    let is_at_once = cached.starts_at_once(access, lengths.fold(0, usize::saturating_add));
    let engine = file.engine().clone();
    transfer::start(py, is_at_once, move || match (access, outcomes) {
        (Access::Write, Outcomes::One) => Transfer::new(engine.read_many_async(requests)),
        (Access::Read, Outcomes::One) => Transfer::new(engine.write_many_async(requests)),
        (Access::Write, Outcomes::Each) => Transfer::new(engine.read_many_each_async(requests)),
        (Access::Read, Outcomes::Each) => Transfer::new(engine.write_many_each_async(requests)),
    })
}

/// Transfers a list, and returns what the caller gets. A signal whose handler raises ends the call, as
/// [`transfer::outcome`] describes.
pub fn complete<'py>(
    file: (File, Cached),
    buffers: &Bound<'py, PyAny>,
    offsets: Vec<u64>,
    access: Access,
    outcomes: Outcomes,
) -> PyResult<Bound<'py, PyAny>> {
    let py = buffers.py();
    transfer::complete(py, start(file, buffers, offsets, access, outcomes)?)?.object(py)
}
