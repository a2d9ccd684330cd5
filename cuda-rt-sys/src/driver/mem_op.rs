//! Operations of a stream on words in memory.

use super::bindings::{CUdeviceptr, CUstreamBatchMemOpType};

/// One operation of `cuStreamBatchMemOp`. In C it is a union with a struct for each type of operation, of which
/// later releases add more. This struct has the union's size, and the fields of its members `waitValue` and
/// `writeValue`, laid out alike in every version.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, reason = "C's names")]
pub struct CUstreamBatchMemOpParams {
    /// The type of the operation. The fields below apply to operations that wait or write, with 32 or 64 bits.
    pub operation: CUstreamBatchMemOpType,
    /// The address of the word.
    pub address: CUdeviceptr,
    /// The value to compare the word with, or to set it to; a word of 32 bits uses the lower half.
    pub value64: u64,
    /// The number of a `CUstreamWaitValue_flags` or `CUstreamWriteValue_flags`.
    pub flags: core::ffi::c_uint,
    /// Reserved for the driver.
    pub alias: CUdeviceptr,
    /// Space for other operations' fields.
    pub pad: u64,
}

cuda_rt_sys::cleared!(CUstreamBatchMemOpParams);
