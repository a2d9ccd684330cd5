//! Tests of parameters: they are read, set and bounded before the driver is opened.
//!
//! The real library takes part where there is one, even without a GPU. No test here opens its driver.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cufile::params::{Bytes, Param, Slab, Value};
use cufile::{Controls, Driver, Error, Feature, FileHandle, Library, OpError, Result, Version};
use testkit::bed::{Bed, libraries};
use testkit::{Emulator, alone, in_threads};

fn emulated(version: &str) -> (Emulator, Library) {
    let emulator = Emulator::posing_as(version);
    let library = Library::from_sys(emulator.cufile()).unwrap();
    (emulator, library)
}

/// Lets only one test at a time use the real library's parameters.
fn each_version(test: impl Fn(&Library)) {
    static TURN: Mutex<()> = Mutex::new(());
    for (version, _) in Emulator::VERSIONS {
        let (_emulator, library) = emulated(version);
        test(&library);
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Ok(library) = Library::load() {
        test(&library);
    }
}

fn at_least(library: &Library, minor: u32) -> bool {
    library.version() >= Version { major: 1, minor }
}

#[track_caller]
fn assert_since<T: std::fmt::Debug>(result: Result<T>, name: &str, minor: u32) {
    match result {
        Err(Error::Unsupported { symbol, since, .. }) => {
            assert_eq!((symbol, since), (name, Version { major: 1, minor }));
        }
        other => panic!("{name} came with 1.{minor}, but {other:?}"),
    }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, words: &[&str]) {
    match result {
        Err(error @ Error::InvalidInput { .. }) => {
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text} should name {words:?}");
        }
        other => panic!("{other:?} should have been refused: {words:?}"),
    }
}

/// Sets a parameter twice, so that a setter without effect fails the test.
#[track_caller]
fn assert_settable<T>(library: &Library, param: Param<T>, values: [T; 2])
where
    T: Value + Clone + PartialEq + std::fmt::Debug,
{
    for value in values {
        library.params().set(param, value.clone()).unwrap();
        assert_eq!(library.params().get(param).unwrap(), value, "{param:?} of {library:?}");
    }
}

#[test]
fn every_parameter_reads_back_its_value() {
    const KIB: u64 = 1024;
    each_version(|library| {
        if !library.supports(Feature::Parameters) {
            return;
        }
        assert_settable(library, Param::STATS_LEVEL, [1, 0]);
        assert_settable(library, Param::MAX_IO_QUEUE_DEPTH, [64, 128]);
        assert_settable(library, Param::MAX_IO_THREADS, [2, 4]);
        assert_settable(library, Param::MAX_REQUEST_PARALLELISM, [2, 4]);
        assert_settable(library, Param::MAX_BATCH_ENTRIES, [64, 128]);
        assert_settable(library, Param::MIN_IO_THRESHOLD, [Bytes(4096 * KIB), Bytes(8192 * KIB)]);
        assert_settable(library, Param::MAX_DIRECT_IO_SIZE, [Bytes(1024 * KIB), Bytes(16384 * KIB)]);
        assert_settable(library, Param::MAX_DEVICE_CACHE_SIZE, [Bytes(65536 * KIB), Bytes(131072 * KIB)]);
        assert_settable(library, Param::PER_BUFFER_CACHE_SIZE, [Bytes(2048 * KIB), Bytes(1024 * KIB)]);
        assert_settable(library, Param::MAX_DEVICE_PINNED_MEMORY, [Bytes(1 << 30), Bytes(1 << 35)]);
        assert_settable(library, Param::POLL_THRESHOLD, [Bytes(8 * KIB), Bytes(4 * KIB)]);
        assert_settable(library, Param::BATCH_TIMEOUT, [7, 5].map(Duration::from_millis));
        for switch in [
            Param::USE_POLL_MODE,
            Param::ALLOW_COMPAT_MODE,
            Param::FORCE_COMPAT_MODE,
            Param::FS_MISC_API_CHECK_AGGRESSIVE,
            Param::PARALLEL_IO,
            Param::ALLOW_SYSTEM_MEMORY,
            Param::USE_PCI_P2PDMA,
            Param::PREFER_IO_URING,
            Param::FORCE_O_DIRECT,
            Param::SKIP_TOPOLOGY_DETECTION,
            Param::STREAM_MEMOPS_BYPASS,
        ] {
            assert_settable(library, switch, [true, false]);
        }
        assert_settable(library, Param::LOGGING_LEVEL, ["WARN", "ERROR"].map(Into::into));
        assert_settable(library, Param::LOG_DIR, ["/tmp/cufile-logs", "/tmp"].map(Into::into));
        for path in ["/tmp/a.log", "/tmp/cufile.log"] {
            // SAFETY: the driver of this library is not opened.
            unsafe { library.params().set_log_file_path(path) }.unwrap();
            assert_eq!(library.params().log_file_path().unwrap(), path);
        }
        if at_least(library, 19) {
            assert_settable(library, Param::POSIX_IO_MODE, [true, false]);
            assert_settable(library, Param::GDS_FALLBACK_IO, [true, false]);
            assert_eq!(library.params().get(Param::RDMA_TRANSPORT).unwrap(), "DC_V1");
        }
    });
}

