//! Errors, and the one place where results of C calls are decoded.

use std::borrow::Cow;
use std::{fmt, io};

use cuda_rt_sys::driver::CUresult;
use cuda_rt_sys::runtime::cudaError_t;
use cufile_sys::{CUfileError_t, CUfileOpError};

pub use cufile_sys::LoadError;

use crate::version::Version;

/// The result of a call into cuFile or CUDA.
///
/// Names elsewhere: `CU_FILE_SUCCESS`, `CU_FILE_OP_SUCCESS` (C).
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call, with the error of libcufile, CUDA or the operating system.
///
/// Its text includes that of the cause, so [`source`](std::error::Error::source) returns none. It quotes paths and
/// escapes their control characters.
///
/// Names elsewhere: `CUfileError_t`, `CUfileError` (C); `CUfileException` (KvikIO). In Python, `check_status` raises
/// `cuFileError`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libcufile refused or failed an operation with one of cuFile's codes.
    #[error("{operation}: {code}{}{}", Cuda(*.cuda), Remedy(.code.remedy(), .advice.as_deref()))]
    #[non_exhaustive]
    CuFile {
        /// The C function and, where it helps, the file or buffer.
        operation: Cow<'static, str>,
        /// cuFile's code.
        code: OpError,
        /// The CUDA error behind it, if libcufile returned one.
        cuda: Option<CUresult>,
        /// The known facts about the file or buffer that explain the code.
        advice: Option<Box<str>>,
    },
    /// The operating system failed a transfer or a call on a file.
    #[error("{operation}: {source}")]
    #[non_exhaustive]
    Io {
        /// The failed call and, where it helps, the file.
        operation: Cow<'static, str>,
        /// The errno, which is also the [`source`](std::error::Error::source) of the error.
        source: io::Error,
    },
    /// A call of the CUDA runtime failed.
    #[error("{operation}: {code:?} ({}){}", .code.as_raw(), Remedy(runtime_remedy(*.code), None))]
    #[non_exhaustive]
    CudaRuntime {
        /// The C function and, where it helps, its arguments.
        operation: Cow<'static, str>,
        /// CUDA's code.
        code: cudaError_t,
    },
    /// A call of the CUDA driver failed.
    #[error("{operation}: {code:?} ({})", .code.as_raw())]
    #[non_exhaustive]
    CudaDriver {
        /// The C function and, where it helps, its arguments.
        operation: Cow<'static, str>,
        /// CUDA's code.
        code: CUresult,
    },
    /// A transfer failed and the library gave no code.
    #[error("{operation}: the transfer failed; libcufile gave no code (see its log file)")]
    #[non_exhaustive]
    Unspecified {
        /// The C function and, where it helps, the file.
        operation: Cow<'static, str>,
    },
    /// A shared library could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// CUDA works, but this machine has no device, or `CUDA_VISIBLE_DEVICES` hides them all.
    #[error("no CUDA device is visible (is CUDA_VISIBLE_DEVICES empty?)")]
    NoDevice,
    /// The loaded libcufile is older than the call.
    #[error("{symbol} needs cuFile {since} or newer; the loaded libcufile is {loaded}")]
    #[non_exhaustive]
    Unsupported {
        /// The missing C function.
        symbol: &'static str,
        /// The version that brought it.
        since: Version,
        /// The loaded version.
        loaded: Version,
    },
    /// An argument that would make the call unsound or that libcufile would misread.
    #[error("{operation}: {problem}")]
    #[non_exhaustive]
    InvalidInput {
        /// The call that was not made.
        operation: &'static str,
        /// The problem with the argument.
        problem: Cow<'static, str>,
    },
    /// An object cannot be closed, because it is still in use.
    #[error("{what} is still in use ({users} other references)")]
    #[non_exhaustive]
    InUse {
        /// The object that was to be closed.
        what: &'static str,
        /// The number of other references.
        users: usize,
    },
    /// The process is a fork of one that used CUDA or cuFile, where neither works.
    #[error(
        "CUDA or cuFile was used before fork(), and neither works in the child (fork earlier, or call exec)"
    )]
    Forked,
}

