//! The engine's synchronisation and clock: the standard library's.
//!
//! `tests/engine_models` compiles the engine with a scheduler's versions, which tries many interleavings.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub(super) use cufile::fork::{Mutex, MutexGuard, spawn};
pub(super) use std::sync::Condvar;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
pub(super) use std::thread::sleep;
pub(super) use std::time::Instant;

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is a worker of any engine. If it waited for workers, it could wait for itself.
pub(crate) fn on_worker() -> bool {
    IS_WORKER.get()
}

pub(super) fn as_worker(work: impl FnOnce()) {
    IS_WORKER.set(true);
    // A caller waits for the worker's chunk, whose memory a GPU may be writing. So the process cannot go on
    // after a panic.
    or_abort(work);
}

/// Runs the work of a thread of the engine, with exact sleeps. A panic aborts the process.
pub(super) fn or_abort(work: impl FnOnce()) {
    sleep_exactly();
    let ended = catch_unwind(AssertUnwindSafe(work));
    // The payload lives longer than the process: its drop may panic too.
    if ended.is_err() {
        std::process::abort();
    }
}

/// Limits the delay of this thread's sleeps, which are as short as copies, to 1 instead of 50 microseconds.
fn sleep_exactly() {
    const NANOSECONDS: libc::c_ulong = 1000;
    // SAFETY: the call takes integers, and concerns only this thread. A failure costs time.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NANOSECONDS) };
}

/// Polls until `holds` returns true. Gives up after a while, or when another thread wants the processor.
pub(super) fn look_until(holds: impl Fn() -> bool) {
    let start = Instant::now();
    let mut last = start;
    while !holds() {
        std::thread::yield_now();
        let now = Instant::now();
        if is_vain(now - last, now - start) {
            return;
        }
        last = now;
    }
}

/// Returns whether to stop polling, given the time that yielding took and the time so far.
fn is_vain(yielding: Duration, so_far: Duration) -> bool {
    // A thread that yields gets the processor back sooner, unless another thread took it. That may be the
    // very worker that this thread waits for. The two would have to share the processor.
    let is_taken = yielding.as_micros() > 20;
    // A link may take this long to empty the bounce buffers of many workers.
    is_taken || so_far.as_micros() > 3000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_ends_with_the_processor_or_the_time() {
        for (yielding, so_far, expected) in
            [(0, 0, false), (20, 3000, false), (21, 30, true), (1, 3001, true), (21, 3001, true)]
        {
            let [yielding, so_far] = [yielding, so_far].map(Duration::from_micros);
            assert_eq!(is_vain(yielding, so_far), expected, "{yielding:?} {so_far:?}");
        }
        let looked = Cell::new(0);
        look_until(|| looked.replace(looked.get() + 1) > 0);
        assert!((1..=2).contains(&looked.get()));
    }

    #[test]
    fn panics_of_workers_abort_whatever_their_payload_does() {
        testkit::aborts("Box<dyn Any>", || as_worker(|| std::panic::panic_any(testkit::in_flight::Bomb)));
    }

    #[test]
    fn workers_sleep_precisely_and_are_marked_as_workers() {
        let worker = std::thread::spawn(|| {
            assert!(!on_worker());
            as_worker(|| assert!(on_worker()));
            // SAFETY: the call takes integers.
            unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
        });
        assert_eq!(worker.join().unwrap(), 1000);
        assert!(!on_worker());
    }
}
