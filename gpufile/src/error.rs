//! The errors of this crate, each with the operation, the file, the cause, and the bytes transferred before it.

mod remote;

use std::fmt;
use std::io;
use std::path::PathBuf;

use cufile::OpError;

pub use remote::RemoteError;

/// The result of an operation on files.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a failed operation.
///
/// Its text includes that of the cause, so print the error alone, and not its chain. Paths are quoted, with control
/// characters escaped. [`source`](std::error::Error::source) returns the error behind it: an [`io::Error`], a
/// [`cufile::Error`], a `RemoteError`, or that of a [storage](crate::storage).
///
/// ```
/// use gpufile::{Error, File};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, "data")?;
/// let file = File::open(&path)?;
/// let error = file.read_exact_at(&mut vec![0; 10], 0).unwrap_err();
/// assert!(matches!(error, Error::Transfer { len_bytes: 10, .. }));
/// assert_eq!((error.bytes_done(), error.kind()), (4, std::io::ErrorKind::UnexpectedEof));
/// println!("{error}");
/// # Ok(())
/// # }
/// ```
///
/// Names elsewhere: `message`, `context_iter` (kvik-rs). kvik-rs's `with_context`, `with_operation`, `set_source`,
/// `set_permanent`, `set_temporary`, `set_persistent` and `backtrace` have no counterpart: only this crate makes these
/// errors.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened.
    #[non_exhaustive]
    Open {
        /// The file.
        path: PathBuf,
        /// The error that the operating system or cuFile returned.
        cause: Cause,
    },
    /// A transfer failed. The first `bytes_done` bytes of the range were transferred.
    #[non_exhaustive]
    Transfer {
        /// `read` or `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The start of the range in the file, in bytes.
        offset: u64,
        /// The length of the range, in bytes.
        len_bytes: usize,
        /// The number of bytes transferred, from the start of the range.
        bytes_done: usize,
        /// The error that the operating system, CUDA or cuFile returned.
        cause: Cause,
    },
    /// One entry of several failed. Others may have been transferred.
    #[non_exhaustive]
    Entry {
        /// The number of the entry, from 0.
        entry: usize,
        /// The error of this entry.
        error: Box<Error>,
    },
    /// An operation on a file that is not a transfer failed.
    #[non_exhaustive]
    File {
        /// The operation that was attempted.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error that the operating system returned.
        cause: Cause,
    },
    /// A call without a file failed, for example [`Engine::cuda`](crate::Engine::cuda).
    #[non_exhaustive]
    Cufile {
        /// The error that CUDA or cuFile returned.
        cause: Cause,
    },
}

/// The reason why an operation failed.
///
/// ```
/// use gpufile::{Cause, File};
///
/// let error = File::open("/no/such/file").unwrap_err();
/// match error.cause() {
///     Cause::Io(cause) => assert_eq!(cause.kind(), std::io::ErrorKind::NotFound),
///     cause => panic!("{cause}"),
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The operating system returned an error.
    ///
    /// Names elsewhere: `GenericSystemError` (KvikIO); `SystemError` (kvik-rs).
    #[doc(alias = "GenericSystemError")]
    #[doc(alias = "SystemError")]
    Io(io::Error),
    /// cuFile or CUDA returned an error.
    ///
    /// Names elsewhere: `CuFileError`, `CudaError` (kvik-rs).
    #[doc(alias = "CuFileError")]
    #[doc(alias = "CudaError")]
    Cufile(Box<cufile::Error>),
    /// A server did not send the bytes of an object.
    Remote(Box<RemoteError>),
    /// The [storage](crate::storage) of the file returned an error or panicked.
    #[non_exhaustive]
    Storage {
        /// The kind of the first [`io::Error`] among the error and its sources, or [`Other`](io::ErrorKind::Other).
        kind: io::ErrorKind,
        /// The error of the storage. For an [`io::Error`] around another error, that other one.
        error: crate::storage::Error,
    },
    /// An argument of the call was not valid.
    Invalid(String),
    /// The file ended within the range.
    EndOfFile {
        /// The end of the file, or of the mapping of it, in bytes.
        at: u64,
    },
    /// The kernel or cuFile returned no bytes before the end of the file, as if the file ended there.
    EndedEarly {
        /// The place from which no bytes came, in bytes from the beginning of the file.
        at: u64,
        /// The length of the file, in bytes.
        end: u64,
    },
    /// cuFile was required and does not work for the file.
    NoCufile(String),
    /// The kernels that put scattered ranges in place on a GPU could not be loaded.
    NoKernels(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Io(error) => error.fmt(f),
            Cause::Cufile(error) => error.fmt(f),
            Cause::Remote(error) => error.fmt(f),
            Cause::Storage { error, .. } => error.fmt(f),
            Cause::EndOfFile { at } => write!(f, "the file ends at byte {at}"),
            Cause::EndedEarly { at, end } => {
                write!(f, "the read ended at byte {at}, although the file has {end} bytes")
            }
            Cause::NoCufile(reason) => write!(f, "cuFile is required, but does not work here: {reason}"),
            Cause::Invalid(problem) | Cause::NoKernels(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Cause::Io(error) => Some(error),
            Cause::Cufile(error) => Some(&**error),
            Cause::Remote(error) => Some(&**error),
            Cause::Storage { error, .. } => Some(&**error),
            _ => None,
        }
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Cause::Io(error)
    }
}

