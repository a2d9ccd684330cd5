//! The application's client of the crate object_store, and its requests.

#![allow(
    clippy::disallowed_types,
    reason = "a forked child makes no request, and waits for no channel of its parent"
)]

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use cufile::fork::Generation;
use object_store::ObjectStore;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

use super::{Error, text_of};

/// The time between two questions to the caller.
const TICK: Duration = Duration::from_millis(20);
/// The most time to wait for the end of a task that sends nothing more.
const MOST_ENDING: Duration = Duration::from_secs(5);

/// The application's client, and the runtime of its requests.
#[derive(Debug, Clone)]
pub(super) struct Client {
    store: Arc<dyn ObjectStore>,
    runtime: Handle,
    /// The process that has the threads of the runtime.
    generation: Generation,
}

impl Client {
    pub fn new(store: Arc<dyn ObjectStore>, runtime: Handle) -> io::Result<Self> {
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            let problem = "the runtime of an object needs threads of its own: build it with new_multi_thread";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        Ok(Self { store, runtime, generation: Generation::current() })
    }

    /// Returns false in a forked child, which has none of the threads and must not use the connections.
    pub fn is_usable(&self) -> bool {
        self.generation.is_current()
    }

    /// Runs a task of requests, which sends its results.
    ///
    /// # Errors
    /// This is a forked child, which has none of the threads and must not use the connections.
    pub fn spawn<T, F>(
        &self,
        task: impl FnOnce(Arc<dyn ObjectStore>, Sender<T>) -> F,
    ) -> Result<Request<T>, Error>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if !self.is_usable() {
            return Err("a forked child cannot use the client of its parent".into());
        }
        let (send, results) = channel();
        Ok(Request { task: self.runtime.spawn(task(self.store.clone(), send)), results })
    }
}

/// A task on its way, which ends with this value.
pub(super) struct Request<T> {
    task: JoinHandle<()>,
    results: Receiver<T>,
}

impl<T> Request<T> {
    /// Waits for the next result.
    pub fn next(&mut self, is_cancelled: impl Fn() -> bool) -> Result<T, Error> {
        loop {
            match self.results.recv_timeout(TICK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) if is_cancelled() => {
                    return Err(io::Error::from_raw_os_error(libc::ECANCELED).into());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.end()),
            }
        }
    }

    /// Returns why the task ended without a result.
    fn end(&mut self) -> Error {
        // The task drops its sender shortly before it ends.
        let start = Instant::now();
        while !self.task.is_finished() && start.elapsed() < MOST_ENDING {
            thread::sleep(Duration::from_millis(1));
        }
        let mut task = Pin::new(&mut self.task);
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) if error.is_panic() => {
                format!("the store panicked: {}", text_of(&*error.into_panic())).into()
            }
            Poll::Ready(Err(_)) => "the runtime of the store was shut down".into(),
            Poll::Ready(Ok(())) | Poll::Pending => "the store sent fewer bytes than the range has".into(),
        }
    }
}

impl<T> Drop for Request<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the error of a store with its kind.
pub(super) fn with_kind(error: object_store::Error) -> Error {
    use object_store::Error as E;
    let kind = match &error {
        E::NotFound { .. } => io::ErrorKind::NotFound,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        E::Precondition { .. } => io::ErrorKind::StaleNetworkFileHandle,
        E::InvalidPath { .. } => io::ErrorKind::InvalidInput,
        E::NotSupported { .. } | E::NotImplemented { .. } => io::ErrorKind::Unsupported,
        // Its sources may have a kind.
        _ => return error.into(),
    };
    io::Error::new(kind, error).into()
}