/// Broad classes of [`Error`], for programs that act on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A shared library is missing or unusable.
    NotAvailable,
    /// There is no GPU.
    NoDevice,
    /// The loaded libcufile, the file system or the platform does not support the call.
    Unsupported,
    /// An argument, range or state is wrong.
    InvalidInput,
    /// Access is denied, or the file was opened without it.
    PermissionDenied,
    /// Memory, pinned memory or queue space ran out.
    OutOfMemory,
    /// Something is already registered, open or in use.
    Busy,
    /// CUDA failed.
    Cuda,
    /// The transfer itself failed.
    Io,
    /// A forked child.
    Forked,
    /// Anything else.
    Other,
}

impl Error {
    /// Returns the class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::CuFile { cuda: Some(code), .. } | Error::CudaDriver { code, .. } => match *code {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
                CUresult::CUDA_ERROR_NO_DEVICE => ErrorKind::NoDevice,
                _ => ErrorKind::Cuda,
            },
            Error::CuFile { code, .. } => code.kind(),
            Error::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                io::ErrorKind::InvalidInput => ErrorKind::InvalidInput,
                io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
                io::ErrorKind::Unsupported => ErrorKind::Unsupported,
                _ => ErrorKind::Io,
            },
            Error::CudaRuntime { code, .. } => match *code {
                cudaError_t::cudaErrorMemoryAllocation => ErrorKind::OutOfMemory,
                cudaError_t::cudaErrorNoDevice | cudaError_t::cudaErrorInsufficientDriver => {
                    ErrorKind::NoDevice
                }
                _ => ErrorKind::Cuda,
            },
            Error::Unspecified { .. } => ErrorKind::Io,
            Error::Load(LoadError::Unsupported { .. }) => ErrorKind::Unsupported,
            Error::Load(_) => ErrorKind::NotAvailable,
            Error::NoDevice => ErrorKind::NoDevice,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            Error::InvalidInput { .. } => ErrorKind::InvalidInput,
            Error::InUse { .. } => ErrorKind::Busy,
            Error::Forked => ErrorKind::Forked,
        }
    }

    /// Returns the number that C returned: a cuFile code above 5000, an errno, a `cudaError_t` or a `CUresult`,
    /// as the variant says.
    pub fn raw_code(&self) -> Option<i32> {
        match self {
            Error::CuFile { code, .. } => Some(code.as_raw()),
            Error::Io { source, .. } => source.raw_os_error(),
            Error::CudaRuntime { code, .. } => Some(code.as_raw() as i32),
            Error::CudaDriver { code, .. } => Some(code.as_raw() as i32),
            _ => None,
        }
    }

    /// Returns the kind of the [`io::Error`] that this one converts into.
    pub fn io_kind(&self) -> io::ErrorKind {
        match self.kind() {
            ErrorKind::NotAvailable | ErrorKind::NoDevice => io::ErrorKind::NotFound,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
            ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
            ErrorKind::Busy => io::ErrorKind::ResourceBusy,
            _ => match self {
                Error::Io { source, .. } => source.kind(),
                _ => io::ErrorKind::Other,
            },
        }
    }

    /// Returns cuFile's code, if the error has one (`IS_CUFILE_ERR`).
    #[doc(alias = "IS_CUFILE_ERR")]
    pub fn op_error(&self) -> Option<OpError> {
        match self {
            Error::CuFile { code, .. } => Some(*code),
            _ => None,
        }
    }

    pub(crate) fn about(mut self, subject: &dyn fmt::Display) -> Self {
        if let Error::CuFile { operation, .. }
        | Error::Io { operation, .. }
        | Error::CudaRuntime { operation, .. }
        | Error::CudaDriver { operation, .. }
        | Error::Unspecified { operation } = &mut self
        {
            *operation = format!("{operation}({subject})").into();
        }
        self
    }

    pub(crate) fn advise(mut self, text: String) -> Self {
        if let Error::CuFile { advice, .. } = &mut self {
            *advice = (!text.is_empty()).then(|| text.into());
        }
        self
    }

    pub(crate) fn invalid(operation: &'static str, problem: impl Into<Cow<'static, str>>) -> Self {
        Error::InvalidInput { operation, problem: problem.into() }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::Io { operation: Cow::Borrowed("I/O"), source: error }
    }
}

