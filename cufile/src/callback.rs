//! Functions of Rust that C calls.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the function's result, or `None` if it panics, because a panic must not reach C. The function
/// answers for what a panic leaves half done, as with a mutex.
pub(crate) fn contained<R>(function: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(said) => Some(said),
        Err(panic) => {
            // To drop what it carries could panic again.
            mem::forget(panic);
            None
        }
    }
}
