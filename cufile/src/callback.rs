//! Rust functions that C calls.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the function's result, or `None` if it panics, because a panic must not reach C. The function must cope
/// with data that a panic leaves half changed.
pub(crate) fn contained<R>(function: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(said) => Some(said),
        Err(panic) => {
            // Dropping the payload could panic again.
            mem::forget(panic);
            None
        }
    }
}