#[test]
fn missing_parameters_name_the_version_that_has_them() {
    const SLABS: [Slab; 1] = [Slab { size_bytes: 4096, count: 1 }];
    each_version(|library| {
        let params = library.params();
        if !at_least(library, 14) {
            let name = Param::MAX_IO_THREADS.name();
            assert_since(params.get(Param::MAX_IO_THREADS), name, 14);
            assert_since(params.set(Param::MAX_IO_THREADS, 1), name, 14);
            assert_since(params.limits(Param::MAX_IO_THREADS), name, 14);
            let name = Param::ALLOW_COMPAT_MODE.name();
            assert_since(params.get(Param::ALLOW_COMPAT_MODE), name, 14);
            assert_since(params.set(Param::ALLOW_COMPAT_MODE, true), name, 14);
            assert_since(params.get(Param::LOG_DIR), "CUFILE_PARAM_LOG_DIR", 14);
            assert_since(params.set(Param::LOG_DIR, "/".into()), "CUFILE_PARAM_LOG_DIR", 14);
        }
        if !at_least(library, 15) {
            assert_since(params.get(Param::POSIX_POOL_SLABS), "cuFileGetParameterPosixPoolSlabArray", 15);
            assert_since(
                params.set(Param::POSIX_POOL_SLABS, SLABS.to_vec()),
                "cuFileSetParameterPosixPoolSlabArray",
                15,
            );
        }
        if at_least(library, 14) && !at_least(library, 15) {
            assert_since(params.limits(Param::MAX_IO_THREADS), "cuFileGetParameterMinMaxValue", 15);
        }
        if !at_least(library, 17) {
            let name = "cuFileGetParameterGpuBounceBufferSlabArray";
            assert_since(params.get(Param::GPU_BOUNCE_BUFFER_SLABS), name, 17);
            let name = "cuFileSetParameterGpuBounceBufferSlabArray";
            assert_since(params.set(Param::GPU_BOUNCE_BUFFER_SLABS, SLABS.to_vec()), name, 17);
        }
        // The functions are there from 1.14 on, but the number would be unknown to them.
        if !at_least(library, 19) {
            assert_since(params.get(Param::POSIX_IO_MODE), "CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE", 19);
            assert_since(params.set(Param::GDS_FALLBACK_IO, true), "CUFILE_PARAM_GDS_FALLBACK_IO", 19);
            assert_since(params.get(Param::RDMA_TRANSPORT), "CUFILE_PARAM_RDMA_TRANSPORT", 19);
        }
    });
}

#[test]
fn features_follow_the_version() {
    for &(version, number) in Emulator::VERSIONS {
        let (_emulator, library) = emulated(version);
        for (feature, since) in [
            (Feature::Parameters, 1140),
            (Feature::ParameterLimits, 1150),
            (Feature::Statistics, 1150),
            (Feature::BarSize, 1150),
            (Feature::P2pFlags, 1160),
            (Feature::BounceBufferSlabs, 1170),
            (Feature::VectoredIo, 1190),
        ] {
            assert_eq!(library.supports(feature), number >= since, "{feature:?} in {version}");
        }
    }
}

