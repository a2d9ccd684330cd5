//! The failures of requests to servers.

use std::io;

/// The reason why an object could not be opened or read. It contains neither the query of the address nor headers, which
/// may have secrets.
///
/// ```
/// use gpufile::Cause;
/// use gpufile::remote::{RemoteError, RemoteFile};
///
/// let error = RemoteFile::open("ftp://example.org/model").unwrap_err();
/// assert!(matches!(error.cause(), Cause::Remote(cause) if matches!(**cause, RemoteError::Invalid { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The address or an option has a wrong form.
    #[error("the request cannot be made: {reason}")]
    #[non_exhaustive]
    Invalid {
        /// The objection to the address or the option.
        reason: String,
    },
    /// The server refused the request, and each repetition.
    #[error("the server answered with status {status}{reason}{said}")]
    #[non_exhaustive]
    Status {
        /// The status of HTTP.
        status: u16,
        /// A comma and the meaning of the status, or an empty text.
        reason: &'static str,
        /// A colon and the server's words, or an empty text: the name of the failure, the message, the region of the
        /// object and the number of the request. The words are cut to one line.
        said: String,
    },
    /// The answer lacks bytes of the range, in each repetition of the request.
    #[error("the server's answer cannot be used: {reason}")]
    #[non_exhaustive]
    Answer {
        /// The objection to the answer.
        reason: String,
    },
    /// The object is another one than when it was opened.
    #[error("the object changed on the server after it was opened")]
    Changed,
    /// The server's certificate is not accepted.
    #[error("the certificate of the server is not accepted: {reason}")]
    #[non_exhaustive]
    Certificate {
        /// The reason.
        reason: String,
    },
    /// The address of an object could not be signed.
    #[error("the address of the object cannot be signed: {reason}")]
    #[non_exhaustive]
    Signature {
        /// The reason.
        reason: String,
    },
    /// The object could not be written, although requests were repeated.
    #[error("the object could not be written: {reason}")]
    #[non_exhaustive]
    Upload {
        /// The reason.
        reason: String,
    },
    /// The connection could not be made, or ended before all bytes had arrived.
    #[error("the connection to the server failed: {0}")]
    Connection(#[source] io::Error),
    /// The answer took too long, in each repetition of the request.
    #[error("the server sent too little within {seconds} seconds")]
    #[non_exhaustive]
    Deadline {
        /// The time for each try, in seconds.
        seconds: f32,
    },
}

impl RemoteError {
    /// Returns the status of HTTP if the server refused the request.
    pub fn status(&self) -> Option<u16> {
        match self {
            RemoteError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns whether the same request may succeed later. The connection failed, the answer took too long, or the status of
    /// the server is 408, 429, 500, 502, 503 or 504.
    pub fn is_transient(&self) -> bool {
        match self {
            RemoteError::Status { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            RemoteError::Connection(_) | RemoteError::Deadline { .. } => true,
            _ => false,
        }
    }

    /// Returns the kind of an [`io::Error`] with the same cause.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            RemoteError::Invalid { .. } => io::ErrorKind::InvalidInput,
            RemoteError::Status { status: 401 | 403 | 407, .. } => io::ErrorKind::PermissionDenied,
            RemoteError::Status { status: 404 | 410, .. } => io::ErrorKind::NotFound,
            RemoteError::Status { .. } | RemoteError::Upload { .. } => io::ErrorKind::Other,
            RemoteError::Answer { .. } => io::ErrorKind::InvalidData,
            RemoteError::Certificate { .. } | RemoteError::Signature { .. } => {
                io::ErrorKind::PermissionDenied
            }
            RemoteError::Changed => io::ErrorKind::StaleNetworkFileHandle,
            RemoteError::Connection(error) => error.kind(),
            RemoteError::Deadline { .. } => io::ErrorKind::TimedOut,
        }
    }
}