impl From<Error> for io::Error {
    /// Keeps an errno; any other error keeps its text under a fitting kind.
    fn from(error: Error) -> Self {
        let kind = error.io_kind();
        match error {
            Error::Io { source, .. } if source.raw_os_error().is_some() => source,
            other => io::Error::new(kind, other),
        }
    }
}

pub(crate) enum Raw {
    /// The status of a call.
    Status(CUfileError_t),
    /// The return value of a transfer of at most `asked` bytes, and errno right after it. errno counts only if the
    /// value is −1 (it was 0 before the call).
    Transfer { count: isize, asked: usize, errno: i32 },
    /// The byte count of a stream-ordered or batch operation of at most `asked` bytes, for which there is no errno.
    Completion { count: isize, asked: usize },
}

/// Returns the byte count, at most the number asked for; 0 for a status.
pub(crate) fn decode(operation: &'static str, raw: Raw) -> Result<usize> {
    let number = match raw {
        Raw::Status(status) if status.err == CUfileOpError::CU_FILE_SUCCESS => return Ok(0),
        Raw::Transfer { count, asked, .. } | Raw::Completion { count, asked } if count >= 0 => {
            return match count as usize {
                count if count <= asked => Ok(count),
                // Such a count does not tell how many bytes were moved.
                count => Err(Error::Io {
                    operation: format!("{count} bytes of at most {asked} from {operation}").into(),
                    source: io::Error::from_raw_os_error(libc::EIO),
                }),
            };
        }
        Raw::Status(status) => {
            let code = OpError(status.err.as_raw() as i32).positive();
            let cuda = (code == OpError::CUDA_DRIVER_ERROR).then_some(status.cu_err);
            return Err(Error::CuFile { operation: operation.into(), code, cuda, advice: None });
        }
        Raw::Transfer { count: -1, errno: 0, .. } | Raw::Completion { count: -1, .. } => {
            return Err(Error::Unspecified { operation: operation.into() });
        }
        Raw::Transfer { count: -1, errno, .. } => i64::from(errno),
        // isize::MIN has no positive counterpart; it saturates into an unknown code.
        Raw::Transfer { count, .. } | Raw::Completion { count, .. } => (count as i64).saturating_neg(),
    };
    let number = i32::try_from(number).unwrap_or(i32::MAX);
    if cufile_sys::IS_CUFILE_ERR(number) {
        Err(Error::CuFile { operation: operation.into(), code: OpError(number), cuda: None, advice: None })
    } else {
        Err(Error::Io { operation: operation.into(), source: io::Error::from_raw_os_error(number) })
    }
}

pub(crate) fn check(operation: &'static str, status: CUfileError_t) -> Result<()> {
    decode(operation, Raw::Status(status)).map(drop)
}

pub(crate) fn check_runtime(operation: &'static str, code: cudaError_t) -> Result<()> {
    if code == cudaError_t::cudaSuccess {
        Ok(())
    } else {
        Err(Error::CudaRuntime { operation: operation.into(), code })
    }
}

pub(crate) fn check_driver(operation: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        Ok(())
    } else {
        Err(Error::CudaDriver { operation: operation.into(), code })
    }
}

fn runtime_remedy(code: cudaError_t) -> Option<&'static str> {
    match code {
        cudaError_t::cudaErrorMemoryAllocation => Some("free memory, or allocate less"),
        cudaError_t::cudaErrorInsufficientDriver => {
            Some("update the display driver, or set CUDART_LIBRARY to an older libcudart")
        }
        _ => None,
    }
}

struct Cuda(Option<CUresult>);

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(code) => write!(f, ", {code:?} ({})", code.as_raw()),
            None => Ok(()),
        }
    }
}

struct Remedy<'a>(Option<&'static str>, Option<&'a str>);

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Advice about this very file beats the usual remedy.
        match self.1.or(self.0) {
            Some(text) => write!(f, "; {text}"),
            None => Ok(()),
        }
    }
}