#[test]
fn sizes_and_times_reach_c_in_kib_and_milliseconds() {
    let (_emulator, library) = emulated("1.20");
    library.params().set(Param::MAX_DIRECT_IO_SIZE, Bytes(1 << 20)).unwrap();
    library.params().set(Param::BATCH_TIMEOUT, Duration::from_millis(9)).unwrap();
    let get = library.functions().cuFileGetParameterSizeT.unwrap();
    let (mut size, mut time) = (0, 0);
    // SAFETY: both numbers outlive the calls.
    unsafe {
        get(
            cufile_sys::CUFileSizeTConfigParameter_t::CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB,
            &mut size,
        );
        get(cufile_sys::CUFileSizeTConfigParameter_t::CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS, &mut time);
    }
    assert_eq!((size, time), (1024, 9));
}

#[test]
fn inexpressible_values_are_refused_before_the_c_call() {
    let (emulator, library) = emulated("1.20");
    let params = library.params();
    let name = "CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB";
    assert_refused(params.set(Param::MAX_DIRECT_IO_SIZE, Bytes(65537)), &[name, "KiB", "65537"]);
    let name = "CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS";
    assert_refused(params.set(Param::BATCH_TIMEOUT, Duration::from_micros(1500)), &[name, "milliseconds"]);
    assert_refused(params.set(Param::LOG_DIR, "/tmp\0/x".into()), &["CUFILE_PARAM_LOG_DIR", "NUL at byte 4"]);
    assert_refused(params.set_poll_mode(true, 4095), &["cuFileDriverSetPollMode", "4095"]);
    assert_refused(params.set_max_direct_io_size(1), &["cuFileDriverSetMaxDirectIOSize", "KiB"]);
    assert_refused(params.set_max_cache_size(1025), &["cuFileDriverSetMaxCacheSize", "1025"]);
    assert_refused(params.set_max_pinned_memory(1023), &["cuFileDriverSetMaxPinnedMemSize", "1023"]);
    let odd = [Slab { size_bytes: 4096, count: 1 }, Slab { size_bytes: 5000, count: 1 }];
    assert_refused(
        params.set(Param::POSIX_POOL_SLABS, odd.to_vec()),
        &["cuFileSetParameterPosixPoolSlabArray", "5000"],
    );
    assert_refused(params.set(Param::GPU_BOUNCE_BUFFER_SLABS, odd.to_vec()), &["GpuBounceBuffer", "5000"]);
    assert_refused(params.set(Param::POSIX_POOL_SLABS, Vec::new()), &["0 slabs"]);
    for function in [
        "cuFileSetParameterSizeT",
        "cuFileSetParameterString",
        "cuFileDriverSetPollMode",
        "cuFileDriverSetMaxDirectIOSize",
        "cuFileDriverSetMaxCacheSize",
        "cuFileDriverSetMaxPinnedMemSize",
        "cuFileSetParameterPosixPoolSlabArray",
        "cuFileSetParameterGpuBounceBufferSlabArray",
    ] {
        assert_eq!(emulator.calls(function), 0, "{function}");
    }
}

#[test]
fn strings_of_any_length_read_back_whole() {
    each_version(|library| {
        if library.supports(Feature::Parameters) {
            for len in [1, 255, 256, 300, 4000] {
                let path = format!("/{}", "x".repeat(len - 1));
                // SAFETY: the driver of this library is not opened.
                unsafe { library.params().set_log_file_path(&path) }.unwrap();
                assert_eq!(library.params().log_file_path().unwrap(), path);
            }
        }
    });
}

