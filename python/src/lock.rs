use std::sync::MutexGuard;
use std::thread::{self, ThreadId};
use std::time::Duration;

use cufile::fork::{Generation, Mutex};
use pyo3::prelude::*;

/// The time between two checks by a thread that waits for a lock.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// A lock for calls of functions, which a ``with`` statement cannot replace: that leaves the lock taken if an exception
/// comes between two of its lines.
///
/// The thread that has the lock may take it again. A forked child finds it open, whoever had it.
#[pyclass(frozen, module = "gpufile._gpufile")]
#[derive(Default)]
pub struct Lock {
    /// Threads look at this only while they have Python's lock, and give neither up in between. A thread that forks has
    /// Python's lock, so the child finds this one open.
    owner: Mutex<Option<Owner>>,
}

type Owner = (Generation, ThreadId);

struct Turn<'a>(&'a Lock, Owner);

impl Lock {
    fn owner(&self) -> MutexGuard<'_, Option<Owner>> {
        self.owner.lock()
    }

    /// Takes the lock. `None` if the calling thread has it already.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Turn<'_>>> {
        let this = (Generation::current(), thread::current().id());
        loop {
            let owner = self.owner().filter(|(generation, _)| generation.is_current());
            match owner {
                None => {
                    *self.owner() = Some(this);
                    return Ok(Some(Turn(self, this)));
                }
                Some(owner) if owner == this => return Ok(None),
                Some(_) => {}
            }
            py.detach(|| thread::sleep(BETWEEN_LOOKS));
            py.check_signals()?;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A child that was forked by the function may have taken the lock again.
        let mut owner = self.0.owner();
        if *owner == Some(self.1) {
            *owner = None;
        }
    }
}

#[pymethods]
impl Lock {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Calls the function while no other thread does, and returns its result.
    fn run<'py>(&self, function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let _turn = self.take(function.py())?;
        function.call0()
    }
}
