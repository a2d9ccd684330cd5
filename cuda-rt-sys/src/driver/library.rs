//! The calls of libcuda.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::functions::Functions;
use crate::loader::{LoadError, Search, SharedLibrary};

/// The places to look for libcuda. It comes with the display driver, not with a toolkit.
pub const SEARCH: Search = Search {
    library: "libcuda",
    variable: "CUDA_LIBRARY",
    names: &["libcuda.so.1", "libcuda.so"],
    toolkit: false,
};

/// A loaded libcuda; its functions are the fields of [`Functions`], to which it dereferences.
#[derive(Clone)]
pub struct Library {
    functions: Functions,
    path: Option<PathBuf>,
}

impl Library {
    /// Loads libcuda from the places of [`SEARCH`].
    ///
    /// This trusts the environment, as [`loader`](crate::loader) explains.
    ///
    /// # Errors
    /// [`LoadError`] if no file loads, or the loaded file lacks a function of the driver of CUDA 11.8.
    pub fn load() -> Result<Self, LoadError> {
        // SAFETY: these names are NVIDIA's, and the user answers for a file that the environment names.
        unsafe { SharedLibrary::load(&SEARCH, Self::resolve) }
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

    /// Loads the libcuda at `path`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    ///
    /// # Safety
    /// The file must be libcuda, or a library with the same contract. Its initialisers run, and code built on
    /// this crate calls its functions.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise.
        Self::resolve(unsafe { SharedLibrary::load_from(&SEARCH, path.as_ref()) }?)
    }

    /// Returns a library made of a table of functions, for tests.
    ///
    /// # Safety
    /// Each pointer must be to the function of its name, or to one that keeps its contract in every call that
    /// is made. Code built on a libcuda relies on that.
    pub unsafe fn from_functions(functions: Functions) -> Self {
        Self { functions, path: None }
    }

    fn resolve(library: SharedLibrary) -> Result<Self, LoadError> {
        Ok(Self { functions: Functions::resolve(&library)?, path: Some(library.path().to_owned()) })
    }

    /// Returns the table of functions.
    pub fn functions(&self) -> &Functions {
        &self.functions
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
