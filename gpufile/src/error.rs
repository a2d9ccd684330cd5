//! The errors of this crate: what failed, on which file, and after how many bytes.

use std::io;
use std::path::PathBuf;

/// The result of an operation on files.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation.
///
/// Its text is complete: it has the text of the cause, so [`source`](std::error::Error::source) names none. Paths are shown
/// quoted, with control characters escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened.
    #[error("cannot open {path:?}: {cause}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The error that the operating system or cuFile returned.
        cause: Cause,
    },
    /// A transfer failed. The bytes before the failure, `bytes_done` from the start of the range, were transferred.
    #[error("cannot {operation} {len_bytes} bytes at {offset} of {path:?}: {cause}{}; {bytes_done} bytes were transferred",
        advice(.operation, .cause))]
    Transfer {
        /// `read` or `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The start of the range in the file, in bytes.
        offset: u64,
        /// The length of the range, in bytes.
        len_bytes: usize,
        /// The number of bytes of it that were transferred.
        bytes_done: usize,
        /// The error that the operating system, CUDA or cuFile returned.
        cause: Cause,
    },
    /// One entry of several failed; others may have been transferred.
    #[error("entry {entry}: {error}")]
    Entry {
        /// Its number, from 0.
        entry: usize,
        /// The error of this entry.
        error: Box<Error>,
    },
    /// A call that is not about a transfer failed.
    #[error("cannot {operation} {path:?}: {cause}")]
    File {
        /// The operation that was attempted.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error that the operating system returned.
        cause: Cause,
    },
    /// A call that is not about a file failed, such as [`Engine::cuda`](crate::Engine::cuda).
    #[error("{cause}")]
    Cufile {
        /// The error that CUDA or cuFile returned.
        cause: Cause,
    },
}

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The operating system returned an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// cuFile or CUDA returned an error.
    #[error(transparent)]
    Cufile(Box<cufile::Error>),
    /// The call made no sense.
    #[error("{0}")]
    Invalid(String),
    /// The file ended before the range did.
    #[error("the file ends at byte {at}")]
    EndOfFile {
        /// The end of the file, or of the mapping of it, in bytes.
        at: u64,
    },
    /// cuFile was required and does not work for the file.
    #[error("cuFile is required, but: {0}")]
    NoCufile(String),
}

/// Returns advice on an errno that says little by itself.
fn advice(operation: &str, cause: &Cause) -> String {
    let Cause::Io(error) = cause else { return String::new() };
    match error.raw_os_error() {
        Some(libc::EBADF) => format!(": it was not opened to {operation}"),
        Some(libc::ESPIPE) => ": it has no offsets".to_owned(),
        _ => String::new(),
    }
}

impl Error {
    /// Returns the number of bytes that had been transferred, from the start of the range or entry.
    pub fn bytes_done(&self) -> usize {
        match self {
            Error::Transfer { bytes_done, .. } => *bytes_done,
            Error::Entry { error, .. } => error.bytes_done(),
            _ => 0,
        }
    }

    /// Returns why it failed.
    pub fn cause(&self) -> &Cause {
        match self {
            Error::Open { cause, .. }
            | Error::Transfer { cause, .. }
            | Error::File { cause, .. }
            | Error::Cufile { cause } => cause,
            Error::Entry { error, .. } => error.cause(),
        }
    }

    /// Returns the errno, if the operating system refused.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self.cause() {
            Cause::Io(error) => error.raw_os_error(),
            Cause::Cufile(error) => match &**error {
                cufile::Error::Io { source, .. } => source.raw_os_error(),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the kind that an [`io::Error`] of the same cause has.
    pub fn kind(&self) -> io::ErrorKind {
        match self.cause() {
            Cause::Io(error) => error.kind(),
            Cause::Cufile(error) => error.io_kind(),
            Cause::Invalid(_) => io::ErrorKind::InvalidInput,
            Cause::EndOfFile { .. } => io::ErrorKind::UnexpectedEof,
            Cause::NoCufile(_) => io::ErrorKind::Unsupported,
        }
    }
}

impl From<cufile::Error> for Cause {
    fn from(error: cufile::Error) -> Self {
        Cause::Cufile(Box::new(error))
    }
}

impl From<cufile::Error> for Error {
    fn from(error: cufile::Error) -> Self {
        Error::Cufile { cause: error.into() }
    }
}

impl From<Error> for io::Error {
    /// Keeps the whole text; the errno is in [`Error::raw_os_error`].
    fn from(error: Error) -> Self {
        io::Error::new(error.kind(), error)
    }
}
