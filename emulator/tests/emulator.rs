//! Tests of the emulator's behaviour that other tests rely on.

#![allow(clippy::undocumented_unsafe_blocks, reason = "C calls whose arguments outlive them, in every line")]

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cuda_rt_sys::driver::{
    self, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationType, CUmemLocation,
    CUmemLocation_st_anon_1, CUmemLocationType, CUpointer_attribute, CUresult,
};
use cuda_rt_sys::loader::{Search, SharedLibrary};
use cuda_rt_sys::runtime::{
    self, cudaError_t, cudaExtent, cudaMemcpy3DParms, cudaMemcpyAttributes, cudaMemcpyKind,
    cudaMemcpySrcAccessOrder, cudaMemoryType, cudaPitchedPtr, cudaPos, cudaStream_t,
};
use cufile_sys::{
    CUFileBoolConfigParameter_t, CUFileSizeTConfigParameter_t, CUFileStringConfigParameter_t,
    CUfileDescr_anon_handle, CUfileDescr_t, CUfileDriverStatusFlags_t, CUfileDrvProps_t, CUfileError_t,
    CUfileFileHandleType, CUfileHandle_t, CUfileIOEvents_t, CUfileIOParams_anon_batch, CUfileIOParams_anon_u,
    CUfileIOParams_t, CUfileIOVec_t, CUfileOpcode_t, CUfileP2PFlags_t, CUfileStatsLevel1_t,
    CUfileStatsLevel2_t, CUfileStatsLevel3_t, CUfileStatus_t, cufileBatchMode, timespec,
};
use testkit::{Emulator, aborts};

const MIB: usize = 1 << 20;
const OK: cudaError_t = cudaError_t::cudaSuccess;
const INVALID: cudaError_t = cudaError_t::cudaErrorInvalidValue;

struct Rig {
    emulator: Emulator,
    cufile: cufile_sys::Library,
    cuda: runtime::Library,
    driver: driver::Library,
}

fn rig() -> Rig {
    Rig::of(Emulator::start())
}

fn older(version: &str) -> Rig {
    Rig::of(Emulator::posing_as(version))
}

impl Rig {
    fn of(emulator: Emulator) -> Self {
        let (cufile, cuda, driver) = (emulator.cufile(), emulator.runtime(), emulator.driver());
        Self { emulator, cufile, cuda, driver }
    }

    fn device(&self, size: usize) -> *mut c_void {
        let mut pointer = null_mut();
        assert_eq!(unsafe { (self.cuda.cudaMalloc)(&mut pointer, size) }, OK);
        pointer
    }

    fn fill(&self, pointer: *mut c_void, bytes: &[u8]) {
        assert_eq!(self.copy(pointer, bytes.as_ptr().cast(), bytes.len()), OK);
    }

    fn bytes(&self, pointer: *const c_void, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert_eq!(self.copy(bytes.as_mut_ptr().cast(), pointer, length), OK);
        bytes
    }

    fn copy(&self, to: *mut c_void, from: *const c_void, length: usize) -> cudaError_t {
        unsafe { (self.cuda.cudaMemcpy)(to, from, length, cudaMemcpyKind::cudaMemcpyDefault) }
    }

    fn stream(&self) -> cudaStream_t {
        let mut stream = null_mut();
        assert_eq!(unsafe { (self.cuda.cudaStreamCreateWithFlags)(&mut stream, 1) }, OK);
        stream
    }

    fn synchronise(&self, stream: cudaStream_t) {
        assert_eq!(unsafe { (self.cuda.cudaStreamSynchronize)(stream) }, OK);
    }

    fn register(&self, file: &File) -> Result<CUfileHandle_t, u32> {
        self.register_fd(file.as_raw_fd())
    }

    fn register_fd(&self, fd: c_int) -> Result<CUfileHandle_t, u32> {
        let mut handle = null_mut();
        let mut descr = CUfileDescr_t {
            type_: CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_FD,
            handle: CUfileDescr_anon_handle { fd },
            fs_ops: null(),
        };
        code(unsafe { (self.cufile.cuFileHandleRegister)(&mut handle, &mut descr) }).map(|()| handle)
    }

    fn read(&self, handle: CUfileHandle_t, to: *mut c_void, size: usize, at: (i64, i64)) -> (isize, i32) {
        let moved = unsafe { (self.cufile.cuFileRead)(handle, to, size, at.0, at.1) };
        (moved, errno())
    }

    fn write(
        &self,
        handle: CUfileHandle_t,
        from: *const c_void,
        size: usize,
        at: (i64, i64),
    ) -> (isize, i32) {
        let moved = unsafe { (self.cufile.cuFileWrite)(handle, from, size, at.0, at.1) };
        (moved, errno())
    }

    fn buffer(&self, base: *const c_void, length: usize) -> Result<(), u32> {
        code(unsafe { (self.cufile.cuFileBufRegister)(base, length, 0) })
    }

    fn open(&self) -> Result<(), u32> {
        code(unsafe { (self.cufile.cuFileDriverOpen)() })
    }

    fn close(&self) -> Result<(), u32> {
        code(unsafe { (self.cufile.cuFileDriverClose_v2)() })
    }

    fn use_count(&self) -> i64 {
        unsafe { (self.cufile.cuFileUseCount)() }
    }

    fn set_up(&self, entries: u32) -> Result<*mut c_void, u32> {
        let mut batch = null_mut();
        code(unsafe { (self.cufile.cuFileBatchIOSetUp)(&mut batch, entries) }).map(|()| batch)
    }

    fn submit(&self, batch: *mut c_void, entries: &mut [CUfileIOParams_t]) -> Result<(), u32> {
        let count = entries.len() as u32;
        code(unsafe { (self.cufile.cuFileBatchIOSubmit)(batch, count, entries.as_mut_ptr(), 0) })
    }

    /// Waits until `timeout`, or until `least` events have come.
    fn events(
        &self,
        batch: *mut c_void,
        least: u32,
        timeout: Duration,
    ) -> Vec<(usize, CUfileStatus_t, isize)> {
        let none = CUfileIOEvents_t { cookie: null_mut(), status: CUfileStatus_t::CUFILE_WAITING, ret: 0 };
        let mut events = vec![none; 256];
        let mut count = 256;
        let mut time = timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let status = unsafe {
            (self.cufile.cuFileBatchIOGetStatus)(batch, least, &mut count, events.as_mut_ptr(), &mut time)
        };
        assert_eq!(code(status), Ok(()));
        let seen = events[..count as usize].iter();
        seen.map(|event| (event.cookie.addr(), event.status, event.ret as isize)).collect()
    }
}

