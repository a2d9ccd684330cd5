//! Tests of statistics, and of the open driver's facts about the process and the machine.

use cufile::params::Param;
use cufile::stats::{Level, Operations, PerGpuStats};
use cufile::{Driver, Error, Feature, FileHandle, FileSystem, OpError, P2pFlags, Result, Version};
use testkit::Emulator;
use testkit::bed::{Bed, libraries, pattern};

fn each_with_statistics(test: impl Fn(&Bed)) {
    for (version, _) in Emulator::VERSIONS.iter().filter(|(_, number)| *number >= 1150) {
        test(&Bed::emulated_as(version));
    }
    if let Some(bed) = Bed::real().filter(|bed| bed.driver.library().supports(Feature::Statistics)) {
        test(&bed);
    }
}

fn at_least(bed: &Bed, minor: u32) -> bool {
    bed.driver.library().version() >= Version { major: 1, minor }
}

fn transfer(bed: &Bed, name: &str) {
    let handle = FileHandle::register(&bed.driver, bed.file(name, b"")).unwrap();
    let mut buffer = bed.device.alloc(65536).unwrap();
    buffer.copy_from_host(0, &pattern(65536)).unwrap();
    assert_eq!(handle.write_at(&buffer, 0).unwrap(), 65536);
    assert_eq!(handle.read_at(&mut buffer, 0).unwrap(), 65536);
    assert_eq!(handle.read_at(&mut buffer, 0).unwrap(), 65536);
}

fn count(bed: &Bed, level: Level, name: &str) {
    let statistics = bed.driver.statistics();
    statistics.set_level(level).unwrap();
    statistics.start().unwrap();
    statistics.reset().unwrap();
    transfer(bed, name);
}

