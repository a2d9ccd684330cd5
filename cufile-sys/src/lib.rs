//! Raw bindings to NVIDIA cuFile (GPUDirect Storage), found in `libcufile.so.0` at run time.
//!
//! Binds everything that `cufile.h` of cuFile 1.20 declares, under C's names, for every libcufile from 1.11 on. In
//! the table [`Functions`], a function that some of these versions lack is an `Option`. Programs do not link to
//! libcufile. On a machine without it, [`Library::load`] returns an error with the files that it tried, and does not
//! panic. A loaded library is never unloaded.
//!
//! Enumerations are integer newtypes, because a newer library may return codes without a name in this crate.
//!
//! Use the crate `cufile` unless you want C's rules. Here every call is `unsafe`, and `-1` means `errno`. On a host
//! without libcuda, `cuFileDriverOpen` of 1.16 and newer never returns. The fields of [`Functions`] document units, results
//! and such hazards, each with its safe counterpart in `cufile`.
//!
//! `use cufile_sys::c::*` brings functions, enumerators and macros under C's bare names. `Default` clears a struct, as C
//! programs do before they fill it in.
//!
//! ```
//! use cufile_sys::{CUFILE_ERRSTR, Library};
//!
//! match Library::load() {
//!     Ok(cufile) => {
//!         let mut version = 0;
//!         // SAFETY: `version` outlives the call.
//!         let status = unsafe { (cufile.cuFileGetVersion)(&mut version) };
//!         println!("cuFile {version}: {}", CUFILE_ERRSTR(status.err));
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! ```

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cuda_rt_sys::loader::{Search, SharedLibrary};
pub use cuda_rt_sys::{LoadError, Symbol};

#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, missing_docs, reason = "C's names")]
#[allow(clippy::all, reason = "generated")]
#[rustfmt::skip]
mod bindings;
pub mod c;
#[allow(non_snake_case, reason = "C's names")]
#[rustfmt::skip]
mod functions;
mod macros;
mod text;

pub use bindings::*;
pub use functions::Functions;
pub use macros::*;

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

    /// Returns the library that the functions of [`c`] call: that of [`load`](Self::load), loaded by the first call for
    /// the rest of the process.
    ///
    /// # Errors
    /// As [`load`](Self::load), each time with the error of the first call.
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
        Self { functions, path: None }
    }

    fn resolve(library: SharedLibrary) -> Result<Self, LoadError> {
        Ok(Self { functions: Functions::resolve(&library)?, path: Some(library.path().to_owned()) })
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
