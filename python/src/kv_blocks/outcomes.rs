//! The ends of blocks: the transfer that futures wait for, and the objects that their results have.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use gpufile::kv_blocks::{BlockError, BlockTransfer};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyType};

use crate::error::exception;
use crate::transfer::{Ended, InFlight, Outcome};

/// Blocks in flight. Their regions keep the memory, until the storage has answered.
pub struct InFlightBlocks(pub BlockTransfer);

fn ended(outcomes: Vec<Result<(), BlockError>>) -> Ended {
    Ended { outcome: Ok(Outcome::Blocks(outcomes)), owned: Box::new(()) }
}

impl InFlight for InFlightBlocks {
    fn poll(&mut self, waker: &Waker) -> Option<Ended> {
        match Pin::new(&mut self.0).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(outcomes) => Some(ended(outcomes)),
            Poll::Pending => None,
        }
    }

    fn has_ended(&self) -> bool {
        self.0.is_done()
    }

    fn cancel(self: Box<Self>) -> Ended {
        ended(self.0.cancel())
    }

    fn wakes(&self) -> bool {
        true
    }
}

pub fn outcome_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.import(py, "gpufile.kv_blocks", "Outcome")
}

/// Returns the list of a future's result: a member of `Outcome` for each block, or the exception of its failure.
pub fn list_of<'py>(py: Python<'py>, outcomes: &[Result<(), BlockError>]) -> PyResult<Bound<'py, PyList>> {
    let class = outcome_type(py)?;
    let ok = class.getattr("OK")?;
    let objects = PyList::empty(py);
    for outcome in outcomes {
        match outcome {
            Ok(()) => objects.append(&ok)?,
            Err(BlockError::Failed(error)) => objects.append(exception(py, error).into_value(py))?,
            Err(error) => objects.append(class.getattr(name_of(error))?)?,
        }
    }
    Ok(objects)
}

fn name_of(error: &BlockError) -> &'static str {
    match error {
        BlockError::Missing => "MISSING",
        BlockError::Corrupt => "CORRUPT",
        BlockError::NoRoom => "NO_ROOM",
        BlockError::InUse => "IN_USE",
        BlockError::Deadline => "DEADLINE",
        _ => "CANCELLED",
    }
}
