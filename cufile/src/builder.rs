//! The builder of a driver: its libraries, and the settings before it opens.

use std::fmt;
use std::sync::Arc;

use crate::cuda::Cuda;
use crate::driver::Driver;
use crate::error::Result;
use crate::library::{Library, one_opening_at_a_time};
use crate::params::{Param, Params, Value};

/// The libraries and settings to open a driver with; see [`Driver::builder`].
///
/// The settings apply to the whole process. [`open`](Self::open) applies them in the order of the calls, right before
/// the driver opens. They remain if opening fails. Other builders wait until `open` has returned. Settings made at
/// the same time by [`Library::params`] or C code can mix with these.
///
/// KvikIO's `config_path` has no counterpart: libcufile reads the file that `CUFILE_ENV_PATH_JSON` names, or
/// `/etc/cufile.json`.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct DriverBuilder {
    library: Option<Library>,
    cuda: Option<Cuda>,
    settings: Vec<Setting>,
}

#[derive(Clone)]
struct Setting {
    name: &'static str,
    apply: Arc<dyn Fn(Params<'_>) -> Result<()> + Send + Sync>,
}

impl DriverBuilder {
    /// Uses this libcufile instead of the process's default.
    pub fn library(mut self, library: Library) -> Self {
        self.library = Some(library);
        self
    }

    /// Uses this CUDA instead of the process's default.
    pub fn cuda(mut self, cuda: Cuda) -> Self {
        self.cuda = Some(cuda);
        self
    }

    /// Sets a parameter, like [`Params::set`]. Since cuFile 1.14; pools of buffers since 1.15 and 1.17.
    ///
    /// Names elsewhere: `cuFileSetParameterSizeT`, `cuFileSetParameterBool`, `cuFileSetParameterString` (C);
    /// `set_parameter_size_t`, `set_parameter_bool`, `set_parameter_string` (Python).
    #[doc(alias = "cuFileSetParameterSizeT")]
    #[doc(alias = "set_parameter_size_t")]
    #[doc(alias = "cuFileSetParameterBool")]
    #[doc(alias = "set_parameter_bool")]
    #[doc(alias = "cuFileSetParameterString")]
    #[doc(alias = "set_parameter_string")]
    pub fn set<T>(self, param: Param<T>, value: T) -> Self
    where
        T: Value + Clone + Send + Sync + 'static,
    {
        self.then(param.name(), move |params| params.set(param, value.clone()))
    }

    /// Sets the log file's path, like [`Params::set_log_file_path`]. Since cuFile 1.14.
    ///
    /// ```compile_fail,E0133
    /// let driver = cufile::Driver::builder().log_file_path("/tmp/cufile.log").open()?;
    /// # Ok::<(), cufile::Error>(())
    /// ```
    ///
    /// Names elsewhere: `CUFILE_PARAM_ENV_LOGFILE_PATH` (C).
    ///
    /// # Safety
    /// While the driver opens, no other thread of the process may read or change the environment, as for
    /// [`std::env::set_var`]. Threads of C libraries read it too. If this opening fails, the same holds for the next
    /// one by any code.
    #[doc(alias = "CUFILE_PARAM_ENV_LOGFILE_PATH")]
    pub unsafe fn log_file_path(self, path: impl Into<String>) -> Self {
        let path = path.into();
        // SAFETY: the caller's promise.
        self.then("log_file_path", move |params| unsafe { params.set_log_file_path(&path) })
    }

    /// Turns polling on or off for transfers of up to `threshold_bytes`, like [`Params::set_poll_mode`].
    ///
    /// Names elsewhere: `cuFileDriverSetPollMode` (C); `driver_set_poll_mode` (Python); `set_nvfs_poll_mode`,
    /// `set_nvfs_poll_thresh_size` (KvikIO).
    #[doc(alias = "cuFileDriverSetPollMode")]
    #[doc(alias = "driver_set_poll_mode")]
    #[doc(alias = "set_nvfs_poll_mode")]
    #[doc(alias = "set_nvfs_poll_thresh_size")]
    pub fn poll_mode(self, enabled: bool, threshold_bytes: u64) -> Self {
        self.then("poll_mode", move |params| params.set_poll_mode(enabled, threshold_bytes))
    }

