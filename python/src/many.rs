//! Lists of buffers and offsets.

use std::time::{Duration, Instant};

use gpufile::{Engine, File, IoBuf, Request};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::error::exception;
use crate::memory::{Access, Memory, type_name, wait_for_streams};
use crate::transfer::{self, Transfer};
use crate::{interrupts, single};

/// Bytes of the first step of a list with an outcome for each entry. Signals are seen between steps.
const FIRST_STEP_BYTES: usize = 16 << 20;
/// The most bytes of a step.
const LONGEST_STEP_BYTES: usize = 1 << 30;
/// A step that takes less time is followed by a longer one.
const SHORT: Duration = Duration::from_millis(50);

/// Returns the entries of a list: each buffer with its offset. Waits for the streams of the buffers.
///
/// # Errors
/// `ValueError` if there are more buffers than offsets, or fewer; the errors of [`Memory::of`] and of
/// [`wait_for_streams`].
fn requests(
    file: &File,
    buffers: &Bound<'_, PyAny>,
    offsets: Vec<u64>,
    access: Access,
) -> PyResult<Vec<Request<Memory>>> {
    let py = buffers.py();
    let memory = |(number, buffer)| Memory::of(&buffer?, access).map_err(|error| at(number, py, error));
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

/// Returns the exception of a wrong buffer, with its number.
fn at(number: usize, py: Python<'_>, error: PyErr) -> PyErr {
    let class = error.get_type(py);
    match class.is(py.get_type::<PyTypeError>()) || class.is(py.get_type::<PyValueError>()) {
        true => PyErr::from_type(class, format!("buffers[{number}]: {}", error.value(py))),
        false => error,
    }
}

/// Starts to transfer a list.
pub fn start(
    file: File,
    buffers: &Bound<'_, PyAny>,
    offsets: Vec<u64>,
    access: Access,
) -> PyResult<Transfer> {
    let (py, requests) = (buffers.py(), requests(&file, buffers, offsets, access)?);
    let lengths = requests.iter().map(|request| request.buffer.len_bytes());
    let written_bytes = if access == Access::Read { lengths.fold(0, usize::saturating_add) } else { 0 };
    transfer::start(py, written_bytes, move || match access {
        Access::Write => Transfer::new(file.engine().read_many_async(requests)),
        Access::Read => Transfer::new(file.engine().write_many_async(requests)),
    })
}

/// Transfers a list, and returns the number of bytes. Ctrl-C ends the call.
pub fn complete(
    file: File,
    buffers: &Bound<'_, PyAny>,
    offsets: Vec<u64>,
    access: Access,
) -> PyResult<usize> {
    transfer::complete(buffers.py(), start(file, buffers, offsets, access)?)
}

/// Transfers a list, and returns a list of outcomes: the number of bytes, or the exception.
///
/// # Errors
/// The exception of a signal's handler. Entries that were not begun are not transferred then. Another thread waits for
/// the others, and keeps their buffers.
pub fn each<'py>(
    file: File,
    buffers: &Bound<'py, PyAny>,
    offsets: Vec<u64>,
    access: Access,
) -> PyResult<Bound<'py, PyList>> {
    let py = buffers.py();
    let mut requests = requests(&file, buffers, offsets, access)?;
    let outcomes = PyList::empty(py);
    let mut step_bytes = FIRST_STEP_BYTES;
    while !requests.is_empty() {
        let behind = requests.split_off(step_len(&requests, step_bytes));
        let start = Instant::now();
        let (ended, _owned) = match requests.pop_if(|request| request.buffer.len_bytes() > step_bytes) {
            Some(long) => (vec![transfer::outcome(py, alone(py, long, access)?)?], Vec::new()),
            None => {
                let engine = file.engine().clone();
                let step = move || (step_outcomes(&engine, &mut requests, access), requests);
                interrupts::run(py, step)?
            }
        };
        for outcome in ended {
            match outcome {
                Ok(bytes) => outcomes.append(bytes)?,
                Err(error) => outcomes.append(exception(py, &error).into_value(py))?,
            }
        }
        requests = behind;
        py.check_signals()?;
        if start.elapsed() < SHORT {
            step_bytes = (2 * step_bytes).min(LONGEST_STEP_BYTES);
        }
    }
    Ok(outcomes)
}

/// Starts the transfer of an entry that is longer than a step.
fn alone(py: Python<'_>, request: Request<Memory>, access: Access) -> PyResult<Transfer> {
    let Request { file, buffer, offset } = request;
    match access {
        Access::Write => single::start_read(py, file, buffer, offset),
        Access::Read => single::start_write(py, file, buffer, offset),
    }
}

/// Returns the number of entries that make up the next step: so many bytes, or one entry.
fn step_len(requests: &[Request<Memory>], step_bytes: usize) -> usize {
    let mut bytes = 0usize;
    let fits = |request: &&Request<Memory>| {
        bytes = bytes.saturating_add(request.buffer.len_bytes());
        bytes <= step_bytes
    };
    requests.iter().take_while(fits).count().max(1)
}

/// Transfers the entries of one step.
fn step_outcomes(
    engine: &Engine,
    step: &mut [Request<Memory>],
    access: Access,
) -> Vec<gpufile::Result<usize>> {
    match access {
        Access::Write => engine.read_many_each(step),
        Access::Read => {
            let lengths = step.iter().map(|request| request.buffer.len_bytes());
            let written = engine.write_many_each(step).into_iter().zip(lengths);
            written.map(|(outcome, length)| outcome.map(|()| length)).collect()
        }
    }
}
