//! Parameters: libcufile's settings, made before its driver opens.
//!
//! They apply to the whole process, and override the environment, which overrides `cufile.json`. The last value of a
//! parameter counts. The driver reads them when it opens, so use [`DriverBuilder::set`](crate::DriverBuilder::set) to
//! set them. [`Library::params`] reads them, and sets them for other code that opens the driver.
//!
//! ```no_run
//! use cufile::params::{Bytes, Param};
//! use cufile::{Driver, Library};
//!
//! println!("{:?}", Library::load()?.params().limits(Param::MAX_DIRECT_IO_SIZE)?);
//! let driver = Driver::builder()
//!     .set(Param::MAX_DIRECT_IO_SIZE, Bytes(8 << 20))
//!     .set(Param::ALLOW_COMPAT_MODE, true)
//!     .open()?;
//! assert_eq!(driver.library().params().get(Param::MAX_DIRECT_IO_SIZE)?, Bytes(8 << 20));
//! # Ok::<(), cufile::Error>(())
//! ```

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::iter;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::time::Duration;

use cufile_sys::{
    CUFileArrayConfigParameter_t as Slabs, CUFileBoolConfigParameter_t as Bool,
    CUFileSizeTConfigParameter_t as SizeT, CUFileStringConfigParameter_t as Text, CUfileError_t,
};

use crate::cuda::Cuda;
use crate::error::{Error, OpError, Result, check};
use crate::library::{Library, newer, one_at_a_time};
use crate::opened;
use crate::version::Version;

/// A parameter and the type of its value: [`Bytes`], `u64` for a number of things, [`Duration`], `bool`, `String` or, for a pool
/// of buffers, a vector of [`Slab`]s.
///
/// Names elsewhere: `CUFileSizeTConfigParameter_t`, `CUFileBoolConfigParameter_t`, `CUFileStringConfigParameter_t`,
/// `CUFileArrayConfigParameter_t` (C); `SizeTConfigParameter`, `BoolConfigParameter`, `StringConfigParameter`,
/// `ArrayConfigParameter` (Python).
#[doc(alias = "CUFileSizeTConfigParameter_t")]
#[doc(alias = "CUFileBoolConfigParameter_t")]
#[doc(alias = "CUFileStringConfigParameter_t")]
#[doc(alias = "CUFileArrayConfigParameter_t")]
#[doc(alias = "SizeTConfigParameter")]
#[doc(alias = "BoolConfigParameter")]
#[doc(alias = "StringConfigParameter")]
#[doc(alias = "ArrayConfigParameter")]
pub struct Param<T> {
    raw: u32,
    name: &'static str,
    since: Version,
    value: PhantomData<fn() -> T>,
}

/// A size in bytes. libcufile counts these parameters in KiB, so only multiples of 1024 can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// The buffers of one size in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slab {
    /// The size of one buffer in bytes, a multiple of 1024.
    pub size_bytes: u64,
    /// The number of buffers.
    pub count: u64,
}

