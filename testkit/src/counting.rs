//! An allocator that counts, for tests of what code allocates. Such a test makes [`Counting`] the global allocator, and
//! is alone in its program unless it counts for its own thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting.
pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes that are allocated now, and at most.
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OF_THIS_THREAD: Cell<usize> = const { Cell::new(0) };
}

impl Counting {
    fn count(bytes: usize) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        OF_THIS_THREAD.set(OF_THIS_THREAD.get() + 1);
        let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(now, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to `System` with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `work`, and returns the number of allocations by all threads.
pub fn allocations_in(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Runs `work`, and returns the number of allocations by this thread.
pub fn allocations_of_this_thread(work: impl FnOnce()) -> usize {
    let before = OF_THIS_THREAD.get();
    work();
    OF_THIS_THREAD.get() - before
}

/// Runs `work`, and returns the most bytes allocated beyond those before.
pub fn peak<T>(work: impl FnOnce() -> T) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    drop(work());
    PEAK.load(Ordering::Relaxed) - before
}

/// Counts the allocations of all threads while `work` runs five times.
pub fn allocations_at_first(mut work: impl FnMut()) -> usize {
    allocations_in(|| (0..5).for_each(|_| work()))
}

/// Does the same after each worker has done such work once.
pub fn allocations(mut work: impl FnMut()) -> usize {
    // Workers share the work by chance. A worker allocates only when it does a part for the first time.
    (0..40).map(|_| allocations_at_first(&mut work)).find(|count| *count == 0).unwrap_or(usize::MAX)
}

/// Makes sure that [`Counting`] is the allocator.
pub fn assert_counting() {
    // The test harness, too, may allocate once or twice while it starts.
    let counted = allocations_at_first(|| drop(black_box(vec![0u8; 100])));
    assert!(counted >= 5, "{counted} of 5 allocations are counted");
}
