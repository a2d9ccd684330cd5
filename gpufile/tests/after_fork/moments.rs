//! Moments of a call: an allocator that stops a thread where it allocates or frees memory.
//!
//! Code that holds a lock often does so. A child that is forked while the thread is stopped there finds the lock held.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

struct Stopping;

#[global_allocator]
static ALLOCATOR: Stopping = Stopping;

/// The thread that is to stop, or has stopped. 0 without one.
static THREAD: AtomicI32 = AtomicI32::new(0);
/// The number of its allocations and frees until then.
static LEFT: AtomicUsize = AtomicUsize::new(0);
static HAS_STOPPED: AtomicBool = AtomicBool::new(false);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Stopping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        pass();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        pass();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, len_bytes: usize) -> *mut u8 {
        pass();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(start, layout, len_bytes) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        pass();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Stops the thread if this is its moment.
fn pass() {
    let thread = THREAD.load(SeqCst);
    if thread == 0 || thread != this_thread() {
        return;
    }
    let left = LEFT.load(SeqCst);
    LEFT.store(left.wrapping_sub(1), SeqCst);
    if left == 0 {
        HAS_STOPPED.store(true, SeqCst);
        while THREAD.load(SeqCst) == thread {
            thread::yield_now();
        }
    }
}

fn this_thread() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::gettid() }
}

/// Calls `call` on a thread that stops when it allocates or frees memory for the `number`th time, counted from 0, and `stopped`
/// meanwhile. Returns what `stopped` returns, or `None` if the call does so less often.
///
/// In a child that `stopped` forks, [`go_on`] must come first.
pub fn stop_at<T>(number: usize, call: impl Fn() + Sync, stopped: impl FnOnce() -> T) -> Option<T> {
    LEFT.store(number, SeqCst);
    HAS_STOPPED.store(false, SeqCst);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            THREAD.store(this_thread(), SeqCst);
            call();
            THREAD.store(0, SeqCst);
        });
        while !HAS_STOPPED.load(SeqCst) && !caller.is_finished() {
            thread::sleep(Duration::from_micros(50));
        }
        let result = HAS_STOPPED.load(SeqCst).then(stopped);
        go_on();
        result
    })
}

pub fn go_on() {
    THREAD.store(0, SeqCst);
}
