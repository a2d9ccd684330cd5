//! A libcufile, libcudart and libcuda with empty functions, which leave only the cost of the Rust around them.

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::sync::Arc;
use std::{mem, ptr};

use cuda_rt_sys::driver::{CUcontext, CUdevice, CUresult};
use cufile::cuda::{Context, Cuda};
use cufile::{Driver, FileHandle, IoBuf, IoBufMut, Library, Location};
use cufile_sys::{
    CUfileBatchHandle_t, CUfileDescr_t, CUfileDrvProps_t, CUfileError_t, CUfileHandle_t, CUfileIOEvents_t,
    CUfileIOParams_t, CUfileOpError, Functions, off_t, timespec,
};

const OK: CUfileError_t =
    CUfileError_t { err: CUfileOpError::CU_FILE_SUCCESS, cu_err: CUresult::CUDA_SUCCESS };

/// Stands for functions that no test calls.
extern "C" fn unexpected() -> ! {
    std::process::abort()
}

/// Returns a table of functions that all abort.
///
/// # Safety
/// `T` must be made of function pointers, or options of them, only.
unsafe fn aborting<T: Copy>() -> T {
    let pointers = vec![unexpected as extern "C" fn() -> !; mem::size_of::<T>() / mem::size_of::<usize>()];
    // SAFETY: function pointers fill the whole of `T` and have one size. No code calls them with other
    // signatures.
    unsafe { pointers.as_ptr().cast::<T>().read() }
}

unsafe extern "C" fn version(version: *mut c_int) -> CUfileError_t {
    // SAFETY: the caller's promise.
    unsafe { *version = 1200 };
    OK
}

unsafe extern "C" fn done() -> CUfileError_t {
    OK
}

unsafe extern "C" fn properties(properties: *mut CUfileDrvProps_t) -> CUfileError_t {
    // SAFETY: the caller's promise.
    unsafe {
        (*properties).max_batch_io_size = 128;
        (*properties).nvfs.max_direct_io_size = 16384;
    }
    OK
}

unsafe extern "C" fn register(handle: *mut CUfileHandle_t, _: *mut CUfileDescr_t) -> CUfileError_t {
    // SAFETY: the caller's promise.
    unsafe { *handle = ptr::without_provenance_mut(8) };
    OK
}

unsafe extern "C" fn forget(_: CUfileHandle_t) {}

unsafe extern "C" fn read(_: CUfileHandle_t, _: *mut c_void, size: usize, _: off_t, _: off_t) -> isize {
    size as isize
}

unsafe extern "C" fn write(_: CUfileHandle_t, _: *const c_void, size: usize, _: off_t, _: off_t) -> isize {
    size as isize
}

unsafe extern "C" fn set_up(batch: *mut CUfileBatchHandle_t, _: c_uint) -> CUfileError_t {
    // SAFETY: the caller's promise.
    unsafe { *batch = ptr::without_provenance_mut(8) };
    OK
}

unsafe extern "C" fn submit(
    _: CUfileBatchHandle_t,
    _: c_uint,
    _: *mut CUfileIOParams_t,
    _: c_uint,
) -> CUfileError_t {
    OK
}

/// Fails, so that a batch is cancelled rather than waited for.
unsafe extern "C" fn get_status(
    _: CUfileBatchHandle_t,
    _: c_uint,
    _: *mut c_uint,
    _: *mut CUfileIOEvents_t,
    _: *mut timespec,
) -> CUfileError_t {
    CUfileError_t { err: CUfileOpError::CU_FILE_INTERNAL_ERROR, ..OK }
}

unsafe extern "C" fn cancel(_: CUfileBatchHandle_t) -> CUfileError_t {
    OK
}

unsafe extern "C" fn init(_: c_uint) -> CUresult {
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn one_device(count: *mut c_int) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { *count = 1 };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn current(context: *mut CUcontext) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { *context = ptr::without_provenance_mut(CONTEXT) };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn device(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { *device = ordinal };
    CUresult::CUDA_SUCCESS
}

const CONTEXT: usize = 16;

/// Returns the functions of libcufile.
pub fn functions() -> Functions {
    Functions {
        cuFileGetVersion: version,
        cuFileDriverOpen: done,
        cuFileDriverClose_v2: done,
        cuFileDriverGetProperties: properties,
        cuFileHandleRegister: register,
        cuFileHandleDeregister: forget,
        cuFileRead: read,
        cuFileWrite: write,
        cuFileBatchIOSetUp: set_up,
        cuFileBatchIOSubmit: submit,
        cuFileBatchIOGetStatus: get_status,
        cuFileBatchIOCancel: cancel,
        cuFileBatchIODestroy: forget,
        // SAFETY: the table is made of function pointers and options of them.
        ..unsafe { aborting() }
    }
}

/// Returns a registered file.
pub fn file() -> Arc<FileHandle> {
    let driver = cuda_rt_sys::driver::Functions {
        cuInit: init,
        cuDeviceGetCount: one_device,
        cuDeviceGet: device,
        cuCtxGetCurrent: current,
        // SAFETY: the table is made of function pointers and options of them.
        ..unsafe { aborting() }
    };
    // SAFETY: functions that are not set here end the process.
    let driver = unsafe { cuda_rt_sys::driver::Library::from_functions(driver) };
    // SAFETY: the table is made of function pointers and options of them, which end the process.
    let runtime = unsafe { cuda_rt_sys::runtime::Library::from_functions(aborting()) };
    let cuda = Cuda::from_sys(driver, runtime).expect("CUDA");
    // SAFETY: functions without an effect on their caller, or that end the process.
    let library = unsafe { cufile_sys::Library::from_functions(functions()) };
    let library = Library::from_sys(library).expect("libcufile");
    let driver = Driver::builder().library(library).cuda(cuda).open().expect("the driver opens");
    let file = File::open("/dev/null").expect("/dev/null");
    Arc::new(FileHandle::register(&driver, file).expect("the file is registered"))
}

/// Memory with a CUDA context, like device memory, at an address that no code uses.
pub struct OnTheDevice(pub usize);

// SAFETY: nothing here reads or writes the memory.
unsafe impl IoBuf for OnTheDevice {
    fn as_ptr(&self) -> *const u8 {
        ptr::without_provenance(0x1000)
    }

    fn len_bytes(&self) -> usize {
        self.0
    }

    fn location(&self) -> Location {
        // SAFETY: the functions here take any context.
        Location::device(unsafe { Context::from_raw(ptr::without_provenance_mut(CONTEXT)) })
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for OnTheDevice {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        ptr::without_provenance_mut(0x1000)
    }
}
