//! The class `Future`.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::time::{Duration, Instant};

use cufile::fork::Generation;
use gpufile::Error;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::error::exception;
use crate::interrupts;
use crate::transfer::{Ended, Outcome, Progress, Transfer};
use crate::watch::Watch;

/// A transfer in flight. It holds the buffers until it has ended and ``done``, ``result`` or ``await`` has seen that.
///
/// ``await`` it in asyncio, or call ``result``. Dropping a future does not wait: a write continues to its end, and a
/// read stops soon. Dropping a stream-ordered transfer waits for it, at most 30 seconds.
#[pyclass(frozen, module = "gpufile", weakref)]
pub struct Future {
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
    /// Another thread ends the transfer early.
    Ending,
    Ended(Result<Arc<Outcome>, Arc<Error>>),
}

impl State {
    fn ended(outcome: gpufile::Result<Outcome>) -> Self {
        Self::Ended(outcome.map(Arc::new).map_err(Arc::new))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a transfer early, which was taken from here.
    fn end(&self, transfer: Transfer) {
        let Ended { outcome, owned } = transfer.cancel();
        *self.lock() = State::ended(outcome);
        self.progress.clone().wake();
        drop(owned);
    }
}

impl Future {
    pub fn new(transfer: Transfer) -> Self {
        let progress = transfer.progress().clone();
        let shared = Arc::new(Shared { state: Mutex::new(State::InFlight(transfer)), progress });
        Self { shared, generation: Generation::current() }
    }

    /// Runs a function on the state, after a look at the transfer. The function runs no code of Python.
    ///
    /// # Errors
    /// `RuntimeError` in a forked child, which has no workers for the transfer.
    fn with<T>(&self, py: Python<'_>, look: impl FnOnce(&mut State) -> T) -> PyResult<T> {
        if !self.generation.is_current() {
            return Err(PyRuntimeError::new_err(
                "the transfer belongs to the parent process, which forked this one",
            ));
        }
        let mut state = self.shared.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let mut ended = None;
        if let State::InFlight(transfer) = &mut *state
            && let Some(Ended { outcome, owned }) = transfer.poll()
        {
            ended = Some((owned, mem::replace(&mut *state, State::ended(outcome))));
        }
        let looked = look(&mut state);
        drop(state);
        // The objects of the buffers may ask this future.
        drop(ended);
        Ok(looked)
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

impl Drop for Future {
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
impl Future {
    /// Waits for the end, and returns the number of bytes that were transferred. The futures of ``read_many_each_async``
    /// and ``write_many_each_async`` return the list of outcomes.
    ///
    /// Raises ``TransferError`` if the transfer failed, and ``TimeoutError`` after ``timeout`` seconds. Ctrl-C ends the
    /// wait, not the transfer.
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
        outcome.map_err(|error| exception(py, &error))?.object(py)
    }

    /// Waits for the end, like ``result`` without a timeout.
    fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.result(py, None)
    }

    /// Returns whether the transfer has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |state| matches!(state, State::Ended(_)))
    }

    /// Stops the transfer early, and waits for the chunks and copies already begun, however long they take.
    ///
    /// ``result`` then returns the number of bytes that were transferred from the start, or raises ``TransferError``
    /// with the errno ``ECANCELED`` for a list. A list of outcomes has that exception for entries left out. A stream-ordered transfer cannot stop early: the call waits for it.
    /// Ctrl-C ends the wait. To stop a read without waiting, drop the future.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let transfer = self.with(py, |state| match mem::replace(state, State::Ending) {
            State::InFlight(transfer) => Some(transfer),
            other => {
                *state = other;
                None
            }
        })?;
        if let Some(transfer) = transfer {
            let shared = self.shared.clone();
            interrupts::run(py, move || shared.end(transfer))?;
        }
        self.wait(py, None, |state| matches!(state, State::Ended(_)).then_some(()))
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
