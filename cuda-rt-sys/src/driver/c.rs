//! C's bare names, to use by glob: what `#include <cuda.h>` gives a C program.
//!
//! Functions are called without a `Library`: they use `Library::shared`. A function panics if that fails, or if the
//! library lacks it. Call `Library::shared` first to get that error instead. Enumerators such as `CUDA_SUCCESS` are
//! listed with their types. A function whose symbol ends in `_v2` has the
//! name that `cuda.h` gives it, such as `cuMemAlloc`.

use super::library::Library;

pub use super::bindings::names::*;
pub use super::bindings::*;
pub use super::mem_op::CUstreamBatchMemOpParams;

super::functions::c_calls!();