fn code(status: CUfileError_t) -> Result<(), u32> {
    if status.err.as_raw() == 0 { Ok(()) } else { Err(status.err.as_raw()) }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn file(contents: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(contents).unwrap();
    file
}

fn contents(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn entry(handle: CUfileHandle_t, base: *mut c_void, size: usize, cookie: usize) -> CUfileIOParams_t {
    CUfileIOParams_t {
        mode: cufileBatchMode::CUFILE_BATCH,
        u: CUfileIOParams_anon_u {
            batch: CUfileIOParams_anon_batch { devPtr_base: base, file_offset: 0, devPtr_offset: 0, size },
        },
        fh: handle,
        opcode: CUfileOpcode_t::CUFILE_READ,
        cookie: std::ptr::without_provenance_mut(cookie),
    }
}

fn status_of_child(body: impl FnOnce() -> i32) -> i32 {
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A child that unwinds into the test harness would report to nobody.
        let code = catch_unwind(AssertUnwindSafe(body));
        unsafe { libc::_exit(code.unwrap_or(101)) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

mod exports {
    use super::*;

    fn search() -> Search {
        Search { library: "cufile-emulator", variable: "UNUSED", names: &[], toolkit: false }
    }

    #[test]
    fn the_emulator_exports_every_function() {
        let emulator = Emulator::start();
        // SAFETY: the emulator may be loaded by anyone.
        let library = unsafe { SharedLibrary::load_from(&search(), emulator.path()) }.unwrap();
        let tables =
            [cufile_sys::Functions::SYMBOLS, runtime::Functions::SYMBOLS, driver::Functions::SYMBOLS];
        for symbol in tables.into_iter().flatten() {
            let name = CString::new(symbol.name).unwrap();
            unsafe { library.required::<*const c_void>(&name) }.unwrap();
            assert_eq!(emulator.calls(symbol.name), 0);
        }
        let plain: Option<*const c_void> = unsafe { library.optional(c"cuFileDriverClose") };
        assert!(plain.is_some(), "libcufile exports the name without _v2 too");
    }

    #[test]
    fn every_function_has_the_type_of_the_bindings() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/exports");
        let files =
            fs::read_dir(folder).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
        let lists: String = files
            .flat_map(|text| text.split("declared! {").skip(1).map(str::to_owned).collect::<Vec<_>>())
            .collect();
        let declared: HashSet<_> = lists.split_whitespace().collect();
        let tables =
            [cufile_sys::Functions::SYMBOLS, runtime::Functions::SYMBOLS, driver::Functions::SYMBOLS];
        let missing: Vec<_> =
            tables.into_iter().flatten().filter(|symbol| !declared.contains(symbol.name)).collect();
        // It has the arguments of both declarations.
        assert!(missing.iter().all(|symbol| symbol.name == "cudaMemcpyBatchAsync"), "{missing:?}");
    }

    #[test]
    fn an_old_version_lacks_exactly_the_newer_functions() {
        for &(version, number) in Emulator::VERSIONS {
            let emulator = Emulator::posing_as(version);
            // SAFETY: the emulator may be loaded by anyone.
            let library = unsafe { SharedLibrary::load_from(&search(), emulator.path()) }.unwrap();
            for symbol in cufile_sys::Functions::SYMBOLS {
                let name = CString::new(symbol.name).unwrap();
                let found: Option<*const c_void> = unsafe { library.optional(&name) };
                assert_eq!(found.is_some(), symbol.since <= number, "{} in {version}", symbol.name);
            }
            let mut reported = 0;
            assert_eq!(code(unsafe { (emulator.cufile().cuFileGetVersion)(&mut reported) }), Ok(()));
            assert_eq!(reported, number);
        }
    }

    #[test]
    fn the_default_version_is_the_newest_with_every_function() {
        let (_, newest) = Emulator::VERSIONS[Emulator::VERSIONS.len() - 1];
        let mut reported = 0;
        assert_eq!(code(unsafe { (Emulator::start().cufile().cuFileGetVersion)(&mut reported) }), Ok(()));
        assert_eq!(reported, newest);
        assert!(cufile_sys::Functions::SYMBOLS.iter().all(|symbol| symbol.since <= newest));
    }

    #[test]
    fn emulators_share_nothing() {
        let (one, other) = (rig(), rig());
        one.emulator.fault("cuFileDriverOpen", "err=5033 times=all");
        one.device(MIB);
        assert_eq!((one.open(), other.open()), (Err(5033), Ok(())));
        assert_eq!((one.emulator.calls("cuFileDriverOpen"), other.emulator.live("allocations")), (1, 0));
        assert_eq!((one.emulator.live("allocations"), other.emulator.live("use-count")), (1, 1));
    }

    #[test]
    fn dropped_emulators_leave_no_file_and_stay_callable() {
        let emulator = Emulator::start();
        let path = emulator.path().to_owned();
        let cufile = emulator.cufile();
        drop(emulator);
        assert!(!path.exists());
        assert_eq!(code(unsafe { (cufile.cuFileDriverOpen)() }), Ok(()));
    }

    #[test]
    fn commands_in_the_environment_apply_at_first_use() {
        const COMMANDS: &str = "version 1150; fault cuFileDriverOpen err=5033";
        if std::env::var("CUFILE_EMULATOR").is_ok_and(|commands| commands == COMMANDS) {
            let rig = rig();
            let mut version = 0;
            assert_eq!(code(unsafe { (rig.cufile.cuFileGetVersion)(&mut version) }), Ok(()));
            assert_eq!((version, rig.open(), rig.open()), (1150, Err(5033), Ok(())));
            return;
        }
        // A child process gets the environment and runs this test again.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "exports::commands_in_the_environment_apply_at_first_use"])
            .env("CUFILE_EMULATOR", COMMANDS)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn older_versions_lack_newer_functions() {
        const VERSION: &str = "CUFILE_EMULATOR";
        let posing =
            std::env::var(VERSION).ok().and_then(|commands| commands.strip_prefix("version ")?.parse().ok());
        if let Some(version) = posing {
            // As a program does, which cannot ask the emulator to pose.
            let emulator = Emulator::start();
            for symbol in cufile_sys::Functions::SYMBOLS {
                let found = emulator.exports(symbol.name);
                assert_eq!(found, symbol.since <= version, "{} in {version}", symbol.name);
            }
            assert_eq!(code(unsafe { (emulator.cufile().cuFileDriverOpen)() }), Ok(()));
            emulator.control("version 1200");
            assert!(emulator.exports("cuFileReadv"), "found again");
            return;
        }
        for version in [1060, 1110, 1130, 1160, 1200] {
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "exports::older_versions_lack_newer_functions"])
                .env(VERSION, format!("version {version}"))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{version}: {text}");
        }
    }

    #[test]
    #[should_panic(expected = "the emulator has no command")]
    fn unknown_commands_panic() {
        Emulator::start().control("fault cuFileReed err=1");
    }
}

mod faults {
    use super::*;

    #[test]
    fn faults_skip_and_repeat_as_configured() {
        let rig = rig();
        rig.emulator.fault("cuFileDriverOpen", "after=1 times=2 err=5011 cu=46");
        assert_eq!(rig.open(), Ok(()));
        let status = unsafe { (rig.cufile.cuFileDriverOpen)() };
        assert_eq!((status.err.as_raw(), status.cu_err), (5011, CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE));
        assert_eq!((rig.open(), rig.open()), (Err(5011), Ok(())));
        assert_eq!((rig.emulator.calls("cuFileDriverOpen"), rig.use_count()), (4, 2));
    }

    #[test]
    fn faults_of_one_function_share_one_count() {
        let rig = rig();
        rig.emulator.fault("cuFileDriverOpen", "err=5001");
        rig.emulator.fault("cuFileDriverOpen", "after=2 err=5003");
        rig.emulator.fault("cuFileDriverOpen", "after=1 err=5002");
        let opened = [(); 4].map(|()| rig.open());
        assert_eq!(opened, [Err(5001), Err(5002), Err(5003), Ok(())]);
    }

    #[test]
    fn cleared_faults_have_no_effect() {
        let rig = rig();
        rig.emulator.fault("cudaMalloc", "err=2 times=all");
        rig.emulator.control("clear");
        rig.device(1);
    }

    #[test]
    fn each_library_fails_with_its_own_codes() {
        let rig = rig();
        rig.emulator.fault("cudaMalloc", "err=2");
        rig.emulator.fault("cuCtxSynchronize", "err=201");
        let mut pointer = null_mut();
        let out_of_memory = cudaError_t::cudaErrorMemoryAllocation;
        assert_eq!(unsafe { (rig.cuda.cudaMalloc)(&mut pointer, 1) }, out_of_memory);
        assert_eq!(unsafe { (rig.cuda.cudaPeekAtLastError)() }, out_of_memory);
        assert_eq!(unsafe { (rig.cuda.cudaGetLastError)() }, out_of_memory);
        assert_eq!(unsafe { (rig.cuda.cudaGetLastError)() }, OK);
        assert_eq!(unsafe { (rig.driver.cuCtxSynchronize)() }, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }

    #[test]
    fn transfers_can_fail_in_every_form() {
        let rig = rig();
        let file = file(&[7; 4096]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(4096));
        for settings in ["errno=5", "err=5011", "ret=-5022", "short=100"] {
            rig.emulator.fault("cuFileRead", settings);
        }
        let read = || rig.read(handle, buffer, 4096, (0, 0));
        assert_eq!(read(), (-1, 5));
        assert_eq!(read(), (-1, 5011));
        assert_eq!(read().0, -5022);
        assert_eq!(read().0, 100);
        assert_eq!(read().0, 4096);
    }

    #[test]
    fn held_operations_wait_until_released() {
        let rig = rig();
        let (stream, buffer) = (rig.stream(), rig.device(1));
        let held = rig.emulator.hold("cudaMemsetAsync", "times=all");
        assert_eq!(unsafe { (rig.cuda.cudaMemsetAsync)(buffer, 3, 1, stream) }, OK);
        held.wait_for(1);
        assert_eq!(unsafe { (rig.cuda.cudaStreamQuery)(stream) }, cudaError_t::cudaErrorNotReady);
        assert_eq!(rig.emulator.control("release"), 1);
        rig.synchronise(stream);
        assert_eq!((rig.bytes(buffer, 1), held.count()), (vec![3], 0));
        assert_eq!(unsafe { (rig.cuda.cudaMemsetAsync)(buffer, 4, 1, stream) }, OK);
        rig.synchronise(stream);
        assert_eq!(rig.bytes(buffer, 1), [4], "a release ends the fault");
    }

    #[test]
    fn delayed_operations_take_longer() {
        let rig = rig();
        rig.emulator.fault("cuFileDriverOpen", "delay_us=20000");
        let started = Instant::now();
        assert_eq!(rig.open(), Ok(()));
        assert!(started.elapsed() >= Duration::from_millis(20));
    }
}

mod memory {
    use super::*;

    #[test]
    fn the_host_cannot_touch_device_memory() {
        let rig = rig();
        let pointer = rig.device(4096).cast::<u8>();
        let status = status_of_child(|| i32::from(unsafe { pointer.read_volatile() }));
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
        // The kernel cannot either, on the host's behalf.
        let file = file(&[1; 16]);
        assert_eq!(unsafe { libc::pread(file.as_raw_fd(), pointer.cast(), 16, 0) }, -1);
        assert_eq!(errno(), libc::EFAULT);
    }

    #[test]
    fn forked_children_are_refused() {
        let rig = rig();
        rig.device(1);
        let status = status_of_child(|| unsafe {
            let mut pointer = null_mut();
            assert_eq!((rig.cuda.cudaMalloc)(&mut pointer, 1), cudaError_t::cudaErrorInitializationError);
            assert_eq!((rig.driver.cuCtxSynchronize)(), CUresult::CUDA_ERROR_NOT_INITIALIZED);
            i32::from(rig.open() != Err(5011))
        });
        assert_eq!(status, 0);
    }

    #[test]
    fn copies_in_every_direction_stay_inside_allocations() {
        let rig = rig();
        let (one, other) = (rig.device(1000), rig.device(1000));
        rig.fill(one, &[9; 1000]);
        assert_eq!(rig.copy(other, one, 1000), OK);
        assert_eq!(rig.bytes(other.wrapping_byte_add(999), 1), [9]);
        assert_eq!(rig.copy(other, one, 1001), INVALID);
        assert_eq!(rig.copy(other.wrapping_byte_add(1000), one, 1), INVALID);
        assert_eq!(rig.copy(other.wrapping_byte_add(1), one, 1000), INVALID);
        let mut host = [0_u8; 8];
        let host = host.as_mut_ptr().cast::<c_void>();
        let wrong = |to, from, kind| unsafe { (rig.cuda.cudaMemcpy)(to, from, 8, kind) };
        assert_eq!(wrong(host, one, cudaMemcpyKind::cudaMemcpyHostToHost), INVALID);
        assert_eq!(wrong(one, host, cudaMemcpyKind::cudaMemcpyDeviceToHost), INVALID);
        let direction = cudaError_t::cudaErrorInvalidMemcpyDirection;
        assert_eq!(wrong(one, host, cudaMemcpyKind::from_raw(9)), direction);
    }

    #[test]
    fn free_accepts_only_allocated_pointers() {
        let rig = rig();
        let free = |pointer| unsafe { (rig.cuda.cudaFree)(pointer) };
        let pointer = rig.device(100);
        assert_eq!(rig.emulator.live("device-bytes"), 100);
        assert_eq!(free(pointer.wrapping_byte_add(1)), INVALID);
        assert_eq!((free(pointer), free(pointer), free(null_mut())), (OK, INVALID, OK));
        assert_eq!((rig.emulator.live("device-bytes"), rig.emulator.live("allocations")), (0, 0));
        assert!(rig.device(0).is_null());
    }

    #[test]
    fn freed_addresses_are_never_valid_again() {
        let rig = rig();
        let (file, stale) = (file(&[1; 10]), rig.device(10));
        let handle = rig.register(&file).unwrap();
        assert_eq!(unsafe { (rig.cuda.cudaFree)(stale) }, OK);
        let others = [(); 20].map(|()| rig.device(10));
        assert!(!others.contains(&stale), "addresses are not used again");
        assert_eq!(rig.copy(others[0], stale, 10), INVALID);
        assert_eq!(rig.read(handle, stale, 10, (0, 0)), (-1, 1));
        assert_eq!(rig.buffer(stale, 10), Err(5014));
    }

    #[test]
    fn a_gpu_has_16_gib() {
        let rig = rig();
        let (mut free, mut total) = (0, 0);
        let first = rig.device(15 << 30);
        assert_eq!(unsafe { (rig.cuda.cudaMemGetInfo)(&mut free, &mut total) }, OK);
        assert_eq!((free, total), (1 << 30, 16 << 30));
        let mut second = null_mut();
        let full = unsafe { (rig.cuda.cudaMalloc)(&mut second, 2 << 30) };
        assert_eq!(full, cudaError_t::cudaErrorMemoryAllocation);
        assert_eq!(unsafe { (rig.cuda.cudaSetDevice)(1) }, OK);
        rig.device(2 << 30);
        assert_eq!(unsafe { (rig.cuda.cudaFree)(first) }, OK);
    }

    #[test]
    fn pointer_attributes_name_type_and_device() {
        let rig = rig();
        let attributes = |pointer: *const c_void| unsafe {
            let mut attributes = std::mem::zeroed();
            assert_eq!((rig.cuda.cudaPointerGetAttributes)(&mut attributes, pointer), OK);
            (attributes.type_, attributes.device)
        };
        let mut own = vec![0_u8; 4096];
        let host = own.as_mut_ptr().cast::<c_void>();
        assert_eq!(attributes(host), (cudaMemoryType::cudaMemoryTypeUnregistered, -2));
        unsafe {
            assert_eq!((rig.cuda.cudaHostRegister)(host, 4096, 0), OK);
            let again = (rig.cuda.cudaHostRegister)(host, 1, 0);
            assert_eq!(again, cudaError_t::cudaErrorHostMemoryAlreadyRegistered);
            assert_eq!(attributes(host), (cudaMemoryType::cudaMemoryTypeHost, 0));
            assert_eq!((rig.cuda.cudaHostUnregister)(host), OK);
            let unknown = (rig.cuda.cudaHostUnregister)(host);
            assert_eq!(unknown, cudaError_t::cudaErrorHostMemoryNotRegistered);
            assert_eq!((rig.cuda.cudaSetDevice)(1), OK);
            let (mut managed, mut pinned) = (null_mut(), null_mut());
            assert_eq!((rig.cuda.cudaMallocManaged)(&mut managed, 8, 1), OK);
            assert_eq!((rig.cuda.cudaMallocHost)(&mut pinned, 8), OK);
            assert_eq!(attributes(managed), (cudaMemoryType::cudaMemoryTypeManaged, 1));
            assert_eq!(attributes(pinned), (cudaMemoryType::cudaMemoryTypeHost, 1));
            let inside = rig.device(4096).wrapping_byte_add(100);
            assert_eq!(attributes(inside), (cudaMemoryType::cudaMemoryTypeDevice, 1));
            let (mut base, mut length) = (0, 0);
            let range = (rig.driver.cuMemGetAddressRange_v2)(&mut base, &mut length, inside.addr() as u64);
            assert_eq!((range, base as usize, length), (CUresult::CUDA_SUCCESS, inside.addr() - 100, 4096));
            assert_eq!((rig.cuda.cudaFree)(pinned), INVALID);
            assert_eq!((rig.cuda.cudaFreeHost)(pinned), OK);
        }
    }

    #[test]
    fn an_older_runtime_writes_the_smaller_attributes() {
        let rig = rig();
        rig.emulator.control("runtime-version 12040");
        unsafe {
            let mut attributes: runtime::cudaPointerAttributes = std::mem::zeroed();
            attributes.reserved = [7; 7];
            assert_eq!((rig.cuda.cudaPointerGetAttributes)(&mut attributes, rig.device(1)), OK);
            assert_eq!(attributes.reserved, [7; 7]);
        }
    }

    #[test]
    fn multidimensional_copies_move_only_their_box() {
        let rig = rig();
        let pointer = rig.device(64);
        rig.fill(pointer, &[0; 64]);
        let source: Vec<u8> = (1..=6).collect();
        let kind = cudaMemcpyKind::cudaMemcpyHostToDevice;
        let from = source.as_ptr().cast();
        unsafe {
            assert_eq!((rig.cuda.cudaMemcpy2D)(pointer, 8, from, 2, 2, 3, kind), OK);
            let pitch = (rig.cuda.cudaMemcpy2D)(pointer, 1, from, 2, 2, 3, kind);
            assert_eq!(pitch, cudaError_t::cudaErrorInvalidPitchValue);
            assert_eq!((rig.cuda.cudaMemcpy2D)(pointer, 32, from, 2, 2, 3, kind), INVALID);
        }
        assert_eq!(
            rig.bytes(pointer, 24),
            [1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 5, 6, 0, 0, 0, 0, 0, 0]
        );
        let mut target = [0_u8; 4];
        let corner = cudaPos { x: 0, y: 0, z: 0 };
        let parameters = cudaMemcpy3DParms {
            srcArray: null_mut(),
            srcPos: cudaPos { x: 1, y: 1, z: 0 },
            srcPtr: cudaPitchedPtr { ptr: pointer, pitch: 8, xsize: 8, ysize: 2 },
            dstArray: null_mut(),
            dstPos: corner,
            dstPtr: cudaPitchedPtr { ptr: target.as_mut_ptr().cast(), pitch: 2, xsize: 2, ysize: 1 },
            extent: cudaExtent { width: 2, height: 1, depth: 2 },
            kind: cudaMemcpyKind::cudaMemcpyDefault,
        };
        assert_eq!(unsafe { (rig.cuda.cudaMemcpy3D)(&parameters) }, OK);
        assert_eq!(target, [4, 0, 0, 0]);
    }

    #[test]
    fn concurrent_batched_copies_abort() {
        aborts("two cudaMemcpyBatchAsync", || {
            let rig = rig();
            let batched = rig.cuda.cudaMemcpyBatchAsync.unwrap();
            testkit::in_threads((0..4).map(|_| {
                || {
                    let (stream, to) = (rig.stream(), [rig.device(1)]);
                    let (from, sizes, mut indices) = ([to[0].cast_const()], [1], [0]);
                    let mut attribute: cudaMemcpyAttributes = unsafe { std::mem::zeroed() };
                    attribute.srcAccessOrder = cudaMemcpySrcAccessOrder::cudaMemcpySrcAccessOrderStream;
                    for _ in 0..10_000 {
                        let (to, from, sizes) = (to.as_ptr(), from.as_ptr(), sizes.as_ptr());
                        let indices = indices.as_mut_ptr();
                        let status =
                            unsafe { batched(to, from, sizes, 1, &mut attribute, indices, 1, stream) };
                        assert_eq!(status, OK);
                    }
                }
            }));
        });
    }

    #[test]
    fn both_declarations_of_the_batched_copy_work() {
        let attributes = || {
            let mut attributes: cudaMemcpyAttributes = unsafe { std::mem::zeroed() };
            attributes.srcAccessOrder = cudaMemcpySrcAccessOrder::cudaMemcpySrcAccessOrderStream;
            attributes
        };
        let source = [1_u8, 2, 3];
        let from = [source.as_ptr().cast::<c_void>(), source[2..].as_ptr().cast()];
        let sizes = [2_usize, 1];

        let new = rig();
        let (stream, pointer) = (new.stream(), new.device(8));
        let to = [pointer, pointer.wrapping_byte_add(4)];
        let batched = new.cuda.cudaMemcpyBatchAsync.unwrap();
        let (mut indices, mut attribute) = ([0], attributes());
        let copied = |stream, attribute: &mut _, indices: &mut [usize; 1]| unsafe {
            let (to, from, sizes) = (to.as_ptr(), from.as_ptr(), sizes.as_ptr());
            batched(to, from, sizes, 2, attribute, indices.as_mut_ptr(), 1, stream)
        };
        new.fill(pointer, &[0; 8]);
        assert_eq!(copied(stream, &mut attribute, &mut indices), OK);
        new.synchronise(stream);
        assert_eq!(new.bytes(pointer, 8), [1, 2, 0, 0, 3, 0, 0, 0]);
        assert_eq!(copied(null_mut(), &mut attribute, &mut indices), INVALID, "the null stream is refused");

        let emulator = Emulator::start();
        emulator.control("runtime-version 12080");
        let old = Rig::of(emulator);
        assert!(old.cuda.cudaMemcpyBatchAsync.is_none());
        let batched = old.cuda.memcpy_batch_async_v12().unwrap();
        let (stream, pointer) = (old.stream(), old.device(2));
        let mut to = [pointer, pointer.wrapping_byte_add(4)];
        let (mut from, mut sizes, mut failed) = (from.map(<*const c_void>::cast_mut), sizes, 0);
        let status = unsafe {
            let (to, from, sizes) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
            batched(to, from, sizes, 2, &mut attribute, indices.as_mut_ptr(), 1, &mut failed, stream)
        };
        assert_eq!((status, failed), (INVALID, 1));
    }

    fn on_device(device: c_int) -> CUmemLocation {
        CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            anon_1: CUmemLocation_st_anon_1 { id: device },
        }
    }

    #[test]
    fn mapped_memory_needs_access_and_keeps_bytes_when_remapped() {
        let rig = rig();
        let driver = &rig.driver;
        let size = 2 * MIB;
        let done = CUresult::CUDA_SUCCESS;
        unsafe {
            assert_eq!((rig.cuda.cudaSetDevice)(0), OK);
            let mut prop: CUmemAllocationProp = std::mem::zeroed();
            prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
            prop.location = on_device(0);
            let (mut base, mut handles) = (0, [0; 2]);
            assert_eq!((driver.cuMemAddressReserve)(&mut base, 3 * size, 0, 0, 0), done);
            for (index, handle) in handles.iter_mut().enumerate() {
                assert_eq!((driver.cuMemCreate)(handle, size, &prop, 0), done);
                assert_eq!((driver.cuMemMap)(base + (index * size) as u64, size, 0, *handle, 0), done);
            }
            let uneven = (driver.cuMemCreate)(&mut 0, size + 1, &prop, 0);
            assert_eq!(uneven, CUresult::CUDA_ERROR_INVALID_VALUE);
            let pointer = std::ptr::with_exposed_provenance_mut::<c_void>(base as usize);
            let bytes = vec![3_u8; 2 * size];
            let copy = || rig.copy(pointer, bytes.as_ptr().cast(), bytes.len());
            assert_eq!(copy(), INVALID, "mapped, but without rights");
            let access = CUmemAccessDesc {
                location: on_device(0),
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            assert_eq!((driver.cuMemSetAccess)(base, 2 * size, &access, 1), done);
            assert_eq!(copy(), OK, "one copy over two mappings");
            let beyond = rig.copy(pointer, bytes.as_ptr().cast(), 2 * size + 1);
            assert_eq!(beyond, INVALID, "reserved, but not mapped");

            let file = file(&[8; 100]);
            let handle = rig.register(&file).unwrap();
            assert_eq!(rig.read(handle, pointer, 100, (0, size as i64 - 50)).0, 100);

            assert_eq!((driver.cuMemUnmap)(base, 2 * size), done);
            assert_eq!(copy(), INVALID);
            let moved = base + 2 * size as u64;
            assert_eq!((driver.cuMemMap)(moved, size, 0, handles[1], 0), done);
            assert_eq!((driver.cuMemSetAccess)(moved, size, &access, 1), done);
            let moved_pointer = pointer.wrapping_byte_add(2 * size);
            assert_eq!(rig.bytes(moved_pointer.wrapping_byte_add(49), 2), [8, 3]);

            assert_eq!((driver.cuMemAddressFree)(base, 3 * size), CUresult::CUDA_ERROR_INVALID_VALUE);
            assert_eq!(handles.map(|handle| (driver.cuMemRelease)(handle)), [done; 2]);
            assert_eq!(rig.emulator.live("physical"), 1, "what is mapped stays");
            assert_eq!((driver.cuMemUnmap)(moved, size), done);
            assert_eq!((driver.cuMemAddressFree)(base, 3 * size), done);
            let left = ["physical", "reservations", "device-bytes"].map(|what| rig.emulator.live(what));
            assert_eq!(left, [0; 3]);
        }
    }
}

mod devices {
    use super::*;

    #[test]
    fn calls_without_a_gpu_fail_with_no_device() {
        let rig = rig();
        rig.emulator.control("gpus 0");
        let mut count = 7;
        unsafe {
            assert_eq!((rig.cuda.cudaGetDeviceCount)(&mut count), cudaError_t::cudaErrorNoDevice);
            assert_eq!(count, 0);
            let mut pointer = null_mut();
            assert_eq!((rig.cuda.cudaMalloc)(&mut pointer, 1), cudaError_t::cudaErrorNoDevice);
            assert_eq!((rig.driver.cuInit)(0), CUresult::CUDA_ERROR_NO_DEVICE);
        }
        assert_eq!(rig.open(), Ok(()), "1.20 opens without a GPU");
        assert_eq!(rig.register(&file(b"")), Err(5011));
        assert_eq!(rig.set_up(1), Err(5011));

        let old = older("1.15");
        old.emulator.control("gpus 0");
        let status = unsafe { (old.cufile.cuFileDriverOpen)() };
        assert_eq!((status.err.as_raw(), status.cu_err), (5011, CUresult::CUDA_ERROR_NO_DEVICE));
    }

    #[test]
    fn driver_calls_need_initialisation_and_a_current_context() {
        let rig = rig();
        let driver = &rig.driver;
        let (mut address, mut device) = (0, 7);
        unsafe {
            let early = (driver.cuDeviceGetCount)(&mut device);
            assert_eq!(early, CUresult::CUDA_ERROR_NOT_INITIALIZED);
            assert_eq!((driver.cuInit)(0), CUresult::CUDA_SUCCESS);
            let invalid = CUresult::CUDA_ERROR_INVALID_CONTEXT;
            assert_eq!((driver.cuMemAlloc_v2)(&mut address, 8), invalid);
            let mut context = null_mut();
            assert_eq!((driver.cuDevicePrimaryCtxRetain)(&mut context, 1), CUresult::CUDA_SUCCESS);
            assert_eq!(rig.emulator.live("contexts"), 1);
            assert_eq!((driver.cuCtxPushCurrent_v2)(context), CUresult::CUDA_SUCCESS);
            assert_eq!((driver.cuMemAlloc_v2)(&mut address, 8), CUresult::CUDA_SUCCESS);
            let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            let data = (&raw mut device).cast();
            assert_eq!((driver.cuPointerGetAttribute)(data, attribute, address), CUresult::CUDA_SUCCESS);
            assert_eq!(device, 1);
            assert_eq!((rig.cuda.cudaGetDevice)(&mut device), OK);
            assert_eq!(device, 1, "the runtime follows the driver's context");
            thread::scope(|scope| {
                scope.spawn(|| assert_eq!((driver.cuCtxSynchronize)(), invalid));
            });
            assert_eq!((driver.cuCtxPopCurrent_v2)(&mut context), CUresult::CUDA_SUCCESS);
            assert_eq!((driver.cuDevicePrimaryCtxRelease_v2)(1), CUresult::CUDA_SUCCESS);
            assert_eq!((driver.cuDevicePrimaryCtxRelease_v2)(1), invalid);
            assert_eq!((driver.cuCtxPushCurrent_v2)(context), invalid, "nobody retains it");
        }
    }

    #[test]
    fn errors_have_names_in_both_apis() {
        let rig = rig();
        unsafe {
            let name = CStr::from_ptr((rig.cuda.cudaGetErrorName)(INVALID));
            assert_eq!(name, c"cudaErrorInvalidValue");
            let mut name = null();
            let known = (rig.driver.cuGetErrorName)(CUresult::CUDA_ERROR_NO_DEVICE, &mut name);
            assert_eq!((known, CStr::from_ptr(name)), (CUresult::CUDA_SUCCESS, c"CUDA_ERROR_NO_DEVICE"));
            let unknown = (rig.driver.cuGetErrorName)(CUresult::from_raw(4321), &mut name);
            assert_eq!(unknown, CUresult::CUDA_ERROR_INVALID_VALUE);
        }
    }
}

mod streams {
    use super::*;

    #[test]
    fn queued_work_runs_later_and_in_order() {
        let rig = rig();
        let (stream, pointer) = (rig.stream(), rig.device(4));
        let held = rig.emulator.hold("cudaMemsetAsync", "");
        unsafe {
            assert_eq!((rig.cuda.cudaMemsetAsync)(pointer, 1, 4, stream), OK);
            assert_eq!((rig.cuda.cudaMemsetAsync)(pointer, 2, 2, stream), OK);
            assert_eq!((rig.cuda.cudaStreamQuery)(stream), cudaError_t::cudaErrorNotReady);
            assert_eq!((rig.cuda.cudaGetLastError)(), OK, "not ready is no error");
            held.release();
            rig.synchronise(stream);
            assert_eq!((rig.cuda.cudaStreamQuery)(stream), OK);
            assert_eq!(rig.bytes(pointer, 4), [2, 2, 1, 1]);
            assert_eq!((rig.cuda.cudaStreamDestroy)(stream), OK);
            let gone = cudaError_t::cudaErrorInvalidResourceHandle;
            assert_eq!((rig.cuda.cudaStreamDestroy)(stream), gone);
            assert_eq!((rig.cuda.cudaStreamSynchronize)(stream), gone);
        }
        assert_eq!(rig.emulator.live("streams"), 0);
    }

    fn implicit(handle: usize) -> cudaStream_t {
        std::ptr::without_provenance_mut(handle)
    }

    #[test]
    fn each_thread_has_its_own_stream() {
        let rig = rig();
        let (pointer, mine) = (rig.device(1), implicit(2));
        let address = pointer.expose_provenance();
        let held = rig.emulator.hold("cudaMemsetAsync", "");
        thread::scope(|scope| {
            let submitted = scope.spawn(|| unsafe {
                let pointer = std::ptr::with_exposed_provenance_mut(address);
                assert_eq!((rig.cuda.cudaMemsetAsync)(pointer, 7, 1, implicit(2)), OK);
                (rig.cuda.cudaStreamQuery)(implicit(2))
            });
            assert_eq!(submitted.join().unwrap(), cudaError_t::cudaErrorNotReady);
        });
        held.wait_for(1);
        unsafe {
            assert_eq!((rig.cuda.cudaStreamQuery)(mine), OK, "another stream than that of the thread");
            rig.synchronise(mine);
            held.release();
            assert_eq!((rig.cuda.cudaDeviceSynchronize)(), OK, "waits for work of threads that ended");
        }
        assert_eq!((rig.bytes(pointer, 1), rig.emulator.live("streams")), (vec![7], 0));
    }

    #[test]
    fn null_stream_takes_turns_with_blocking_streams() {
        let rig = rig();
        let mut created = null_mut();
        assert_eq!(unsafe { (rig.cuda.cudaStreamCreate)(&mut created) }, OK);
        for (first, second, in_turn) in [
            (created, implicit(0), true),
            (implicit(2), implicit(1), true),
            (implicit(0), implicit(2), true),
            (implicit(1), created, true),
            (implicit(2), created, false),
            (rig.stream(), implicit(0), false),
            (implicit(0), rig.stream(), false),
        ] {
            let pointer = rig.device(1);
            let held = rig.emulator.hold("cudaMemsetAsync", "");
            unsafe {
                assert_eq!((rig.cuda.cudaMemsetAsync)(pointer, 1, 1, first), OK);
                held.wait_for(1);
                assert_eq!((rig.cuda.cudaMemsetAsync)(pointer, 2, 1, second), OK);
                // A busy machine may pause the thread of the second stream.
                let patience = if in_turn { Duration::from_millis(20) } else { Duration::from_secs(60) };
                let start = Instant::now();
                while (rig.cuda.cudaStreamQuery)(second) != OK && start.elapsed() < patience {}
                held.release();
                assert_eq!((rig.cuda.cudaDeviceSynchronize)(), OK);
            }
            assert_eq!(rig.bytes(pointer, 1), [if in_turn { 2 } else { 1 }], "{first:?} {second:?}");
        }
    }

    #[test]
    fn events_order_streams_and_measure_time() {
        let rig = rig();
        let (first, second, pointer) = (rig.stream(), rig.stream(), rig.device(1));
        let (mut start, mut end) = (null_mut(), null_mut());
        let held = rig.emulator.hold("cudaMemsetAsync", "delay_us=200000");
        unsafe {
            assert_eq!((rig.cuda.cudaEventCreate)(&mut start), OK);
            assert_eq!((rig.cuda.cudaEventCreate)(&mut end), OK);
            assert_eq!((rig.cuda.cudaEventQuery)(start), OK, "never recorded");
            assert_eq!((rig.cuda.cudaEventRecord)(start, first), OK);
            assert_eq!((rig.cuda.cudaMemsetAsync)(pointer, 1, 1, first), OK);
            assert_eq!((rig.cuda.cudaEventRecord)(end, first), OK);
            assert_eq!((rig.cuda.cudaEventQuery)(end), cudaError_t::cudaErrorNotReady);
            assert_eq!((rig.cuda.cudaStreamWaitEvent)(second, end, 0), OK);
            assert_eq!((rig.cuda.cudaMemsetAsync)(pointer, 2, 1, second), OK);
            held.release();
            rig.synchronise(second);
            assert_eq!((rig.cuda.cudaEventQuery)(end), OK);
            assert_eq!(rig.bytes(pointer, 1), [2]);
            let mut milliseconds = 0.0;
            assert_eq!((rig.cuda.cudaEventElapsedTime)(&mut milliseconds, start, end), OK);
            assert!((199.0..60_000.0).contains(&milliseconds), "{milliseconds}");
            assert_eq!((rig.cuda.cudaEventDestroy)(start), OK);
        }
        assert_eq!(rig.emulator.live("events"), 1);
    }

    #[test]
    fn host_functions_and_memory_operations_run_in_stream_order() {
        unsafe extern "C" fn note(data: *mut c_void) {
            unsafe { &*data.cast::<AtomicBool>() }.store(true, Ordering::SeqCst);
        }
        let rig = rig();
        let stream = rig.stream();
        let ran = AtomicBool::new(false);
        unsafe {
            let mut flag = null_mut();
            assert_eq!((rig.cuda.cudaHostAlloc)(&mut flag, 4, 0), OK);
            let address = flag.addr() as u64;
            let flag = AtomicU32::from_ptr(flag.cast());
            let done = CUresult::CUDA_SUCCESS;
            assert_eq!((rig.driver.cuStreamWaitValue32_v2)(stream, address, 5, 0), done);
            assert_eq!((rig.driver.cuStreamWriteValue32_v2)(stream, address, 77, 0), done);
            let data = (&raw const ran).cast_mut().cast();
            assert_eq!((rig.cuda.cudaLaunchHostFunc)(stream, Some(note), data), OK);
            thread::sleep(Duration::from_millis(5));
            assert!(!ran.load(Ordering::SeqCst));
            flag.store(6, Ordering::SeqCst);
            rig.synchronise(stream);
            assert!(ran.load(Ordering::SeqCst));
            assert_eq!(flag.load(Ordering::SeqCst), 77);
            let unaligned = (rig.driver.cuStreamWaitValue64_v2)(stream, address + 4, 5, 0);
            assert_eq!(unaligned, CUresult::CUDA_ERROR_INVALID_VALUE);
        }
    }

    #[test]
    fn stream_ordered_free_waits_for_earlier_work() {
        let rig = rig();
        let stream = rig.stream();
        let mut pointer = null_mut();
        unsafe {
            assert_eq!((rig.cuda.cudaMallocAsync)(&mut pointer, 64, stream), OK);
            let held = rig.emulator.hold("cudaMemsetAsync", "");
            assert_eq!((rig.cuda.cudaMemsetAsync)(pointer, 1, 64, stream), OK);
            assert_eq!((rig.cuda.cudaFreeAsync)(pointer, stream), OK);
            assert_eq!(rig.emulator.live("allocations"), 1);
            held.release();
            rig.synchronise(stream);
            assert_eq!(rig.emulator.live("allocations"), 0);
            assert_eq!((rig.cuda.cudaFreeAsync)(pointer, stream), INVALID);
        }
    }

    #[test]
    fn copies_from_unregistered_memory_finish_before_returning() {
        let rig = rig();
        let (stream, pointer) = (rig.stream(), rig.device(4));
        rig.emulator.fault("cudaMemcpyAsync", "delay_us=10000");
        let kind = cudaMemcpyKind::cudaMemcpyHostToDevice;
        let bytes = [5_u8; 4];
        unsafe {
            assert_eq!((rig.cuda.cudaMemcpyAsync)(pointer, bytes.as_ptr().cast(), 4, kind, stream), OK);
            assert_eq!((rig.cuda.cudaStreamQuery)(stream), OK);
        }
        assert_eq!(rig.bytes(pointer, 4), bytes);
    }
}

mod driver_and_parameters {
    use super::*;
    use CUFileBoolConfigParameter_t as Switch;
    use CUFileSizeTConfigParameter_t as Number;
    use CUFileStringConfigParameter_t as Text;

    #[test]
    fn closing_more_often_than_opening_returns_5001() {
        let rig = rig();
        assert_eq!(rig.close(), Err(5001));
        assert_eq!((rig.open(), rig.open(), rig.use_count()), (Ok(()), Ok(()), 2));
        assert_eq!((rig.close(), rig.use_count()), (Ok(()), 1));
        assert_eq!((rig.close(), rig.use_count()), (Ok(()), 0));
        assert_eq!(rig.close(), Err(5001));
        assert_eq!((rig.open(), rig.use_count()), (Ok(()), 1));
    }

    #[test]
    fn a_failed_registration_still_opens_the_driver() {
        let rig = rig();
        assert_eq!(rig.register_fd(-1), Err(5022));
        assert_eq!(rig.use_count(), 1);
        assert_eq!(rig.buffer(null(), 1), Err(5022));
        assert_eq!(rig.use_count(), 1);
    }

    #[test]
    fn parameter_limits_are_unchecked_and_opening_locks_parameters() {
        let rig = rig();
        let get = |param| {
            let mut value = 0;
            let status = unsafe { rig.cufile.cuFileGetParameterSizeT.unwrap()(param, &mut value) };
            code(status).map(|()| value)
        };
        let set = |param, value| code(unsafe { rig.cufile.cuFileSetParameterSizeT.unwrap()(param, value) });
        let limits = |param| {
            let (mut least, mut most) = (0, 0);
            let call = rig.cufile.cuFileGetParameterMinMaxValue.unwrap();
            code(unsafe { call(param, &mut least, &mut most) }).map(|()| (least, most))
        };
        let queue = Number::CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH;
        let direct = Number::CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB;
        assert_eq!((get(queue), limits(queue)), (Ok(128), Ok((1, 256))));
        assert_eq!((get(direct), limits(direct)), (Ok(16384), Ok((64, 16384))));
        assert_eq!(limits(Number::CUFILE_PARAM_PROFILE_STATS), Err(5022));
        assert_eq!(
            (set(queue, 257), get(queue), set(direct, 1000), get(direct)),
            (Ok(()), Ok(257), Ok(()), Ok(1000))
        );
        assert_eq!((set(queue, 7), set(queue, 8), get(queue)), (Ok(()), Ok(()), Ok(8)));
        assert_eq!(set(Number::from_raw(12), 1), Err(5022));

        let mut on = false;
        let get_switch = rig.cufile.cuFileGetParameterBool.unwrap();
        assert_eq!(code(unsafe { get_switch(Switch::CUFILE_PARAM_PROFILE_NVTX, &mut on) }), Err(5022));
        let compatible = Switch::CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE;
        assert_eq!((code(unsafe { get_switch(compatible, &mut on) }), on), (Ok(()), true));

        let mut text = [0; 6];
        let get_text = rig.cufile.cuFileGetParameterString.unwrap();
        let level = Text::CUFILE_PARAM_LOGGING_LEVEL;
        assert_eq!(code(unsafe { get_text(level, text.as_mut_ptr(), 5) }), Err(5022), "no room for the NUL");
        assert_eq!(code(unsafe { get_text(level, text.as_mut_ptr(), 6) }), Ok(()));
        assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"ERROR");
        let set_text = rig.cufile.cuFileSetParameterString.unwrap();
        assert_eq!(code(unsafe { set_text(level, c"".as_ptr()) }), Err(5022));
        let path = Text::CUFILE_PARAM_ENV_LOGFILE_PATH;
        let get_path = |room: &mut [_; 6]| code(unsafe { get_text(path, room.as_mut_ptr(), 6) });
        if std::env::var_os("CUFILE_LOGFILE_PATH").is_none() {
            assert_eq!(get_path(&mut text), Err(5022), "it is not set");
        }
        assert_eq!((code(unsafe { set_text(path, c"/x".as_ptr()) }), get_path(&mut text)), (Ok(()), Ok(())));

        assert_eq!(rig.open(), Ok(()));
        assert_eq!((set(queue, 9), get(queue)), (Err(5026), Ok(8)));
        assert_eq!((rig.close(), set(queue, 9)), (Ok(()), Ok(())));
    }

    #[test]
    fn slab_arrays_are_read_with_their_exact_length() {
        let rig = rig();
        let get = rig.cufile.cuFileGetParameterPosixPoolSlabArray.unwrap();
        let (mut sizes, mut counts) = ([0; 4], [0; 4]);
        let mut read = |length| code(unsafe { get(sizes.as_mut_ptr(), counts.as_mut_ptr(), length) });
        assert_eq!([2, 4, -1].map(&mut read), [Err(5022); 3]);
        assert_eq!(read(3), Ok(()));
        assert_eq!((sizes[..3].to_vec(), counts[..3].to_vec()), (vec![4, 1024, 16384], vec![128, 64, 64]));
        let set = rig.cufile.cuFileSetParameterPosixPoolSlabArray.unwrap();
        assert_eq!(code(unsafe { set([8].as_ptr(), [2].as_ptr(), 1) }), Ok(()));
        assert_eq!(code(unsafe { get(sizes.as_mut_ptr(), counts.as_mut_ptr(), 1) }), Ok(()));
        assert_eq!((sizes[0], counts[0]), (8, 2));
    }

    #[test]
    fn properties_follow_settings_as_in_each_version() {
        let rig = rig();
        let properties = |rig: &Rig| unsafe {
            let mut properties: CUfileDrvProps_t = std::mem::zeroed();
            code((rig.cufile.cuFileDriverGetProperties)(&mut properties)).map(|()| properties)
        };
        let set = |rig: &Rig, size| code(unsafe { (rig.cufile.cuFileDriverSetMaxDirectIOSize)(size) });
        let found = properties(&rig).unwrap();
        assert_eq!(found.nvfs.max_direct_io_size, 16384);
        assert_eq!((found.per_buffer_cache_size, found.max_batch_io_size), (1024, 128));
        assert_eq!(found.nvfs.dcontrolflags, 2, "compatibility mode is allowed");
        assert_eq!((set(&rig, 128), properties(&rig).unwrap().nvfs.max_direct_io_size), (Ok(()), 128));
        assert_eq!((set(&rig, 1000), set(&older("1.15"), 1000)), (Err(5022), Err(5003)));
        for (version, before, while_open) in
            [("1.13", 16384, 16384), ("1.16", 16384, 16384), ("1.17", 256, 256)]
        {
            let rig = older(version);
            assert_eq!((set(&rig, 256), rig.open()), (Ok(()), Ok(())));
            assert_eq!(properties(&rig).unwrap().nvfs.max_direct_io_size, before, "{version}");
            assert_eq!(set(&rig, 512), Ok(()));
            assert_eq!(properties(&rig).unwrap().nvfs.max_direct_io_size, while_open, "{version}");
        }
        assert_eq!(set(&older("1.11"), 256), Err(5001));

        let old = older("1.16");
        old.emulator.control("gpus 0");
        assert_eq!(properties(&old).map(|_| ()), Err(5011));
        rig.emulator.control("gpus 0");
        assert_eq!(properties(&rig).map(|_| ()), Ok(()));
    }

    #[test]
    fn old_versions_reset_parameters_when_properties_are_read() {
        const SIZE: CUFileSizeTConfigParameter_t =
            CUFileSizeTConfigParameter_t::CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB;
        for (version, forgets) in [("1.14", true), ("1.16", true), ("1.17", false), ("1.20", false)] {
            let rig = older(version);
            let ask = || unsafe {
                let mut properties: CUfileDrvProps_t = std::mem::zeroed();
                code((rig.cufile.cuFileDriverGetProperties)(&mut properties)).unwrap();
            };
            let get = || unsafe {
                let mut value = 0;
                code(rig.cufile.cuFileGetParameterSizeT.unwrap()(SIZE, &mut value)).unwrap();
                value
            };
            let set = |value| unsafe { code(rig.cufile.cuFileSetParameterSizeT.unwrap()(SIZE, value)) };
            let asked = if forgets { 16384 } else { 8192 };
            assert_eq!((set(8192), get()), (Ok(()), 8192), "{version}");
            ask();
            assert_eq!(get(), asked, "{version}");
            assert_eq!(set(8192), if forgets { Err(5026) } else { Ok(()) }, "{version}");
            assert_eq!((rig.open(), get()), (Ok(()), 8192), "{version}");
            ask();
            assert_eq!(get(), asked, "{version}");
        }
    }

    #[test]
    fn topology_and_p2p_calls_return_fixed_values() {
        let rig = rig();
        let mut size = 0;
        let bar = rig.cufile.cuFileGetBARSizeInKB.unwrap();
        assert_eq!((code(unsafe { bar(0, &mut size) }), size), (Ok(()), 268_435_456));
        assert_eq!(code(unsafe { bar(2, &mut size) }), Err(5022));
        let export = rig.cufile.cuFileExportPCIeTopology.unwrap();
        assert_eq!(code(unsafe { export(c"/tmp/topology".as_ptr()) }), Err(5030));
        let nvme = CUfileDriverStatusFlags_t::CU_FILE_NVME_SUPPORTED;
        let (set, get) =
            (rig.cufile.cuFileDriverSetP2PFlags.unwrap(), rig.cufile.cuFileDriverGetP2PFlags.unwrap());
        let mut flags = CUfileP2PFlags_t::from_raw(0);
        for (mask, result) in [(1, Ok(())), (0, Ok(())), (2, Err(5022)), (5, Err(5022)), (32, Err(5022))] {
            assert_eq!(code(unsafe { set(nvme, CUfileP2PFlags_t::from_raw(mask)) }), result, "{mask}");
            assert_eq!((code(unsafe { get(nvme, &mut flags) }), flags.as_raw()), (Ok(()), 1), "{mask}");
        }
    }
}

mod files {
    use super::*;

    #[test]
    fn only_regular_files_with_usable_flags_are_registered() {
        let rig = rig();
        assert_eq!(rig.register(&File::open("/tmp").unwrap()), Err(5018));
        assert_eq!(rig.register(&File::open("/dev/zero").unwrap()), Err(5018));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let open = |path: &Path, flags| {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags)
                .open(path)
                .unwrap()
        };
        for flags in [libc::O_APPEND, libc::O_NOFOLLOW, libc::O_NONBLOCK] {
            assert_eq!(rig.register(&open(&path, flags)), Err(5019), "{flags:#o}");
        }
        for flags in [0, libc::O_SYNC, libc::O_DSYNC, libc::O_NOATIME] {
            let file = open(&path, flags);
            let handle = rig.register(&file).unwrap();
            unsafe { (rig.cufile.cuFileHandleDeregister)(handle) };
        }
        assert_eq!(rig.emulator.live("handles"), 0);
    }

    #[test]
    fn files_that_the_kernel_makes_up_are_refused() {
        let refused = |rig: &Rig, path| rig.register(&File::open(path).unwrap()).unwrap_err();
        for path in ["/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"] {
            if Path::new(path).exists() {
                assert_eq!((refused(&rig(), path), refused(&older("1.14"), path)), (5027, 5030), "{path}");
            }
        }
    }

    #[test]
    fn userspace_files_register_and_fail_at_the_transfer() {
        let register = |rig: &Rig, operations: *const c_void| {
            let mut handle = null_mut();
            let mut descriptor = CUfileDescr_t {
                type_: CUfileFileHandleType::CU_FILE_HANDLE_TYPE_USERSPACE_FS,
                handle: CUfileDescr_anon_handle { handle: null_mut() },
                fs_ops: operations.cast(),
            };
            let status = unsafe { (rig.cufile.cuFileHandleRegister)(&mut handle, &mut descriptor) };
            code(status).map(|()| handle)
        };
        // libcufile calls none of the functions without RDMA.
        let operations = [0usize; 16];
        let operations = operations.as_ptr().cast();
        let rig = rig();
        let handle = register(&rig, operations).unwrap();
        let (device, mut host) = (rig.device(4096), vec![0u8; 4096]);
        let host = host.as_mut_ptr().cast();
        assert_eq!(rig.read(handle, device, 4096, (0, 0)), (-1, 5008));
        assert_eq!(rig.write(handle, host, 4096, (0, 0)), (-1, 5024));
        unsafe { (rig.cufile.cuFileHandleDeregister)(handle) };
        assert_eq!(rig.read(handle, device, 4096, (0, 0)), (-1, 5027));
        assert_eq!(register(&rig, null_mut()), Err(5022));
        assert_eq!(register(&older("1.15"), operations), Err(5022));
    }

    #[test]
    fn a_descriptor_is_registered_once() {
        let rig = rig();
        let file = file(b"");
        let handle = rig.register(&file).unwrap();
        assert_eq!(rig.register(&file), Err(5028));
        let twin = file.try_clone().unwrap();
        assert!(rig.register(&twin).is_ok(), "the same file by another descriptor");
        assert_eq!(rig.emulator.live("handles"), 2);
        unsafe { (rig.cufile.cuFileHandleDeregister)(handle) };
        assert!(rig.register(&file).is_ok());
    }

    #[test]
    fn an_unaligned_transfer_works_with_o_direct() {
        let rig = rig();
        let Some((_path, file)) = direct_file(&[4; 5000], libc::O_RDONLY) else { return };
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(100));
        assert_eq!(rig.read(handle, buffer, 99, (1, 1)).0, 99);
        assert_eq!(rig.bytes(buffer.wrapping_byte_add(1), 99), [4; 99]);
    }

    #[test]
    fn buffer_registration_follows_libcufile() {
        let rig = rig();
        let deregister = |base| code(unsafe { (rig.cufile.cuFileBufDeregister)(base) });
        let buffer = rig.device(8192);
        assert_eq!((rig.buffer(buffer, 0), rig.buffer(null(), 8)), (Err(5022), Err(5022)));
        assert_eq!((rig.buffer(buffer, 8192), rig.buffer(buffer, 8192)), (Ok(()), Err(5023)));
        let inner = buffer.wrapping_byte_add(4096);
        assert_eq!((rig.buffer(inner, 4096), rig.emulator.live("buffers")), (Ok(()), 2));
        let second = rig.device(4096);
        assert_eq!(rig.buffer(second, 4097), Err(5014));
        assert_eq!(
            (deregister(buffer), deregister(buffer), deregister(second)),
            (Ok(()), Err(5024), Err(5024))
        );
        let host = [0_u8; 64];
        assert_eq!(rig.buffer(host.as_ptr().cast(), 64), Ok(()));
        let mut managed = null_mut();
        assert_eq!(unsafe { (rig.cuda.cudaMallocManaged)(&mut managed, 64, 1) }, OK);
        assert_eq!(rig.buffer(managed, 64), Err(5013));
        let file = file(&[6; 64]);
        assert_eq!(rig.read(rig.register(&file).unwrap(), managed, 64, (0, 0)).0, 64);
        assert_eq!(unsafe { managed.cast::<u8>().read() }, 6);
    }
}

