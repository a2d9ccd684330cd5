//! Tests of gpufile's files: one contract for device and host memory, with and without cuFile.

use std::fs;
use std::io;
use std::path::Path;

use cufile::params::Param;
use cufile::{FileProperties, FileSystems};
use gpufile::{Cause, DirectIo, Engine, Error, File, OpenOptions, Route, RouteKind, RoutePolicy};
use testkit::Emulator;
use testkit::bed::{Bed, folders, libraries, pattern};

/// A length above the two bounce buffers of a lane together, and a multiple of no block.
const LONG: usize = (9 << 20) + 4321;
const LENGTHS: [usize; 7] = [0, 1, 511, 4096, 4097, 4 << 20, LONG];

fn engine(bed: &Bed) -> Engine {
    Engine::builder().driver(bed.driver.clone()).build()
}

fn open(bed: &Bed, path: &Path, policy: RoutePolicy) -> gpufile::Result<File> {
    OpenOptions::new().read(true).write(true).engine(&engine(bed)).policy(policy).open(path)
}

fn create(bed: &Bed, name: &str, policy: RoutePolicy) -> File {
    bed.file(name, b"");
    open(bed, &bed.path(name), policy).unwrap()
}

#[test]
fn device_memory_round_trips_on_every_route_and_size() {
    Bed::each(|bed| {
        for policy in [RoutePolicy::RequireCufile, RoutePolicy::PosixOnly] {
            let file = create(bed, &format!("{policy:?}"), policy);
            for len in LENGTHS {
                let bytes = pattern(len);
                let mut buffer = bed.device.alloc(len).unwrap();
                buffer.copy_from_host(0, &bytes).unwrap();
                file.write_all_at(&buffer, 12345).unwrap();
                buffer.fill(0xee).unwrap();
                assert_eq!(file.read_at(&mut buffer, 12345).unwrap(), len);
                assert!(buffer.to_vec().unwrap() == bytes, "{policy:?}, {len} bytes");
            }
            assert_eq!(file.len_bytes().unwrap(), 12345 + LONG as u64);
        }
    });
}

/// Makes nvidia-fs look loaded, with a direct route to NVMe.
fn load_nvidia_fs(emulator: &Emulator) {
    emulator.control(&format!("nvidia-fs 2 17 {}", FileSystems::NVME.bits()));
}

/// Succeeds if the direct routes to NVMe serve files in this folder. Otherwise the error is the name of its file
/// system.
fn on_nvme(folder: &Path) -> Result<(), String> {
    let file = fs::File::create(folder.join("which")).unwrap();
    let properties = FileProperties::of(&file).unwrap();
    let known = ["ext4", "xfs"].contains(&properties.file_system.as_str());
    if known && properties.direct_io.is_some() { Ok(()) } else { Err(properties.file_system) }
}

#[test]
fn the_reported_route_is_used_and_better_ones_explained() {
    let bed = Bed::emulated();
    let calls = |name| bed.emulator.as_ref().unwrap().calls(name);
    let mut buffer = bed.device.alloc(100_000).unwrap();
    let cufile_calls = || (calls("cuFileHandleRegister"), calls("cuFileWrite"), calls("cuFileRead"));

    for policy in [RoutePolicy::PosixOnly, RoutePolicy::Auto] {
        let posix = create(&bed, &format!("{policy:?}"), policy);
        posix.write_all_at(&buffer, 0).unwrap();
        posix.read_exact_at(&mut buffer, 0).unwrap();
        assert_eq!(posix.route().kind(), RouteKind::Posix);
        assert_eq!(cufile_calls(), (0, 0, 0));
        let reasons: Vec<_> = posix.route().why_not().collect();
        if policy == RoutePolicy::Auto {
            assert_eq!(
                reasons[0],
                (
                    RouteKind::Gds,
                    "the kernel module nvidia-fs is not loaded; the package nvidia-gds installs it"
                )
            );
            assert_eq!(reasons[1].0, RouteKind::P2pDma);
            assert!(reasons[2].0 == RouteKind::CufileCompat && reasons[2].1.contains("faster"));
        } else {
            assert_eq!(reasons, [(RouteKind::CufileCompat, "the file was opened for POSIX only")]);
        }
    }

    let required = create(&bed, "required", RoutePolicy::RequireCufile);
    required.write_all_at(&buffer, 0).unwrap();
    required.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(required.route().kind(), RouteKind::CufileCompat);
    assert_eq!(cufile_calls(), (1, 1, 1));
    assert_eq!(required.route().why_not().count(), 2);
}

