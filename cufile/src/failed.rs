//! The error of an operation that takes a value and gives it back.

use std::ops::Deref;
use std::{error, fmt, io};

use crate::error::Error;

/// The error of a failed call, and the value that the call took.
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
pub struct Failed<T, E = Error> {
    /// The error of the call.
    pub error: E,
    value: T,
}

// SAFETY: a shared reference gives no access to the value.
unsafe impl<T: Send, E: Sync> Sync for Failed<T, E> {}

impl<T, E> Failed<T, E> {
    /// Creates the error of a call that returns `value`.
    pub fn new(error: E, value: T) -> Self {
        Self { error, value }
    }

    /// Returns the error and the value.
    pub fn into_parts(self) -> (E, T) {
        (self.error, self.value)
    }

    /// Returns the value.
    pub fn into_value(self) -> T {
        self.value
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Failed<U, E> {
        Failed { error: self.error, value: change(self.value) }
    }
}

impl<T, E> Deref for Failed<T, E> {
    type Target = E;

    fn deref(&self) -> &E {
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

impl<T, E: fmt::Debug> fmt::Debug for Failed<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T, E: fmt::Display> fmt::Display for Failed<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, E: error::Error> error::Error for Failed<T, E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.error.source()
    }
}
