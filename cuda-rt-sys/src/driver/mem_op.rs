//! Operations of a stream on words in memory.

use super::{CUdeviceptr, CUstreamBatchMemOpType};

/// One operation of `cuStreamBatchMemOp`. C has a union of structs for the types of operations, to which releases add; this
/// is the member for waiting and for writing, which are laid out alike in every version.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, reason = "C's names")]
pub struct CUstreamBatchMemOpParams {
    /// What the stream does. The fields are as said for waiting and writing, of 32 or 64 bits.
    pub operation: CUstreamBatchMemOpType,
    /// Where the word lies.
    pub address: CUdeviceptr,
    /// What it is compared with or set to. Of a word of 32 bits, the lower ones count.
    pub value64: u64,
    /// How it is waited for or written.
    pub flags: core::ffi::c_uint,
    /// For the driver.
    pub alias: CUdeviceptr,
    /// What other operations have behind that.
    pub pad: u64,
}

const _: () =
    assert!(size_of::<CUstreamBatchMemOpParams>() == 48 && align_of::<CUstreamBatchMemOpParams>() == 8);