fn pair(operations: Operations) -> (u64, u64) {
    (operations.ok, operations.failed)
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

#[test]
fn the_level_reads_back_its_value() {
    each_with_statistics(|bed| {
        let statistics = bed.driver.statistics();
        for level in [Level::PerGpu, Level::Detailed, Level::Basic, Level::Off] {
            statistics.set_level(level).unwrap();
            assert_eq!(statistics.level().unwrap(), level);
        }
    });
}

#[test]
fn every_level_counts_transfers_and_bytes_in_every_version() {
    each_with_statistics(|bed| {
        count(bed, Level::PerGpu, "counted");
        let statistics = bed.driver.statistics();
        let PerGpuStats { detailed, gpus, .. } = statistics.per_gpu().unwrap();
        assert_eq!(statistics.detailed().unwrap().read_size_histogram, detailed.read_size_histogram);
        let basic = statistics.basic().unwrap();
        assert_eq!(basic.read.operations, detailed.basic.read.operations);

        // In its compatibility mode, the real 1.15 counts an operation twice. From 1.18 on, the real library counts
        // none for a GPU.
        let twice = if bed.is_real() && !at_least(bed, 16) { 2 } else { 1 };
        assert_eq!(pair(basic.read.operations), (2 * twice, 0));
        assert_eq!(pair(basic.write.operations), (twice, 0));
        assert_eq!((basic.read.bytes, basic.write.bytes), (131072, 65536));
        assert_eq!(basic.handle_registrations.ok, 1);
        // This is the sixth element: 64 KiB to below 128 KiB.
        assert_eq!((detailed.read_size_histogram[5], detailed.write_size_histogram[5]), (2, 1));
        assert_eq!(detailed.read_size_histogram.iter().sum::<u64>(), 2);
        assert_eq!(detailed.write_size_histogram.iter().sum::<u64>(), 1);
        assert_eq!(gpus.len() as u32, bed.driver.cuda().device_count().unwrap());
        if !bed.is_real() {
            assert_eq!((gpus[0].read.operations, gpus[0].read.bytes), (2, 131072));
            assert_eq!((gpus[0].write.operations, gpus[0].write.bytes), (1, 65536));
        }
        assert_ne!(gpus[0].uuid, [0; 16]);
    });
}

#[test]
fn vectored_statistics_are_none_before_1_19() {
    each_with_statistics(|bed| {
        count(bed, Level::Basic, "vectored");
        let vectored = bed.driver.statistics().basic().unwrap().vectored;
        assert_eq!(vectored.is_some(), at_least(bed, 19));
        if let Some(vectored) = vectored {
            assert_eq!(pair(vectored.read.operations), (0, 0), "the reads were none of them");
        }
    });
}

#[test]
fn reading_an_uncollected_level_is_an_error() {
    each_with_statistics(|bed| {
        let statistics = bed.driver.statistics();
        count(bed, Level::Basic, "basic");
        statistics.basic().unwrap();
        for error in [statistics.detailed().unwrap_err(), statistics.per_gpu().unwrap_err()] {
            assert_eq!(error.op_error(), Some(OpError::INVALID_VALUE));
            assert!(error.to_string().contains("level"), "{error}");
        }
    });
}

#[test]
fn reset_clears_the_counters() {
    each_with_statistics(|bed| {
        count(bed, Level::Basic, "first");
        let statistics = bed.driver.statistics();
        assert_eq!(statistics.basic().unwrap().read.bytes, 131072);
        statistics.reset().unwrap();
        assert_eq!(statistics.basic().unwrap().read.bytes, 0);
        transfer(bed, "second");
        assert_eq!(statistics.basic().unwrap().read.bytes, 131072);
    });
}

#[test]
fn setting_a_level_counts_and_start_resets() {
    each_with_statistics(|bed| {
        let statistics = bed.driver.statistics();
        let bytes = || statistics.basic().unwrap().read.bytes;
        statistics.set_level(Level::Basic).unwrap();
        statistics.stop().unwrap();
        statistics.set_level(Level::Basic).unwrap();
        transfer(bed, "first");
        assert_eq!(bytes(), 131072);
        statistics.set_level(Level::Off).unwrap();
        transfer(bed, "uncounted");
        statistics.set_level(Level::Basic).unwrap();
        assert_eq!(bytes(), 131072, "the counters are kept");
        statistics.start().unwrap();
        assert_eq!(bytes(), 0);
        transfer(bed, "second");
        assert_eq!(bytes(), 131072);
        statistics.stop().unwrap();
        statistics.set_level(Level::Basic).unwrap();
        assert_eq!(bytes(), 0, "a stop clears them");
    });
}

#[test]
fn the_level_can_be_set_before_opening() {
    let emulator = Emulator::start();
    let (library, cuda) = libraries(&emulator);
    let builder = Driver::builder().library(library).cuda(cuda).set(Param::STATS_LEVEL, 2);
    let driver = builder.open().unwrap();
    assert_eq!(driver.statistics().level().unwrap(), Level::Detailed);
    driver.statistics().detailed().unwrap();
}

#[test]
fn statistics_need_a_level_after_stop() {
    each_with_statistics(|bed| {
        count(bed, Level::Basic, "first");
        let statistics = bed.driver.statistics();
        statistics.stop().unwrap();
        assert_eq!(statistics.level().unwrap(), Level::Off);
        assert_eq!(statistics.basic().unwrap_err().op_error(), Some(OpError::INVALID_VALUE));
        let error = statistics.start().unwrap_err();
        assert_eq!(error.op_error(), Some(OpError::INTERNAL_ERROR));
        assert!(error.to_string().contains("level"), "{error}");
        transfer(bed, "uncounted");
        count(bed, Level::Basic, "second");
        assert_eq!(statistics.basic().unwrap().read.bytes, 131072);
    });
}

#[test]
fn errors_name_the_function_that_old_versions_lack() {
    let bed = Bed::emulated_as("1.14");
    let statistics = bed.driver.statistics();
    assert_since(statistics.level(), "cuFileGetStatsLevel", 15);
    assert_since(statistics.set_level(Level::Basic), "cuFileSetStatsLevel", 15);
    assert_since(statistics.start(), "cuFileStatsStart", 15);
    assert_since(statistics.stop(), "cuFileStatsStop", 15);
    assert_since(statistics.reset(), "cuFileStatsReset", 15);
    assert_since(statistics.basic(), "cuFileGetStatsL1", 15);
    assert_since(statistics.detailed(), "cuFileGetStatsL2", 15);
    assert_since(statistics.per_gpu(), "cuFileGetStatsL3", 15);
    assert_since(bed.driver.bar_size_bytes(0), "cuFileGetBARSizeInKB", 15);
    assert_since(bed.driver.p2p_flags(FileSystem::Nvme), "cuFileDriverGetP2PFlags", 16);
    let flags = P2pFlags::PCI_P2PDMA;
    assert_since(bed.driver.set_p2p_flags(FileSystem::Nvme, flags), "cuFileDriverSetP2PFlags", 16);
    assert_since(bed.driver.export_pcie_topology("/tmp/topology"), "cuFileExportPCIeTopology", 17);
}

#[test]
fn bar_size_is_in_bytes_and_needs_an_existing_gpu() {
    Bed::each(|bed| {
        if !at_least(bed, 15) {
            return;
        }
        let size = bed.driver.bar_size_bytes(0).unwrap();
        assert!(size >= 64 << 20 && size.is_power_of_two(), "{size}");
        if !bed.is_real() {
            assert_eq!(size, 268_435_456 << 10);
        }
        if let Some(emulator) = &bed.emulator {
            emulator.fault("cuFileGetBARSizeInKB", "err=5030");
            let text = bed.driver.bar_size_bytes(0).unwrap_err().to_string();
            assert!(text.contains("GPU 0") && !text.contains("visible"), "{text}");
            emulator.control("clear");
        }
        let error = bed.driver.bar_size_bytes(1000).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("GPU 1000") && text.contains(" are visible, counted from 0"), "{text}");
        assert!(matches!(bed.driver.bar_size_bytes(1 << 31), Err(Error::InvalidInput { .. })));
    });
}

