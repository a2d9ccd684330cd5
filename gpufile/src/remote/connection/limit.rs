//! The end of the time for one try of a request, and the wish to end it earlier.

use std::io;
use std::time::{Duration, Instant};

use super::super::error::RemoteError;

/// The time after which a call that waits for the network looks at its [`Limit`].
pub(crate) const TICK: Duration = Duration::from_millis(4);

/// The end of the time for one try, and the caller's wish to end it.
#[derive(Clone, Copy)]
pub(crate) struct Limit<'a> {
    at: Instant,
    timeout: Duration,
    is_cancelled: &'a dyn Fn() -> bool,
}

impl<'a> Limit<'a> {
    pub fn after(timeout: Duration, is_cancelled: &'a dyn Fn() -> bool) -> Self {
        Self { at: Instant::now() + timeout, timeout, is_cancelled }
    }

    /// Returns the same limit for the next answer of the same try.
    pub fn renewed(&self) -> Self {
        Self::after(self.timeout, self.is_cancelled)
    }

    /// Returns the same limit, at most so far away.
    pub fn at_most(&self, wait: Duration) -> Self {
        Self { at: self.at.min(Instant::now() + wait), ..*self }
    }

    /// Returns the same limit for one of so many steps that share the time which is left.
    pub fn part(&self, steps: usize) -> Self {
        let left = self.at.saturating_duration_since(Instant::now());
        self.at_most(left / u32::try_from(steps).unwrap_or(u32::MAX).max(1))
    }

    /// # Errors
    /// [`RemoteError::Deadline`] at the end of the time, and the errno `ECANCELED` if the caller no longer waits.
    pub fn check(&self) -> Result<(), RemoteError> {
        if (self.is_cancelled)() {
            return Err(RemoteError::Connection(io::Error::from_raw_os_error(libc::ECANCELED)));
        }
        if Instant::now() >= self.at { Err(RemoteError::deadline(self.timeout)) } else { Ok(()) }
    }
}

/// Waits, but at most until the caller no longer waits.
pub(crate) fn sleep(wait: Duration, is_cancelled: &dyn Fn() -> bool) {
    let end = Instant::now() + wait;
    while !is_cancelled() {
        match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            left => std::thread::sleep(left.min(TICK)),
        }
    }
}