#[test]
fn the_best_route_depends_on_driver_and_modules() {
    let best = |tell: &[&str]| {
        let bed = Bed::emulated();
        tell.iter().for_each(|command| assert!(bed.emulator.as_ref().unwrap().control(command) >= 0));
        let route = Route::best(&engine(&bed));
        let reasons: Vec<_> = route.why_not().map(|(path, reason)| (path, reason.to_owned())).collect();
        (route.kind(), reasons)
    };
    let (path, reasons) = best(&[]);
    assert_eq!(path, RouteKind::Posix);
    let better: Vec<_> = reasons.iter().map(|(path, _)| *path).collect();
    assert_eq!(better, [RouteKind::Gds, RouteKind::P2pDma, RouteKind::CufileCompat]);

    let (path, reasons) = best(&["p2pdma 1"]);
    assert_eq!((path, reasons.len()), (RouteKind::P2pDma, 1));
    assert!(reasons[0].1.contains("nvidia-fs"), "{reasons:?}");

    let (path, reasons) = best(&["nvidia-fs 2 17 0"]);
    assert_eq!(path, RouteKind::Posix);
    assert!(reasons[0].1.contains("no direct route to any file system"), "{reasons:?}");

    let bed = Bed::emulated();
    load_nvidia_fs(bed.emulator.as_ref().unwrap());
    let route = Route::best(&engine(&bed));
    assert_eq!((route.kind(), route.why_not().count()), (RouteKind::Gds, 0));
}

#[test]
fn the_driver_stays_closed_without_a_direct_route() {
    if Path::new("/proc/driver/nvidia-fs").exists() {
        return;
    }
    let bed = Bed::emulated();
    let engine = Engine::builder().cuda(bed.driver.cuda().clone()).build();
    assert!(format!("{engine:?}").contains("cuda: Some"), "{engine:?}");
    let route = Route::best(&engine);
    assert_eq!(route.why_not().count(), 3, "{route}");
    bed.file("data", b"");
    let file = OpenOptions::new().read(true).engine(&engine).open(bed.path("data")).unwrap();
    assert_eq!(file.route().why_not().count(), 3, "{}", file.route());
}

#[test]
fn interrupted_cufile_transfers_continue() {
    let bed = Bed::emulated();
    let file = create(&bed, "data", RoutePolicy::RequireCufile);
    let mut buffer = bed.device.alloc(10_000).unwrap();
    for function in ["cuFileWrite", "cuFileRead"] {
        bed.emulator.as_ref().unwrap().fault(function, &format!("times=2 errno={}", libc::EINTR));
    }
    file.write_all_at(&buffer, 0).unwrap();
    file.read_exact_at(&mut buffer, 0).unwrap();
}

#[test]
fn empty_cufile_writes_are_an_error() {
    let bed = Bed::emulated();
    let file = create(&bed, "data", RoutePolicy::RequireCufile);
    let buffer = bed.device.alloc(10_000).unwrap();
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.fault("cuFileWrite", "short=123");
    emulator.fault("cuFileWrite", "after=1 short=0");
    let error = file.write_all_at(&buffer, 0).unwrap_err();
    assert_eq!((io::Error::from(error).kind(), emulator.calls("cuFileWrite")), (io::ErrorKind::WriteZero, 2));
    file.write_all_at(&buffer, 0).unwrap();
}

#[test]
fn direct_routes_need_driver_support_for_the_file_system() {
    for folder in folders() {
        for (gds, path) in [(true, RouteKind::Gds), (false, RouteKind::P2pDma)] {
            let bed = Bed::emulated();
            let emulator = bed.emulator.as_ref().unwrap();
            match gds {
                true => load_nvidia_fs(emulator),
                false => drop(emulator.control("p2pdma 1")),
            }
            let name = folder.path().join(format!("{path:?}"));
            fs::write(&name, b"").unwrap();
            let file = open(&bed, &name, RoutePolicy::Auto).unwrap();
            let bytes = pattern(LONG);
            let mut buffer = bed.device.alloc(LONG).unwrap();
            buffer.copy_from_host(0, &bytes).unwrap();
            file.write_all_at(&buffer, 0).unwrap();
            buffer.fill(0).unwrap();
            file.read_exact_at(&mut buffer, 0).unwrap();
            assert!(buffer.to_vec().unwrap() == bytes);

            let by_cufile = emulator.calls("cuFileWrite") > 0 && emulator.calls("cuFileRead") > 0;
            let handles = (emulator.live("handles"), emulator.live("direct-handles"));
            let reasons: Vec<_> = file.route().why_not().collect();
            match on_nvme(folder.path()) {
                Ok(()) => {
                    assert_eq!(file.route().kind(), path);
                    assert!(by_cufile);
                    assert_eq!(handles, (1, 1), "the descriptor for a direct path has O_DIRECT");
                    assert!(reasons.iter().all(|(better, _)| *better < path), "{reasons:?}");
                }
                Err(file_system) => {
                    assert_eq!(file.route().kind(), RouteKind::Posix);
                    assert!(!by_cufile);
                    assert_eq!(handles, (0, 0));
                    assert_eq!(reasons.len(), 3);
                    let (_, reason) = reasons.iter().find(|(better, _)| *better == path).unwrap();
                    assert!(reason.contains(&file_system), "{reason}");
                }
            }
        }
    }
}