#[test]
fn slabs_are_read_without_knowing_their_number() {
    each_version(|library| {
        let params = library.params();
        for len in [1, 2, 3, 5, 64] {
            let slabs: Vec<Slab> = (1..=len).map(|n| Slab { size_bytes: n * 4096, count: 100 + n }).collect();
            if library.supports(Feature::ParameterLimits) {
                params.set(Param::POSIX_POOL_SLABS, slabs.to_vec()).unwrap();
                assert_eq!(params.get(Param::POSIX_POOL_SLABS).unwrap(), slabs);
            }
            let slabs: Vec<Slab> = slabs.iter().map(|slab| Slab { count: slab.count + 1, ..*slab }).collect();
            if library.supports(Feature::BounceBufferSlabs) {
                params.set(Param::GPU_BOUNCE_BUFFER_SLABS, slabs.to_vec()).unwrap();
                assert_eq!(params.get(Param::GPU_BOUNCE_BUFFER_SLABS).unwrap(), slabs);
            }
        }
    });
}

#[test]
fn reading_refused_slab_arrays_fails_after_few_calls() {
    let (emulator, library) = emulated("1.20");
    let get = "cuFileGetParameterPosixPoolSlabArray";
    emulator.fault(get, "err=5030 times=all");
    let error = library.params().get(Param::POSIX_POOL_SLABS).unwrap_err();
    assert_eq!(error.op_error(), Some(OpError::INTERNAL_ERROR));
    assert_eq!(emulator.calls(get), 1, "another length does not mend it");
    emulator.control("clear");
    emulator.fault(get, "err=5022 times=all");
    let error = library.params().get(Param::POSIX_POOL_SLABS).unwrap_err();
    assert_eq!(error.op_error(), Some(OpError::INVALID_VALUE));
    assert!(emulator.calls(get) < 1000);
}

#[test]
fn limits_have_the_unit_of_the_value() {
    each_version(|library| {
        if !library.supports(Feature::ParameterLimits) {
            return;
        }
        let params = library.params();
        assert_eq!(params.limits(Param::MAX_IO_QUEUE_DEPTH).unwrap(), 1..=256);
        assert_eq!(params.limits(Param::MAX_BATCH_ENTRIES).unwrap(), 1..=256);
        assert_eq!(params.limits(Param::MAX_DIRECT_IO_SIZE).unwrap(), Bytes(64 << 10)..=Bytes(16 << 20));
        let times = Duration::from_millis(1)..=Duration::from_secs(1);
        assert_eq!(params.limits(Param::BATCH_TIMEOUT).unwrap(), times);
        let error = params.limits(Param::STATS_LEVEL).unwrap_err();
        assert_eq!(error.op_error(), Some(OpError::INVALID_VALUE));
        assert!(error.to_string().contains("CUFILE_PARAM_PROFILE_STATS"), "{error}");
    });
}