/// Makes a file, and a descriptor of it with `O_DIRECT` if the file system has that.
fn direct_file(contents: &[u8], access: c_int) -> Option<(tempfile::TempPath, File)> {
    let folder = std::env::current_exe().unwrap();
    let mut file = tempfile::NamedTempFile::new_in(folder.parent().unwrap()).unwrap();
    file.write_all(contents).unwrap();
    let (read, write) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
    let direct = File::options().read(read).write(write).custom_flags(libc::O_DIRECT).open(file.path());
    direct.ok().map(|direct| (file.into_temp_path(), direct))
}

mod transfers {
    use super::*;

    #[test]
    fn written_bytes_are_read_back_at_any_offset() {
        let rig = rig();
        let file = file(b"");
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(10_000));
        let bytes: Vec<u8> = (0..10_000).map(|index| (index % 251) as u8).collect();
        rig.fill(buffer, &bytes);
        assert_eq!(rig.write(handle, buffer, 9000, (3, 1000)).0, 9000);
        assert_eq!(contents(&file)[3..], bytes[1000..]);
        rig.fill(buffer, &vec![0; 10_000]);
        assert_eq!(rig.read(handle, buffer, 5000, (100, 17)).0, 5000);
        assert_eq!(rig.bytes(buffer.wrapping_byte_add(17), 5000), bytes[1097..6097]);
        let mut host = vec![0_u8; 50];
        assert_eq!(rig.read(handle, host.as_mut_ptr().cast(), 50, (3, 0)).0, 50);
        assert_eq!(host, bytes[1000..1050]);
    }

    #[test]
    fn reads_are_short_at_the_end_of_the_file() {
        let rig = rig();
        let file = file(&[1; 100]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(200));
        let read = |size, offset| rig.read(handle, buffer, size, (offset, 0)).0;
        assert_eq!((read(200, 40), read(10, 100), read(10, 5000), read(0, 0)), (60, 0, 0, 0));
    }

    #[test]
    fn successful_calls_leave_a_stale_errno() {
        let rig = rig();
        let file = file(&[1; 10]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(10));
        assert_eq!(rig.read(handle, buffer, 10, (0, 0)), (10, 25));
    }

    #[test]
    fn each_wrong_argument_has_its_errno() {
        let rig = rig();
        let path = tempfile::NamedTempFile::new().unwrap();
        let read_only = File::open(path.path()).unwrap();
        let (handle, buffer) = (rig.register(&read_only).unwrap(), rig.device(4096));
        assert_eq!(rig.read(null_mut(), buffer, 1, (0, 0)), (-1, libc::EINVAL));
        assert_eq!(rig.read(handle, null_mut(), 1, (0, 0)), (-1, libc::EINVAL));
        assert_eq!(rig.read(handle, buffer, 1, (-1, 0)), (-1, 5022));
        assert_eq!(rig.read(handle, buffer, 1, (0, -1)), (-1, 5));
        assert_eq!(rig.read(handle, buffer, 4097, (0, 0)), (-1, 1));
        assert_eq!(rig.read(handle, buffer, 4096, (0, 1)), (-1, 1));
        assert_eq!(rig.write(handle, buffer, 1, (0, 0)), (-1, 5019));
        unsafe { (rig.cufile.cuFileHandleDeregister)(handle) };
        assert_eq!(rig.read(handle, buffer, 1, (0, 0)), (-1, 5027));
    }

    #[test]
    fn vectors_gather_over_consecutive_bytes() {
        let rig = rig();
        let file = file(&(0..100).collect::<Vec<u8>>());
        let handle = rig.register(&file).unwrap();
        let (one, other) = (rig.device(10), rig.device(10));
        let vectors = [CUfileIOVec_t { base: one, len: 10 }, CUfileIOVec_t { base: other, len: 5 }];
        let (read, write) = (rig.cufile.cuFileReadv.unwrap(), rig.cufile.cuFileWritev.unwrap());
        let readv = |count, offset| unsafe { read(handle, vectors.as_ptr(), count, offset, 0) };
        assert_eq!(readv(2, 20), 15);
        assert_eq!((rig.bytes(one, 10), rig.bytes(other, 5)), ((20..30).collect(), (30..35).collect()));
        assert_eq!((readv(2, 95), readv(2, 100)), (5, 0));
        assert_eq!((readv(0, 0), errno()), (-1, libc::EINVAL));
        assert_eq!(unsafe { write(handle, vectors.as_ptr(), 2, 50, 0) }, 15);
        assert_eq!(contents(&file)[60..65], (30..35).collect::<Vec<u8>>());
    }

    #[test]
    fn vectors_with_an_empty_entry_abort() {
        aborts("an empty entry among others", || {
            let rig = rig();
            let file = file(&[1; 100]);
            let handle = rig.register(&file).unwrap();
            let vectors = [
                CUfileIOVec_t { base: rig.device(10), len: 10 },
                CUfileIOVec_t { base: rig.device(10), len: 0 },
            ];
            unsafe { (rig.cufile.cuFileReadv.unwrap())(handle, vectors.as_ptr(), 2, 0, 0) };
        });
    }

    #[test]
    fn too_many_vectors_and_ranges_beyond_a_registration_are_refused() {
        let rig = rig();
        let file = file(&[1; 8192]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(8192));
        let vectors = vec![CUfileIOVec_t { base: buffer, len: 1 }; 129];
        let readv = |count| unsafe {
            let moved = (rig.cufile.cuFileReadv.unwrap())(handle, vectors.as_ptr(), count, 0, 0);
            (moved, if moved < 0 { errno() } else { 0 })
        };
        assert_eq!((readv(128), readv(129)), ((128, 0), (-1, libc::EINVAL)));
        assert_eq!(code(unsafe { (rig.cufile.cuFileBufRegister)(buffer, 4096, 0) }), Ok(()));
        assert_eq!(rig.read(handle, buffer, 4096, (0, 0)).0, 4096);
        assert_eq!(rig.read(handle, buffer, 4096, (0, 1)), (-1, 5017));
    }

    #[test]
    fn old_versions_abort_if_two_threads_set() {
        aborts("corrupts its heap", || {
            let rig = older("1.15");
            rig.emulator.fault("cuFileDriverSetPollMode", "hold=1");
            thread::scope(|threads| {
                threads.spawn(|| unsafe { (rig.cufile.cuFileDriverSetPollMode)(true, 4) });
                while rig.emulator.control("held") == 0 {
                    thread::yield_now();
                }
                unsafe { (rig.cufile.cuFileDriverSetPollMode)(false, 4) };
            });
        });
    }

    #[test]
    fn old_versions_abort_if_properties_are_read_during_transfers() {
        let _name = "transfers::old_versions_abort_if_properties_are_read_during_transfers";
        aborts("divides by zero", || {
            let rig = older("1.15");
            let file = file(&[1; 100]);
            let (handle, buffer) = (rig.register(&file).unwrap().addr(), rig.device(100).addr());
            rig.emulator.fault("cuFileRead", "hold=1");
            thread::scope(|threads| {
                threads.spawn(|| rig.read(handle as CUfileHandle_t, buffer as *mut c_void, 100, (0, 0)));
                while rig.emulator.control("held") == 0 {
                    thread::yield_now();
                }
                let mut properties: CUfileDrvProps_t = unsafe { std::mem::zeroed() };
                unsafe { (rig.cufile.cuFileDriverGetProperties)(&mut properties) };
            });
        });
    }

    #[test]
    fn transfers_without_a_required_context_fail() {
        let rig = rig();
        rig.emulator.control("require-context 1");
        let file = file(&[1; 10]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(10));
        let read = || rig.read(handle, buffer, 10, (0, 0));
        assert_eq!(read().0, 10);
        assert_eq!(unsafe { (rig.cuda.cudaSetDevice)(1) }, OK);
        assert_eq!(read(), (-1, 5047));
    }
}

