//! The outcome of a transfer: all of its bytes, or the place where it stopped.

use crate::error::Cause;

/// `Ok` if all bytes were transferred.
pub(crate) type Outcome = Result<(), Stop>;

#[derive(Debug)]
pub(crate) struct Stop {
    /// The bytes before the stop, from the beginning and without a gap.
    pub done_bytes: usize,
    /// The failure. `None` at the end of the file, and after cancelling.
    pub cause: Option<Cause>,
}

impl Stop {
    pub fn failed(done_bytes: usize, cause: impl Into<Cause>) -> Self {
        Self { done_bytes, cause: Some(cause.into()) }
    }

    pub fn end_of_file(done_bytes: usize) -> Self {
        Self { done_bytes, cause: None }
    }

    /// Returns the same stop, counted from `before_bytes` earlier.
    pub fn after(self, before_bytes: usize) -> Self {
        Self { done_bytes: before_bytes + self.done_bytes, ..self }
    }
}

#[derive(Debug)]
pub(crate) struct EntryStop {
    /// The caller's number of the entry.
    pub entry: usize,
    pub stop: Stop,
}

impl EntryStop {
    /// Returns the stop of an entry before its first byte.
    pub fn refused(entry: usize, cause: Cause) -> Self {
        Self { entry, stop: Stop::failed(0, cause) }
    }

    /// Returns the same stop in a list with `entries` more entries in front.
    pub fn behind(self, entries: usize) -> Self {
        Self { entry: entries + self.entry, ..self }
    }
}

/// Returns how many of `len_bytes` were transferred.
pub(crate) fn done_bytes(outcome: &Outcome, len_bytes: usize) -> usize {
    outcome.as_ref().err().map_or(len_bytes, |stop| stop.done_bytes)
}
