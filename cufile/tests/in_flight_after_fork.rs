//! Tests that the parent's objects and transfers call no C function in the child of a fork.

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cufile::cuda::Cuda;
use cufile::{
    Batch, Driver, Entry, Error, FileHandle, Library, RegisterFlags, RegisteredBuffer, RegisteredStream,
    StreamFlags,
};
use testkit::Emulator;
use testkit::bed::{Bed, libraries, pattern};
use testkit::in_flight::Gate;

const PAGE: usize = 4096;

static PARENT: OnceLock<u32> = OnceLock::new();

fn only_in_the_parent() {
    if PARENT.get() != Some(&std::process::id()) {
        // SAFETY: the call ends the process without running its destructors.
        unsafe { libc::_exit(77) };
    }
}

/// Replaces functions of a table by ones that pass the parent's calls on, and end a child.
macro_rules! guard {
    ($table:ident, $($function:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $({
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            static ORIGINAL: OnceLock<Function> = OnceLock::new();
            unsafe extern "C" fn guarded($($argument: $kind),*) -> $result {
                only_in_the_parent();
                // SAFETY: the caller keeps the promise.
                unsafe { ORIGINAL.get().unwrap()($($argument),*) }
            }
            ORIGINAL.set($table.$function).unwrap();
            $table.$function = guarded;
        })*
    };
}

fn guarded(emulator: &Emulator) -> (Library, Cuda) {
    use cuda_rt_sys::driver::{CUcontext, CUdevice, CUmodule, CUresult};
    use cuda_rt_sys::runtime::{cudaError_t, cudaEvent_t, cudaStream_t};
    use cufile_sys::*;

    let (library, cuda) = libraries(emulator);
    let mut cufile = *library.functions();
    guard! { cufile,
        cuFileDriverOpen() -> CUfileError_t;
        cuFileHandleDeregister(file: CUfileHandle_t) -> ();
        cuFileBufDeregister(base: *const std::ffi::c_void) -> CUfileError_t;
        cuFileStreamRegister(stream: CUstream, flags: u32) -> CUfileError_t;
        cuFileStreamDeregister(stream: CUstream) -> CUfileError_t;
        cuFileBatchIOSubmit(batch: CUfileBatchHandle_t, nr: u32, entries: *mut CUfileIOParams_t, flags: u32)
            -> CUfileError_t;
        cuFileBatchIOGetStatus(batch: CUfileBatchHandle_t, least: u32, nr: *mut u32,
            events: *mut CUfileIOEvents_t, timeout: *mut timespec) -> CUfileError_t;
        cuFileBatchIOCancel(batch: CUfileBatchHandle_t) -> CUfileError_t;
        cuFileBatchIODestroy(batch: CUfileBatchHandle_t) -> ();
        cuFileDriverClose_v2() -> CUfileError_t;
        cuFileReadAsync(file: CUfileHandle_t, base: *mut std::ffi::c_void, size: *mut usize, from: *mut off_t,
            to: *mut off_t, bytes: *mut isize, stream: CUstream) -> CUfileError_t;
    }
    let mut runtime = *cuda.runtime().functions();
    guard! { runtime,
        cudaEventCreateWithFlags(event: *mut cudaEvent_t, flags: u32) -> cudaError_t;
        cudaEventQuery(event: cudaEvent_t) -> cudaError_t;
        cudaEventSynchronize(event: cudaEvent_t) -> cudaError_t;
        cudaEventDestroy(event: cudaEvent_t) -> cudaError_t;
        cudaStreamQuery(stream: cudaStream_t) -> cudaError_t;
        cudaStreamSynchronize(stream: cudaStream_t) -> cudaError_t;
        cudaStreamDestroy(stream: cudaStream_t) -> cudaError_t;
        cudaSetDevice(device: i32) -> cudaError_t;
        cudaFree(memory: *mut std::ffi::c_void) -> cudaError_t;
        cudaFreeHost(memory: *mut std::ffi::c_void) -> cudaError_t;
    }
    let mut driver = *emulator.driver().functions();
    guard! { driver,
        cuDeviceGetCount(count: *mut i32) -> CUresult;
        cuDeviceGetName(name: *mut std::ffi::c_char, len: i32, device: CUdevice) -> CUresult;
        cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult;
        cuCtxGetCurrent(context: *mut CUcontext) -> CUresult;
        cuCtxPushCurrent_v2(context: CUcontext) -> CUresult;
        cuModuleLoadData(module: *mut CUmodule, image: *const std::ffi::c_void) -> CUresult;
        cuModuleUnload(module: CUmodule) -> CUresult;
    }
    // SAFETY: these are the emulator's functions, and those above. They end the process or do the same as the
    // emulator's.
    let library = unsafe { cufile_sys::Library::from_functions(cufile) };
    let library = cufile::Library::from_sys(library).unwrap();
    // SAFETY: as above.
    let runtime = unsafe { cuda_rt_sys::runtime::Library::from_functions(runtime) };
    // SAFETY: as above.
    let driver = unsafe { cuda_rt_sys::driver::Library::from_functions(driver) };
    (library, Cuda::from_sys(driver, runtime).unwrap())
}

/// Returns the child's exit code: 0 if it reached its end, 77 if it called C.
fn in_a_fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the child calls nothing that needs a thread of the parent, and ends without returning.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: the call ends the process without running its destructors.
            unsafe { libc::_exit(if ended.is_ok() { 0 } else { 1 }) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "{status}");
            libc::WEXITSTATUS(status)
        }
    }
}

