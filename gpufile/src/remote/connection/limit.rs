//! The end of the time for one try, and the wish to end it earlier.
//!
//! A server has the time for 64 KiB of the bytes that a request asks for, or for all of them. Nothing else that it sends
//! gives it more time, neither short answers, nor interim ones, nor redirects. So each read ends.

use std::io;
use std::mem;
use std::time::{Duration, Instant};

use crate::error::RemoteError;

/// The time after which a call that waits for the network looks at its [`Limit`].
pub(crate) const TICK: Duration = Duration::from_millis(4);

/// The bytes that a server must send in the time for one try, unless a request asks for fewer. Slow links carry them: 64
/// connections with 30 s need 140 KB/s in all.
const LEAST_BYTES: u64 = 64 << 10;

/// The end of the time for one try, and the caller's wish to end it.
#[derive(Clone, Copy)]
pub(crate) struct Limit<'a> {
    at: Instant,
    timeout: Duration,
    is_cancelled: &'a dyn Fn() -> bool,
    /// The bytes that arrived since then.
    arrived_bytes: u64,
    has_progressed: bool,
}

impl<'a> Limit<'a> {
    pub fn after(timeout: Duration, is_cancelled: &'a dyn Fn() -> bool) -> Self {
        let at = Instant::now() + timeout;
        Self { at, timeout, is_cancelled, arrived_bytes: 0, has_progressed: false }
    }

    pub fn renewed(&self) -> Self {
        Self::after(self.timeout, self.is_cancelled)
    }

    /// Notes that requested bytes arrived, or with `is_all`, the last of them. Begins the time anew if the server has sent
    /// enough.
    pub fn note(&mut self, bytes: u64, is_all: bool) {
        self.arrived_bytes += bytes;
        if is_all || self.arrived_bytes >= LEAST_BYTES {
            *self = Self { has_progressed: true, ..self.renewed() };
        }
    }

    /// Returns whether the server has sent enough since the last call.
    pub fn take_progress(&mut self) -> bool {
        mem::take(&mut self.has_progressed)
    }

    /// Returns this limit, or one after `wait` if that ends earlier.
    pub fn at_most(&self, wait: Duration) -> Self {
        Self { at: self.at.min(Instant::now() + wait), ..*self }
    }

    /// Returns the limit of one of `steps` steps that share the time left.
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

/// Waits, at most until the caller no longer waits.
pub(crate) fn sleep(wait: Duration, is_cancelled: &dyn Fn() -> bool) {
    let end = Instant::now() + wait;
    while !is_cancelled() {
        match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            left => std::thread::sleep(left.min(TICK)),
        }
    }
}
