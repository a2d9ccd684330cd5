//! Transfers in flight, and the wait for them with an eye on Python's signals.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use gpufile::{IoFuture, StreamIo};
use pyo3::prelude::*;

use crate::error::exception;
use crate::memory::Memory;
use crate::watch::Ends;

/// The time between two looks for signals. Ctrl-C ends a transfer no earlier.
const BETWEEN_SIGNALS: Duration = Duration::from_millis(50);

/// The time between two looks at a stream-ordered transfer, which wakes nobody.
const BETWEEN_LOOKS: Duration = Duration::from_micros(200);

/// A transfer in flight, with the buffers that it owns.
pub trait InFlight: Send {
    /// Returns the outcome if the transfer has ended. Drops the buffers then. Wakes `waker` at the end otherwise, if
    /// [`wakes`](Self::wakes) says so. After the outcome, this is not called again.
    fn poll(&mut self, waker: &Waker) -> Option<gpufile::Result<usize>>;

    /// Ends the transfer early, and waits for the chunks that workers have claimed.
    fn cancel(self: Box<Self>) -> gpufile::Result<usize>;

    /// Returns whether the transfer wakes the waker at its end.
    fn wakes(&self) -> bool;
}

impl<T: Send> InFlight for IoFuture<T> {
    fn poll(&mut self, waker: &Waker) -> Option<gpufile::Result<usize>> {
        match Pin::new(self).poll(&mut Context::from_waker(waker)) {
            Poll::Ready((outcome, _buffers)) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn cancel(self: Box<Self>) -> gpufile::Result<usize> {
        IoFuture::cancel(*self).0
    }

    fn wakes(&self) -> bool {
        true
    }
}

/// A stream-ordered transfer. `None` after its outcome was returned.
pub struct OnStream(pub Option<StreamIo<Memory>>);

impl InFlight for OnStream {
    fn poll(&mut self, _waker: &Waker) -> Option<gpufile::Result<usize>> {
        let io = self.0.take_if(|io| io.is_done())?;
        Some(io.wait().0)
    }

    /// Waits for the end, because the stream cannot leave out its work.
    fn cancel(mut self: Box<Self>) -> gpufile::Result<usize> {
        self.0.take().map_or(Ok(0), |io| io.wait().0)
    }

    fn wakes(&self) -> bool {
        false
    }
}

/// The end of a transfer, for the threads and event loops that wait for it.
#[derive(Default)]
struct Progress {
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the transfer wakes, or until some time has passed.
    fn wait(&self, limit: Duration) {
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

/// A transfer in flight, and the threads that wait for it.
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

    /// Returns the outcome if the transfer has ended. After the outcome, this must not be called again.
    pub fn poll(&mut self) -> Option<gpufile::Result<usize>> {
        self.in_flight.poll(&self.waker)
    }

    /// Ends the transfer early.
    pub fn cancel(self) -> gpufile::Result<usize> {
        self.in_flight.cancel()
    }

    /// Returns a way to wait for the end without a borrow of the transfer.
    pub fn pause(&self) -> Pause {
        let longest = if self.in_flight.wakes() { BETWEEN_SIGNALS } else { BETWEEN_LOOKS };
        Pause { progress: self.progress.clone(), longest }
    }

    /// Adds `number` to `ends` at the end of the transfer. Returns false if the transfer does not wake.
    pub fn watch(&self, ends: Arc<Ends>, number: u64) -> bool {
        let wakes = self.in_flight.wakes();
        if wakes {
            self.progress.lock().watches.push((ends, number));
        }
        wakes
    }

    /// Returns what wakes the threads and event loops that wait for the transfer.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// A wait for a transfer. It ends early for the next look for signals.
pub struct Pause {
    progress: Arc<Progress>,
    longest: Duration,
}

impl Pause {
    /// Returns a short wait for a transfer that another thread ends.
    pub fn short() -> Self {
        Self { progress: Arc::default(), longest: BETWEEN_LOOKS }
    }

    /// Waits until the transfer has ended, or until the limit, or for a short time. Call this without the GIL.
    pub fn wait(&self, limit: Duration) {
        self.progress.wait(limit.min(self.longest));
    }
}

/// Waits for a transfer. A signal whose handler raises, such as Ctrl-C, ends it early.
///
/// # Errors
/// The exception of the handler; the exception for the error of the transfer.
pub fn complete(py: Python<'_>, start: impl FnOnce() -> gpufile::Result<Transfer> + Send) -> PyResult<usize> {
    outcome(py, start)?.map_err(|error| exception(py, &error))
}

/// Waits as [`complete`], and returns the outcome.
///
/// # Errors
/// The exception of the handler.
pub fn outcome(
    py: Python<'_>,
    start: impl FnOnce() -> gpufile::Result<Transfer> + Send,
) -> PyResult<gpufile::Result<usize>> {
    let mut transfer = match py.detach(start) {
        Ok(transfer) => transfer,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        if let Some(ended) = transfer.poll() {
            return Ok(ended);
        }
        let pause = transfer.pause();
        py.detach(|| pause.wait(Duration::MAX));
        if let Err(raised) = py.check_signals() {
            // The handler's exception tells why the transfer ended.
            let _ = py.detach(|| transfer.cancel());
            return Err(raised);
        }
    }
}
