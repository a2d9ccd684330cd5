//! Operations of a stream on words in memory.

use super::bindings::{CUdeviceptr, CUstreamBatchMemOpType};

/// One operation of `cuStreamBatchMemOp`. In C it is a union with a struct for each type of operation, and later
/// releases add structs. This struct has the size of the union, and the fields of its members `waitValue` and
/// `writeValue`, whose layout is the same in every version.
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