fn is_forked<T>(result: Result<T, impl Into<Error>>) {
    assert!(matches!(result.map(drop).map_err(Into::into), Err(Error::Forked)));
}

// There is one test, because a fork copies the state of other tests.
#[test]
fn forked_children_get_errors_and_drops_call_no_c_function() {
    PARENT.set(std::process::id()).unwrap();
    let emulator = Emulator::start();
    for variable in ["CUFILE_LIBRARY", "CUDART_LIBRARY", "CUDA_LIBRARY"] {
        // SAFETY: the only test of its process, which has started no thread.
        unsafe { std::env::set_var(variable, emulator.path()) };
    }
    let (library, cuda) = guarded(&emulator);
    let builder = Driver::builder().library(library).cuda(cuda.clone());
    let driver = builder.clone().open().unwrap();
    Cuda::load().unwrap();
    let device = cuda.device(0).unwrap();
    let mut memory = Some((device.alloc(PAGE).unwrap(), cuda.device(1).unwrap()));
    let mut plain =
        Some((device.stream().unwrap(), device.event().unwrap(), device.alloc_pinned(PAGE).unwrap()));
    const PTX: &CStr = c".version 7.8\n.target sm_52\n.entry f(.param .u32 f_param_0)\n{ret;}";
    let mut module = Some(device.load_module(PTX).unwrap());
    let bed = Bed::on(emulator);
    let bytes = pattern(PAGE);
    let file = Arc::new(FileHandle::register(&driver, bed.file("data", &bytes)).unwrap());
    let stream = RegisteredStream::register(&driver, device.stream().unwrap(), StreamFlags::empty()).unwrap();

    let other = RegisteredStream::register(&driver, device.stream().unwrap(), StreamFlags::empty()).unwrap();
    let mut idle_stream = Some(other);
    let gate = Gate::close(stream.stream());
    let mut operations = (0..3).map(|_| stream.read_at(&file, vec![0; PAGE], 0).unwrap()).collect::<Vec<_>>();
    bed.emulator.as_ref().unwrap().fault("batch-entry", "delay_us=100000");
    let mut batch = Batch::new(&driver, 2).unwrap();
    let register = |buffer| RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty()).unwrap();
    let (in_flight, extra) = (register(vec![0; PAGE]), register(vec![0; PAGE]));
    batch.submit([Entry::read(&file, in_flight, 0)]).unwrap();
    let mut extra = Some(extra);
    let (mut stream, mut file, mut driver) = (Some(stream), Some(file), Some(driver));
    let mut batches = [batch, Batch::new(driver.as_ref().unwrap(), 1).unwrap()].into_iter();
    let (mut batch, mut idle) = (batches.next(), batches.next());

    let ended = in_a_fork(|| {
        let operation = operations.pop().unwrap();
        is_forked(operation.is_done());
        let (error, kept) = operation.wait().unwrap_err().into_parts();
        let buffer = kept.into_buffer();
        assert!(buffer.is_none());
        is_forked::<()>(Err(error));
        is_forked(stream.as_ref().unwrap().read_at(file.as_ref().unwrap(), vec![0; PAGE], 0));
        is_forked(RegisteredStream::register(
            driver.as_ref().unwrap(),
            Arc::clone(stream.as_ref().unwrap().stream()),
            StreamFlags::empty(),
        ));
        is_forked(Batch::<Vec<u8>>::new(driver.as_ref().unwrap(), 1));
        let batch_of_child = batch.as_mut().unwrap();
        is_forked(batch_of_child.poll(0, 1, Some(Duration::ZERO)));
        is_forked(batch_of_child.wait_all());
        let entry = Entry::read(file.as_ref().unwrap(), extra.take().unwrap(), 0);
        let (error, entries) = batch_of_child.submit([entry]).unwrap_err().into_parts();
        assert_eq!(entries.len(), 1);
        is_forked::<()>(Err(error));
        drop(entries);
        is_forked(idle.take().unwrap().cancel());
        is_forked(idle_stream.take().unwrap().deregister());
        is_forked(builder.clone().open());
        is_forked(Driver::open());
        is_forked(Cuda::load());
        is_forked(cuda.device(0));
        is_forked(device.alloc(PAGE));
        is_forked(device.name());
        is_forked(device.set_current());
        is_forked(memory.as_ref().unwrap().0.to_vec());
        is_forked(plain.as_ref().unwrap().0.is_idle());
        is_forked(plain.as_ref().unwrap().1.is_done());
        is_forked(plain.as_ref().unwrap().1.wait());
        is_forked(device.load_module(PTX));
        // SAFETY: the device refuses the call before it reads the image.
        is_forked(unsafe { device.load_binary(&[]) });
        is_forked(module.as_ref().unwrap().kernel(c"f"));
        drop((memory.take(), plain.take(), module.take()));
        // These are the last references to everything.
        operations.clear();
        drop((batch.take(), file.take(), stream.take(), driver.take()));
    });
    assert_eq!(ended, 0, "77: something called C");

    // The parent is as it was.
    gate.open();
    for operation in operations {
        assert_eq!(operation.wait().unwrap(), (PAGE, bytes.clone()));
    }
    let completions = batch.unwrap().wait_all().unwrap();
    assert_eq!(completions[0].buffer.as_ref().unwrap().get(), &bytes);
}
