//! Lists of buffers and offsets.

use std::time::{Duration, Instant};

use gpufile::{Engine, File, IoBuf, OwnedRequest, ReadRequest, WriteRequest};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::error::exception;
use crate::memory::{Access, Memory, wait_for_streams};
use crate::transfer::{self, Transfer};

/// Bytes of the first step of a list with an outcome for each entry. Signals are seen between steps.
const FIRST_STEP_BYTES: usize = 16 << 20;
/// The most bytes of a step.
const LONGEST_STEP_BYTES: usize = 1 << 30;
/// A step that takes less time is followed by a longer one.
const SHORT: Duration = Duration::from_millis(50);

/// Returns the entries of a list: each buffer with its offset.
///
/// # Errors
/// `ValueError` if there are more buffers than offsets, or fewer; the errors of [`Memory::of`].
pub fn requests(
    file: &File,
    buffers: &Bound<'_, PyAny>,
    offsets: Vec<u64>,
    access: Access,
) -> PyResult<Vec<OwnedRequest<Memory>>> {
    let memories: Vec<Memory> =
        buffers.try_iter()?.map(|buffer| Memory::of(&buffer?, access)).collect::<PyResult<_>>()?;
    if memories.len() != offsets.len() {
        let (buffers, offsets) = (memories.len(), offsets.len());
        return Err(PyValueError::new_err(format!("there are {buffers} buffers and {offsets} offsets")));
    }
    let request = |(buffer, offset)| OwnedRequest { file: file.clone(), offset, buffer };
    Ok(memories.into_iter().zip(offsets).map(request).collect())
}

/// Starts to transfer a list.
pub fn start(
    engine: &Engine,
    requests: Vec<OwnedRequest<Memory>>,
    access: Access,
) -> gpufile::Result<Transfer> {
    wait_for_streams(requests.iter().map(|request| &request.buffer))?;
    Ok(match access {
        Access::Write => Transfer::new(engine.read_many_async(requests)),
        Access::Read => Transfer::new(engine.write_many_async(requests)),
    })
}

/// Transfers a list, and returns a list of outcomes: the number of bytes, or the exception.
///
/// # Errors
/// The exception of a signal's handler. Entries that were not begun are not transferred then.
pub fn each<'py>(
    py: Python<'py>,
    engine: &Engine,
    mut requests: Vec<OwnedRequest<Memory>>,
    access: Access,
) -> PyResult<Bound<'py, PyList>> {
    let outcomes = PyList::empty(py);
    py.detach(|| wait_for_streams(requests.iter().map(|request| &request.buffer)))
        .map_err(|error| crate::error::cuda_exception(py, error))?;
    let mut step_bytes = FIRST_STEP_BYTES;
    while !requests.is_empty() {
        let behind = requests.split_off(step_len(&requests, step_bytes));
        let start = Instant::now();
        let ended = match requests.pop_if(|request| request.buffer.len_bytes() > step_bytes) {
            Some(long) => vec![transfer::outcome(py, || alone(long, access))?],
            None => py.detach(|| step_outcomes(engine, &mut requests, access)),
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

/// Starts the transfer of an entry that is longer than a step. It ends early if a signal comes.
fn alone(request: OwnedRequest<Memory>, access: Access) -> gpufile::Result<Transfer> {
    let OwnedRequest { file, offset, buffer } = request;
    Ok(Transfer::new(match access {
        Access::Write => file.read_at_async(buffer, offset),
        Access::Read => file.write_all_at_async(buffer, offset),
    }))
}

/// Returns the number of entries that make up the next step: so many bytes, or one entry.
fn step_len(requests: &[OwnedRequest<Memory>], step_bytes: usize) -> usize {
    let mut bytes = 0usize;
    let fits = |request: &&OwnedRequest<Memory>| {
        bytes = bytes.saturating_add(request.buffer.len_bytes());
        bytes <= step_bytes
    };
    requests.iter().take_while(fits).count().max(1)
}

/// Transfers the entries of one step.
fn step_outcomes(
    engine: &Engine,
    step: &mut [OwnedRequest<Memory>],
    access: Access,
) -> Vec<gpufile::Result<usize>> {
    // Entries that the engine refuses before it starts have their outcome at once.
    let mut outcomes = Vec::with_capacity(step.len());
    match access {
        Access::Write => {
            let mut valid = Vec::with_capacity(step.len());
            for OwnedRequest { file, offset, buffer } in step {
                let request = ReadRequest::new(file, *offset, buffer);
                outcomes.push(request.map(|request| valid.push(request)).map(|()| 0));
            }
            merge(outcomes, engine.read_many_each(&mut valid))
        }
        Access::Read => {
            let (mut valid, mut lengths) = (Vec::with_capacity(step.len()), Vec::new());
            for OwnedRequest { file, offset, buffer } in step.iter() {
                let request = WriteRequest::new(file, *offset, buffer);
                outcomes.push(request.map(|request| valid.push(request)).map(|()| 0));
                if outcomes.last().is_some_and(Result::is_ok) {
                    lengths.push(buffer.len_bytes());
                }
            }
            let written = engine.write_many_each(&valid).into_iter().zip(lengths);
            merge(outcomes, written.map(|(outcome, length)| outcome.map(|()| length)))
        }
    }
}

/// Puts the outcomes of the entries that were begun in the places of those that were accepted.
fn merge(
    accepted: Vec<gpufile::Result<usize>>,
    begun: impl IntoIterator<Item = gpufile::Result<usize>>,
) -> Vec<gpufile::Result<usize>> {
    let mut begun = begun.into_iter();
    let outcome = |accepted: gpufile::Result<usize>| accepted.and_then(|_| begun.next().unwrap_or(Ok(0)));
    accepted.into_iter().map(outcome).collect()
}
