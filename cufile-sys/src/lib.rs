//! Raw bindings to NVIDIA cuFile (GPUDirect Storage), found in `libcufile.so.0` at run time.
//!
//! Binds everything that the newest of the headers in [`Functions::RELEASES`] declares, under C's names, for every libcufile from
//! 1.11 on. In the table [`Functions`], a function that some of these versions lack is an `Option`. Programs do not link to
//! libcufile. On a machine without it, [`Library::load`] returns an error with the files that it tried, and does not
//! panic. A loaded library is never unloaded.
//!
//! The package is `libcufile-sys`; the registry's `cufile-sys` is another crate:
//!
//! ```toml
//! [dependencies]
//! libcufile-sys = "0.1"
//! ```
//!
//! On macOS and Windows the crate compiles, and each load returns [`LoadError::Unsupported`], because libcufile exists for
//! Linux alone. `off_t` and C's `long` have 64 bits everywhere, as there.
//!
//! The types `CUresult` and `CUstream` in cuFile's functions, and the loader, are those of the crate `cuda_rt_sys`, which alone
//! depends on libloading. Its own loader would save nothing, because this crate needs CUDA's types anyway, and could load two
//! copies of a library if it searched in another order. A feature there has the calls of CUDA's driver, which this crate leaves
//! off.
//!
//! Enumerations are integer newtypes, because a newer library may return codes without a name in this crate.
//!
//! Use `cufile` (the package `libcufile`) unless you want C's rules. Here every call is `unsafe`, and `-1` means `errno`. On a host
//! without libcuda and `/proc/modules`, `cuFileDriverOpen` of 1.16 and newer never returns. The fields of [`Functions`] document units, results
//! and such hazards, each with its safe counterpart in `cufile`.
//!
//! `use cufile_sys::c::*` imports functions, enumerators and macros under C's bare names. `Default` clears a struct, as C
//! programs do before they fill it in. `Debug` prints a struct's fields; of a union it prints none.
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

#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, missing_docs, reason = "C's names")]
#[allow(clippy::all, reason = "generated")]
#[rustfmt::skip]
mod bindings;
pub mod c;
#[allow(non_snake_case, reason = "C's names")]
#[rustfmt::skip]
mod functions;
mod library;
mod macros;
mod text;

pub use bindings::*;
pub use cuda_rt_sys::{LoadError, Symbol};
pub use functions::Functions;
pub use library::{Library, SEARCH};
pub use macros::*;