mod unaligned_writes {
    use super::*;

    /// A file with a direct descriptor for writing alone, its handle, and device memory full of `9`.
    struct Target {
        path: tempfile::TempPath,
        _file: File,
        handle: CUfileHandle_t,
        buffer: *mut c_void,
    }

    fn target(rig: &Rig, contents: &[u8]) -> Option<Target> {
        let (path, file) = direct_file(contents, libc::O_WRONLY)?;
        rig.emulator.control("rmw 1");
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(32768));
        rig.fill(buffer, &[9; 32768]);
        Some(Target { path, _file: file, handle, buffer })
    }

    fn with(contents: &[u8], at: usize, length: usize) -> Vec<u8> {
        let mut bytes = contents.to_vec();
        bytes.resize(bytes.len().max(at + length), 0);
        bytes[at..at + length].fill(9);
        bytes
    }

    #[test]
    fn unaligned_writes_change_only_their_bytes() {
        let contents: Vec<u8> = (0..20_000).map(|index| (index % 7) as u8).collect();
        for at in [0, 1, 4095, 4096, 8000, 16_384, 19_000, 25_000] {
            for length in [1, 4095, 4096, 4097, 8192, 12_289] {
                let rig = rig();
                let Some(target) = target(&rig, &contents) else { return };
                assert_eq!(
                    rig.write(target.handle, target.buffer, length, (at as i64, 0)).0,
                    length as isize
                );
                let found = std::fs::read(&target.path).unwrap();
                assert!(found == with(&contents, at, length), "{length} bytes at {at}");
            }
        }
    }

    #[test]
    fn unaligned_writes_report_short_counts_and_failures() {
        let rig = rig();
        let Some(target) = target(&rig, &[1; 9000]) else { return };
        rig.emulator.fault("cuFileWrite", "short=5000");
        rig.emulator.fault("cuFileWrite", "after=1 errno=5");
        let write = || rig.write(target.handle, target.buffer, 8000, (100, 0));
        assert_eq!((write().0, write()), (5000, (-1, libc::EIO)));
        assert!(std::fs::read(&target.path).unwrap() == with(&[1; 9000], 100, 5000));
    }

    /// Returns false if none of the writes is ever lost.
    fn loses_a_neighbour(rig: &Rig, write: impl Fn(&Target, i64) + Sync) -> Option<bool> {
        #[derive(Clone, Copy)]
        struct Shared<'a>(&'a Target);
        unsafe impl Send for Shared<'_> {}
        impl<'a> Shared<'a> {
            fn get(self) -> &'a Target {
                self.0
            }
        }
        let target = target(rig, &[])?;
        let write = &write;
        Some((0..1000).any(|_| {
            std::fs::write(&target.path, [1; 4096]).unwrap();
            let shared = Shared(&target);
            testkit::in_threads([0, 2048].map(|at| move || write(shared.get(), at)));
            std::fs::read(&target.path).unwrap() != [9; 4096]
        }))
    }

    #[test]
    fn concurrent_unaligned_writes_to_one_block_lose_bytes() {
        let rig = rig();
        let lost = loses_a_neighbour(&rig, |target, at| {
            assert_eq!(rig.write(target.handle, target.buffer, 2048, (at, 0)).0, 2048);
        });
        assert_ne!(lost, Some(false));
    }

    #[test]
    fn concurrent_unaligned_batch_entries_in_one_block_lose_bytes() {
        let rig = rig();
        let lost = loses_a_neighbour(&rig, |target, at| {
            let batch = rig.set_up(1).unwrap();
            let mut entry = entry(target.handle, target.buffer, 2048, 1);
            entry.opcode = CUfileOpcode_t::CUFILE_WRITE;
            entry.u.batch.file_offset = at;
            assert_eq!(rig.submit(batch, &mut [entry]), Ok(()));
            let complete = (1, CUfileStatus_t::CUFILE_COMPLETE, 2048);
            assert_eq!(rig.events(batch, 1, Duration::from_secs(20)), [complete]);
            unsafe { (rig.cufile.cuFileBatchIODestroy)(batch) };
        });
        assert_ne!(lost, Some(false));
    }

    #[test]
    fn concurrent_unaligned_stream_writes_to_one_block_lose_bytes() {
        let rig = rig();
        let lost = loses_a_neighbour(&rig, |target, at| {
            let stream = rig.stream();
            let (mut size, mut offset, mut base, mut bytes) = (2048, at, 0, 0);
            let status = unsafe {
                (rig.cufile.cuFileWriteAsync)(
                    target.handle,
                    target.buffer,
                    &mut size,
                    &mut offset,
                    &mut base,
                    &mut bytes,
                    stream.cast(),
                )
            };
            assert_eq!(code(status), Ok(()));
            rig.synchronise(stream);
            assert_eq!(unsafe { (&raw const bytes).read_volatile() }, 2048);
            assert_eq!(unsafe { (rig.cuda.cudaStreamDestroy)(stream) }, OK);
        });
        assert_ne!(lost, Some(false));
    }
}

