//! Tests of cufile's driver: opening, counting, closing, and machines that lack its needs.

use std::env;
use std::mem;
use std::path::Path;
use std::time::{Duration, Instant};

use cufile::cuda::Cuda;
use cufile::{Driver, Error, ErrorKind, FileHandle, OpError};
use cufile_sys::{CUfileDrvProps_t, CUfileError_t};
use testkit::bed::{Bed, libraries, open_with};
use testkit::{Emulator, alone_with_libraries, in_threads, this_test};

fn open(emulator: &Emulator) -> Driver {
    let (library, cuda) = libraries(emulator);
    Driver::builder().library(library).cuda(cuda).open().unwrap()
}

#[test]
fn use_count_follows_open_and_close() {
    Bed::each(|bed| {
        let again = || match &bed.emulator {
            Some(emulator) => open(emulator),
            None => Driver::open().unwrap(),
        };
        let before = bed.driver.use_count().unwrap();
        let first = again();
        let second = again();
        assert_eq!(bed.driver.use_count().unwrap(), before + 2);
        first.close().unwrap();
        assert_eq!(bed.driver.use_count().unwrap(), before + 1);
        drop(second);
        assert_eq!(bed.driver.use_count().unwrap(), before);
        drop(again());
        assert_eq!(bed.driver.use_count().unwrap(), before);
    });
}

#[test]
fn the_last_clone_closes_the_driver() {
    let emulator = Emulator::start();
    let driver = open(&emulator);
    let clones: Vec<_> = (0..4).map(|_| driver.clone()).collect();
    assert_eq!(driver.use_count().unwrap(), 1);
    drop(driver);
    assert_eq!(emulator.live("use-count"), 1);
    in_threads(clones.into_iter().map(|clone| || drop(clone)));
    assert_eq!((emulator.live("use-count"), emulator.calls("cuFileDriverClose_v2")), (0, 1));
}

