//! The end of the time for one try of a request.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::error::RemoteError;

/// The end of the time for one try of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    pub fn after(timeout: Duration) -> Self {
        Self { at: Instant::now() + timeout, timeout }
    }

    /// Returns the time that is left, which is not zero.
    pub fn left(&self) -> Result<Duration, RemoteError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(RemoteError::deadline(self.timeout)) } else { Ok(left) }
    }

    /// Limits the wait of the next call that sends.
    pub fn limit_sending(&self, stream: &TcpStream) -> Result<(), RemoteError> {
        stream.set_write_timeout(Some(self.left()?)).map_err(RemoteError::Connection)
    }

    /// Limits the wait of the next call that receives.
    pub fn limit_receiving(&self, stream: &TcpStream) -> Result<(), RemoteError> {
        stream.set_read_timeout(Some(self.left()?)).map_err(RemoteError::Connection)
    }

    /// Returns the error of a call whose wait was limited.
    pub fn error(&self, error: io::Error) -> RemoteError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => RemoteError::deadline(self.timeout),
            _ => RemoteError::Connection(error),
        }
    }
}