impl Cause {
    pub(crate) fn of_storage(error: crate::storage::Error) -> Self {
        let error = match error.downcast::<RemoteError>() {
            Ok(error) => return Cause::Remote(error),
            Err(error) => error,
        };
        let error = match error.downcast::<Cause>() {
            Ok(cause) => return *cause,
            Err(error) => error,
        };
        match error.downcast::<io::Error>() {
            Ok(error) if error.get_ref().is_none() => Cause::Io(*error),
            Ok(error) => {
                let kind = error.kind();
                let error = error.into_inner().expect("an error around another one");
                Cause::Storage { kind, error }
            }
            Err(error) => Cause::Storage { kind: kind_of(&*error), error },
        }
    }

    /// Returns whether the same operation may succeed later, although nobody changes the file or the call. A server, a
    /// device or a network was busy or did not answer, or libcufile advises to try again. Errors that may have many
    /// reasons, such as `EIO`, are not transient.
    pub fn is_transient(&self) -> bool {
        match self {
            Cause::Io(error) => may_succeed_later(error.kind()),
            Cause::Cufile(error) => match &**error {
                cufile::Error::Io { source, .. } => may_succeed_later(source.kind()),
                cufile::Error::CuFile { code, cuda: None, .. } => LATER.contains(code),
                _ => false,
            },
            Cause::Remote(error) => error.is_transient(),
            Cause::Storage { kind, error } => {
                let mut sources = sources(&**error);
                let inner =
                    sources.find_map(|source| source.downcast_ref::<Error>().map(Error::is_transient));
                inner.unwrap_or_else(|| may_succeed_later(*kind))
            }
            _ => false,
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, Cause::Io(error) if error.raw_os_error() == Some(libc::ECANCELED))
    }
}

/// The codes of cuFile after which the same call may succeed later.
const LATER: [OpError; 6] = [
    OpError::BATCH_FULL,
    OpError::INTERNAL_BATCH_SETUP_ERROR,
    OpError::INTERNAL_BATCH_SUBMIT_ERROR,
    OpError::INTERNAL_BATCH_GETSTATUS_ERROR,
    OpError::INTERNAL_BATCH_CANCEL_ERROR,
    OpError::NOMEM_ERROR,
];

/// Returns the kind of the first error that has one, among an error and its sources.
fn kind_of(error: &(dyn std::error::Error + 'static)) -> io::ErrorKind {
    let kind = |error: &(dyn std::error::Error + 'static)| {
        let of_this_crate = || error.downcast_ref::<Error>().map(Error::kind);
        error.downcast_ref::<io::Error>().map(io::Error::kind).or_else(of_this_crate)
    };
    sources(error).find_map(kind).unwrap_or(io::ErrorKind::Other)
}

fn sources<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

fn may_succeed_later(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        kind,
        Kind::Interrupted
            | Kind::WouldBlock
            | Kind::TimedOut
            | Kind::ResourceBusy
            | Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::NetworkDown
            | Kind::NetworkUnreachable
            | Kind::HostUnreachable
    )
}

