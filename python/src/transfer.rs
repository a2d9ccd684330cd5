//! Transfers in flight, and the wait for them with an eye on Python's signals.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use cufile::fork::Mutex;
use gpufile::IoFuture;
use gpufile::kv_blocks::BlockError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::error::exception;
use crate::interrupts::{self, BETWEEN_SIGNALS};
use crate::kv_blocks;
use crate::memory::Memory;
use crate::watch::Ends;

/// The time between two polls of a stream-ordered transfer, which wakes no thread.
const BETWEEN_LOOKS: Duration = Duration::from_micros(200);

/// The outcome of a transfer that did not fail as a whole.
pub enum Outcome {
    Bytes(usize),
    Each(Vec<gpufile::Result<usize>>),
    /// Those of the blocks of a KV cache, whose bytes nobody counts.
    Blocks(Vec<Result<(), BlockError>>),
}

impl Outcome {
    pub fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => *bytes,
            Self::Each(each) => each.iter().flatten().sum(),
            Self::Blocks(_) => 0,
        }
    }

    /// Returns the object that the caller gets: the number of bytes, or a list of the outcomes.
    pub fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let each = match self {
            Self::Bytes(bytes) => return Ok(bytes.into_pyobject(py)?.into_any()),
            Self::Blocks(blocks) => return Ok(kv_blocks::list_of(py, blocks)?.into_any()),
            Self::Each(each) => each,
        };
        let outcomes = PyList::empty(py);
        for outcome in each {
            match outcome {
                Ok(bytes) => outcomes.append(bytes)?,
                Err(error) => outcomes.append(exception(py, error).into_value(py))?,
            }
        }
        Ok(outcomes.into_any())
    }
}

impl From<usize> for Outcome {
    fn from(bytes: usize) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<gpufile::Result<usize>>> for Outcome {
    fn from(each: Vec<gpufile::Result<usize>>) -> Self {
        Self::Each(each)
    }
}

pub struct Ended {
    pub outcome: gpufile::Result<Outcome>,
    /// The buffers and files. Whoever drops them holds no lock, because the objects of the buffers may run any code.
    pub owned: Box<dyn Send>,
}

/// A transfer in flight, with the buffers that it owns.
pub trait InFlight: Send {
    /// Returns the end if the transfer has ended. Wakes `waker` at the end otherwise, if [`wakes`](Self::wakes) says
    /// so. Drops nothing. After the end, this is not called again.
    fn poll(&mut self, waker: &Waker) -> Option<Ended>;

    /// Returns whether the transfer has ended, or false if only CUDA knows. Needs no interpreter.
    fn has_ended(&self) -> bool;

    /// Ends the transfer early, and waits for the chunks that workers have claimed.
    fn cancel(self: Box<Self>) -> Ended;

    /// Returns whether the transfer wakes the waker at its end.
    fn wakes(&self) -> bool;
}

impl<T: Send + 'static, O: Into<Outcome>> InFlight for IoFuture<T, O> {
    fn poll(&mut self, waker: &Waker) -> Option<Ended> {
        match Pin::new(self).poll(&mut Context::from_waker(waker)) {
            Poll::Ready((outcome, owned)) => {
                Some(Ended { outcome: outcome.map(Into::into), owned: Box::new(owned) })
            }
            Poll::Pending => None,
        }
    }

    fn has_ended(&self) -> bool {
        self.is_done()
    }

    fn cancel(self: Box<Self>) -> Ended {
        let (outcome, owned) = IoFuture::cancel(*self);
        Ended { outcome: outcome.map(Into::into), owned: Box::new(owned) }
    }

    fn wakes(&self) -> bool {
        true
    }
}

/// A stream-ordered transfer. `None` after its end was returned.
pub struct OnStream(pub Option<IoFuture<Memory>>);

impl OnStream {
    fn end(io: IoFuture<Memory>) -> Ended {
        let (outcome, memory) = io.wait();
        Ended { outcome: outcome.map(Into::into), owned: Box::new(memory) }
    }
}

impl InFlight for OnStream {
    fn poll(&mut self, _waker: &Waker) -> Option<Ended> {
        self.0.take_if(|io| io.is_done()).map(Self::end)
    }

    fn has_ended(&self) -> bool {
        false
    }

    /// Waits for the end, because the stream cannot leave out its work.
    fn cancel(mut self: Box<Self>) -> Ended {
        let nothing = || Ended { outcome: Ok(0.into()), owned: Box::new(()) };
        self.0.take().map_or_else(nothing, Self::end)
    }

    fn wakes(&self) -> bool {
        false
    }
}

