//! Functions of Rust that C calls.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the function says; `None` if it panics, which must not reach C. What a panic leaves half done is the function's own
/// affair, as with a mutex.
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
