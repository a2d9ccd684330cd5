//! The CUDA driver API, `libcuda`: types always, calls with the feature `driver`.

#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, missing_docs, reason = "C's names")]
#[allow(clippy::all, reason = "generated")]
#[rustfmt::skip]
mod bindings;
pub mod c;
#[cfg(feature = "driver")]
#[allow(non_snake_case, reason = "C's names")]
#[rustfmt::skip]
mod functions;
#[cfg(feature = "driver")]
mod library;
mod mem_op;

pub use bindings::*;
#[cfg(feature = "driver")]
pub use functions::Functions;
#[cfg(feature = "driver")]
pub use library::{Library, SEARCH};
pub use mem_op::CUstreamBatchMemOpParams;