/// The end of a transfer, for the threads and event loops that wait for it.
#[derive(Default)]
pub struct Progress {
    state: Mutex<Woken>,
    condvar: Condvar,
}

#[derive(Default)]
struct Woken {
    is_woken: bool,
    /// The event loops that watch the transfer, and the numbers that they gave it.
    watches: Vec<(Arc<Ends>, u64)>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Woken> {
        self.state.lock()
    }

    pub fn watch(&self, ends: Arc<Ends>, number: u64) {
        self.lock().watches.push((ends, number));
    }

    /// Waits until the transfer wakes, or until some time has passed. Call this without Python's lock.
    pub fn wait(&self, limit: Duration) {
        let wait = self.condvar.wait_timeout_while(self.lock(), limit, |woken| !woken.is_woken);
        let (mut woken, _) = wait.unwrap_or_else(PoisonError::into_inner);
        woken.is_woken = false;
    }
}

impl Wake for Progress {
    /// Needs no interpreter, so a worker never waits for Python's lock.
    fn wake(self: Arc<Self>) {
        let mut woken = self.lock();
        woken.is_woken = true;
        for (ends, number) in mem::take(&mut woken.watches) {
            ends.add(number);
        }
        self.condvar.notify_all();
    }
}

pub struct Transfer {
    in_flight: Box<dyn InFlight>,
    progress: Arc<Progress>,
    waker: Waker,
}

impl Transfer {
    pub fn new(in_flight: impl InFlight + 'static) -> Self {
        let progress = Arc::new(Progress::default());
        let waker = progress.clone().into();
        Self { in_flight: Box::new(in_flight), progress, waker }
    }

    pub fn poll(&mut self) -> Option<Ended> {
        self.in_flight.poll(&self.waker)
    }

    pub fn has_ended(&self) -> bool {
        self.in_flight.has_ended()
    }

    pub fn cancel(self) -> Ended {
        self.in_flight.cancel()
    }

    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    pub fn between_looks(&self) -> Duration {
        if self.in_flight.wakes() { BETWEEN_SIGNALS } else { BETWEEN_LOOKS }
    }

    /// Adds `number` to `ends` at the end of the transfer. Returns false if the transfer does not wake.
    pub fn watch(&self, ends: Arc<Ends>, number: u64) -> bool {
        let wakes = self.in_flight.wakes();
        if wakes {
            self.progress.watch(ends, number);
        }
        wakes
    }

    /// Returns whether [`cancel`](Self::cancel) may end the transfer before its time.
    pub fn stops(&self) -> bool {
        // A stream cannot leave out its work.
        self.in_flight.wakes()
    }
}

/// Starts a transfer without Python's lock. A start that may wait for the storage is another thread's, so that Ctrl-C ends
/// the wait however slow the storage is.
///
/// # Errors
/// The exception of a signal's handler. The transfer ends early then.
pub fn start(
    py: Python<'_>,
    is_at_once: bool,
    start: impl FnOnce() -> Transfer + Send + 'static,
) -> PyResult<Transfer> {
    // The caller does the work of a forked child, which has no workers.
    if is_at_once && interrupts::is_first_process() {
        return Ok(py.detach(start));
    }
    let started = interrupts::run(py, || Unclaimed(Some(start())))?.0.take();
    Ok(started.expect("a transfer that was started"))
}

/// A transfer that ends early if nobody waits for its start any more.
struct Unclaimed(Option<Transfer>);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        drop(self.0.take().map(Transfer::cancel));
    }
}

/// Waits for a transfer. A signal whose handler raises, such as Ctrl-C, ends it early.
///
/// # Errors
/// The exception of the handler; the exception for the error of the transfer.
pub fn complete(py: Python<'_>, transfer: Transfer) -> PyResult<Outcome> {
    outcome(py, transfer)?.map_err(|error| exception(py, &error))
}

/// Waits as [`complete`], and returns the outcome.
///
/// # Errors
/// The exception of the handler. Workers then begin no more chunks. Another thread waits for those that they have
/// begun, and keeps the buffers until then.
pub fn outcome(py: Python<'_>, mut transfer: Transfer) -> PyResult<gpufile::Result<Outcome>> {
    loop {
        if let Some(Ended { outcome, .. }) = transfer.poll() {
            return Ok(outcome);
        }
        let (progress, limit) = (transfer.progress().clone(), transfer.between_looks());
        py.detach(|| progress.wait(limit));
        if let Err(raised) = py.check_signals() {
            interrupts::leave(py, move || drop(transfer.cancel()));
            return Err(raised);
        }
    }
}
