//! The end of references to Python's objects, and of values that objects of this module own.
//!
//! The last reference to an object runs any code: its `__del__`, and that of all it refers to. The workers of an engine
//! run no such code, which might wait for the very transfer that needs the worker. They leave references to a thread
//! that does nothing else. Threads that Python knows release references at once. They hold no lock of this module then.
//!
//! A thread that attaches to an interpreter which is ending may crash the process. So that thread [ends](end) before the
//! interpreter does, and what is left to it afterwards is never released.

#![allow(clippy::disallowed_types, reason = "a forked child leaks those of its parent")]

use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use cufile::fork::{self, Generation};
use pyo3::ffi;
use pyo3::prelude::*;

/// The objects that remain to be released.
pub enum Reference {
    Object(Py<PyAny>),
    Export(Export),
}

/// A filled `Py_buffer`, at the address where it was filled.
pub struct Export(pub Box<ffi::Py_buffer>);

// SAFETY: an export may be used from any thread, and released by any that is attached to the interpreter.
unsafe impl Send for Export {}
// SAFETY: as above; shared references only read its fields.
unsafe impl Sync for Export {}

impl Reference {
    /// Releases the reference, here or on the thread for that.
    pub fn release(self) {
        // SAFETY: asks for a value of the calling thread.
        let is_pythons = !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null();
        let left = if is_pythons { Err(self) } else { Releases::leave(self) };
        if let Err(reference) = left {
            reference.release_here();
        }
    }

    fn release_here(self) {
        let mut reference = Some(self);
        Python::try_attach(|_| {
            // SAFETY: there is an interpreter. torch frees memory without its lock, also within calls of this module, whose
            // threads pyo3 then takes for attached. This call looks.
            let state = unsafe { ffi::PyGILState_Ensure() };
            match reference.take() {
                Some(Self::Object(object)) => drop(object),
                // SAFETY: the thread is attached, and the export is released here and nowhere else.
                Some(Self::Export(Export(mut view))) => unsafe { ffi::PyBuffer_Release(&mut *view) },
                None => {}
            }
            // SAFETY: the state that the call above returned.
            unsafe { ffi::PyGILState_Release(state) };
        });
        // Without an interpreter, nothing is left to release.
        mem::forget(reference);
    }
}

/// Ends the thread that releases references, after what was left to it. The interpreter calls this before it ends.
pub fn end(py: Python<'_>) {
    /// A `__del__` may wait for ever.
    const LIMIT: Duration = Duration::from_secs(5);
    // If there is no thread yet, this starts it, because a worker could start it later.
    let Some(releases) = Releases::of_process() else { return };
    let (ended, has_ended) = mpsc::channel();
    if releases.work.send(Work::End(ended)).is_ok() {
        // An error says that the thread has dropped its half, or that the time is over.
        let _ = py.detach(move || has_ended.recv_timeout(LIMIT));
    }
}

/// Runs a function on the thread that releases references, if there is one. The caller may have no interpreter.
pub fn later(act: impl FnOnce(Python<'_>) + Send + 'static) {
    if let Some(releases) = Releases::of_process() {
        // The thread may have ended, as the interpreter will.
        let _ = releases.work.send(Work::Run(Box::new(act)));
    }
}

enum Work {
    Release(Reference),
    Run(Box<dyn FnOnce(Python<'_>) + Send>),
    /// The thread ends. The other half of the channel learns it when this is dropped.
    End(Sender<()>),
}

struct Releases {
    work: Sender<Work>,
    generation: Generation,
}

/// Not behind a lock, which a forked child could find locked. Leaked when another replaces it.
static RELEASES: AtomicPtr<Releases> = AtomicPtr::new(ptr::null_mut());

impl Releases {
    /// Leaves a reference to the thread. Gives it back if the operating system starts none.
    fn leave(reference: Reference) -> Result<(), Reference> {
        let Some(releases) = Self::of_process() else { return Err(reference) };
        if let Err(unsent) = releases.work.send(Work::Release(reference)) {
            // The thread has ended, as the interpreter will.
            mem::forget(unsent);
        }
        Ok(())
    }

    fn of_process() -> Option<&'static Self> {
        let current = RELEASES.load(Ordering::Acquire);
        // SAFETY: null or leaked below.
        match unsafe { current.as_ref() } {
            Some(releases) if releases.generation.is_current() => return Some(releases),
            _ => {}
        }
        let (sender, receiver) = mpsc::channel();
        fork::spawn("gpufile-release", || Self::run(receiver)).ok()?;
        let new = Box::into_raw(Box::new(Self { work: sender, generation: Generation::current() }));
        match RELEASES.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked.
            Ok(_) => Some(unsafe { &*new }),
            Err(theirs) => {
                // SAFETY: no other thread has seen it. Without its sender, its thread ends.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: leaked by the thread that was faster.
                unsafe { theirs.as_ref() }
            }
        }
    }

    fn run(received: Receiver<Work>) {
        for work in received {
            match work {
                Work::Release(reference) => reference.release_here(),
                Work::Run(act) => drop(Python::try_attach(act)),
                Work::End(ended) => return drop(ended),
            }
        }
    }
}

/// A value of an object of this module, which is dropped without Python's lock. Its end may close files and free memory
/// of GPUs, and CUDA waits there for functions of the program that may need Python's lock.
pub struct Detached<T: Send>(ManuallyDrop<T>);

impl<T: Send> Detached<T> {
    pub fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: Send> Detached<T> {
    /// Returns the value, which the caller drops.
    pub fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: nothing uses the field after this, because `this` is never dropped.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        // SAFETY: nothing uses the field after this.
        let mut value = Some(unsafe { ManuallyDrop::take(&mut self.0) });
        // Without an interpreter, there is no lock to release.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}