#[test]
fn forced_compatibility_mode_leaves_no_direct_route() {
    for folder in folders() {
        let emulator = Emulator::start();
        load_nvidia_fs(&emulator);
        let cuda = cufile::cuda::Cuda::from_sys(emulator.driver(), emulator.runtime()).unwrap();
        let library = cufile::Library::from_sys(emulator.cufile()).unwrap();
        let builder = cufile::Driver::builder().library(library).cuda(cuda);
        let driver = builder.set(Param::FORCE_COMPAT_MODE, true).open().unwrap();
        let engine = Engine::builder().driver(driver).build();
        assert_eq!(Route::best(&engine).kind(), RouteKind::Posix);
        let path = folder.path().join("forced");
        fs::write(&path, b"").unwrap();
        let file = File::options().read(true).engine(&engine).open(&path).unwrap();
        assert_eq!(file.route().kind(), RouteKind::Posix);
        if on_nvme(folder.path()).is_ok() {
            let reason = file.route().why_not_gds().unwrap();
            assert!(reason.contains("CUFILE_FORCE_COMPAT_MODE"), "{reason}");
        }
    }
}

#[test]
fn files_refused_by_cufile_use_posix_and_explain() {
    for folder in folders() {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        load_nvidia_fs(emulator);
        emulator.control("fault cuFileHandleRegister err=5027 times=all");
        let path = folder.path().join("refused");
        fs::write(&path, b"").unwrap();
        let file = open(&bed, &path, RoutePolicy::Auto).unwrap();
        let bytes = pattern(LONG);
        let mut buffer = bed.device.alloc(LONG).unwrap();
        buffer.copy_from_host(0, &bytes).unwrap();
        file.write_all_at(&buffer, 0).unwrap();
        assert!(fs::read(&path).unwrap() == bytes);
        assert_eq!(file.route().kind(), RouteKind::Posix);
        let (_, reason) = file.route().why_not().next().unwrap();
        match on_nvme(folder.path()) {
            Ok(()) => assert!(reason.contains("CU_FILE_HANDLE_NOT_REGISTERED (5027)"), "{reason}"),
            Err(file_system) => assert!(reason.contains(&file_system), "{reason}"),
        }

        let error = open(&bed, &path, RoutePolicy::RequireCufile).unwrap_err();
        assert!(matches!(error.cause(), Cause::NoCufile(reason) if reason.contains("5027")), "{error}");
    }
}

#[test]
fn host_memory_works_without_a_gpu() {
    let emulator = Emulator::start();
    emulator.control("gpus 0");
    let error = cufile::cuda::Cuda::from_sys(emulator.driver(), emulator.runtime()).unwrap_err();
    assert_eq!(error.kind(), cufile::ErrorKind::NoDevice);

    let folder = tempfile::tempdir().unwrap();
    let file = File::create(folder.path().join("host")).unwrap();
    for len in LENGTHS {
        let bytes = pattern(len);
        file.write_all_at(&bytes, 7).unwrap();
        let mut read = vec![0; len];
        file.read_exact_at(&mut read, 7).unwrap();
        assert!(read == bytes, "{len} bytes");
    }
}

#[test]
fn host_pinned_and_managed_memory_need_no_staging() {
    Bed::each(|bed| {
        let file = create(bed, "host", RoutePolicy::Auto);
        let bytes = pattern(10_000);
        let mut pinned = bed.device.alloc_pinned(10_000).unwrap();
        pinned.copy_from_slice(&bytes);
        file.write_all_at(&pinned, 0).unwrap();
        let mut managed = bed.device.alloc_managed(10_000).unwrap();
        file.read_exact_at(&mut managed, 0).unwrap();
        assert!(managed.as_slice().unwrap() == bytes);
    });
}