/// Returns the usual remedy for an errno whose own text does not suggest it.
fn advice(operation: &str, cause: &Cause) -> String {
    let Cause::Io(error) = cause else { return String::new() };
    match error.raw_os_error() {
        Some(libc::EBADF) => {
            format!(", because the file was opened without {operation} access, or its descriptor was closed")
        }
        Some(libc::ESPIPE) => {
            ", because it is a pipe or a terminal, or on a file system that permits only reads and writes in order, such as \
             rclone without --vfs-cache-mode"
                .to_owned()
        }
        _ => String::new(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Open { path, cause } => write!(f, "cannot open {path:?}: {cause}"),
            Error::Transfer { operation, path, offset, len_bytes, bytes_done, cause } => {
                let advice = advice(operation, cause);
                write!(
                    f,
                    "cannot {operation} {len_bytes} bytes at {offset} of {path:?}: {cause}{advice}; \
                     {bytes_done} bytes were transferred"
                )
            }
            Error::Entry { entry, error } => write!(f, "entry {entry}: {error}"),
            Error::File { operation, path, cause } => write!(f, "cannot {operation} {path:?}: {cause}"),
            Error::Cufile { cause } => cause.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Entry { error, .. } => Some(&**error),
            _ => std::error::Error::source(self.cause()),
        }
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

    /// Returns the reason why the operation failed.
    pub fn cause(&self) -> &Cause {
        match self {
            Error::Open { cause, .. }
            | Error::Transfer { cause, .. }
            | Error::File { cause, .. }
            | Error::Cufile { cause } => cause,
            Error::Entry { error, .. } => error.cause(),
        }
    }

    /// Returns whether the same call may succeed later: see [`Cause::is_transient`].
    ///
    /// ```
    /// use gpufile::File;
    ///
    /// assert!(!File::open("/no/such/file").unwrap_err().is_transient());
    /// ```
    pub fn is_transient(&self) -> bool {
        self.cause().is_transient()
    }

    /// Returns the errno, if the operating system returned one.
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

    /// Returns the kind of an [`io::Error`] with the same cause.
    ///
    /// Names elsewhere: `ErrorStatus`, `Permanent`, `Temporary`, `Persistent`, `is_permanent`, `is_temporary`,
    /// `is_persistent`, `as_str`, `Unexpected`, `NotFound`, `ConfigInvalid`, `Interrupted` (kvik-rs).
    #[doc(alias = "ErrorStatus")]
    #[doc(alias = "Permanent")]
    #[doc(alias = "Temporary")]
    #[doc(alias = "Persistent")]
    #[doc(alias = "is_permanent")]
    #[doc(alias = "is_temporary")]
    #[doc(alias = "is_persistent")]
    #[doc(alias = "as_str")]
    #[doc(alias = "Unexpected")]
    #[doc(alias = "NotFound")]
    #[doc(alias = "ConfigInvalid")]
    #[doc(alias = "Interrupted")]
    pub fn kind(&self) -> io::ErrorKind {
        match self.cause() {
            Cause::Io(error) => error.kind(),
            Cause::Cufile(error) => error.io_kind(),
            Cause::Remote(error) => error.kind(),
            Cause::Storage { kind, .. } => *kind,
            Cause::Invalid(_) => io::ErrorKind::InvalidInput,
            Cause::EndOfFile { .. } => io::ErrorKind::UnexpectedEof,
            Cause::EndedEarly { .. } => io::ErrorKind::Other,
            Cause::NoCufile(_) | Cause::NoKernels(_) => io::ErrorKind::Unsupported,
        }
    }
}

impl From<cufile::Error> for Cause {
    fn from(error: cufile::Error) -> Self {
        Cause::Cufile(Box::new(error))
    }
}

impl From<RemoteError> for Cause {
    fn from(error: RemoteError) -> Self {
        Cause::Remote(Box::new(error))
    }
}

impl From<cufile::Error> for Error {
    fn from(error: cufile::Error) -> Self {
        Error::Cufile { cause: error.into() }
    }
}

impl From<Error> for io::Error {
    /// Keeps an errno; any other error keeps its text under a fitting kind.
    fn from(error: Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(error.kind(), error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_offsets_may_be_the_file_systems_fault() {
        let of = |errno| advice("write", &Cause::Io(io::Error::from_raw_os_error(errno)));
        assert!(of(libc::ESPIPE).contains("on a file system that permits only"), "{}", of(libc::ESPIPE));
        assert!(of(libc::EBADF).contains("without write access") && of(libc::EIO).is_empty());
    }
}