    /// Sets the length in bytes of the longest part of a direct transfer, like [`Params::set_max_direct_io_size`].
    ///
    /// Names elsewhere: `cuFileDriverSetMaxDirectIOSize` (C); `driver_set_max_direct_io_size` (Python).
    #[doc(alias = "cuFileDriverSetMaxDirectIOSize")]
    #[doc(alias = "driver_set_max_direct_io_size")]
    pub fn max_direct_io_size(self, size_bytes: u64) -> Self {
        self.then("max_direct_io_size", move |params| params.set_max_direct_io_size(size_bytes))
    }

    /// Sets how many bytes of GPU memory the bounce buffers may take, like [`Params::set_max_cache_size`].
    ///
    /// Names elsewhere: `cuFileDriverSetMaxCacheSize` (C); `driver_set_max_cache_size` (Python);
    /// `set_max_device_cache_size` (KvikIO).
    #[doc(alias = "cuFileDriverSetMaxCacheSize")]
    #[doc(alias = "driver_set_max_cache_size")]
    #[doc(alias = "set_max_device_cache_size")]
    pub fn max_cache_size(self, size_bytes: u64) -> Self {
        self.then("max_cache_size", move |params| params.set_max_cache_size(size_bytes))
    }

    /// Sets how many bytes of GPU memory may be pinned, like [`Params::set_max_pinned_memory`].
    ///
    /// Names elsewhere: `cuFileDriverSetMaxPinnedMemSize` (C); `driver_set_max_pinned_mem_size` (Python);
    /// `set_max_pinned_memory_size` (KvikIO).
    #[doc(alias = "cuFileDriverSetMaxPinnedMemSize")]
    #[doc(alias = "driver_set_max_pinned_mem_size")]
    #[doc(alias = "set_max_pinned_memory_size")]
    pub fn max_pinned_memory(self, size_bytes: u64) -> Self {
        self.then("max_pinned_memory", move |params| params.set_max_pinned_memory(size_bytes))
    }

    fn then(
        mut self,
        name: &'static str,
        apply: impl Fn(Params<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.settings.push(Setting { name, apply: Arc::new(apply) });
        self
    }

    /// Applies the settings and opens the driver.
    ///
    /// Names elsewhere: `cuFileDriverOpen` (C).
    ///
    /// # Errors
    /// The error of the first setting that failed, with the name of its parameter or C function; else as
    /// [`Driver::open`].
    #[doc(alias = "cuFileDriverOpen")]
    pub fn open(self) -> Result<Driver> {
        // Before the settings, because some of them make libcufile initialise CUDA too.
        let cuda = self.cuda.map_or_else(Cuda::load, Ok)?;
        cuda.check_alive()?;
        let library = self.library.map_or_else(Library::load, Ok)?;
        library.check_modules()?;
        let _opening = one_opening_at_a_time()?;
        for setting in &self.settings {
            (setting.apply)(library.params())?;
        }
        Driver::open_with(library, cuda)
    }
}

impl Driver {
    /// Opens the driver of the process's default [`Library`] and [`Cuda`].
    ///
    /// First makes sure that libcuda loads, initialises and has a device, and that the kernel has `/proc/modules`. Without
    /// them, NVIDIA's libcufile may never return.
    ///
    /// Names elsewhere: `driver_open` (Python).
    ///
    /// # When to open
    ///
    /// Open the driver once, at the start of the program, and keep it: each file, buffer and batch refers to it.
    /// Opening takes 60 to 110 ms with libcufile 1.20, and 160 to 550 ms with 1.11 to 1.15 (measured on an NVIDIA
    /// H200). Then the first transfer does not wait for that.
    ///
    /// If the process also uses NVIDIA's cuObject, whose run time libcufile 1.20 shares, the first to open
    /// configures both: libcufile ignores `cufile.json` and parameters after cuObject.
    ///
    /// # Errors
    /// - [`Error::Load`](crate::Error::Load) names libcuda, libcudart or libcufile if one is missing.
    /// - [`Error::NoDevice`](crate::Error::NoDevice).
    /// - [`Error::Io`](crate::Error::Io) of the kind [`Unsupported`](std::io::ErrorKind::Unsupported) on a kernel without
    ///   `/proc/modules`, as in some sandboxes and virtual machines.
    /// - [`Error::Forked`](crate::Error::Forked) in the child of a process that has loaded [`Cuda`] or used parameters.
    /// - The error of `cuFileDriverOpen`.
    #[doc(alias = "driver_open")]
    #[doc(alias = "cuFileDriverOpen")]
    pub fn open() -> Result<Self> {
        Self::builder().open()
    }

    /// Returns a builder for opening with other libraries, or with parameters set before.
    pub fn builder() -> DriverBuilder {
        DriverBuilder::default()
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
