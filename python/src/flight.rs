//! The class `Flight`: what a future of the package knows about its transfer.

#![allow(clippy::disallowed_types, reason = "a forked child uses no flight of its parent")]

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::time::{Duration, Instant};

use cufile::fork::Generation;
use gpufile::Error;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::PyType;

use crate::error::{exception, transfer_error_type};
use crate::interrupts;
use crate::release;
use crate::transfer::{Ended, Outcome, Progress, Transfer};
use crate::watch::Watch;

/// A transfer in flight, without what `concurrent.futures` adds. It holds the buffers until it has ended and a call or
/// the garbage collector has seen that.
#[pyclass(frozen, module = "gpufile._gpufile", weakref)]
pub struct Flight {
    shared: Arc<Shared>,
    /// The process that started the transfer.
    generation: Generation,
}

/// The state that the thread that ends a transfer early shares with the future.
struct Shared {
    /// No thread holds this while it waits for a transfer or for Python's lock, or while it drops buffers.
    state: Mutex<State>,
    progress: Arc<Progress>,
}

enum State {
    InFlight(Transfer),
    Ending,
    Ended(End),
}

/// The end of a transfer, which any number of calls may ask for.
#[derive(Clone)]
struct End {
    result: Result<Arc<Outcome>, Arc<Error>>,
    is_cancelled: bool,
}

impl End {
    fn new(outcome: gpufile::Result<Outcome>, is_cancelled: bool) -> Self {
        Self { result: outcome.map(Arc::new).map_err(Arc::new), is_cancelled }
    }

    /// Returns the number of bytes, or the list of outcomes.
    ///
    /// # Errors
    /// The exception for the error; `CancelledError`, whose `bytes_done` is the number of bytes, and whose `outcomes` is
    /// the list if there is one.
    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if !self.is_cancelled {
            return self.result.as_ref().map_err(|error| exception(py, error))?.object(py);
        }
        let (bytes_done, is_of_blocks) = match &self.result {
            Ok(outcome) => (outcome.bytes(), matches!(**outcome, Outcome::Blocks(_))),
            Err(error) => (error.bytes_done(), false),
        };
        let text = match is_of_blocks {
            true => "the transfer of the blocks was cancelled".to_owned(),
            false => format!("the transfer was cancelled after {bytes_done} bytes"),
        };
        let class = py.import("concurrent.futures")?.getattr("CancelledError")?;
        let cancelled = class.call1((text,))?;
        if !is_of_blocks {
            cancelled.setattr("bytes_done", bytes_done)?;
        }
        if let Ok(outcome) = &self.result
            && matches!(**outcome, Outcome::Each(_) | Outcome::Blocks(_))
        {
            cancelled.setattr("outcomes", outcome.object(py)?)?;
        }
        Err(PyErr::from_value(cancelled))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a function on the state, after a look at the transfer. The function runs no code of Python.
    fn with<T>(&self, py: Python<'_>, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let mut ended = None;
        if let State::InFlight(transfer) = &mut *state
            && let Some(Ended { outcome, owned }) = transfer.poll()
        {
            ended = Some((owned, mem::replace(&mut *state, State::Ended(End::new(outcome, false)))));
        }
        let looked = look(&mut state);
        drop(state);
        // The objects of the buffers may ask this future.
        drop(ended);
        looked
    }

    /// Ends a transfer early. The caller has taken it from the state.
    fn end(&self, transfer: Transfer) {
        let Ended { outcome, owned } = transfer.cancel();
        *self.lock() = State::Ended(End::new(outcome, true));
        self.progress.clone().wake();
        drop(owned);
    }
}

impl Flight {
    pub fn new(transfer: Transfer) -> Self {
        let progress = transfer.progress().clone();
        let shared = Arc::new(Shared { state: Mutex::new(State::InFlight(transfer)), progress });
        Self { shared, generation: Generation::current() }
    }

    /// Does what [`Shared::with`] does.
    ///
    /// # Errors
    /// `RuntimeError` in a forked child, which has no workers for the transfer.
    fn with<T>(&self, py: Python<'_>, look: impl FnOnce(&mut State) -> T) -> PyResult<T> {
        if !self.generation.is_current() {
            return Err(PyRuntimeError::new_err(
                "the transfer belongs to the parent process, which forked this one",
            ));
        }
        Ok(self.shared.with(py, look))
    }