#[test]
fn closing_a_driver_in_use_returns_it() {
    let emulator = Emulator::start();
    let driver = open(&emulator);
    let file = FileHandle::register(&driver, tempfile::tempfile().unwrap()).unwrap();
    let clone = driver.clone();
    let (error, driver) = driver.close().unwrap_err().into_parts();
    assert!(matches!(error, Error::InUse { users: 2, .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop((clone, file));
    assert_eq!(emulator.live("use-count"), 1);
    driver.close().unwrap();
    assert_eq!(emulator.live("use-count"), 0);
}

#[test]
fn failed_close_returns_the_driver() {
    let emulator = Emulator::start();
    let driver = open(&emulator);
    emulator.fault("cuFileDriverClose_v2", "err=5030");
    let (error, driver) = driver.close().unwrap_err().into_parts();
    assert_eq!(error.op_error(), Some(OpError::INTERNAL_ERROR), "{error}");
    assert_eq!(driver.use_count().unwrap(), 1);
    driver.close().unwrap();
    assert_eq!(emulator.live("use-count"), 0);

    // Other code closed it once too often.
    let driver = open(&emulator);
    // SAFETY: the call takes no argument.
    unsafe { (driver.library().functions().cuFileDriverClose_v2)() };
    let (error, _) = driver.close().unwrap_err().into_parts();
    assert_eq!(error.op_error(), Some(OpError::DRIVER_NOT_INITIALIZED), "{error}");
}

#[test]
fn failed_open_leaves_nothing_open() {
    let emulator = Emulator::start();
    let (library, cuda) = libraries(&emulator);
    emulator.fault("cuFileDriverOpen", "cu=100");
    let error = Driver::builder().library(library).cuda(cuda).open().unwrap_err();
    assert_eq!(error.op_error(), Some(OpError::CUDA_DRIVER_ERROR));
    assert!(error.to_string().contains("CUDA_ERROR_NO_DEVICE (100)"), "{error}");
    assert_eq!((emulator.live("use-count"), emulator.calls("cuFileDriverClose_v2")), (0, 0));
}

#[test]
fn use_count_includes_an_implicit_opening() {
    let emulator = Emulator::start();
    let (library, _) = libraries(&emulator);
    // SAFETY: an unknown buffer is an error, and the call dereferences no pointer.
    unsafe { (library.functions().cuFileBufRegister)(std::ptr::null(), 0, 0) };
    assert_eq!(emulator.live("use-count"), 1);
    let driver = open(&emulator);
    assert_eq!(driver.use_count().unwrap(), 2);
    driver.close().unwrap();
    assert_eq!(emulator.live("use-count"), 1);
}

#[test]
fn the_emulator_is_not_taken_for_nvidias_library() {
    let emulator = Emulator::start();
    // SAFETY: the emulator has libcufile's contract.
    let loaded = unsafe { cufile::sys::Library::load_from(emulator.path()) }.unwrap();
    assert!(!loaded.is_from_nvidia() && !emulator.cufile().is_from_nvidia());
}

#[test]
fn the_driver_is_not_opened_without_a_device() {
    for version in ["1.15", "1.20"] {
        let emulator = Emulator::posing_as(version);
        emulator.control("gpus 0");
        let error = Cuda::from_sys(emulator.driver(), emulator.runtime()).unwrap_err();
        assert!(matches!(error, Error::NoDevice), "{error}");
        assert_eq!((error.kind(), emulator.calls("cuFileDriverOpen")), (ErrorKind::NoDevice, 0));
    }
}

const ROLE: &str = "CUFILE_TESTS_ROLE";

fn child(role: &str, libraries: [(&str, &str); 3]) {
    let output = this_test().env(ROLE, role).envs(libraries).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

const VARIABLES: [&str; 3] = ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"];

#[test]
fn errors_name_a_missing_library_at_once() {
    if let Ok(missing) = env::var(ROLE) {
        // Nothing remembers a failure. The second try fails with the same text.
        for _ in 0..2 {
            let started = Instant::now();
            let error = Driver::open().unwrap_err();
            assert!(started.elapsed() < Duration::from_secs(5));
            assert!(matches!(error, Error::Load(_)), "{error}");
            assert_eq!(error.kind(), ErrorKind::NotAvailable);
            let text = error.to_string();
            assert!(text.contains("/nowhere/lib.so") && text.contains(&missing), "{text}");
        }
        return;
    }
    let emulator = Emulator::start();
    let path = emulator.path().to_str().unwrap();
    for missing in VARIABLES {
        let libraries = VARIABLES.map(|name| (name, if name == missing { "/nowhere/lib.so" } else { path }));
        child(missing, libraries);
    }
}

#[test]
fn the_default_libraries_are_found_by_their_variables() {
    if env::var(ROLE).is_ok() {
        let driver = Driver::open().unwrap();
        let path = env::var("CUFILE_LIBRARY").unwrap();
        assert_eq!(driver.library().path(), Some(Path::new(&path)));
        assert_eq!(driver.cuda().device_count().unwrap(), 2);
        driver.close().unwrap();
        return;
    }
    let emulator = Emulator::start();
    let path = emulator.path().to_str().unwrap();
    child("opens", VARIABLES.map(|name| (name, path)));
}

#[test]
fn loading_skips_a_libcudart_newer_than_the_driver() {
    alone_with_libraries(|folder| {
        let newer = Emulator::at(&folder.join("libcudart.so.13"));
        newer.control("driver-version 12080");
        let older = Emulator::at(&folder.join("libcudart.so.12"));
        older.control("runtime-version 12090");
        older.control("driver-version 12080");
        let loaded = || cuda_rt_sys::runtime::Library::load().unwrap();
        // A newer minor version runs on the driver of its major version.
        assert_eq!((loaded().version(), loaded().path()), (12090, Some(Path::new("libcudart.so.12"))));
        newer.control("driver-version 13000");
        assert_eq!((loaded().version(), loaded().path()), (13000, Some(Path::new("libcudart.so.13"))));
        // A driver runs older libraries.
        newer.control("driver-version 12080");
        older.control("driver-version 13000");
        assert_eq!(loaded().version(), 12090);
        // Without a driver, the newest library is chosen.
        newer.control("driver-version 0");
        assert_eq!(loaded().version(), 13000);

        newer.control("driver-version 12080");
        // SAFETY: no other thread of this process looks at the environment.
        unsafe { env::set_var("CUDART_LIBRARY", newer.path()) };
        let error = cuda_rt_sys::runtime::Library::load().err().unwrap();
        let expected =
            format!("{:?} is from CUDA 13.0, but the display driver supports only 12.8: ", newer.path());
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(error.to_string().ends_with("install libcudart of CUDA 12"), "{error}");
        assert_eq!((error.library(), error.paths()), ("libcudart", vec![newer.path()]));
    });
}

#[test]
fn advice_for_a_closed_driver_depends_on_the_call() {
    let emulator = Emulator::start();
    let (library, cuda) = libraries(&emulator);
    emulator.fault("cuFileDriverOpen", "err=5001");
    let error = Driver::builder().library(library).cuda(cuda).open().unwrap_err().to_string();
    assert!(error.contains("cuFileDriverOpen") && error.contains("nvidia-fs"), "{error}");
    assert!(!error.contains("open the driver first"), "{error}");
    let (library, cuda) = libraries(&emulator);
    emulator.fault("cuFileDriverOpen", "err=5030");
    let error = Driver::builder().library(library).cuda(cuda).open().unwrap_err().to_string();
    assert!(error.ends_with("see libcufile's log file"), "{error}");
    let driver = open(&emulator);
    emulator.fault("cuFileDriverClose_v2", "err=5001");
    let (error, _) = driver.close().unwrap_err().into_parts();
    assert!(error.to_string().ends_with("other code in this process has closed it"), "{error}");
}

#[test]
fn failed_allocations_name_their_bytes_and_gpu() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let second = bed.driver.cuda().device(1).unwrap();
    for function in ["cudaMalloc", "cudaHostAlloc", "cudaMallocManaged"] {
        emulator.fault(function, "err=2");
        let result = match function {
            "cudaMalloc" => second.alloc(4096).map(drop),
            "cudaHostAlloc" => second.alloc_pinned(4096).map(drop),
            _ => second.alloc_managed(4096).map(drop),
        };
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let expected =
            format!("{function}(4096 bytes for GPU 1): cudaErrorMemoryAllocation (2); free memory");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

unsafe extern "C" fn longer_properties(properties: *mut CUfileDrvProps_t) -> CUfileError_t {
    // SAFETY: the test checks that the caller has room behind this version's structure.
    unsafe {
        properties.cast::<u8>().write_bytes(1, size_of::<CUfileDrvProps_t>() + 512);
        mem::zeroed()
    }
}

#[test]
fn the_properties_struct_has_room_for_newer_libraries() {
    let emulator = Emulator::start();
    // SAFETY: the function writes no more than a newer libcufile might.
    let driver = unsafe { open_with(&emulator, |table| table.cuFileDriverGetProperties = longer_properties) };
    let properties = driver.properties().unwrap();
    assert_eq!(properties.max_batch_entries, 0x0101_0101);
}
