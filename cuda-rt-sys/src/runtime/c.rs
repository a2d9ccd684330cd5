//! C's bare names, to use by glob: what `#include <cuda_runtime_api.h>` gives a C program.
//!
//! Functions are called without a library: they use [`Library::shared`](super::Library::shared). A function panics if
//! that fails, or if the library lacks it. Call `Library::shared` first to get that error instead. Enumerators such
//! as `cudaSuccess` are listed with their types.
//!
//! ```
//! use cuda_rt_sys::runtime::{Library, c::*};
//!
//! if Library::shared().is_ok() {
//!     let mut count = 0;
//!     // SAFETY: `count` outlives the call.
//!     let status = unsafe { cudaGetDeviceCount(&mut count) };
//!     println!("{count} devices: {}", status == cudaSuccess);
//! }
//! ```

use super::library::Library;

pub use super::bindings::names::*;
pub use super::bindings::*;

super::functions::c_calls!();