/// A code of cuFile (`CUfileOpError`). Any number is valid: newer libraries may return others.
///
/// [`Error::CuFile`] says more about a failed call. A code can be the source of another error, or convert into a
/// `Box<dyn Error>` with `?`.
///
/// Names elsewhere: `CUFILEOP_BASE_ERR`, `CU_FILE_IO_MAX_ERROR` (C).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpError(i32);

macro_rules! op_errors {
    ($($name:ident = $c_name:ident [$($alias:literal),+], $kind:ident, $remedy:expr;)*) => {
        impl OpError {
            $(
                #[doc = concat!("`", stringify!($c_name), "`")]
                $(#[doc(alias = $alias)])+
                pub const $name: Self = Self(CUfileOpError::$c_name.as_raw() as i32);
            )*

            #[cfg(test)]
            const ALL: &[(Self, &[&str])] = &[$((Self::$name, &[$($alias),+])),*];

            fn kind(self) -> ErrorKind {
                match self { $(Self::$name => ErrorKind::$kind,)* _ => ErrorKind::Other }
            }

            /// Returns the usual remedy.
            pub fn remedy(self) -> Option<&'static str> {
                match self { $(Self::$name => $remedy,)* _ => None }
            }
        }
    };
}

op_errors! {
    DRIVER_NOT_INITIALIZED = CU_FILE_DRIVER_NOT_INITIALIZED ["CU_FILE_DRIVER_NOT_INITIALIZED"], InvalidInput,
        Some("open the driver first; without nvidia-fs, allow the compatibility mode in cufile.json");
    DRIVER_INVALID_PROPS = CU_FILE_DRIVER_INVALID_PROPS ["CU_FILE_DRIVER_INVALID_PROPS"], InvalidInput, Some("check cufile.json");
    DRIVER_UNSUPPORTED_LIMIT = CU_FILE_DRIVER_UNSUPPORTED_LIMIT ["CU_FILE_DRIVER_UNSUPPORTED_LIMIT"], InvalidInput, Some("ask for the parameter's limits");
    DRIVER_VERSION_MISMATCH = CU_FILE_DRIVER_VERSION_MISMATCH ["CU_FILE_DRIVER_VERSION_MISMATCH"], Unsupported,
        Some("install the nvidia-fs module of the same CUDA release");
    DRIVER_VERSION_READ_ERROR = CU_FILE_DRIVER_VERSION_READ_ERROR ["CU_FILE_DRIVER_VERSION_READ_ERROR"], Unsupported, Some("load the nvidia-fs module");
    DRIVER_CLOSING = CU_FILE_DRIVER_CLOSING ["CU_FILE_DRIVER_CLOSING"], Busy, None;
    PLATFORM_NOT_SUPPORTED = CU_FILE_PLATFORM_NOT_SUPPORTED ["CU_FILE_PLATFORM_NOT_SUPPORTED"], Unsupported, None;
    IO_NOT_SUPPORTED = CU_FILE_IO_NOT_SUPPORTED ["CU_FILE_IO_NOT_SUPPORTED"], Unsupported, Some("allow the compatibility mode in cufile.json");
    DEVICE_NOT_SUPPORTED = CU_FILE_DEVICE_NOT_SUPPORTED ["CU_FILE_DEVICE_NOT_SUPPORTED"], Unsupported,
        Some("allow the compatibility mode in cufile.json");
    NVFS_DRIVER_ERROR = CU_FILE_NVFS_DRIVER_ERROR ["CU_FILE_NVFS_DRIVER_ERROR"], Other, Some("see the kernel log for nvidia-fs");
    CUDA_DRIVER_ERROR = CU_FILE_CUDA_DRIVER_ERROR ["CU_FILE_CUDA_DRIVER_ERROR"], Cuda, None;
    CUDA_POINTER_INVALID = CU_FILE_CUDA_POINTER_INVALID ["CU_FILE_CUDA_POINTER_INVALID", "CU_FILE_OP_MEMORY_INVALID"], InvalidInput, None;
    CUDA_MEMORY_TYPE_INVALID = CU_FILE_CUDA_MEMORY_TYPE_INVALID ["CU_FILE_CUDA_MEMORY_TYPE_INVALID", "CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED"], InvalidInput,
        Some("managed memory cannot be registered, but can be used unregistered");
    CUDA_POINTER_RANGE_ERROR = CU_FILE_CUDA_POINTER_RANGE_ERROR ["CU_FILE_CUDA_POINTER_RANGE_ERROR"], InvalidInput, None;
    CUDA_CONTEXT_MISMATCH = CU_FILE_CUDA_CONTEXT_MISMATCH ["CU_FILE_CUDA_CONTEXT_MISMATCH"], InvalidInput,
        Some("make the buffer's CUDA context current on the calling thread");
    INVALID_MAPPING_SIZE = CU_FILE_INVALID_MAPPING_SIZE ["CU_FILE_INVALID_MAPPING_SIZE"], InvalidInput, None;
    INVALID_MAPPING_RANGE = CU_FILE_INVALID_MAPPING_RANGE ["CU_FILE_INVALID_MAPPING_RANGE"], InvalidInput, None;
    INVALID_FILE_TYPE = CU_FILE_INVALID_FILE_TYPE ["CU_FILE_INVALID_FILE_TYPE"], Unsupported, Some("only regular files can be used");
    INVALID_FILE_OPEN_FLAG = CU_FILE_INVALID_FILE_OPEN_FLAG ["CU_FILE_INVALID_FILE_OPEN_FLAG"], PermissionDenied,
        Some("open the file for this direction, without O_APPEND, O_NONBLOCK and O_NOFOLLOW");
    DIO_NOT_SET = CU_FILE_DIO_NOT_SET ["CU_FILE_DIO_NOT_SET"], InvalidInput, Some("open the file with O_DIRECT");
    INVALID_VALUE = CU_FILE_INVALID_VALUE ["CU_FILE_INVALID_VALUE", "CU_FILE_OP_INVALID_ARG"], InvalidInput, None;
    MEMORY_ALREADY_REGISTERED = CU_FILE_MEMORY_ALREADY_REGISTERED ["CU_FILE_MEMORY_ALREADY_REGISTERED"], Busy, None;
    MEMORY_NOT_REGISTERED = CU_FILE_MEMORY_NOT_REGISTERED ["CU_FILE_MEMORY_NOT_REGISTERED"], InvalidInput, None;
    PERMISSION_DENIED = CU_FILE_PERMISSION_DENIED ["CU_FILE_PERMISSION_DENIED"], PermissionDenied, None;
    DRIVER_ALREADY_OPEN = CU_FILE_DRIVER_ALREADY_OPEN ["CU_FILE_DRIVER_ALREADY_OPEN"], Busy, Some("set parameters before the driver is opened");
    HANDLE_NOT_REGISTERED = CU_FILE_HANDLE_NOT_REGISTERED ["CU_FILE_HANDLE_NOT_REGISTERED", "CU_FILE_INVALID_HANDLE", "CU_FILE_FILE_SYSTEM_NOT_SUPPORTED"], Unsupported,
        Some("the file system may be unsupported, or its block device have no udev record");
    HANDLE_ALREADY_REGISTERED = CU_FILE_HANDLE_ALREADY_REGISTERED ["CU_FILE_HANDLE_ALREADY_REGISTERED"], Busy, Some("duplicate the file descriptor");
    DEVICE_NOT_FOUND = CU_FILE_DEVICE_NOT_FOUND ["CU_FILE_DEVICE_NOT_FOUND"], NoDevice, None;
    INTERNAL_ERROR = CU_FILE_INTERNAL_ERROR ["CU_FILE_INTERNAL_ERROR"], Other, Some("see libcufile's log file");
    GETNEWFD_FAILED = CU_FILE_GETNEWFD_FAILED ["CU_FILE_GETNEWFD_FAILED"], OutOfMemory, Some("raise the limit of open files");
    NVFS_SETUP_ERROR = CU_FILE_NVFS_SETUP_ERROR ["CU_FILE_NVFS_SETUP_ERROR"], Unsupported, Some("load the nvidia-fs module");
    IO_DISABLED = CU_FILE_IO_DISABLED ["CU_FILE_IO_DISABLED"], Unsupported, Some("check the deny list of cufile.json");
    BATCH_SUBMIT_FAILED = CU_FILE_BATCH_SUBMIT_FAILED ["CU_FILE_BATCH_SUBMIT_FAILED"], Io, None;
    GPU_MEMORY_PINNING_FAILED = CU_FILE_GPU_MEMORY_PINNING_FAILED ["CU_FILE_GPU_MEMORY_PINNING_FAILED"], OutOfMemory,
        Some("raise max_device_pinned_mem_size_kb, or register less");
    BATCH_FULL = CU_FILE_BATCH_FULL ["CU_FILE_BATCH_FULL"], Busy, Some("reap completions first");
    ASYNC_NOT_SUPPORTED = CU_FILE_ASYNC_NOT_SUPPORTED ["CU_FILE_ASYNC_NOT_SUPPORTED"], Unsupported, None;
    INTERNAL_BATCH_SETUP_ERROR = CU_FILE_INTERNAL_BATCH_SETUP_ERROR ["CU_FILE_INTERNAL_BATCH_SETUP_ERROR"], Busy, Some("try again later");
    INTERNAL_BATCH_SUBMIT_ERROR = CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR ["CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR"], Busy, Some("try again later");
    INTERNAL_BATCH_GETSTATUS_ERROR = CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR ["CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR"], Busy, Some("try again later");
    INTERNAL_BATCH_CANCEL_ERROR = CU_FILE_INTERNAL_BATCH_CANCEL_ERROR ["CU_FILE_INTERNAL_BATCH_CANCEL_ERROR"], Busy, Some("try again later");
    NOMEM_ERROR = CU_FILE_NOMEM_ERROR ["CU_FILE_NOMEM_ERROR"], OutOfMemory, Some("try again later");
    IO_ERROR = CU_FILE_IO_ERROR ["CU_FILE_IO_ERROR", "CU_FILE_OP_FAILED", "CU_FILE_OP_IO_FAILED"], Io, None;
    INTERNAL_BUF_REGISTER_ERROR = CU_FILE_INTERNAL_BUF_REGISTER_ERROR ["CU_FILE_INTERNAL_BUF_REGISTER_ERROR"], Other, None;
    HASH_OPR_ERROR = CU_FILE_HASH_OPR_ERROR ["CU_FILE_HASH_OPR_ERROR"], Other, None;
    INVALID_CONTEXT_ERROR = CU_FILE_INVALID_CONTEXT_ERROR ["CU_FILE_INVALID_CONTEXT_ERROR"], Cuda,
        Some("make the buffer's CUDA context current on the calling thread");
    NVFS_INTERNAL_DRIVER_ERROR = CU_FILE_NVFS_INTERNAL_DRIVER_ERROR ["CU_FILE_NVFS_INTERNAL_DRIVER_ERROR"], Other, Some("see the kernel log for nvidia-fs");
    BATCH_NOCOMPAT_ERROR = CU_FILE_BATCH_NOCOMPAT_ERROR ["CU_FILE_BATCH_NOCOMPAT_ERROR"], Unsupported,
        Some("allow the compatibility mode in cufile.json");
}