#[test]
fn managed_memory_without_host_access_is_read_and_written() {
    let bed = Bed::emulated();
    bed.emulator.as_ref().unwrap().control("concurrent-managed 0");
    let bytes = pattern(10_000);
    bed.file("read", &bytes);
    let mut managed = bed.device.alloc_managed(10_000).unwrap();
    assert!(managed.as_slice().is_err(), "the host may not touch it");
    for policy in [RoutePolicy::Auto, RoutePolicy::PosixOnly] {
        managed.fill(0).unwrap();
        open(&bed, &bed.path("read"), policy).unwrap().read_exact_at(&mut managed, 0).unwrap();
        assert!(managed.to_vec().unwrap() == bytes);
        let name = format!("{policy:?}");
        create(&bed, &name, policy).write_all_at(&managed, 0).unwrap();
        assert!(fs::read(bed.path(&name)).unwrap() == bytes);
    }
}

#[test]
fn reads_are_short_only_at_the_end() {
    Bed::each(|bed| {
        for policy in [RoutePolicy::Auto, RoutePolicy::PosixOnly] {
            let name = format!("short {policy:?}");
            let bytes = pattern(LONG);
            bed.file(&name, &bytes);
            let file = open(bed, &bed.path(&name), policy).unwrap();
            let mut buffer = bed.device.alloc(LONG).unwrap();
            assert_eq!(file.read_at(&mut buffer, 1000).unwrap(), LONG - 1000);
            assert_eq!(file.read_at(&mut buffer, LONG as u64).unwrap(), 0);
            assert_eq!(file.read_at(&mut buffer, 1 << 40).unwrap(), 0);

            let error = file.read_exact_at(&mut buffer, 1000).unwrap_err();
            assert!(matches!(error.cause(), Cause::EndOfFile { at } if *at == LONG as u64));
            assert_eq!((error.bytes_done(), error.kind()), (LONG - 1000, io::ErrorKind::UnexpectedEof));
            let mut host = vec![0; 10];
            assert_eq!(file.read_exact_at(&mut host, LONG as u64 - 4).unwrap_err().bytes_done(), 4);
        }
    });
}

#[test]
fn reads_fill_uninitialised_memory() {
    Bed::each(|bed| {
        let bytes = pattern(LONG);
        bed.file("data", &bytes);
        for direct in [DirectIo::Never, DirectIo::Always] {
            let options = File::options().read(true).direct_read(direct);
            let file = options.engine(&engine(bed)).open(bed.path("data")).unwrap();
            for (offset, len) in [(0, LONG), (4097, 1_000_003), (LONG - 300, 4096), (LONG, 10), (0, 0)] {
                let mut memory = Vec::with_capacity(len);
                let read = file.read_uninit_at(&mut memory.spare_capacity_mut()[..len], offset as u64);
                assert!(read.unwrap() == &bytes[offset..(offset + len).min(LONG)], "{len} at {offset}");
            }
            let error =
                file.read_uninit_at(Vec::with_capacity(8).spare_capacity_mut(), u64::MAX).unwrap_err();
            assert_eq!(error.bytes_done(), 0);
        }
    });
}

#[test]
fn short_cufile_transfers_continue() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(100_000);
    bed.file("cut", &bytes);
    let file = open(&bed, &bed.path("cut"), RoutePolicy::RequireCufile).unwrap();
    let mut buffer = bed.device.alloc(100_000).unwrap();
    emulator.control("fault cuFileRead short=30000");
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer.to_vec().unwrap() == bytes);
    assert_eq!(emulator.calls("cuFileRead"), 2);
    emulator.control("fault cuFileWrite short=1");
    file.write_all_at(&buffer, 100).unwrap();
    assert!(fs::read(bed.path("cut")).unwrap()[100..] == bytes);
}

