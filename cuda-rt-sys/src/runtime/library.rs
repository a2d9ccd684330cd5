//! The calls of libcudart.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::bindings::{cudaError_t, cudaMemcpyAttributes, cudaStream_t};
use super::functions::Functions;
use crate::loader::{LoadError, Search, SharedLibrary};

/// The places to look for libcudart.
pub const SEARCH: Search = Search {
    library: "libcudart",
    variable: "CUDART_LIBRARY",
    names: &["libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"],
    toolkit: true,
};

/// `cudaMemcpyBatchAsync` as CUDA 12.8 and 12.9 declare it: with the index of the failed copy.
#[allow(non_camel_case_types, non_snake_case, reason = "C's names")]
pub type cudaMemcpyBatchAsync_v12080 = unsafe extern "C" fn(
    dsts: *mut *mut core::ffi::c_void,
    srcs: *mut *mut core::ffi::c_void,
    sizes: *mut usize,
    count: usize,
    attrs: *mut cudaMemcpyAttributes,
    attrsIdxs: *mut usize,
    numAttrs: usize,
    failIdx: *mut usize,
    stream: cudaStream_t,
) -> cudaError_t;

/// A loaded libcudart; its functions are the fields of [`Functions`], to which it dereferences.
#[derive(Clone)]
pub struct Library {
    functions: Functions,
    memcpy_batch_async_v12: Option<cudaMemcpyBatchAsync_v12080>,
    path: Option<PathBuf>,
}

impl Library {
    /// Loads libcudart from the places of [`SEARCH`].
    ///
    /// This trusts the environment, as [`loader`](crate::loader) explains.
    ///
    /// # Errors
    /// [`LoadError`] if no file loads, or each loaded file has a fault. A fault is a missing function of CUDA
    /// 11.8, or a newer major version than the display driver supports. This takes the first file without a
    /// fault.
    pub fn load() -> Result<Self, LoadError> {
        // SAFETY: these names are NVIDIA's, and the user answers for a file that the environment names.
        unsafe { SharedLibrary::load(&SEARCH, |library| Self::resolve(library)?.suiting_the_driver()) }
    }

    /// Returns the library that the functions of [`c`](super::c) call. The first call [loads](Self::load) it, for the
    /// rest of the process.
    ///
    /// # Errors
    /// Those of [`load`](Self::load). Later calls return the error of the first call.
    pub fn shared() -> Result<&'static Self, LoadError> {
        static SHARED: OnceLock<Result<Library, LoadError>> = OnceLock::new();
        SHARED.get_or_init(Self::load).as_ref().map_err(LoadError::clone)
    }

    /// Loads the libcudart at `path`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    ///
    /// # Safety
    /// The file must be libcudart, or a library with the same contract. Its initialisers run, and code built on
    /// this crate calls its functions.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise.
        Self::resolve(unsafe { SharedLibrary::load_from(&SEARCH, path.as_ref()) }?)
    }

    /// Returns a library made of a table of functions, for tests.
    ///
    /// # Safety
    /// Each pointer must be to the function of its name, or to one that keeps its contract in every call that
    /// is made. Code built on a libcudart relies on that.
    pub unsafe fn from_functions(functions: Functions) -> Self {
        Self { functions, memcpy_batch_async_v12: None, path: None }
    }

    /// Fails if the display driver is too old for this library's major version.
    fn suiting_the_driver(self) -> Result<Self, LoadError> {
        let (version, supported) = (self.version(), self.driver_version());
        if supported == 0 || version / 1000 <= supported / 1000 {
            return Ok(self);
        }
        let path = self.path.unwrap_or_default();
        Err(LoadError::DriverTooOld { library: SEARCH.library, path, version, supported })
    }

    fn resolve(library: SharedLibrary) -> Result<Self, LoadError> {
        let mut functions = Functions::resolve(&library)?;
        let mut memcpy_batch_async_v12 = None;
        // One symbol has two signatures; only the version tells them apart.
        let version = version(&functions);
        if version < 13000 {
            functions.cudaMemcpyBatchAsync = None;
            if version >= 12080 {
                // SAFETY: the declaration of CUDA 12.8, compared with its header by `cargo xtask conformance`.
                memcpy_batch_async_v12 = unsafe { library.optional(c"cudaMemcpyBatchAsync") };
            }
        }
        Ok(Self { functions, memcpy_batch_async_v12, path: Some(library.path().to_owned()) })
    }

    /// Returns the table of functions.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Returns `cudaMemcpyBatchAsync` of CUDA 12.8 and 12.9. That of 13.0 is
    /// [`Functions::cudaMemcpyBatchAsync`].
    pub fn memcpy_batch_async_v12(&self) -> Option<cudaMemcpyBatchAsync_v12080> {
        self.memcpy_batch_async_v12
    }

    /// Returns the file or bare name loaded; `None` for a table given to [`from_functions`](Self::from_functions).
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the version from `cudaRuntimeGetVersion`, as 1000 × major + 10 × minor. Returns 0 where that
    /// fails, as in 11.8 on a host without a driver.
    pub fn version(&self) -> i32 {
        version(&self.functions)
    }

    /// Returns the newest CUDA version that the display driver supports, from `cudaDriverGetVersion`, in the same form; 0
    /// where that fails or there is no driver.
    pub fn driver_version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: `version` outlives the call, and stays 0 if the call fails.
        unsafe { (self.functions.cudaDriverGetVersion)(&mut version) };
        version
    }
}

fn version(functions: &Functions) -> i32 {
    let mut version = 0;
    // SAFETY: `version` outlives the call, and stays 0 if the call fails.
    unsafe { (functions.cudaRuntimeGetVersion)(&mut version) };
    version
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Deref for Library {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}
