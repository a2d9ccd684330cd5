//! The CUDA driver API, `libcuda`: types always, calls with the feature `driver`.

#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, missing_docs, reason = "C's names")]
#[allow(clippy::all, reason = "generated")]
#[rustfmt::skip]
mod bindings;

pub use bindings::*;
pub use mem_op::CUstreamBatchMemOpParams;

#[cfg(feature = "driver")]
pub use library::{Functions, Library, SEARCH};

#[cfg(feature = "driver")]
mod library;
mod mem_op;