mod stream_ordered {
    use super::*;

    struct Arguments {
        size: usize,
        file_offset: i64,
        buffer_offset: i64,
        bytes: isize,
    }

    fn arguments(size: usize) -> Box<Arguments> {
        Box::new(Arguments { size, file_offset: 0, buffer_offset: 0, bytes: 0 })
    }

    fn read(
        rig: &Rig,
        handle: CUfileHandle_t,
        buffer: *mut c_void,
        arguments: *mut Arguments,
        stream: cudaStream_t,
    ) -> Result<(), u32> {
        code(unsafe {
            (rig.cufile.cuFileReadAsync)(
                handle,
                buffer,
                &raw mut (*arguments).size,
                &raw mut (*arguments).file_offset,
                &raw mut (*arguments).buffer_offset,
                &raw mut (*arguments).bytes,
                stream,
            )
        })
    }

    /// Makes a transfer, after which the next ones return at once.
    fn transfer_once(rig: &Rig, handle: CUfileHandle_t, buffer: *mut c_void, stream: cudaStream_t) {
        let first = Box::into_raw(arguments(0));
        assert_eq!(read(rig, handle, buffer, first, stream), Ok(()));
        rig.synchronise(stream);
        drop(unsafe { Box::from_raw(first) });
    }

    fn hold(rig: &Rig, blocked: &mut Option<mpsc::Receiver<()>>, stream: cudaStream_t) {
        unsafe extern "C" fn block(data: *mut c_void) {
            let wait = unsafe { &mut *data.cast::<Option<mpsc::Receiver<()>>>() }.take();
            let _ = wait.unwrap().recv();
        }
        let status =
            unsafe { (rig.cuda.cudaLaunchHostFunc)(stream, Some(block), (&raw mut *blocked).cast()) };
        assert_eq!(status, OK);
    }

