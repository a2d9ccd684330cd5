//! The error of an operation that takes a value and gives it back.

use std::ops::Deref;
use std::{error, fmt, io};

use crate::error::Error;

/// A call that failed, and the value that it was given.
///
/// It converts into [`Error`] and [`io::Error`], dropping the value, so that `?` works. [`into_parts`](Self::into_parts)
/// returns both:
///
/// ```no_run
/// use cufile::{Driver, FileHandle};
///
/// let driver = Driver::open()?;
/// let file = std::fs::File::open("data.bin")?;
/// match FileHandle::register(&driver, file) {
///     Ok(handle) => println!("{handle:?}"),
///     Err(failed) => {
///         let (error, descriptor) = failed.into_parts();
///         println!("{error}: use the plain file");
///         let file = std::fs::File::from(descriptor);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Failed<T> {
    /// Why the call failed.
    pub error: Error,
    value: T,
}

// SAFETY: a shared reference gives no access to the value.
unsafe impl<T: Send> Sync for Failed<T> {}

impl<T> Failed<T> {
    pub(crate) fn new(error: Error, value: T) -> Self {
        Self { error, value }
    }

    /// Returns the error and the value.
    pub fn into_parts(self) -> (Error, T) {
        (self.error, self.value)
    }

    /// Returns the value.
    pub fn into_value(self) -> T {
        self.value
    }

    /// Changes the value.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Failed<U> {
        Failed { error: self.error, value: change(self.value) }
    }
}

impl<T> Deref for Failed<T> {
    type Target = Error;

    fn deref(&self) -> &Error {
        &self.error
    }
}

impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Self {
        failed.error
    }
}

impl<T> From<Failed<T>> for io::Error {
    fn from(failed: Failed<T>) -> Self {
        failed.error.into()
    }
}

impl<T> fmt::Debug for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// No error of this crate has a source: its text has it.
impl<T> error::Error for Failed<T> {}
