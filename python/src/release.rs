//! The end of references to Python's objects, and of values that objects of this module own.
//!
//! The last reference to an object runs any code: its `__del__`, and that of all it refers to. The workers of an engine
//! run no such code, which might wait for the very transfer that needs the worker. They leave references to a thread
//! that does nothing else. Threads that Python knows release references at once. They hold no lock of this module then.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use cufile::fork::Generation;
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
        Python::try_attach(|_| match reference.take() {
            Some(Self::Object(object)) => drop(object),
            // SAFETY: the thread is attached, and the export is released here and nowhere else.
            Some(Self::Export(Export(mut view))) => unsafe { ffi::PyBuffer_Release(&mut *view) },
            None => {}
        });
        // Without an interpreter, nothing is left to release.
        std::mem::forget(reference);
    }
}

/// The thread that releases references.
struct Releases {
    references: Sender<Reference>,
    /// The process that has the thread.
    generation: Generation,
}

/// Not behind a lock, which a forked child could find locked. Leaked when another replaces it.
static RELEASES: AtomicPtr<Releases> = AtomicPtr::new(ptr::null_mut());

impl Releases {
    /// Leaves a reference to the thread. Gives it back if the operating system starts none.
    fn leave(reference: Reference) -> Result<(), Reference> {
        match Self::of_process() {
            Some(releases) => releases.references.send(reference).map_err(|unsent| unsent.0),
            None => Err(reference),
        }
    }

    fn of_process() -> Option<&'static Self> {
        let current = RELEASES.load(Ordering::Acquire);
        // SAFETY: null or leaked below.
        match unsafe { current.as_ref() } {
            Some(releases) if releases.generation.is_current() => return Some(releases),
            _ => {}
        }
        let (sender, receiver) = mpsc::channel();
        thread::Builder::new().name("gpufile-release".to_owned()).spawn(|| Self::run(receiver)).ok()?;
        let new = Box::into_raw(Box::new(Self { references: sender, generation: Generation::current() }));
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

    fn run(references: Receiver<Reference>) {
        references.into_iter().for_each(Reference::release_here);
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
