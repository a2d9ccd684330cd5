//! The ends of transfers, for event loops.

use std::fs::File;
use std::io::{Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cufile::fork::{Generation, Mutex};
use pyo3::prelude::*;

pub struct Ends {
    /// A counter of the kernel (`eventfd`).
    counter: File,
    numbers: Mutex<Vec<u64>>,
    /// The process of the event loop. Its forked children share the counter.
    generation: Generation,
}

impl Ends {
    /// Makes the descriptor readable. Needs no interpreter, so a worker never waits for Python's lock.
    pub fn add(&self, number: u64) {
        self.numbers.lock().push(number);
        if !self.generation.is_current() {
            return;
        }
        // The counter takes the number unless it is full, and then it is readable already.
        let _ = (&self.counter).write(&1u64.to_ne_bytes());
    }
}

/// The transfers that an event loop waits for. They share one descriptor.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Watch(Arc<Ends>);

#[pymethods]
impl Watch {
    #[new]
    fn new() -> PyResult<Self> {
        // SAFETY: takes integers.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: the call above made the descriptor.
        let counter = unsafe { OwnedFd::from_raw_fd(raw) }.into();
        Ok(Self(Arc::new(Ends { counter, numbers: Mutex::default(), generation: Generation::current() })))
    }

    /// Returns the descriptor, which is readable if there are numbers to take.
    fn fileno(&self) -> i32 {
        self.0.counter.as_raw_fd()
    }

    /// Adds a number, which makes the descriptor readable.
    fn add(&self, number: u64) {
        self.0.add(number);
    }

    /// Takes the numbers of the transfers that have ended since the last call.
    fn take(&self) -> Vec<u64> {
        if !self.0.generation.is_current() {
            // The parent would never get what the child takes.
            return Vec::new();
        }
        // It fails if nothing was added since.
        let _ = (&self.0.counter).read(&mut [0; 8]);
        mem::take(&mut *self.0.numbers.lock())
    }
}

impl Watch {
    pub fn ends(&self) -> Arc<Ends> {
        self.0.clone()
    }
}