    #[test]
    fn first_transfer_of_a_stream_waits_for_host_functions() {
        let rig = rig();
        let file = file(&[1; 100]);
        let (handle, buffer, stream) = (rig.register(&file).unwrap(), rig.device(100), rig.stream());
        let (entered, wait) = mpsc::channel::<()>();
        let mut blocked = Some(wait);
        hold(&rig, &mut blocked, stream);
        let returned = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                assert!(!returned.load(Ordering::SeqCst));
                drop(entered);
            });
            let first = Box::into_raw(arguments(100));
            assert_eq!(read(&rig, handle, buffer, first, stream), Ok(()));
            returned.store(true, Ordering::SeqCst);
            rig.synchronise(stream);
            assert_eq!(unsafe { Box::from_raw(first) }.bytes, 100);
        });
    }

    #[test]
    fn aligned_streams_refuse_other_addresses() {
        let rig = rig();
        let file = file(&[1; 8192]);
        let (handle, buffer, stream) = (rig.register(&file).unwrap(), rig.device(8192), rig.stream());
        assert_eq!(code(unsafe { (rig.cufile.cuFileStreamRegister)(stream.cast(), 8) }), Ok(()));
        let read = |at| {
            let arguments = Box::into_raw(arguments(4096));
            let status = read(&rig, handle, buffer.wrapping_byte_add(at), arguments, stream);
            rig.synchronise(stream);
            (status, unsafe { Box::from_raw(arguments) }.bytes)
        };
        assert_eq!((read(0), read(512)), ((Ok(()), 4096), (Err(5022), 0)));
    }

    #[test]
    fn two_threads_that_submit_to_one_stream_abort() {
        let _name = "stream_ordered::two_threads_that_submit_to_one_stream_abort";
        aborts("two threads submit transfers to one stream", || {
            let rig = rig();
            let file = file(&[1; 100]);
            let (handle, buffer, stream) = (rig.register(&file).unwrap(), rig.device(100), rig.stream());
            let (_entered, wait) = mpsc::channel::<()>();
            let mut blocked = Some(wait);
            hold(&rig, &mut blocked, stream);
            let (handle, buffer, stream) = (handle.addr(), buffer.addr(), stream.addr());
            let submit = || {
                let (handle, buffer) = (handle as CUfileHandle_t, buffer as *mut c_void);
                let _ = read(&rig, handle, buffer, Box::into_raw(arguments(100)), stream as cudaStream_t);
            };
            thread::scope(|threads| {
                // The first one is in its call until the function of the host ends.
                threads.spawn(submit);
                threads.spawn(submit);
            });
        });
    }

    #[test]
    fn first_transfers_that_would_hang_abort() {
        let _name = "stream_ordered::first_transfers_that_would_hang_abort";
        aborts("libcufile hangs here", || {
            let rig = rig();
            rig.emulator.control("hang-ms 50");
            let file = file(&[1; 100]);
            let (handle, buffer, stream) = (rig.register(&file).unwrap(), rig.device(100), rig.stream());
            let (_entered, wait) = mpsc::channel::<()>();
            let mut blocked = Some(wait);
            hold(&rig, &mut blocked, stream);
            let _ = read(&rig, handle, buffer, Box::into_raw(arguments(100)), stream);
        });
    }

    /// Sets the arguments while the operation waits behind a delayed one.
    fn with_late_arguments(flags: Option<u32>) -> (isize, Vec<u8>) {
        let rig = rig();
        let file = file(&(0..100).collect::<Vec<u8>>());
        let (handle, buffer, stream) = (rig.register(&file).unwrap(), rig.device(100), rig.stream());
        rig.fill(buffer, &[0; 100]);
        assert_eq!(code(unsafe { (rig.cufile.cuFileBufRegister)(buffer, 100, 0) }), Ok(()));
        if let Some(flags) = flags {
            assert_eq!(code(unsafe { (rig.cufile.cuFileStreamRegister)(stream.cast(), flags) }), Ok(()));
        }
        transfer_once(&rig, handle, buffer, stream);
        let (entered, wait) = mpsc::channel::<()>();
        let mut blocked = Some(wait);
        hold(&rig, &mut blocked, stream);
        let late = Box::into_raw(arguments(100));
        assert_eq!(read(&rig, handle, buffer, late, stream), Ok(()));
        unsafe { late.write(Arguments { size: 3, file_offset: 50, buffer_offset: 10, bytes: 0 }) };
        entered.send(()).unwrap();
        rig.synchronise(stream);
        let late = unsafe { Box::from_raw(late) };
        (late.bytes, rig.bytes(buffer.wrapping_byte_add(10), 4))
    }

    #[test]
    fn arguments_are_read_when_the_operation_executes() {
        assert_eq!(with_late_arguments(None), (3, vec![50, 51, 52, 0]));
        assert_eq!(with_late_arguments(Some(0)), (3, vec![50, 51, 52, 0]));
    }

    #[test]
    fn fixed_arguments_are_read_at_submission() {
        assert_eq!(with_late_arguments(Some(15)), (100, vec![10, 11, 12, 13]));
        assert_eq!(with_late_arguments(Some(2)), (3, vec![0, 1, 2, 0]), "only the file offset is fixed");
    }

    #[test]
    fn stream_failures_arrive_in_the_byte_count() {
        let rig = rig();
        let file = file(&[1; 100]);
        let (handle, buffer, stream) = (rig.register(&file).unwrap(), rig.device(50), rig.stream());
        let outcome = |handle, size, offset| {
            let arguments = Box::into_raw(arguments(size));
            unsafe { (*arguments).file_offset = offset };
            let status = read(&rig, handle, buffer, arguments, stream);
            rig.synchronise(stream);
            (status, unsafe { Box::from_raw(arguments) }.bytes)
        };
        assert_eq!(outcome(handle, 51, 0), (Ok(()), -5016));
        assert_eq!(outcome(null_mut(), 10, 0), (Err(5022), -22));
        assert_eq!(outcome(handle, 10, 1000), (Ok(()), 0));
        let moved =
            Box::into_raw(Box::new(Arguments { size: 10, file_offset: 0, buffer_offset: 1, bytes: 0 }));
        assert_eq!(read(&rig, handle, buffer, moved, stream), Ok(()));
        rig.synchronise(stream);
        assert_eq!(unsafe { Box::from_raw(moved) }.bytes, -5, "an offset into memory that is not registered");
        rig.emulator.fault("cuFileReadAsync", "bytes=-5011");
        assert_eq!(outcome(handle, 10, 0), (Ok(()), -5011));
        rig.emulator.fault("cuFileReadAsync", "err=5038");
        assert_eq!(outcome(handle, 10, 0), (Err(5038), 0));
        assert_eq!(outcome(handle, 10, 0), (Ok(()), 10));
    }

    #[test]
    fn streams_are_registered_and_deregistered_once() {
        let rig = rig();
        let stream = rig.stream();
        let register = |flags| code(unsafe { (rig.cufile.cuFileStreamRegister)(stream.cast(), flags) });
        let deregister = || code(unsafe { (rig.cufile.cuFileStreamDeregister)(stream.cast()) });
        assert_eq!((register(16), register(16), register(8)), (Ok(()), Err(5022), Err(5022)));
        assert_eq!(rig.emulator.live("stream-registrations"), 1);
        assert_eq!((deregister(), deregister()), (Ok(()), Err(5022)));
        assert_eq!(register(8), Ok(()));
    }
}

