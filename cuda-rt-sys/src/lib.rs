//! The CUDA calls that file I/O needs, found in `libcudart` and `libcuda` at run time.
//!
//! Programs do not link to CUDA: a program that uses this crate builds and starts on a machine without it. There,
//! [`runtime::Library::load`] returns an error with the files that it tried. Loaded libraries are never unloaded.
//!
//! ```toml
//! [dependencies]
//! cuda-rt-sys = "0.1"
//! ```
//!
//! On macOS and Windows the crate compiles, and each load returns [`LoadError::Unsupported`], because cuFile exists for Linux
//! alone. C's `long` has 64 bits everywhere, as there.
//!
//! - [`runtime`]: the runtime API of CUDA 11.8, 12 and 13 (`libcudart.so.11.0`, `.12`, `.13`);
//! - [`driver`]: the driver API (`libcuda.so.1`), with the calls for devices, primary contexts, virtual memory, stream memory
//!   operations, kernels and error names;
//! - [`loader`]: the search for both libraries.
//!
//! Names are C's. Enumerations are integer newtypes, because a newer library may return numbers without a name in
//! this crate. [`runtime::c`] and [`driver::c`] have functions and enumerators under C's bare names, for glob
//! imports.
//!
//! `Default` clears a struct, as C programs do before they fill it in. The documentation of each function names its units,
//! its result, and its safe counterpart in the crate `cufile`.
//!
//! ```
//! use cuda_rt_sys::runtime::Library;
//!
//! match Library::load() {
//!     Ok(cuda) => {
//!         let mut count = 0;
//!         // SAFETY: `count` outlives the call.
//!         let status = unsafe { (cuda.cudaGetDeviceCount)(&mut count) };
//!         println!("{status:?}: {count} devices");
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("cuda-rt-sys, libcufile-sys and libcufile are for systems whose addresses have 64 bits");

// Generated files name this crate as those of cufile-sys do.
extern crate self as cuda_rt_sys;

pub mod driver;
pub mod loader;
mod macros;
pub mod runtime;

pub use loader::{LoadError, Symbol};
