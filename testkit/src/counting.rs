//! An allocator that counts, for tests of code without allocations. Such a test is the only one of its program, and
//! makes [`Counting`] the global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting.
pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Counts the allocations of all threads while `work` runs five times.
pub fn allocations_at_first(mut work: impl FnMut()) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..5).for_each(|_| work());
    ALLOCATIONS.load(Ordering::Relaxed) - before
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
