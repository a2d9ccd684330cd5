//! Operations of a stream on words in memory.

use super::bindings::{CUdeviceptr, CUstreamBatchMemOpType};

/// One operation of `cuStreamBatchMemOp`. C has a union of structs for the types of operations, and releases add
/// members. This has the fields of C's members `waitValue` and `writeValue`, which have one layout in every version, and
/// the size of the union.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, reason = "C's names")]
pub struct CUstreamBatchMemOpParams {
    /// The type of the operation. The fields below apply to operations that wait or write, with 32 or 64 bits.
    pub operation: CUstreamBatchMemOpType,
    /// The address of the word.
    pub address: CUdeviceptr,
    /// The value that the word is compared with or set to. For a word of 32 bits, only the lower half is used.
    pub value64: u64,
    /// The number of a `CUstreamWaitValue_flags` or `CUstreamWriteValue_flags`.
    pub flags: core::ffi::c_uint,
    /// Reserved for the driver.
    pub alias: CUdeviceptr,
    /// Space for further fields of other operations.
    pub pad: u64,
}

cuda_rt_sys::cleared!(CUstreamBatchMemOpParams);
