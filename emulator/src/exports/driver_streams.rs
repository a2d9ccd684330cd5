//! libcuda: streams, events and memory, as cudarc calls them. Each calls the equivalent function of libcudart, and counts and
//! fails under that name.

use std::ffi::{c_int, c_uchar, c_uint, c_void};
use std::ptr;

use cuda_rt_sys::driver::{CUdeviceptr, CUevent, CUresult, CUstream};
use cuda_rt_sys::runtime::{cudaError_t, cudaMemcpyKind};

use super::{runtime, runtime_copy};
use crate::{control, device};

/// Unlike libcudart, libcuda makes no context current.
fn with_context(call: impl FnOnce() -> cudaError_t) -> CUresult {
    if control::forked() {
        return CUresult::CUDA_ERROR_NOT_INITIALIZED;
    }
    // The same numbers mean the same in both.
    device::context().map_or_else(|error| error, |_| CUresult::from_raw(call().as_raw()))
}

fn pointer(address: CUdeviceptr) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

macro_rules! forwarded {
    ($($name:ident($($argument:ident: $kind:ty),*) => $call:expr;)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> CUresult {
            // SAFETY: the C caller makes the same promises for both functions.
            with_context(|| unsafe { $call })
        })*
    };
}

forwarded! {
    cuStreamCreate(phStream: *mut CUstream, Flags: c_uint) =>
        runtime::cudaStreamCreateWithFlags(phStream.cast(), Flags);
    cuStreamDestroy_v2(hStream: CUstream) => runtime::cudaStreamDestroy(hStream.cast());
    cuStreamSynchronize(hStream: CUstream) => runtime::cudaStreamSynchronize(hStream.cast());
    cuStreamWaitEvent(hStream: CUstream, hEvent: CUevent, Flags: c_uint) =>
        runtime::cudaStreamWaitEvent(hStream.cast(), hEvent.cast(), Flags);
    cuEventCreate(phEvent: *mut CUevent, Flags: c_uint) =>
        runtime::cudaEventCreateWithFlags(phEvent.cast(), Flags);
    cuEventRecord(hEvent: CUevent, hStream: CUstream) =>
        runtime::cudaEventRecord(hEvent.cast(), hStream.cast());
    cuEventSynchronize(hEvent: CUevent) => runtime::cudaEventSynchronize(hEvent.cast());
    cuEventDestroy_v2(hEvent: CUevent) => runtime::cudaEventDestroy(hEvent.cast());
    cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) =>
        runtime::cudaMallocAsync(dptr.cast(), bytesize, hStream.cast());
    cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) =>
        runtime::cudaFreeAsync(pointer(dptr), hStream.cast());
    cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, Flags: c_uint) =>
        runtime::cudaHostAlloc(pp, bytesize, Flags);
    cuMemFreeHost(p: *mut c_void) => runtime::cudaFreeHost(p);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => runtime::cudaMemGetInfo(free, total);
    cuMemsetD8Async(dstDevice: CUdeviceptr, uc: c_uchar, N: usize, hStream: CUstream) =>
        runtime_copy::cudaMemsetAsync(pointer(dstDevice), c_int::from(uc), N, hStream.cast());
    cuMemcpyHtoDAsync_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) =>
        runtime_copy::cudaMemcpyAsync(
            pointer(dstDevice), srcHost, ByteCount, cudaMemcpyKind::cudaMemcpyHostToDevice, hStream.cast()
        );
    cuMemcpyDtoHAsync_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) =>
        runtime_copy::cudaMemcpyAsync(
            dstHost, pointer(srcDevice), ByteCount, cudaMemcpyKind::cudaMemcpyDeviceToHost, hStream.cast()
        );
    cuMemcpyDtoDAsync_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) =>
        runtime_copy::cudaMemcpyAsync(
            pointer(dstDevice),
            pointer(srcDevice),
            ByteCount,
            cudaMemcpyKind::cudaMemcpyDeviceToDevice,
            hStream.cast()
        );
}