mod batches {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const COMPLETE: CUfileStatus_t = CUfileStatus_t::CUFILE_COMPLETE;

    #[test]
    fn batch_size_is_limited_by_the_version() {
        let rig = rig();
        let sizes = [0, 1, 128, 129, 4096].map(|entries| rig.set_up(entries).err());
        assert_eq!(sizes, [Some(5022), None, None, Some(5022), Some(5022)]);
        assert_eq!(older("1.14").set_up(4096), Err(5030));
        assert_eq!(rig.emulator.live("batches"), 2);
    }

    #[test]
    fn entries_above_16_mib_complete_short() {
        let rig = rig();
        let file = file(b"");
        file.set_len(20 * MIB as u64).unwrap();
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(20 * MIB));
        let batch = rig.set_up(2).unwrap();
        assert_eq!(rig.submit(batch, &mut [entry(handle, buffer, 20 * MIB, 9)]), Ok(()));
        assert_eq!(rig.events(batch, 1, LONG), [(9, COMPLETE, 16 * MIB as isize)]);
        assert_eq!(rig.events(batch, 1, LONG), [], "nothing is in flight");
    }

    #[test]
    fn entries_complete_once_in_either_order() {
        let rig = rig();
        let file = file(&[1; 64]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(64));
        let batch = rig.set_up(8).unwrap();
        let mut entries = [1, 2, 3].map(|cookie| entry(handle, buffer, 10 * cookie, cookie));
        let cookies = |events: Vec<(usize, CUfileStatus_t, isize)>| {
            events.iter().map(|event| (event.0, event.2)).collect::<Vec<_>>()
        };
        assert_eq!(rig.submit(batch, &mut entries), Ok(()));
        assert_eq!(cookies(rig.events(batch, 3, LONG)), [(1, 10), (2, 20), (3, 30)]);
        rig.emulator.control("reverse-completions 1");
        assert_eq!(rig.submit(batch, &mut entries), Ok(()));
        assert_eq!(cookies(rig.events(batch, 3, LONG)), [(3, 30), (2, 20), (1, 10)]);
    }

    #[test]
    fn polling_times_out_with_partial_results() {
        let rig = rig();
        let file = file(&[1; 64]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(64));
        let batch = rig.set_up(8).unwrap();
        let held = rig.emulator.hold("batch-entry", "after=1");
        let mut entries = [1, 2].map(|cookie| entry(handle, buffer, 8, cookie));
        assert_eq!(rig.submit(batch, &mut entries), Ok(()));
        assert_eq!(rig.events(batch, 1, LONG).len(), 1);
        assert_eq!(rig.events(batch, 0, Duration::ZERO), []);
        assert_eq!(rig.events(batch, 1, Duration::from_millis(1)), []);
        held.release();
        assert_eq!(rig.events(batch, 1, LONG), [(2, COMPLETE, 8)]);
    }

    #[test]
    fn entries_fail_on_their_own_or_by_fault() {
        let rig = rig();
        let file = file(&[1; 64]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(64));
        let batch = rig.set_up(8).unwrap();
        rig.emulator.fault("batch-entry", "after=1 bytes=3");
        rig.emulator.fault("batch-entry", "after=2 status=32 bytes=-5044");
        let mut entries = [65, 64, 64, 64].map(|size| entry(handle, buffer, size, size));
        assert_eq!(rig.submit(batch, &mut entries), Ok(()));
        let events: Vec<_> = rig.events(batch, 4, LONG).iter().map(|event| (event.1, event.2)).collect();
        let (failed, timeout) = (CUfileStatus_t::CUFILE_FAILED, CUfileStatus_t::CUFILE_TIMEOUT);
        assert_eq!(events, [(failed, -1), (COMPLETE, 3), (timeout, -5044), (COMPLETE, 64)]);
        assert_eq!(rig.submit(batch, &mut [entry(null_mut(), buffer, 1, 0)]), Err(5022));
        let mut many = [entry(handle, buffer, 1, 0); 8];
        let _held = rig.emulator.hold("batch-entry", "");
        assert_eq!((rig.submit(batch, &mut many), rig.submit(batch, &mut many)), (Ok(()), Err(5037)));
    }

    #[test]
    fn cancelled_batches_report_no_events() {
        let rig = rig();
        let file = file(&[1; 64]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(64));
        let batch = rig.set_up(8).unwrap();
        let held = rig.emulator.hold("batch-entry", "");
        let mut entries = [entry(handle, buffer, 8, 1); 4];
        assert_eq!(rig.submit(batch, &mut entries), Ok(()));
        let cancel = || code(unsafe { (rig.cufile.cuFileBatchIOCancel)(batch) });
        assert_eq!(held.release_during("cuFileBatchIOCancel", cancel), Ok(()));
        assert_eq!(rig.events(batch, 4, LONG), []);
        assert!(rig.emulator.calls("batch-entry") < 4);
        assert_eq!(rig.submit(batch, &mut entries), Err(5030), "it is not to be used again");
        unsafe { (rig.cufile.cuFileBatchIODestroy)(batch) };
        assert_eq!(rig.emulator.live("batches"), 0);
    }
}

