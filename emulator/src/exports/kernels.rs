//! libcuda: modules and kernels.

use std::ffi::{c_char, c_uint, c_void};
use std::ptr;

use cuda_rt_sys::driver::{CUfunction, CUmodule, CUresult, CUstream};

use super::driver_api::{INVALID, call, put, queued};
use super::runtime;
use crate::kernels::{self, Launch};
use crate::{c, device, stream};

/// The limits in each direction.
const MOST_BLOCKS: [c_uint; 3] = [i32::MAX as c_uint, 65_535, 65_535];
const MOST_THREADS: [c_uint; 3] = [1024, 1024, 64];
const MOST_SHARED_BYTES: c_uint = 48 << 10;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    call("cuModuleLoadData", || {
        let device = device::context()?;
        runtime::beside_captures()?;
        if module.is_null() {
            return Err(INVALID);
        }
        let handle = match c::elf(image.cast()) {
            Some(cubin) => kernels::load_cubin(&cubin, device)?,
            None => kernels::load_ptx(&c::text(image.cast()).ok_or(INVALID)?, device)?,
        };
        put(module, ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(hmod: CUmodule) -> CUresult {
    call("cuModuleUnload", || {
        device::context()?;
        runtime::beside_captures()?;
        kernels::unload(hmod.addr())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    hfunc: *mut CUfunction,
    hmod: CUmodule,
    name: *const c_char,
) -> CUresult {
    call("cuModuleGetFunction", || {
        device::context()?;
        let name = c::text(name).ok_or(INVALID)?;
        put(hfunc, ptr::without_provenance_mut(kernels::find(hmod.addr(), &name)?))
    })
}

/// A kernel that the emulator does not know, or arguments in `extra`, return `CUDA_ERROR_NOT_SUPPORTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    f: CUfunction,
    gridDimX: c_uint,
    gridDimY: c_uint,
    gridDimZ: c_uint,
    blockDimX: c_uint,
    blockDimY: c_uint,
    blockDimZ: c_uint,
    sharedMemBytes: c_uint,
    hStream: CUstream,
    kernelParams: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    queued("cuLaunchKernel", |hit| {
        let device = device::context()?;
        let kernel = kernels::of_handle(f.addr()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let stream = stream::find(hStream.addr())?;
        if kernel.device != device || stream.device != device {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let (grid, block) = ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]);
        let fits = |found: [c_uint; 3], most: [c_uint; 3]| {
            found.iter().zip(most).all(|(found, most)| (1..=most).contains(found))
        };
        let threads: u64 = block.iter().map(|count| u64::from(*count)).product();
        let shape = fits(grid, MOST_BLOCKS) && fits(block, MOST_THREADS) && threads <= 1024;
        if !shape || sharedMemBytes > MOST_SHARED_BYTES {
            return Err(INVALID);
        }
        if threads > kernel.declared.most_threads {
            return Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        if !extra.is_null() || kernel.declared.parameter_bytes != [8, 4, 8] {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let arguments = c::array(kernelParams, 3).ok_or(INVALID)?;
        let entries = c::get(arguments[0].cast::<u64>()).ok_or(INVALID)?;
        let count = c::get(arguments[1].cast::<u32>()).ok_or(INVALID)?;
        let staging = c::get(arguments[2].cast::<u64>()).ok_or(INVALID)?;
        let launch =
            Launch::new(kernel, entries, count, staging).ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        launch.check_shape(grid, block);
        stream.push(move || {
            hit.sleep();
            match hit.status {
                Some(code) => device::fail(device, code as u32),
                None => launch.run(),
            }
        });
        Ok(())
    })
}

declared! {
    cuda_rt_sys::driver::Functions:
    cuModuleLoadData cuModuleUnload cuModuleGetFunction cuLaunchKernel
}