impl OpError {
    /// Any number is valid.
    pub const fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// Returns the number, positive, as `CUfileOpError` has it.
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// Returns the C name, if this version of the crate knows it.
    pub const fn name(self) -> Option<&'static str> {
        CUfileOpError::from_raw(self.0 as u32).name()
    }

    /// Returns the meaning of the code, in one sentence.
    ///
    /// Names elsewhere: `CUFILE_ERRSTR`, `cufileop_status_error` (C).
    #[doc(alias = "CUFILE_ERRSTR")]
    #[doc(alias = "cufileop_status_error")]
    pub const fn sentence(self) -> &'static str {
        CUfileOpError::from_raw(self.0 as u32).sentence()
    }

    fn positive(self) -> Self {
        Self(self.0.checked_abs().unwrap_or(i32::MAX))
    }
}

impl fmt::Debug for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}({})", self.0),
            None => write!(f, "OpError({})", self.0),
        }
    }
}

impl std::error::Error for OpError {}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({}), {}", self.0, self.sentence()),
            None => write!(f, "code {}, {}", self.0, self.sentence()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(err: u32, cu_err: u32) -> Raw {
        Raw::Status(CUfileError_t { err: CUfileOpError::from_raw(err), cu_err: CUresult::from_raw(cu_err) })
    }

    fn transfer(count: isize, errno: i32) -> Raw {
        Raw::Transfer { count, asked: 4096, errno }
    }

    fn completion(count: isize) -> Raw {
        Raw::Completion { count, asked: 4096 }
    }

    fn code(raw: Raw) -> (Option<OpError>, Option<i32>) {
        let error = decode("cuFileRead", raw).unwrap_err();
        (error.op_error(), error.raw_code())
    }

    #[test]
    fn counts_and_success_ignore_errno() {
        assert_eq!(decode("cuFileRead", transfer(4096, 25)).unwrap(), 4096);
        assert_eq!(decode("cuFileRead", transfer(0, 25)).unwrap(), 0);
        assert_eq!(decode("cuFileReadAsync", completion(7)).unwrap(), 7);
        assert_eq!(decode("cuFileDriverOpen", status(0, 3)).unwrap(), 0);
    }

    #[test]
    fn counts_beyond_what_was_asked_for_are_errors() {
        for raw in [transfer(4097, 0), transfer(isize::MAX, 25), completion(4097), completion(isize::MAX)] {
            let error = decode("cuFileRead", raw).unwrap_err();
            assert_eq!((error.raw_code(), error.kind()), (Some(libc::EIO), ErrorKind::Io));
            assert!(error.to_string().contains("bytes of at most 4096 from cuFileRead: "), "{error}");
        }
        assert_eq!(decode("cuFileRead", completion(4096)).unwrap(), 4096);
    }

    #[test]
    fn minus_one_takes_the_code_from_errno() {
        assert_eq!(code(transfer(-1, 5019)), (Some(OpError::INVALID_FILE_OPEN_FLAG), Some(5019)));
        assert_eq!(code(transfer(-1, 22)), (None, Some(22)));
        assert_eq!(code(transfer(-1, 5)), (None, Some(5)));
    }

    #[test]
    fn other_negative_values_are_negated_codes() {
        assert_eq!(code(transfer(-5016, 9)), (Some(OpError::INVALID_MAPPING_SIZE), Some(5016)));
        assert_eq!(code(completion(-5016)), (Some(OpError::INVALID_MAPPING_SIZE), Some(5016)));
        assert_eq!(code(completion(-22)), (None, Some(22)));
        assert_eq!(code(completion(isize::MIN)), (Some(OpError(i32::MAX)), Some(i32::MAX)));
        for raw in [completion(-1), transfer(-1, 0)] {
            let unspecified = decode("cuFileReadAsync", raw).unwrap_err();
            assert!(matches!(unspecified, Error::Unspecified { .. }));
        }
    }

    #[test]
    fn unknown_codes_are_kept() {
        assert_eq!(code(status(5777, 0)), (Some(OpError(5777)), Some(5777)));
        assert_eq!(code(status((-5022i32) as u32, 0)), (Some(OpError::INVALID_VALUE), Some(5022)));
    }

    #[test]
    fn a_cuda_error_shows_its_name() {
        let error = decode("cuFileDriverOpen", status(5011, 100)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("CU_FILE_CUDA_DRIVER_ERROR (5011)"), "{text}");
        assert!(text.contains("CUDA_ERROR_NO_DEVICE (100)"), "{text}");
    }

    #[test]
    fn cuda_errors_in_a_status_keep_their_kind() {
        use io::ErrorKind as Io;
        let kinds = [
            (2, ErrorKind::OutOfMemory, Io::OutOfMemory),
            (100, ErrorKind::NoDevice, Io::NotFound),
            (3, ErrorKind::Cuda, Io::Other),
            (0, ErrorKind::Cuda, Io::Other),
        ];
        for (cuda, kind, io_kind) in kinds {
            let error = decode("cuFileDriverOpen", status(5011, cuda)).unwrap_err();
            assert_eq!((error.kind(), error.io_kind()), (kind, io_kind), "{error}");
        }
    }

    #[test]
    fn conversion_to_io_error_keeps_errno() {
        let error = decode("cuFileWrite", transfer(-1, libc::ENOSPC)).unwrap_err();
        assert_eq!(io::Error::from(error).raw_os_error(), Some(libc::ENOSPC));
        let error = decode("cuFileWrite", transfer(-1, 5019)).unwrap_err();
        let error = io::Error::from(error);
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("CU_FILE_INVALID_FILE_OPEN_FLAG"));
        let operation = Cow::Borrowed("cuFileBufRegister");
        let without_errno = Error::Io { operation, source: io::ErrorKind::UnexpectedEof.into() };
        let error = io::Error::from(without_errno);
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("cuFileBufRegister"), "{error}");
    }

    #[test]
    fn only_errors_of_the_system_have_a_source() {
        let operation = || Cow::Borrowed("call");
        let io = || io::Error::from_raw_os_error(libc::EIO);
        let version = Version::from_raw(1110);
        let load = LoadError::NotFound { library: "lib", variable: "LIB", attempts: Vec::new() };
        let errors = [
            decode("cuFileDriverOpen", status(5011, 100)).unwrap_err(),
            Error::CudaRuntime { operation: operation(), code: cudaError_t::cudaErrorMemoryAllocation },
            Error::CudaDriver { operation: operation(), code: CUresult::CUDA_ERROR_NO_DEVICE },
            Error::Unspecified { operation: operation() },
            Error::Load(load),
            Error::NoDevice,
            Error::Unsupported { symbol: "call", since: version, loaded: version },
            Error::invalid("call", "problem"),
            Error::InUse { what: "it", users: 1 },
            Error::Forked,
        ];
        for error in errors {
            assert!(std::error::Error::source(&error).is_none(), "{error:?}");
        }
        let error = Error::Io { operation: operation(), source: io() };
        assert_eq!(error.to_string(), format!("call: {}", io()));
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.and_then(io::Error::raw_os_error), Some(libc::EIO));
    }

    #[test]
    fn error_advises_to_update_a_too_old_driver() {
        let text = |code| check_runtime("cudaMalloc", code).unwrap_err().to_string();
        let old = text(cudaError_t::cudaErrorInsufficientDriver);
        assert!(
            old.ends_with("update the display driver, or set CUDART_LIBRARY to an older libcudart"),
            "{old}"
        );
        assert!(text(cudaError_t::cudaErrorInvalidValue).ends_with("cudaErrorInvalidValue (1)"));
    }

    #[test]
    fn a_code_is_an_error_with_one_text() {
        fn fails(code: OpError) -> std::result::Result<(), Box<dyn std::error::Error>> {
            Err(code)?
        }
        let error = fails(OpError::INVALID_VALUE).unwrap_err();
        assert_eq!(error.to_string(), "CU_FILE_INVALID_VALUE (5022), an argument is invalid");
        assert!(error.source().is_none());
        assert_eq!(error.downcast_ref(), Some(&OpError::INVALID_VALUE));
    }

    #[test]
    fn every_code_has_a_constant() {
        let named = (1..7000).map(OpError::from_raw).filter(|code| code.name().is_some());
        let missing: Vec<_> =
            named.filter(|code| OpError::ALL.iter().all(|known| known.0 != *code)).collect();
        for (code, aliases) in OpError::ALL {
            assert_eq!(
                aliases.first().copied(),
                code.name(),
                "a search for the C name does not find {code:?}"
            );
        }
        // The end marker is not an error.
        assert_eq!(missing, [OpError(CUfileOpError::CU_FILE_IO_MAX_ERROR.as_raw() as i32)]);
    }
}
