//! C's bare names, to use by glob: what `#include <cufile.h>` gives a C program.
//!
//! Functions are called without a library: they use [`Library::shared`](crate::Library::shared). A function panics if
//! that fails, or if the library lacks it. Call `Library::shared` first to get that error instead. Enumerators such
//! as `CU_FILE_SUCCESS` are listed with their types, and [`cuFileDriverClose`] is the function that `cufile.h` means.
//!
//! ```
//! use cufile_sys::c::*;
//!
//! fn version() -> Result<i32, Box<dyn std::error::Error>> {
//!     cufile_sys::Library::shared()?;
//!     let mut version = 0;
//!     // SAFETY: `version` outlives the call.
//!     let status = unsafe { cuFileGetVersion(&mut version) };
//!     if status.err != CU_FILE_SUCCESS {
//!         return Err(CUFILE_ERRSTR(status.err).into());
//!     }
//!     Ok(version)
//! }
//! # if let Err(error) = version() { println!("{error}") }
//! ```

use crate::library::Library;

pub use crate::bindings::names::*;
pub use crate::bindings::*;
pub use crate::macros::*;

crate::functions::c_calls!();