mod statistics {
    use super::*;

    fn collecting(rig: &Rig, level: i32) {
        assert_eq!(rig.open(), Ok(()));
        assert_eq!(code(unsafe { rig.cufile.cuFileSetStatsLevel.unwrap()(level) }), Ok(()));
        assert_eq!(code(unsafe { rig.cufile.cuFileStatsStart.unwrap()() }), Ok(()));
        let file = file(&[1; 3000]);
        let (handle, buffer) = (rig.register(&file).unwrap(), rig.device(3000));
        assert_eq!(rig.read(handle, buffer, 3000, (0, 0)).0, 3000);
        assert_eq!(rig.write(handle, buffer, 1000, (0, 0)).0, 1000);
        assert_eq!(rig.read(handle, null_mut(), 1, (0, 0)).0, -1);
        unsafe { (rig.cufile.cuFileHandleDeregister)(handle) };
    }

    /// Returns a struct of type `T` that the library wrote, and the end in bytes of the written part. Before the call
    /// the struct is filled with `0xA5`.
    fn written<T>(get: impl FnOnce(*mut T) -> CUfileError_t) -> (Box<T>, usize) {
        unsafe {
            let mut target = Box::<T>::new_uninit();
            target.as_mut_ptr().write_bytes(0xA5, 1);
            assert_eq!(code(get(target.as_mut_ptr())), Ok(()));
            let bytes = std::slice::from_raw_parts(target.as_ptr().cast::<u8>(), size_of::<T>());
            let end = bytes.iter().rposition(|byte| *byte != 0xA5).unwrap() + 1;
            (target.assume_init(), end)
        }
    }

    #[test]
    fn the_first_level_has_the_size_of_its_version() {
        for (version, size) in [("1.15", 512), ("1.18", 512), ("1.19", 624), ("1.20", 624)] {
            let rig = older(version);
            collecting(&rig, 1);
            let get = rig.cufile.cuFileGetStatsL1.unwrap();
            let (found, end) = written(|target: *mut CUfileStatsLevel1_t| unsafe { get(target) });
            assert_eq!(end, size, "{version}");
            assert_eq!((found.read_bytes, found.write_bytes, found.hdl_register_ops.ok), (3000, 1000, 1));
            assert_eq!((found.read_ops.ok, found.read_ops.err), (1, 1));
        }
    }

    #[test]
    fn higher_levels_follow_the_first_and_stay_partly_unwritten() {
        let rig = older("1.18");
        collecting(&rig, 3);
        let get = rig.cufile.cuFileGetStatsL3.unwrap();
        let (found, _) = written(|target: *mut CUfileStatsLevel3_t| unsafe { get(target) });
        let base = (&raw const *found).cast::<u8>();
        let read = |offset: usize| unsafe { base.add(offset).cast::<u64>().read_unaligned() };
        assert_eq!(read(512), 1, "a read of less than 4 KiB, in the histogram at 512");
        assert_eq!(read(1024) as u32, 2, "the number of GPUs at 1024");
        assert_eq!(read(1032 + 16), 3000, "the bytes that GPU 0 read");

        let rig = super::rig();
        collecting(&rig, 2);
        let get = rig.cufile.cuFileGetStatsL2.unwrap();
        let (found, end) = written(|target: *mut CUfileStatsLevel2_t| unsafe { get(target) });
        assert_eq!((found.read_size_kb_hist[0], found.write_size_kb_hist[0]), (1, 1));
        let unwritten = u64::from_ne_bytes([0xA5; 8]);
        assert_eq!((found.read_size_kb_hist[31], end), (unwritten, 1136 - 64));
    }

    #[test]
    fn stop_ends_counting_and_clears_the_counters() {
        let rig = rig();
        let level_1 = || unsafe {
            let mut found: CUfileStatsLevel1_t = std::mem::zeroed();
            code(rig.cufile.cuFileGetStatsL1.unwrap()(&mut found)).map(|()| found.read_bytes)
        };
        let [start, stop, reset] =
            [rig.cufile.cuFileStatsStart, rig.cufile.cuFileStatsStop, rig.cufile.cuFileStatsReset];
        for call in [start, stop, reset] {
            assert_eq!(code(unsafe { call.unwrap()() }), Err(5001), "the driver is not open");
        }
        assert_eq!((level_1(), rig.open()), (Err(5001), Ok(())));
        assert_eq!(level_1(), Err(5022), "the level is 0");
        assert_eq!(code(unsafe { rig.cufile.cuFileStatsStart.unwrap()() }), Err(5030), "the level is 0");
        collecting(&rig, 1);
        assert_eq!(level_1(), Ok(3000));
        assert_eq!(code(unsafe { rig.cufile.cuFileStatsStop.unwrap()() }), Ok(()));
        assert_eq!(level_1(), Err(5022), "stopping sets the level to 0");
        let file = file(&[1; 10]);
        let handle = rig.register(&file).unwrap();
        assert_eq!(rig.read(handle, rig.device(10), 10, (0, 0)).0, 10);
        assert_eq!(code(unsafe { rig.cufile.cuFileSetStatsLevel.unwrap()(1) }), Ok(()));
        assert_eq!(level_1(), Ok(0), "stopping clears the counters");
        assert_eq!(rig.read(handle, rig.device(10), 10, (0, 0)).0, 10);
        assert_eq!(level_1(), Ok(10), "without a start");
        assert_eq!(code(unsafe { rig.cufile.cuFileStatsReset.unwrap()() }), Ok(()));
        assert_eq!(level_1(), Ok(0));
        assert_eq!(code(unsafe { rig.cufile.cuFileSetStatsLevel.unwrap()(4) }), Err(5022));
    }
}
