//! The class `Future`.

use std::mem;
use std::process;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpufile::Error;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::error::exception;
use crate::transfer::{Pause, Transfer};
use crate::watch::Watch;

/// A transfer in flight. It holds the buffers until it has ended and ``done``, ``result`` or ``await`` has seen that.
///
/// ``await`` it in asyncio, or call ``result``. A future that is dropped does not wait: a write continues to its end, a
/// read ends soon. Only a stream-ordered transfer is waited for, at most 30 seconds.
#[pyclass(frozen, module = "gpufile", weakref)]
pub struct Future {
    state: Mutex<State>,
    /// The process that started the transfer.
    process: u32,
}

enum State {
    InFlight(Transfer),
    /// Another thread ends the transfer early.
    Ending,
    Ended(Result<usize, Arc<Error>>),
}

impl Future {
    pub fn new(transfer: Transfer) -> Self {
        Self { state: Mutex::new(State::InFlight(transfer)), process: process::id() }
    }

    /// Runs a function on the state, after a look at the transfer.
    ///
    /// # Errors
    /// `RuntimeError` in a forked child, which has no workers for the transfer.
    fn with<T>(&self, py: Python<'_>, look: impl FnOnce(&mut State) -> T) -> PyResult<T> {
        if self.process != process::id() {
            return Err(PyRuntimeError::new_err("the transfer belongs to the process that forked this one"));
        }
        // No thread holds the lock while it waits for a transfer or for Python's lock.
        let mut state = self.state.lock_py_attached(py).unwrap_or_else(|poisoned| poisoned.into_inner());
        if let State::InFlight(transfer) = &mut *state
            && let Some(outcome) = transfer.poll()
        {
            *state = State::Ended(outcome.map_err(Arc::new));
        }
        Ok(look(&mut state))
    }
}

impl Drop for Future {
    /// Waits for a stream-ordered transfer without Python's lock, which the stream's work before it may need.
    fn drop(&mut self) {
        let state = mem::replace(&mut self.state, Mutex::new(State::Ending));
        if self.process != process::id() {
            // The transfer and its buffers stay the parent's.
            return mem::forget(state);
        }
        // Without an interpreter, there is no lock to release.
        let mut state = Some(state);
        Python::try_attach(|py| py.detach(|| drop(state.take())));
    }
}

#[pymethods]
impl Future {
    /// Waits for the end, and returns the number of bytes that were transferred.
    ///
    /// Raises ``TransferError`` if the transfer failed, and ``TimeoutError`` after ``timeout`` seconds. Ctrl-C ends the
    /// wait, not the transfer.
    #[pyo3(signature = (timeout = None))]
    pub fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<usize> {
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)));
        let limit = limit.transpose().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let pause = self.with(py, |state| match state {
                State::Ended(outcome) => Err(outcome.clone()),
                State::InFlight(transfer) => Ok(transfer.pause()),
                State::Ending => Ok(Pause::short()),
            })?;
            let pause = match pause {
                Ok(pause) => pause,
                Err(outcome) => return outcome.map_err(|error| exception(py, &error)),
            };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(PyTimeoutError::new_err("the transfer is still in flight"));
            }
            py.detach(|| pause.wait(left.unwrap_or(Duration::MAX)));
            py.check_signals()?;
        }
    }

    /// Waits for the end, as ``result`` without a timeout.
    fn get(&self, py: Python<'_>) -> PyResult<usize> {
        self.result(py, None)
    }

    /// Returns whether the transfer has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |state| matches!(state, State::Ended(_)))
    }

    /// Ends the transfer early, and waits for the chunks that were begun.
    ///
    /// ``result`` then returns the number of bytes that were transferred from the start, or raises ``TransferError``
    /// with the errno ``ECANCELED`` for a list. A stream-ordered transfer cannot end early: the call waits for it.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let transfer = self.with(py, |state| match mem::replace(state, State::Ending) {
            State::InFlight(transfer) => Some(transfer),
            other => {
                *state = other;
                None
            }
        })?;
        if let Some(transfer) = transfer {
            let waker = transfer.waker();
            let outcome = py.detach(|| transfer.cancel());
            self.with(py, |state| *state = State::Ended(outcome.map_err(Arc::new)))?;
            waker.wake();
        }
        Ok(())
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("gpufile._await")?.call_method1("outcome", (slf,))?.call_method0("__await__")
    }

    /// Adds the number to the watch at the end, if the transfer is in flight. Returns False if it does not tell its end.
    fn _watch(&self, py: Python<'_>, watch: &Bound<'_, Watch>, number: u64) -> PyResult<bool> {
        self.with(py, |state| match state {
            State::InFlight(transfer) => transfer.watch(watch.get().ends(), number),
            State::Ending => false,
            State::Ended(_) => true,
        })
    }

    fn __repr__(&self, py: Python<'_>) -> &'static str {
        match self.done(py) {
            Ok(true) => "<gpufile.Future done>",
            Ok(false) => "<gpufile.Future in flight>",
            Err(_) => "<gpufile.Future of another process>",
        }
    }
}