macro_rules! parameters {
    ($($value:ty = $kind:ident { $($(#[$attribute:meta])* $name:ident = $c_name:ident, $since:literal;)* })*) => {
        $(impl Param<$value> {
            $($(#[$attribute])*
            pub const $name: Self = Self {
                raw: $kind::$c_name.as_raw(),
                name: stringify!($c_name),
                since: Version::from_raw($since),
                value: PhantomData,
            };)*
        })*

        #[cfg(test)]
        const ALL: &[(&str, u32, &str)] =
            &[$($((stringify!($kind), $kind::$c_name.as_raw(), stringify!($c_name))),*),*];
    };
}

// Each group is of one type, and `Kind::C_NAME, RELEASE` gives number and first release. The functions for slabs name their
// release themselves.
parameters! {
    u64 = SizeT {
        /// Level of the statistics, 0 to 3; above 0 the driver counts from its opening on. libcufile has no limits
        /// for it.
        ///
        /// Names elsewhere: `CUFILE_PARAM_PROFILE_STATS` (C).
        #[doc(alias = "CUFILE_PARAM_PROFILE_STATS")]
        STATS_LEVEL = CUFILE_PARAM_PROFILE_STATS, 1140;
        /// The number of parts of transfers that may wait for libcufile's threads.
        ///
        /// Names elsewhere: `CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH` (C).
        #[doc(alias = "CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH")]
        MAX_IO_QUEUE_DEPTH = CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH, 1140;
        /// The number of libcufile's threads for transfers of each GPU (`CUFILE_PARAM_EXECUTION_MAX_IO_THREADS`).
        #[doc(alias = "CUFILE_PARAM_EXECUTION_MAX_IO_THREADS")]
        MAX_IO_THREADS = CUFILE_PARAM_EXECUTION_MAX_IO_THREADS, 1140;
        /// The most parts of a split transfer (`CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM`).
        #[doc(alias = "CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM")]
        MAX_REQUEST_PARALLELISM = CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM, 1140;
        /// The most entries that a batch may have (`CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE`).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE")]
        MAX_BATCH_ENTRIES = CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 1140;
    }
    Bytes = SizeT {
        /// The length above which libcufile splits a transfer among its threads.
        ///
        /// Names elsewhere: `CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB` (C).
        #[doc(alias = "CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB")]
        MIN_IO_THRESHOLD = CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB, 1140;
        /// The longest part of a direct transfer, a multiple of 64 KiB; libcufile splits longer ones. A batch entry
        /// moves no more.
        ///
        /// Names elsewhere: `CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB` (C).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB")]
        MAX_DIRECT_IO_SIZE = CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, 1140;
        /// GPU memory for libcufile's bounce buffers, for each GPU.
        ///
        /// Names elsewhere: `CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB` (C).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB")]
        MAX_DEVICE_CACHE_SIZE = CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, 1140;
        /// The size of one bounce buffer in GPU memory (`CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB`).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB")]
        PER_BUFFER_CACHE_SIZE = CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB, 1140;
        /// GPU memory that registered buffers may pin (`CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB`).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB")]
        MAX_DEVICE_PINNED_MEMORY = CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, 1140;
        /// In polling mode, the longest transfer that libcufile polls for; a multiple of 4 KiB.
        ///
        /// Names elsewhere: `CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB` (C).
        #[doc(alias = "CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB")]
        POLL_THRESHOLD = CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, 1140;
    }
    Duration = SizeT {
        /// The time that a batch waits for its transfers, in whole milliseconds.
        ///
        /// Names elsewhere: `CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS` (C).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS")]
        BATCH_TIMEOUT = CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS, 1140;
    }
    bool = Bool {
        /// Poll for short transfers instead of sleeping (`CUFILE_PARAM_PROPERTIES_USE_POLL_MODE`).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_USE_POLL_MODE")]
        USE_POLL_MODE = CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, 1140;
        /// Read and write with POSIX calls, instead of failing, where there is no direct path.
        ///
        /// Names elsewhere: `CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE` (C).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE")]
        ALLOW_COMPAT_MODE = CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, 1140;
        /// Read and write with POSIX calls even where there is a direct path (`CUFILE_PARAM_FORCE_COMPAT_MODE`).
        #[doc(alias = "CUFILE_PARAM_FORCE_COMPAT_MODE")]
        FORCE_COMPAT_MODE = CUFILE_PARAM_FORCE_COMPAT_MODE, 1140;
        /// Check a file system's optional calls more strictly (`CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE`).
        #[doc(alias = "CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE")]
        FS_MISC_API_CHECK_AGGRESSIVE = CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE, 1140;
        /// Split long transfers among threads (`CUFILE_PARAM_EXECUTION_PARALLEL_IO`).
        #[doc(alias = "CUFILE_PARAM_EXECUTION_PARALLEL_IO")]
        PARALLEL_IO = CUFILE_PARAM_EXECUTION_PARALLEL_IO, 1140;
        /// Annotate calls for NVIDIA's profilers. Deprecated: newer libraries ignore its value and refuse to return
        /// it.
        ///
        /// Names elsewhere: `CUFILE_PARAM_PROFILE_NVTX` (C).
        #[doc(alias = "CUFILE_PARAM_PROFILE_NVTX")]
        PROFILE_NVTX = CUFILE_PARAM_PROFILE_NVTX, 1140;
        /// Accept host memory in transfers (`CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY`).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY")]
        ALLOW_SYSTEM_MEMORY = CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY, 1140;
        /// Use the kernel's PCI peer-to-peer transfers where they exist (`CUFILE_PARAM_USE_PCIP2PDMA`).
        #[doc(alias = "CUFILE_PARAM_USE_PCIP2PDMA")]
        USE_PCI_P2PDMA = CUFILE_PARAM_USE_PCIP2PDMA, 1140;
        /// Use io_uring for POSIX transfers where it exists (`CUFILE_PARAM_PREFER_IO_URING`).
        #[doc(alias = "CUFILE_PARAM_PREFER_IO_URING")]
        PREFER_IO_URING = CUFILE_PARAM_PREFER_IO_URING, 1140;
        /// Transfer past the page cache even if the file was opened without `O_DIRECT`.
        ///
        /// Names elsewhere: `CUFILE_PARAM_FORCE_ODIRECT_MODE` (C).
        #[doc(alias = "CUFILE_PARAM_FORCE_ODIRECT_MODE")]
        FORCE_O_DIRECT = CUFILE_PARAM_FORCE_ODIRECT_MODE, 1140;
        /// Skip the detection of links between GPUs and disks when opening (`CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION`).
        #[doc(alias = "CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION")]
        SKIP_TOPOLOGY_DETECTION = CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION, 1140;
        /// Do without CUDA's stream memory operations in stream-ordered transfers.
        ///
        /// Names elsewhere: `CUFILE_PARAM_STREAM_MEMOPS_BYPASS` (C).
        #[doc(alias = "CUFILE_PARAM_STREAM_MEMOPS_BYPASS")]
        STREAM_MEMOPS_BYPASS = CUFILE_PARAM_STREAM_MEMOPS_BYPASS, 1140;
        /// Use only plain POSIX calls. Since cuFile 1.19.
        ///
        /// Names elsewhere: `CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE` (C).
        #[doc(alias = "CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE")]
        POSIX_IO_MODE = CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE, 1190;
        /// Repeat a failed direct transfer with POSIX calls. Since cuFile 1.19.
        ///
        /// Names elsewhere: `CUFILE_PARAM_GDS_FALLBACK_IO` (C).
        #[doc(alias = "CUFILE_PARAM_GDS_FALLBACK_IO")]
        GDS_FALLBACK_IO = CUFILE_PARAM_GDS_FALLBACK_IO, 1190;
    }
    String = Text {
        /// The messages that go into the log file: `ERROR`, `WARN`, `NOTICE`, `INFO`, `DEBUG` or `TRACE`.
        ///
        /// Names elsewhere: `CUFILE_PARAM_LOGGING_LEVEL` (C).
        #[doc(alias = "CUFILE_PARAM_LOGGING_LEVEL")]
        LOGGING_LEVEL = CUFILE_PARAM_LOGGING_LEVEL, 1140;
        /// The folder of the log file. Reads as empty while it is not set; the empty string cannot be set.
        ///
        /// Names elsewhere: `CUFILE_PARAM_LOG_DIR` (C).
        #[doc(alias = "CUFILE_PARAM_LOG_DIR")]
        LOG_DIR = CUFILE_PARAM_LOG_DIR, 1140;
        /// The transport that user-space RDMA uses, such as `DC_V1`. Since cuFile 1.19.
        ///
        /// Names elsewhere: `CUFILE_PARAM_RDMA_TRANSPORT` (C).
        #[doc(alias = "CUFILE_PARAM_RDMA_TRANSPORT")]
        RDMA_TRANSPORT = CUFILE_PARAM_RDMA_TRANSPORT, 1190;
    }
    Vec<Slab> = Slabs {
        /// The pool of host memory for POSIX transfers. Since cuFile 1.15.
        ///
        /// libcufile makes its default slabs only when the driver opens.
        ///
        /// Names elsewhere: `CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB`, `CUFILE_PARAM_POSIX_POOL_SLAB_COUNT`,
        /// `cuFileGetParameterPosixPoolSlabArray`, `cuFileSetParameterPosixPoolSlabArray` (C);
        /// `get_parameter_posix_pool_slab_array`, `set_parameter_posix_pool_slab_array` (Python).
        #[doc(alias = "CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB")]
        #[doc(alias = "CUFILE_PARAM_POSIX_POOL_SLAB_COUNT")]
        #[doc(alias = "cuFileGetParameterPosixPoolSlabArray")]
        #[doc(alias = "get_parameter_posix_pool_slab_array")]
        #[doc(alias = "cuFileSetParameterPosixPoolSlabArray")]
        #[doc(alias = "set_parameter_posix_pool_slab_array")]
        POSIX_POOL_SLABS = CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB, 1110;
        /// The pool of bounce buffers in GPU memory, in ascending sizes that are multiples of 4 KiB. Since cuFile 1.17.
        ///
        /// libcufile may have no default slabs even once the driver is open.
        ///
        /// Names elsewhere: `CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB`, `CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_COUNT`,
        /// `cuFileGetParameterGpuBounceBufferSlabArray`, `cuFileSetParameterGpuBounceBufferSlabArray` (C).
        #[doc(alias = "CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB")]
        #[doc(alias = "CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_COUNT")]
        #[doc(alias = "cuFileGetParameterGpuBounceBufferSlabArray")]
        #[doc(alias = "cuFileSetParameterGpuBounceBufferSlabArray")]
        GPU_BOUNCE_BUFFER_SLABS = CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB, 1110;
    }
}

/// Not public, because libcufile takes it over by `setenv`.
const LOG_FILE_PATH: Param<String> = Param {
    raw: Text::CUFILE_PARAM_ENV_LOGFILE_PATH.as_raw(),
    name: "CUFILE_PARAM_ENV_LOGFILE_PATH",
    since: Version::from_raw(1140),
    value: PhantomData,
};

impl<T> Param<T> {
    /// Returns the parameter's C name.
    pub const fn name(self) -> &'static str {
        self.name
    }

    fn check(self, library: &Library) -> Result<()> {
        match library.version() {
            loaded if loaded < self.since => {
                Err(Error::Unsupported { symbol: self.name, since: self.since, loaded })
            }
            _ => Ok(()),
        }
    }
}

impl<T> Clone for Param<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Param<T> {}

impl<T> fmt::Debug for Param<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The type of a parameter's value.
pub trait Value: sealed::Value {}

/// The type of a parameter's value that is a number and has limits.
pub trait Number: Value + sealed::Number {}

impl<T: sealed::Value> Value for T {}
impl<T: sealed::Number> Number for T {}

mod sealed {
    use super::{Library, Param, Result};

    pub trait Value: Sized {
        fn get(library: &Library, param: Param<Self>) -> Result<Self>;
        fn set(&self, library: &Library, param: Param<Self>) -> Result<()>;
    }

    pub trait Number: Sized {
        /// Returns C's number; `name` is the parameter's name in errors.
        fn to_c(&self, operation: &'static str, name: &str) -> Result<usize>;
        fn from_c(value: usize) -> Self;
    }
}

impl<N: sealed::Number> sealed::Value for N {
    fn get(library: &Library, param: Param<N>) -> Result<N> {
        let call = newer!(library, cuFileGetParameterSizeT)?;
        let mut value = 0;
        let _turn = one_at_a_time()?;
        // SAFETY: `value` outlives the call.
        let status = unsafe { call(SizeT::from_raw(param.raw), &mut value) };
        check("cuFileGetParameterSizeT", status).map_err(|error| error.about(&param.name))?;
        Ok(N::from_c(value))
    }

    fn set(&self, library: &Library, param: Param<N>) -> Result<()> {
        let call = newer!(library, cuFileSetParameterSizeT)?;
        let value = self.to_c("cuFileSetParameterSizeT", param.name)?;
        let _turn = one_at_a_time()?;
        // SAFETY: takes numbers.
        let status = unsafe { call(SizeT::from_raw(param.raw), value) };
        check("cuFileSetParameterSizeT", status)
            .map_err(|error| error.about(&format_args!("{}, {value}", param.name)))
    }
}

impl sealed::Value for bool {
    fn get(library: &Library, param: Param<bool>) -> Result<bool> {
        let call = newer!(library, cuFileGetParameterBool)?;
        // C's byte need not be a valid `bool`.
        let mut value = 0u8;
        let _turn = one_at_a_time()?;
        // SAFETY: `value` outlives the call, and a C `bool` is a byte.
        let status = unsafe { call(Bool::from_raw(param.raw), (&raw mut value).cast()) };
        check("cuFileGetParameterBool", status).map_err(|error| error.about(&param.name))?;
        Ok(value != 0)
    }

    fn set(&self, library: &Library, param: Param<bool>) -> Result<()> {
        let call = newer!(library, cuFileSetParameterBool)?;
        let _turn = one_at_a_time()?;
        // SAFETY: takes numbers.
        let status = unsafe { call(Bool::from_raw(param.raw), *self) };
        check("cuFileSetParameterBool", status)
            .map_err(|error| error.about(&format_args!("{}, {self}", param.name)))
    }
}

impl sealed::Value for String {
    fn get(library: &Library, param: Param<String>) -> Result<String> {
        const OPERATION: &str = "cuFileGetParameterString";
        let call = newer!(library, cuFileGetParameterString)?;
        let mut buffer = Vec::new();
        let mut result = Ok(String::new());
        let _turn = one_at_a_time()?;
        // One code stands for a buffer that is too short and for a string that is not set, so growing must end.
        for len in [256, 4096, 65536] {
            buffer.resize(len, 0u8);
            // SAFETY: the buffer has `len` bytes and outlives the call.
            let status = unsafe {
                call(Text::from_raw(param.raw), buffer.as_mut_ptr().cast::<c_char>(), len as c_int)
            };
            result = match check(OPERATION, status) {
                Ok(()) => {
                    let text = CStr::from_bytes_until_nul(&buffer).map_or(&*buffer, CStr::to_bytes);
                    Ok(String::from_utf8_lossy(text).into_owned())
                }
                Err(error) => Err(error.about(&param.name).advise("it may not be set".into())),
            };
            if !is_invalid_value(&result) {
                break;
            }
        }
        result
    }

    fn set(&self, library: &Library, param: Param<String>) -> Result<()> {
        const OPERATION: &str = "cuFileSetParameterString";
        let call = newer!(library, cuFileSetParameterString)?;
        let text = CString::new(self.as_str()).map_err(|error| {
            let at = error.nul_position();
            Error::invalid(
                OPERATION,
                format!("the value of {} contains a NUL at byte {at}; remove it", param.name),
            )
        })?;
        let _turn = one_at_a_time()?;
        // SAFETY: the string is terminated and outlives the call; libcufile copies it.
        let status = unsafe { call(Text::from_raw(param.raw), text.as_ptr()) };
        check(OPERATION, status).map_err(|error| error.about(&format_args!("{}, {self:?}", param.name)))
    }
}

impl sealed::Value for Vec<Slab> {
    fn get(library: &Library, param: Param<Vec<Slab>>) -> Result<Vec<Slab>> {
        match Slabs::from_raw(param.raw) {
            Slabs::CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB => {
                let call = newer!(library, cuFileGetParameterPosixPoolSlabArray)?;
                get_slabs("cuFileGetParameterPosixPoolSlabArray", call)
            }
            _ => {
                let call = newer!(library, cuFileGetParameterGpuBounceBufferSlabArray)?;
                get_slabs("cuFileGetParameterGpuBounceBufferSlabArray", call)
            }
        }
    }

    fn set(&self, library: &Library, param: Param<Vec<Slab>>) -> Result<()> {
        match Slabs::from_raw(param.raw) {
            Slabs::CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB => {
                let call = newer!(library, cuFileSetParameterPosixPoolSlabArray)?;
                set_slabs("cuFileSetParameterPosixPoolSlabArray", call, self)
            }
            _ => {
                let call = newer!(library, cuFileSetParameterGpuBounceBufferSlabArray)?;
                set_slabs("cuFileSetParameterGpuBounceBufferSlabArray", call, self)
            }
        }
    }
}

impl sealed::Number for u64 {
    fn to_c(&self, _operation: &'static str, _name: &str) -> Result<usize> {
        Ok(*self as usize)
    }

    fn from_c(value: usize) -> Self {
        value as u64
    }
}

impl sealed::Number for Bytes {
    fn to_c(&self, operation: &'static str, name: &str) -> Result<usize> {
        if self.0.is_multiple_of(1024) {
            Ok((self.0 / 1024) as usize)
        } else {
            let problem = format!("{name} is in KiB: {} bytes are not a multiple of 1024", self.0);
            Err(Error::invalid(operation, problem))
        }
    }

    fn from_c(value: usize) -> Self {
        Bytes((value as u64).saturating_mul(1024))
    }
}

impl sealed::Number for Duration {
    fn to_c(&self, operation: &'static str, name: &str) -> Result<usize> {
        match usize::try_from(self.as_millis()) {
            Ok(whole) if Duration::from_millis(whole as u64) == *self => Ok(whole),
            _ => Err(Error::invalid(operation, format!("{name} takes whole milliseconds, not {self:?}"))),
        }
    }

    fn from_c(value: usize) -> Self {
        Duration::from_millis(value as u64)
    }
}

/// The parameters of a [`Library`], from [`Library::params`].
#[derive(Debug, Clone, Copy)]
pub struct Params<'a>(&'a Library);

impl Library {
    /// Returns the process's parameters.
    pub fn params(&self) -> Params<'_> {
        Params(self)
    }
}

impl Params<'_> {
    /// Returns the value of a parameter. Since cuFile 1.14.
    ///
    /// Before the driver opens, many of libcufile's defaults read as 0.
    ///
    /// Names elsewhere: `cuFileGetParameterSizeT`, `cuFileGetParameterBool`, `cuFileGetParameterString` (C);
    /// `get_parameter_size_t`, `get_parameter_bool`, `get_parameter_string` (Python).
    ///
    /// # Errors
    /// [`Error::Unsupported`], or libcufile's code: [`OpError::INVALID_VALUE`] for slabs where none are set.
    #[doc(alias = "cuFileGetParameterSizeT")]
    #[doc(alias = "get_parameter_size_t")]
    #[doc(alias = "cuFileGetParameterBool")]
    #[doc(alias = "get_parameter_bool")]
    #[doc(alias = "cuFileGetParameterString")]
    #[doc(alias = "get_parameter_string")]
    pub fn get<T: Value>(&self, param: Param<T>) -> Result<T> {
        param.check(self.0)?;
        T::get(self.0, param)
    }

    /// Sets a parameter for the next opening of the driver. The last close discards it. Since cuFile 1.14.
    ///
    /// libcufile may accept a value outside the [`limits`](Self::limits) here and refuse to open with it.
    ///
    /// Names elsewhere: `cuFileSetParameterSizeT`, `cuFileSetParameterBool`, `cuFileSetParameterString` (C);
    /// `set_parameter_size_t`, `set_parameter_bool`, `set_parameter_string` (Python).
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if C's unit cannot express the value or it holds a NUL, and for no slabs or more than 256;
    /// [`Error::Unsupported`];
    /// or libcufile's code: [`OpError::DRIVER_ALREADY_OPEN`] once the driver is open.
    #[doc(alias = "cuFileSetParameterSizeT")]
    #[doc(alias = "set_parameter_size_t")]
    #[doc(alias = "cuFileSetParameterBool")]
    #[doc(alias = "set_parameter_bool")]
    #[doc(alias = "cuFileSetParameterString")]
    #[doc(alias = "set_parameter_string")]
    pub fn set<T: Value>(&self, param: Param<T>, value: T) -> Result<()> {
        param.check(self.0)?;
        value.set(self.0, param)
    }

    /// Returns the log file's path, the value of the environment variable `CUFILE_LOGFILE_PATH`. Since cuFile
    /// 1.14.
    ///
    /// Names elsewhere: `CUFILE_PARAM_ENV_LOGFILE_PATH` (C).
    ///
    /// # Errors
    /// As [`get`](Self::get); libcufile's code [`OpError::INVALID_VALUE`] while it is not set.
    #[doc(alias = "CUFILE_PARAM_ENV_LOGFILE_PATH")]
    pub fn log_file_path(&self) -> Result<String> {
        self.get(LOG_FILE_PATH)
    }

    /// Sets the log file's path for the next opening of the driver. Since cuFile 1.14.
    ///
    /// libcufile sets `CUFILE_LOGFILE_PATH` in this process's environment when the driver opens. Setting that variable before
    /// the program starts needs no `unsafe`.
    ///
    /// Names elsewhere: `CUFILE_PARAM_ENV_LOGFILE_PATH` (C).
    ///
    /// # Errors
    /// As [`set`](Self::set).
    ///
    /// # Safety
    /// During the next opening of the driver, no other thread of the process may read or change the environment, as
    /// for [`std::env::set_var`]. Threads of C libraries read it too.
    #[doc(alias = "CUFILE_PARAM_ENV_LOGFILE_PATH")]
    pub unsafe fn set_log_file_path(&self, path: &str) -> Result<()> {
        self.set(LOG_FILE_PATH, path.to_owned())
    }

    /// Returns the smallest and the largest value of a parameter. Since cuFile 1.15.
    ///
    /// The largest is that of the type if libcufile names none, as for memory of a missing GPU.
    ///
    /// Names elsewhere: `cuFileGetParameterMinMaxValue` (C); `get_parameter_min_max_value` (Python).
    ///
    /// # Errors
    /// [`Error::Unsupported`], or libcufile's code. With cuFile 1.16 also the error of [`Cuda::load`] for
    /// limits of the GPU's memory, because without CUDA that version never returns.
    #[doc(alias = "cuFileGetParameterMinMaxValue")]
    #[doc(alias = "get_parameter_min_max_value")]
    pub fn limits<T: Number>(&self, param: Param<T>) -> Result<RangeInclusive<T>> {
        param.check(self.0)?;
        let call = newer!(self.0, cuFileGetParameterMinMaxValue)?;
        let raw = SizeT::from_raw(param.raw);
        let of_device_memory = [
            SizeT::CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB,
            SizeT::CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB,
        ];
        if of_device_memory.contains(&raw) && self.0.version() == Version::from_raw(1160) {
            Cuda::load()?;
        }
        // libcufile does not write a limit that it does not know.
        let (mut smallest, mut largest) = (0, usize::MAX);
        let _turn = one_at_a_time()?;
        // SAFETY: both outlive the call.
        let status = unsafe { call(raw, &mut smallest, &mut largest) };
        check("cuFileGetParameterMinMaxValue", status).map_err(|error| error.about(&param.name))?;
        Ok(T::from_c(smallest)..=T::from_c(largest))
    }

    /// Turns polling for short transfers, up to `threshold_bytes`, on or off.
    ///
    /// The driver takes this and the three limits below over when it opens. Their C functions are in every
    /// version, but have no effect up to cuFile 1.16. In 1.14 to 1.16 this sets the parameters instead.
    /// libcufile may accept a value there, and refuse to open with it.
    ///
    /// Names elsewhere: `cuFileDriverSetPollMode` (C); `driver_set_poll_mode` (Python).
    ///
    /// # Errors
    /// [`Error::InUse`] while a driver is open, which would ignore it; [`Error::Unsupported`] before cuFile
    /// 1.14; [`Error::InvalidInput`] for a threshold that is no multiple of 1024; or libcufile's code: it
    /// requires multiples of 4 KiB.
    #[doc(alias = "cuFileDriverSetPollMode")]
    #[doc(alias = "driver_set_poll_mode")]
    pub fn set_poll_mode(&self, enabled: bool, threshold_bytes: u64) -> Result<()> {
        const OPERATION: &str = "cuFileDriverSetPollMode";
        if !opened::can_be_asked(self.0) {
            opened::check_none(self.0)?;
            self.set(Param::POLL_THRESHOLD, Bytes(threshold_bytes))?;
            return self.set(Param::USE_POLL_MODE, enabled);
        }
        let threshold = sealed::Number::to_c(&Bytes(threshold_bytes), OPERATION, "the threshold")?;
        let _turn = one_at_a_time()?;
        opened::check_none(self.0)?;
        // SAFETY: takes numbers.
        let status = unsafe { (self.0.functions().cuFileDriverSetPollMode)(enabled, threshold) };
        check(OPERATION, status).map_err(|error| error.about(&format_args!("{enabled}, {threshold} KiB")))
    }

    /// Sets the length in bytes of the longest part of a direct transfer: a multiple of 64 KiB.
    ///
    /// Names elsewhere: `cuFileDriverSetMaxDirectIOSize` (C); `driver_set_max_direct_io_size` (Python).
    ///
    /// # Errors
    /// [`Error::InUse`] and [`Error::Unsupported`] as for [`set_poll_mode`](Self::set_poll_mode), [`Error::InvalidInput`] for
    /// a size that is no multiple of 1024, or libcufile's code.
    #[doc(alias = "cuFileDriverSetMaxDirectIOSize")]
    #[doc(alias = "driver_set_max_direct_io_size")]
    pub fn set_max_direct_io_size(&self, size_bytes: u64) -> Result<()> {
        let call = self.0.functions().cuFileDriverSetMaxDirectIOSize;
        self.set_limit("cuFileDriverSetMaxDirectIOSize", call, Param::MAX_DIRECT_IO_SIZE, size_bytes)
    }

    /// Sets how many bytes of memory libcufile reserves on each GPU for its bounce buffers.
    ///
    /// Names elsewhere: `cuFileDriverSetMaxCacheSize` (C); `driver_set_max_cache_size` (Python).
    ///
    /// # Errors
    /// As [`set_max_direct_io_size`](Self::set_max_direct_io_size).
    #[doc(alias = "cuFileDriverSetMaxCacheSize")]
    #[doc(alias = "driver_set_max_cache_size")]
    pub fn set_max_cache_size(&self, size_bytes: u64) -> Result<()> {
        let call = self.0.functions().cuFileDriverSetMaxCacheSize;
        self.set_limit("cuFileDriverSetMaxCacheSize", call, Param::MAX_DEVICE_CACHE_SIZE, size_bytes)
    }

    /// Sets how many bytes of GPU memory registered buffers may pin.
    ///
    /// Names elsewhere: `cuFileDriverSetMaxPinnedMemSize` (C); `driver_set_max_pinned_mem_size` (Python).
    ///
    /// # Errors
    /// As [`set_max_direct_io_size`](Self::set_max_direct_io_size).
    #[doc(alias = "cuFileDriverSetMaxPinnedMemSize")]
    #[doc(alias = "driver_set_max_pinned_mem_size")]
    pub fn set_max_pinned_memory(&self, size_bytes: u64) -> Result<()> {
        let call = self.0.functions().cuFileDriverSetMaxPinnedMemSize;
        self.set_limit("cuFileDriverSetMaxPinnedMemSize", call, Param::MAX_DEVICE_PINNED_MEMORY, size_bytes)
    }

    fn set_limit(
        &self,
        operation: &'static str,
        call: unsafe extern "C" fn(usize) -> CUfileError_t,
        param: Param<Bytes>,
        size_bytes: u64,
    ) -> Result<()> {
        if !opened::can_be_asked(self.0) {
            opened::check_none(self.0)?;
            return self.set(param, Bytes(size_bytes));
        }
        let size = sealed::Number::to_c(&Bytes(size_bytes), operation, "the size")?;
        let _turn = one_at_a_time()?;
        opened::check_none(self.0)?;
        // SAFETY: takes a number; `call` is one of the setters above.
        check(operation, unsafe { call(size) }).map_err(|error| error.about(&format_args!("{size} KiB")))
    }
}

/// The most slabs that can be set, because a reader must guess their number.
const MAX_SLABS: usize = 256;

fn get_slabs(
    operation: &'static str,
    call: unsafe extern "C" fn(*mut usize, *mut usize, c_int) -> CUfileError_t,
) -> Result<Vec<Slab>> {
    let (mut sizes, mut counts) = (vec![0; MAX_SLABS], vec![0; MAX_SLABS]);
    let mut result = Ok(Vec::new());
    let _turn = one_at_a_time()?;
    // libcufile's call needs the exact number of slabs, and no call returns it; 3 is the default.
    for len in iter::once(3).chain(1..=MAX_SLABS) {
        // SAFETY: both arrays have at least `len` elements and outlive the call.
        let status = unsafe { call(sizes.as_mut_ptr(), counts.as_mut_ptr(), len as c_int) };
        result = match check(operation, status) {
            Ok(()) => {
                let slab = |(size, count): (&usize, &usize)| Slab {
                    size_bytes: (*size as u64).saturating_mul(1024),
                    count: *count as u64,
                };
                Ok(sizes.iter().zip(&counts).take(len).map(slab).collect())
            }
            Err(error) => Err(error.advise("none may be set".into())),
        };
        if !is_invalid_value(&result) {
            break;
        }
    }
    result
}

fn is_invalid_value<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.op_error() == Some(OpError::INVALID_VALUE))
}

