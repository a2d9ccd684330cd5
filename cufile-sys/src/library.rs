//! The loaded library.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cuda_rt_sys::loader::{LoadError, Search, SharedLibrary};

use crate::bindings::CUfileError_t;
use crate::functions::Functions;

/// The places to look for libcufile.
pub const SEARCH: Search = Search {
    library: "libcufile",
    variable: "CUFILE_LIBRARY",
    names: &["libcufile.so.0", "libcufile.so"],
    toolkit: true,
};

/// A loaded libcufile; its functions are the fields of [`Functions`], to which it dereferences.
#[derive(Clone)]
pub struct Library {
    functions: Functions,
    path: Option<PathBuf>,
    is_from_nvidia: bool,
}

impl Library {
    /// Loads libcufile from the places of [`SEARCH`].
    ///
    /// This trusts the environment, as [`loader`](cuda_rt_sys::loader) explains.
    ///
    /// # Errors
    /// [`LoadError`] if no file loads, or the loaded file lacks a function of cuFile 1.11.
    pub fn load() -> Result<Self, LoadError> {
        // SAFETY: these names are NVIDIA's, and the user answers for a file that the environment names.
        unsafe { SharedLibrary::load(&SEARCH, Self::resolve) }
    }

    /// Returns the library that the functions of [`c`](crate::c) call. The first call [loads](Self::load) it, for the
    /// rest of the process.
    ///
    /// # Errors
    /// Those of [`load`](Self::load). Later calls return the error of the first call.
    pub fn shared() -> Result<&'static Self, LoadError> {
        static SHARED: OnceLock<Result<Library, LoadError>> = OnceLock::new();
        SHARED.get_or_init(Self::load).as_ref().map_err(LoadError::clone)
    }

    /// Loads the libcufile at `path`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    ///
    /// # Safety
    /// The file must be libcufile, or a library with the same contract. Its initialisers run, and code built on
    /// this crate calls its functions.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise.
        Self::resolve(unsafe { SharedLibrary::load_from(&SEARCH, path.as_ref()) }?)
    }

    /// Returns a library made of a table of functions, for tests.
    ///
    /// # Safety
    /// Each pointer must be to the function of its name, or to one that keeps its contract in every call that
    /// is made. Code built on a libcufile relies on that.
    pub unsafe fn from_functions(functions: Functions) -> Self {
        Self { functions, path: None, is_from_nvidia: false }
    }

    fn resolve(library: SharedLibrary) -> Result<Self, LoadError> {
        // SAFETY: never called.
        let of_nvidia = unsafe { library.optional::<unsafe extern "C" fn()>(c"cuFileStreamWaitValue32") };
        Ok(Self {
            functions: Functions::resolve(&library)?,
            path: Some(library.path().to_owned()),
            is_from_nvidia: of_nvidia.is_some(),
        })
    }

    /// Returns the table of functions.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Closes the driver: calls [`cuFileDriverClose_v2`](Functions::cuFileDriverClose_v2), as `cufile.h` maps this name.
    ///
    /// # Safety
    /// As that function.
    #[allow(non_snake_case, reason = "C's name")]
    pub unsafe fn cuFileDriverClose(&self) -> CUfileError_t {
        // SAFETY: the caller's promise.
        unsafe { (self.functions.cuFileDriverClose_v2)() }
    }

    /// Returns whether NVIDIA made the loaded file. Those from 1.11 to 1.20 export a function for themselves, which
    /// other libraries lack.
    pub fn is_from_nvidia(&self) -> bool {
        self.is_from_nvidia
    }

    /// Returns the file or bare name loaded; `None` for a table given to [`from_functions`](Self::from_functions).
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
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