#[test]
fn errors_count_the_bytes_transferred_before() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("failing", &pattern(100_000));
    let file = open(&bed, &bed.path("failing"), RoutePolicy::RequireCufile).unwrap();
    let mut buffer = bed.device.alloc(100_000).unwrap();
    emulator.control("fault cuFileRead short=30000");
    emulator.control("fault cuFileRead after=1 ret=-1 errno=5");
    let error = file.read_at(&mut buffer, 0).unwrap_err();
    assert_eq!((error.bytes_done(), error.raw_os_error()), (30_000, Some(libc::EIO)), "{error}");
    let text = error.to_string();
    for part in ["failing", "100000 bytes at 0", "30000 bytes were transferred"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn failed_copies_to_the_gpu_are_errors() {
    let bed = Bed::emulated();
    bed.file("copy", &pattern(LONG));
    let file = open(&bed, &bed.path("copy"), RoutePolicy::PosixOnly).unwrap();
    let mut buffer = bed.device.alloc(LONG).unwrap();
    bed.emulator.as_ref().unwrap().control("fault cudaMemcpyAsync after=1 err=700");
    let error = file.read_at(&mut buffer, 0).unwrap_err();
    let Cause::Cufile(cause) = error.cause() else { panic!("{error}") };
    assert!(matches!(**cause, cufile::Error::CudaRuntime { .. }), "{error}");
}

#[test]
fn a_full_disk_keeps_its_errno_on_every_route() {
    Bed::each(|bed| {
        let full = OpenOptions::new().write(true).engine(&engine(bed)).open("/dev/full").unwrap();
        let buffer = bed.device.alloc(LONG).unwrap();
        let error = full.write_all_at(&buffer, 0).unwrap_err();
        assert_eq!((error.raw_os_error(), error.bytes_done()), (Some(libc::ENOSPC), 0), "{error}");
        let error = full.write_all_at(&vec![1u8; 10], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    });
    let bed = Bed::emulated();
    let file = create(&bed, "full", RoutePolicy::RequireCufile);
    bed.emulator.as_ref().unwrap().control("fault cuFileWrite ret=-1 errno=28");
    let error = file.write_all_at(&bed.device.alloc(4096).unwrap(), 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn errors_explain_failed_opens_and_refused_writes() {
    Bed::each(|bed| {
        let missing = bed.path("no folder").join("file");
        let error = open(bed, &missing, RoutePolicy::Auto).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        assert!(error.to_string().contains("no folder/file"), "{error}");
        assert!(matches!(error, Error::Open { .. }));

        for policy in [RoutePolicy::Auto, RoutePolicy::PosixOnly] {
            let name = format!("read-only {policy:?}");
            bed.file(&name, b"contents");
            let options = OpenOptions::new().read(true).engine(&engine(bed)).policy(policy);
            let file = options.open(bed.path(&name)).unwrap();
            let buffer = bed.device.alloc(8).unwrap();
            let error = file.write_all_at(&buffer, 0).unwrap_err();
            assert_eq!(error.bytes_done(), 0);
            // POSIX gives EBADF. cuFile gives its own code, or EIO before 1.16.
            let is_refusal = error.kind() == io::ErrorKind::PermissionDenied
                || [Some(libc::EBADF), Some(libc::EIO)].contains(&error.raw_os_error());
            assert!(is_refusal, "{error}");
            assert_eq!(fs::read(bed.path(&name)).unwrap(), b"contents");
        }
    });
}

#[test]
fn file_offsets_beyond_the_kernel_limit_are_errors() {
    let bed = Bed::emulated();
    for policy in [RoutePolicy::RequireCufile, RoutePolicy::PosixOnly] {
        let file = create(&bed, &format!("far {policy:?}"), policy);
        let mut buffer = bed.device.alloc(16).unwrap();
        assert!(file.read_at(&mut buffer, u64::MAX).is_err());
        assert!(file.write_all_at(&buffer, u64::MAX - 3).is_err());
    }
}

#[test]
fn dropping_file_and_engine_frees_all_cuda_objects() {
    let emulator = Emulator::start();
    {
        let (library, cuda) = libraries(&emulator);
        let driver = cufile::Driver::builder().library(library).cuda(cuda).open().unwrap();
        let device = driver.cuda().device(0).unwrap();
        let engine = Engine::builder().driver(driver).build();
        let folder = tempfile::tempdir().unwrap();
        for policy in [RoutePolicy::Auto, RoutePolicy::PosixOnly] {
            let options = OpenOptions::new().write(true).create(true).engine(&engine).policy(policy);
            options
                .open(folder.path().join("file"))
                .unwrap()
                .write_all_at(&device.alloc(LONG).unwrap(), 0)
                .unwrap();
        }
    }
    for what in ["allocations", "handles", "streams", "events", "use-count"] {
        assert_eq!(emulator.live(what), 0, "{what}");
    }
}