fn set_slabs(
    operation: &'static str,
    call: unsafe extern "C" fn(*const usize, *const usize, c_int) -> CUfileError_t,
    slabs: &[Slab],
) -> Result<()> {
    let len = slabs.len();
    if !(1..=MAX_SLABS).contains(&len) {
        return Err(Error::invalid(operation, format!("{len} slabs; set 1 to {MAX_SLABS}")));
    }
    let size = |slab: &Slab| sealed::Number::to_c(&Bytes(slab.size_bytes), operation, "a slab's size");
    let sizes = slabs.iter().map(size).collect::<Result<Vec<usize>>>()?;
    let counts: Vec<usize> = slabs.iter().map(|slab| slab.count as usize).collect();
    let _turn = one_at_a_time()?;
    // SAFETY: both arrays have `len` elements and outlive the call; libcufile copies them.
    check(operation, unsafe { call(sizes.as_ptr(), counts.as_ptr(), len as c_int) })
}

#[cfg(test)]
mod tests {
    use super::sealed::Number as _;
    use super::*;

    #[test]
    fn every_parameter_of_the_header_has_a_constant() {
        let names = |kind: &str, name: fn(u32) -> Option<&'static str>| {
            let mut here: Vec<(u32, &str)> =
                ALL.iter().filter(|entry| entry.0 == kind).map(|entry| (entry.1, entry.2)).collect();
            if kind == "Text" {
                here.push((LOG_FILE_PATH.raw, LOG_FILE_PATH.name));
            }
            here.sort_unstable();
            let header = (0..).map_while(|raw| name(raw).map(|name| (raw, name))).collect::<Vec<_>>();
            assert!(header.len() > 3);
            assert_eq!(here, header);
        };
        names("SizeT", |raw| SizeT::from_raw(raw).name());
        names("Bool", |raw| Bool::from_raw(raw).name());
        names("Text", |raw| Text::from_raw(raw).name());
    }

    #[test]
    fn sizes_must_be_whole_kib() {
        assert_eq!(Bytes(3 * 1024).to_c("set", "X_KB").unwrap(), 3);
        assert_eq!(Bytes(0).to_c("set", "X_KB").unwrap(), 0);
        let error = Bytes(1000).to_c("set", "X_KB").unwrap_err().to_string();
        assert!(error.contains("X_KB") && error.contains("KiB") && error.contains("1000"), "{error}");
    }

    #[test]
    fn times_must_be_whole_milliseconds() {
        assert_eq!(Duration::from_secs(1).to_c("set", "X_MS").unwrap(), 1000);
        for time in [Duration::from_micros(1500), Duration::from_nanos(1), Duration::MAX] {
            let error = time.to_c("set", "X_MS").unwrap_err().to_string();
            assert!(error.contains("X_MS") && error.contains("millisecond"), "{error}");
        }
    }

    #[test]
    fn unbounded_limits_do_not_wrap() {
        assert_eq!(Bytes::from_c(usize::MAX), Bytes(u64::MAX));
        assert_eq!(Bytes::from_c(4), Bytes(4096));
    }
}
