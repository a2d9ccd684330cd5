//! The CUDA driver API, `libcuda`: types and calls.

#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, missing_docs, reason = "C's names")]
#[allow(clippy::all, reason = "generated")]
#[rustfmt::skip]
mod bindings;
pub mod c;
#[allow(non_snake_case, reason = "C's names")]
#[rustfmt::skip]
mod functions;
mod library;
mod mem_op;

pub use bindings::*;
pub use functions::Functions;
pub use library::{Library, SEARCH};
pub use mem_op::CUstreamBatchMemOpParams;
