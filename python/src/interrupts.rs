//! Waits that Ctrl-C ends, whatever they wait for.
//!
//! Python runs the handlers of signals on its main thread only, and not within a call. So the main thread does nothing
//! itself that may take long: other threads do it, and the main thread waits for them and looks for signals. The
//! threads own all that they use, and drop it at their end.

#![allow(clippy::disallowed_types, reason = "a forked child leaks those of its parent")]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use cufile::fork::{self, Generation, OnceCell};
use pyo3::prelude::*;

/// The time between two checks for signals. Ctrl-C ends a wait no earlier.
pub const BETWEEN_SIGNALS: Duration = Duration::from_millis(50);

/// Returns whether the calling thread is Python's main thread, which runs the handlers of signals.
pub fn is_main_thread(py: Python<'_>) -> bool {
    thread_local! {
        /// The answer, and where it holds: a thread that forks is the main thread of the child.
        static ANSWER: Cell<Option<(Generation, bool)>> = const { Cell::new(None) };
    }
    let ask = || -> PyResult<bool> {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        threading.call_method0("get_ident")?.eq(main)
    };
    match ANSWER.get() {
        Some((generation, answer)) if generation.is_current() => answer,
        _ => {
            // A thread that may be the main thread takes more time for a call, and nothing else.
            let answer = ask().unwrap_or(true);
            ANSWER.set(Some((Generation::current(), answer)));
            answer
        }
    }
}

/// Returns whether this process has loaded the module itself, and not forked from one that has.
pub fn is_first_process() -> bool {
    static FIRST: OnceCell<Generation> = OnceCell::new();
    FIRST.get_or_init(Generation::current).is_current()
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that works for the main thread. It ends when this is dropped, after its work.
struct Helper {
    work: ManuallyDrop<Sender<Work>>,
    generation: Generation,
}

thread_local! {
    /// The helper of the main thread, while it has no work.
    static IDLE: Cell<Option<Helper>> = const { Cell::new(None) };
}

impl Helper {
    /// Returns an idle helper of this process. `None` if the operating system starts no threads.
    fn take() -> Option<Self> {
        if let Some(idle) = IDLE.take().filter(|idle| idle.generation.is_current()) {
            return Some(idle);
        }
        let (work, received) = mpsc::channel::<Work>();
        fork::spawn("gpufile-helper", || received.into_iter().for_each(|work| work())).ok()?;
        Some(Self { work: ManuallyDrop::new(work), generation: Generation::current() })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // A drop takes a lock, which the thread of the parent may have held at the fork.
        if self.generation.is_current() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.work) };
        }
    }
}

/// Does `work` without Python's lock. If the main thread calls this, another thread does it.
///
/// # Errors
/// The exception of a signal's handler. The other thread then goes on with the work, and drops the result.
pub fn run<T: Send + 'static>(py: Python<'_>, work: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    if !is_main_thread(py) {
        return Ok(py.detach(work));
    }
    let Some(helper) = Helper::take() else { return Ok(py.detach(work)) };
    let (sender, mut receiver) = mpsc::sync_channel(1);
    // Nobody waits after a signal. A helper that ended with a panic drops the work, and with it the sender.
    let _ = helper.work.send(Box::new(move || drop(sender.send(work()))));
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(BETWEEN_SIGNALS)) {
            Ok(result) => {
                IDLE.set(Some(helper));
                return Ok(result);
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => panic!("a panic ended the work"),
        }
    }
}

/// Leaves `work` to a helper, and does not wait. The calling thread does it if the operating system starts no threads.
pub fn leave(py: Python<'_>, work: impl FnOnce() + Send + 'static) {
    match Helper::take() {
        Some(helper) => drop(helper.work.send(Box::new(work))),
        None => py.detach(work),
    }
}