#[test]
fn device_memory_limits_are_read_without_blocking() {
    each_version(|library| {
        if !library.supports(Feature::ParameterLimits) {
            return;
        }
        for param in [Param::MAX_DEVICE_CACHE_SIZE, Param::MAX_DEVICE_PINNED_MEMORY] {
            match library.params().limits(param) {
                Ok(limits) => assert!(limits.end() > limits.start(), "{limits:?}"),
                Err(Error::Load(_) | Error::NoDevice) if !at_least(library, 17) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn an_unwritten_maximum_means_unbounded() {
    let (emulator, library) = emulated("1.20");
    emulator.fault("cuFileGetParameterMinMaxValue", "err=0");
    let limits = library.params().limits(Param::MAX_DEVICE_CACHE_SIZE).unwrap();
    assert_eq!(limits, Bytes(0)..=Bytes(u64::MAX));
}

#[test]
fn errors_name_a_refused_value_and_its_parameter() {
    let (emulator, library) = emulated("1.20");
    let params = library.params();
    emulator.fault("cuFileSetParameterSizeT", "err=5022");
    let text = params.set(Param::MAX_BATCH_ENTRIES, 100_000).unwrap_err().to_string();
    assert!(text.contains("CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 100000"), "{text}");
    emulator.fault("cuFileSetParameterBool", "err=5030");
    let text = params.set(Param::USE_PCI_P2PDMA, true).unwrap_err().to_string();
    assert!(text.contains("CUFILE_PARAM_USE_PCIP2PDMA, true"), "{text}");
    emulator.fault("cuFileSetParameterString", "err=5030");
    let text = params.set(Param::LOG_DIR, "/x".into()).unwrap_err().to_string();
    assert!(text.contains("CUFILE_PARAM_LOG_DIR, \"/x\""), "{text}");
    let error = params.get(Param::PROFILE_NVTX).unwrap_err();
    assert_eq!(error.op_error(), Some(OpError::INVALID_VALUE));
    assert!(error.to_string().contains("CUFILE_PARAM_PROFILE_NVTX"), "{error}");
}

#[test]
fn the_builder_sets_in_order_and_before_opening() {
    let emulator = Emulator::start();
    let (library, cuda) = libraries(&emulator);
    let slabs = vec![Slab { size_bytes: 1 << 20, count: 3 }];
    // SAFETY: the emulator does not touch the environment.
    let builder = unsafe { Driver::builder().log_file_path("/tmp/emulated.log") };
    let driver = builder
        .library(library.clone())
        .cuda(cuda)
        .set(Param::MAX_IO_THREADS, 8)
        .set(Param::MAX_IO_THREADS, 16)
        .set(Param::FORCE_COMPAT_MODE, true)
        .set(Param::LOGGING_LEVEL, "INFO".into())
        .set(Param::BATCH_TIMEOUT, Duration::from_millis(20))
        .set(Param::POSIX_POOL_SLABS, slabs.clone())
        .set(Param::GPU_BOUNCE_BUFFER_SLABS, slabs.clone())
        .poll_mode(true, 16 << 10)
        .max_direct_io_size(2 << 20)
        .max_cache_size(64 << 20)
        .max_pinned_memory(1 << 30)
        .open()
        .unwrap();
    let params = driver.library().params();
    assert_eq!(params.get(Param::MAX_IO_THREADS).unwrap(), 16, "the later one counts");
    assert!(params.get(Param::FORCE_COMPAT_MODE).unwrap());
    assert_eq!(params.get(Param::LOGGING_LEVEL).unwrap(), "INFO");
    assert_eq!(params.log_file_path().unwrap(), "/tmp/emulated.log");
    assert_eq!(params.get(Param::POSIX_POOL_SLABS).unwrap(), slabs);
    assert_eq!(params.get(Param::GPU_BOUNCE_BUFFER_SLABS).unwrap(), slabs);
    let properties = driver.properties().unwrap();
    assert_eq!(properties.max_batch_timeout, Duration::from_millis(20));
    assert!(properties.controls.contains(Controls::POLL_MODE));
    assert_eq!(properties.poll_threshold_bytes, 16 << 10);
    assert_eq!(properties.max_direct_io_bytes, 2 << 20);
    assert_eq!(properties.max_device_cache_bytes, 64 << 20);
    assert_eq!(properties.max_device_pinned_bytes, 1 << 30);
}

#[test]
fn parameter_and_driver_calls_never_run_concurrently() {
    const SLABS: [Slab; 1] = [Slab { size_bytes: 4096, count: 1 }];
    // The emulator ends the process if two threads meet.
    alone(|| {
        for version in ["1.11", "1.13", "1.14", "1.15"] {
            let bed = Bed::emulated_as(version);
            for function in [
                "cuFileDriverOpen",
                "cuFileDriverGetProperties",
                "cuFileDriverSetPollMode",
                "cuFileDriverClose_v2",
            ] {
                bed.emulator.as_ref().unwrap().fault(function, "times=all delay_us=1000");
            }
            let (driver, params) = (&bed.driver, bed.driver.library().params());
            let builder = Driver::builder().library(driver.library().clone()).cuda(driver.cuda().clone());
            // The test ignores their results: older versions lack some, and the driver is open.
            let calls: [&(dyn Fn() + Sync); 13] = [
                &|| drop(builder.clone().open()),
                &|| drop(driver.properties()),
                &|| drop(params.set_poll_mode(true, 4096)),
                &|| drop(params.set_max_direct_io_size(1 << 20)),
                &|| drop(params.set(Param::MAX_IO_THREADS, 1)),
                &|| drop(params.get(Param::MAX_IO_THREADS)),
                &|| drop(params.limits(Param::MAX_IO_THREADS)),
                &|| drop(params.set(Param::ALLOW_COMPAT_MODE, true)),
                &|| drop(params.get(Param::ALLOW_COMPAT_MODE)),
                &|| drop(params.set(Param::LOG_DIR, "/tmp".into())),
                &|| drop(params.get(Param::LOG_DIR)),
                &|| drop(params.set(Param::POSIX_POOL_SLABS, SLABS.to_vec())),
                &|| drop(params.get(Param::POSIX_POOL_SLABS)),
            ];
            in_threads(calls.map(|call| move || (0..10).for_each(|_| call())));
        }
    });
}

#[test]
fn a_failed_setting_keeps_the_driver_closed() {
    for version in ["1.20", "1.13"] {
        let emulator = Emulator::posing_as(version);
        let (library, cuda) = libraries(&emulator);
        emulator.fault("cuFileSetParameterSizeT", "err=5022");
        let builder = Driver::builder().library(library).cuda(cuda);
        let error = builder.set(Param::MAX_BATCH_ENTRIES, 999).open().unwrap_err().to_string();
        assert!(error.contains("CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE"), "{error}");
        assert_eq!(emulator.calls("cuFileDriverOpen"), 0);
    }
}

#[test]
fn settings_of_two_builders_do_not_mix() {
    const SET: &str = "cuFileSetParameterSizeT";
    let emulator = Emulator::start();
    let (library, cuda) = libraries(&emulator);
    let builder = || Driver::builder().library(library.clone()).cuda(cuda.clone());
    // This takes a while, in which nothing calls libcufile.
    let slow = builder().set(Param::MAX_IO_THREADS, 2).set(Param::LOG_DIR, "x".repeat(64 << 20));
    let (slow, quick) = thread::scope(|threads| {
        let slow = threads.spawn(|| slow.open());
        while emulator.calls(SET) == 0 && !slow.is_finished() {
            thread::yield_now();
        }
        let quick = builder().set(Param::MAX_IO_THREADS, 3).open();
        (slow.join().unwrap(), quick)
    });
    let driver = slow.unwrap();
    assert_eq!(quick.unwrap_err().op_error(), Some(OpError::DRIVER_ALREADY_OPEN));
    assert_eq!(driver.library().params().get(Param::MAX_IO_THREADS).unwrap(), 2);
}

#[test]
fn more_slabs_than_can_be_read_back_are_refused() {
    let (emulator, library) = emulated("1.20");
    let slabs = |len: u64| (1..=len).map(|n| Slab { size_bytes: n * 4096, count: n }).collect::<Vec<_>>();
    let params = library.params();
    params.set(Param::POSIX_POOL_SLABS, slabs(256)).unwrap();
    assert_eq!(params.get(Param::POSIX_POOL_SLABS).unwrap(), slabs(256));
    assert_refused(params.set(Param::POSIX_POOL_SLABS, slabs(257)), &["257 slabs", "256"]);
    assert_refused(params.set(Param::GPU_BOUNCE_BUFFER_SLABS, slabs(257)), &["257 slabs", "256"]);
    assert_eq!(emulator.calls("cuFileSetParameterPosixPoolSlabArray"), 1);
    assert_eq!(emulator.calls("cuFileSetParameterGpuBounceBufferSlabArray"), 0);
}

#[test]
fn open_drivers_allow_reading_parameters_but_not_setting() {
    let bed = Bed::emulated();
    let params = bed.driver.library().params();
    let slabs = [Slab { size_bytes: 4096, count: 1 }];
    let refused = [
        params.set(Param::MAX_IO_THREADS, 2),
        params.set(Param::ALLOW_COMPAT_MODE, true),
        params.set(Param::LOGGING_LEVEL, "INFO".into()),
        params.set(Param::POSIX_POOL_SLABS, slabs.to_vec()),
        params.set(Param::GPU_BOUNCE_BUFFER_SLABS, slabs.to_vec()),
    ];
    for result in refused {
        let error = result.unwrap_err();
        assert_eq!(error.op_error(), Some(OpError::DRIVER_ALREADY_OPEN));
        assert!(error.to_string().contains("before the driver is opened"), "{error}");
    }
    assert_eq!(params.get(Param::MAX_IO_THREADS).unwrap(), 4);
    assert_eq!(params.get(Param::POSIX_POOL_SLABS).unwrap().len(), 3);
    assert_eq!(params.limits(Param::MAX_IO_THREADS).unwrap(), 0..=128);
}

#[test]
fn limits_set_before_opening_pass_kib_to_c() {
    for (version, _) in Emulator::VERSIONS {
        let emulator = Emulator::posing_as(version);
        let (library, cuda) = libraries(&emulator);
        let builder = Driver::builder().library(library.clone()).cuda(cuda);
        if !library.supports(Feature::Parameters) {
            // The C functions succeed, and change nothing.
            for builder in [
                builder.clone().poll_mode(true, 8 << 10),
                builder.clone().max_direct_io_size(1 << 20),
                builder.clone().max_cache_size(32 << 20),
                builder.max_pinned_memory(1 << 20),
            ] {
                let error = builder.open().unwrap_err();
                assert!(matches!(error, Error::Unsupported { .. }), "{version}: {error}");
            }
            continue;
        }
        let builder = builder
            .poll_mode(true, 8 << 10)
            .max_direct_io_size(1 << 20)
            .max_cache_size(32 << 20)
            .max_pinned_memory(1 << 20);
        let properties = builder.open().unwrap().properties().unwrap();
        assert!(properties.controls.contains(Controls::POLL_MODE), "{version}");
        assert_eq!((properties.poll_threshold_bytes, properties.max_direct_io_bytes), (8 << 10, 1 << 20));
        assert_eq!(properties.max_device_cache_bytes, 32 << 20);
        assert_eq!(properties.max_device_pinned_bytes, 1 << 20);
        let params = library.params();
        let is_new = at_least(&library, 17);
        let name = if is_new { "cuFileDriverSetMaxCacheSize" } else { "MAX_DEVICE_CACHE_SIZE_KB" };
        assert_refused(params.set_max_cache_size(1), &[name]);
        let function = if is_new { "cuFileDriverSetMaxDirectIOSize" } else { "cuFileSetParameterSizeT" };
        emulator.fault(function, "err=5022");
        let error = params.set_max_direct_io_size(1000 << 10).unwrap_err().to_string();
        assert!(error.contains(function) && error.contains("1000"), "{error}");
    }
}

#[test]
fn reading_properties_keeps_the_settings() {
    for (version, _) in Emulator::VERSIONS {
        let emulator = Emulator::posing_as(version);
        let (library, cuda) = libraries(&emulator);
        if !library.supports(Feature::Parameters) {
            continue;
        }
        let open = |size| {
            let builder = Driver::builder().library(library.clone()).cuda(cuda.clone());
            builder.set(Param::MAX_DIRECT_IO_SIZE, Bytes(size)).set(Param::ALLOW_COMPAT_MODE, false).open()
        };
        // A driver that opens again gets the parameters again, whatever it had before.
        for size in [8 << 20, 4 << 20] {
            let driver = open(size).unwrap();
            for _ in 0..2 {
                let properties = driver.properties().unwrap();
                assert_eq!(properties.max_direct_io_bytes, size, "{version}");
                assert!(!properties.controls.contains(Controls::COMPAT_MODE), "{version}");
                assert_eq!(properties.max_batch_entries, 128);
                let params = library.params();
                assert_eq!(params.get(Param::MAX_DIRECT_IO_SIZE).unwrap(), Bytes(size), "{version}");
            }
        }
    }
}

#[test]
fn failed_parameter_reads_close_an_old_driver() {
    let emulator = Emulator::posing_as("1.16");
    let (library, cuda) = libraries(&emulator);
    for function in ["cuFileGetParameterSizeT", "cuFileGetParameterBool"] {
        emulator.fault(function, "err=5030");
        let error = Driver::builder().library(library.clone()).cuda(cuda.clone()).open().unwrap_err();
        assert!(error.to_string().contains(function), "{error}");
        assert_eq!(emulator.calls("cuFileDriverClose_v2"), emulator.calls("cuFileDriverOpen"));
    }
    Driver::builder().library(library).cuda(cuda).open().unwrap();
}

#[test]
fn old_versions_are_not_queried_during_transfers() {
    for version in ["1.11", "1.13", "1.15", "1.16", "1.20"] {
        let bed = Bed::emulated_as(version);
        let (driver, emulator) = (&bed.driver, bed.emulator.as_ref().unwrap());
        let before = driver.properties().unwrap();
        let file = FileHandle::register(driver, bed.file("data", &[7; 4096])).unwrap();
        thread::scope(|threads| {
            let held = emulator.hold("cuFileRead", "");
            // The emulator ends the process if another thread asks at the same time.
            let read = threads.spawn(|| file.read_at(&mut bed.device.alloc(4096).unwrap(), 0));
            held.wait_for(1);
            assert_eq!(driver.properties().unwrap(), before);
            let (library, cuda) = (driver.library().clone(), driver.cuda().clone());
            let second = Driver::builder().library(library).cuda(cuda).open().unwrap();
            assert_eq!(second.properties().unwrap(), before);
            drop(second);
            let params = driver.library().params();
            let set = [
                params.set_poll_mode(true, 4096),
                params.set_max_direct_io_size(1 << 20),
                params.set_max_cache_size(32 << 20),
                params.set_max_pinned_memory(1 << 20),
            ];
            for result in set {
                assert!(matches!(result, Err(Error::InUse { .. })), "{version}: {result:?}");
            }
            held.release();
            assert_eq!(read.join().unwrap().unwrap(), 4096);
        });
    }
}

#[test]
fn the_last_close_discards_parameters() {
    for version in ["1.15", "1.16", "1.20"] {
        let emulator = Emulator::posing_as(version);
        let (library, cuda) = libraries(&emulator);
        let open = |builder: cufile::DriverBuilder| {
            builder.library(library.clone()).cuda(cuda.clone()).open().unwrap()
        };
        let before = library.params().get(Param::MAX_IO_THREADS).unwrap();
        let driver = open(Driver::builder().set(Param::MAX_IO_THREADS, before + 1));
        let second = open(Driver::builder());
        driver.close().unwrap();
        assert_eq!(library.params().get(Param::MAX_IO_THREADS).unwrap(), before + 1, "{version}");
        second.close().unwrap();
        assert_eq!(library.params().get(Param::MAX_IO_THREADS).unwrap(), before, "{version}");
        open(Driver::builder()).close().unwrap();
        assert_eq!(library.params().get(Param::MAX_IO_THREADS).unwrap(), before, "{version}");
    }
}

#[test]
fn old_versions_accept_parameters_after_the_last_close() {
    let emulator = Emulator::posing_as("1.15");
    let (library, cuda) = libraries(&emulator);
    let open = || Driver::builder().library(library.clone()).cuda(cuda.clone()).open();
    let (first, second) = (open().unwrap(), open().unwrap());
    let params = library.params();
    drop(first);
    assert!(matches!(params.set_max_cache_size(1 << 20), Err(Error::InUse { users: 1, .. })));
    drop(second);
    params.set_max_cache_size(1 << 20).unwrap();
    assert_eq!(open().unwrap().properties().unwrap().max_device_cache_bytes, 1 << 20);
}

#[test]
fn failing_to_read_the_properties_closes_an_old_driver() {
    let emulator = Emulator::posing_as("1.15");
    let (library, cuda) = libraries(&emulator);
    emulator.fault("cuFileDriverGetProperties", "err=5030");
    let open = || Driver::builder().library(library.clone()).cuda(cuda.clone()).open();
    let error = open().unwrap_err().to_string();
    assert!(error.contains("cuFileDriverGetProperties"), "{error}");
    assert_eq!(emulator.calls("cuFileDriverClose_v2"), 1);
    open().unwrap();
}