#[test]
fn p2p_flags_belong_to_one_file_system() {
    for version in ["1.16", "1.20"] {
        let bed = Bed::emulated_as(version);
        let driver = &bed.driver;
        driver.set_p2p_flags(FileSystem::Nvme, P2pFlags::PCI_P2PDMA).unwrap();
        assert_eq!(driver.p2p_flags(FileSystem::Nvme).unwrap(), P2pFlags::PCI_P2PDMA);
        assert_eq!(driver.p2p_flags(FileSystem::NvmeOf).unwrap(), P2pFlags::empty());
        assert_eq!(driver.p2p_flags(FileSystem::Lustre).unwrap(), P2pFlags::empty());
    }
}

#[test]
fn errors_name_refused_p2p_flags() {
    let bed = Bed::emulated();
    let refused = bed.driver.set_p2p_flags(FileSystem::Nvme, P2pFlags::from_bits_retain(1 << 20));
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("cuFileDriverSetP2PFlags(Nvme, "), "{text}");
    assert!(text.contains("libcufile can set only P2pFlags("), "{text}");
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.fault("cuFileDriverSetP2PFlags", &format!("err={}", OpError::INVALID_VALUE.as_raw()));
    let settable = if cfg!(target_arch = "x86_64") { P2pFlags::PCI_P2PDMA } else { P2pFlags::C2C };
    let text = bed.driver.set_p2p_flags(FileSystem::Nvme, settable).unwrap_err().to_string();
    assert!(text.contains("cuFileDriverSetP2PFlags(Nvme, ") && !text.contains("can set only"), "{text}");
}

#[test]
fn p2p_flags_can_be_read_for_every_file_system() {
    Bed::each(|bed| {
        if at_least(bed, 16) {
            for file_system in [FileSystem::Lustre, FileSystem::Nvme, FileSystem::VirtioFs] {
                bed.driver.p2p_flags(file_system).unwrap();
            }
        }
    });
}

#[test]
fn topology_export_writes_the_path_or_names_it() {
    Bed::each(|bed| {
        if !at_least(bed, 17) {
            return;
        }
        let path = bed.path("topology");
        match bed.driver.export_pcie_topology(&path) {
            Ok(()) => assert!(path.exists()),
            Err(error) => {
                assert_eq!(error.op_error(), Some(OpError::INTERNAL_ERROR));
                assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
            }
        }
        assert!(matches!(bed.driver.export_pcie_topology("a\0b"), Err(Error::InvalidInput { .. })));
    });
}
