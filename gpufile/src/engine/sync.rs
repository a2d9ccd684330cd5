//! What threads meet in, and the time that they see, as the engine uses them: the standard library's.
//!
//! `tests/engine_models` compiles the engine's files again, with a scheduler's in its place that tries many interleavings.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::{Builder, JoinHandle, sleep};
pub(super) use std::time::Instant;

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is a worker of some engine: one that waited for workers could wait for itself.
pub(crate) fn on_worker() -> bool {
    IS_WORKER.get()
}

/// Does what a worker does, on the calling thread, which is one from now on.
pub(super) fn as_worker(work: impl FnOnce()) {
    IS_WORKER.set(true);
    // Someone waits for its chunk, whose memory a GPU may be writing: after a panic there is no way on.
    or_abort(work);
}

/// Does what a thread of the engine does, whose sleeps are exact; a panic ends the process.
pub(super) fn or_abort(work: impl FnOnce()) {
    sleep_exactly();
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        std::process::abort();
    }
}

/// Lets this thread's sleeps end a microsecond late at most, not fifty: it sleeps for as long as copies take.
fn sleep_exactly() {
    const NANOSECONDS: libc::c_ulong = 1000;
    // SAFETY: takes integers, and concerns only this thread. A failure costs time.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NANOSECONDS) };
}

/// Looks again and again whether something holds, for a while, as long as nobody else wants the processor.
pub(super) fn look_until(holds: impl Fn() -> bool) {
    /// As long as it takes a link to empty the bounce buffers of many workers.
    const MOST: Duration = Duration::from_millis(3);
    /// A thread that yields has the processor back sooner, unless another thread took it. That may be the very worker that
    /// this one waits for, which would have to share the processor with it.
    const TAKEN: Duration = Duration::from_micros(20);
    let start = Instant::now();
    let mut last = start;
    while !holds() {
        std::thread::yield_now();
        let now = Instant::now();
        if now - last > TAKEN || now - start > MOST {
            return;
        }
        last = now;
    }
}