    /// Waits until `look` returns something, or until the deadline.
    ///
    /// # Errors
    /// As [`with`](Self::with); the exception of a signal's handler; `TimeoutError`.
    fn wait<T>(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        look: impl Fn(&State) -> Option<T>,
    ) -> PyResult<T> {
        loop {
            let looked = self.with(py, |state| match look(state) {
                Some(value) => Ok(value),
                None if let State::InFlight(transfer) = state => Err(transfer.between_looks()),
                None => Err(interrupts::BETWEEN_SIGNALS),
            })?;
            let limit = match looked {
                Ok(value) => return Ok(value),
                Err(limit) => limit,
            };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(PyTimeoutError::new_err("the transfer is still in flight"));
            }
            py.detach(|| self.shared.progress.wait(limit.min(left.unwrap_or(limit))));
            py.check_signals()?;
        }
    }
}

impl Drop for Flight {
    /// Waits for a stream-ordered transfer without Python's lock, which the stream's work before it may need.
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // The transfer and its buffers stay the parent's.
            return mem::forget(self.shared.clone());
        }
        let state = mem::replace(&mut *self.shared.lock(), State::Ending);
        // Without an interpreter, there is no lock to release.
        let mut state = Some(state);
        Python::try_attach(|py| py.detach(|| drop(state.take())));
    }
}

#[pymethods]
impl Flight {
    /// Waits for the end, and returns the number of bytes that were transferred, or the list of outcomes.
    #[pyo3(signature = (timeout = None))]
    pub fn result<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let limit =
            timeout.map(|seconds| Duration::try_from_secs_f64(if seconds < 0.0 { 0.0 } else { seconds }));
        let limit = limit.transpose().map_err(|_| {
            PyValueError::new_err(
                "timeout: expected seconds, or None to wait for the end however long it takes",
            )
        })?;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let outcome = self.wait(py, deadline, |state| match state {
            State::Ended(outcome) => Some(outcome.clone()),
            State::InFlight(_) | State::Ending => None,
        })?;
        outcome.object(py)
    }

    /// Returns whether the transfer has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |state| matches!(state, State::Ended(_)))
    }

    /// Returns whether the transfer has ended because of ``cancel``.
    fn cancelled(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |state| matches!(state, State::Ended(End { is_cancelled: true, .. })))
    }

    /// Lets a helper end the transfer early, and does not wait. Returns False if the transfer has ended or cannot stop.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        let (transfer, stops) = self.with(py, |state| match mem::replace(state, State::Ending) {
            State::InFlight(transfer) if transfer.stops() => (Some(transfer), true),
            State::Ending => (None, true),
            other => {
                let was_cancelled = matches!(other, State::Ended(End { is_cancelled: true, .. }));
                *state = other;
                (None, was_cancelled)
            }
        })?;
        if let Some(transfer) = transfer {
            let shared = self.shared.clone();
            interrupts::leave(py, move || shared.end(transfer));
        }
        Ok(stops)
    }

    /// Lets another thread drop the buffers of a transfer that has ended, because no object may end here. A buffer may refer
    /// to the future of its own transfer, which nobody else asks.
    fn __traverse__(&self, _visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if self.generation.is_current()
            && let Ok(state) = self.shared.state.try_lock()
            && let State::InFlight(transfer) = &*state
            && transfer.has_ended()
        {
            let shared = self.shared.clone();
            release::later(move |py| shared.with(py, |_| ()));
        }
        Ok(())
    }

    /// Adds the number to the watch when the transfer ends. Returns False if the transfer cannot announce its end.
    fn watch(&self, py: Python<'_>, watch: &Bound<'_, Watch>, number: u64) -> PyResult<bool> {
        let ends = watch.get().ends();
        self.with(py, |state| match state {
            State::InFlight(transfer) => transfer.watch(ends, number),
            State::Ending => {
                self.shared.progress.watch(ends, number);
                true
            }
            State::Ended(_) => true,
        })
    }
}

/// Returns the future of a transfer, an object of the package.
pub fn future(py: Python<'_>, transfer: Transfer) -> PyResult<Py<PyAny>> {
    Ok(future_type(py)?.call1((Flight::new(transfer),))?.unbind())
}

fn future_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.import(py, "gpufile._future", "Future")
}

/// Keeps the classes of transfers. A `__del__` that runs while the interpreter ends can import nothing.
#[pyfunction]
pub fn keep_classes(py: Python<'_>) -> PyResult<()> {
    future_type(py)?;
    transfer_error_type(py)?;
    Ok(())
}
