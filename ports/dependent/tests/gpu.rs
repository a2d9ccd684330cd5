//! The GPU path on the emulator.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

use cufile::Driver;
use cufile::cuda::Cuda;
use cufile_emulator::Emulator;
use gpufile::Engine;

// The setup.
fn driver(emulator: &Emulator) -> Driver {
    let library = cufile::Library::from_sys(emulator.cufile()).unwrap();
    let cuda = Cuda::from_sys(emulator.driver(), emulator.runtime()).unwrap();
    Driver::builder().library(library).cuda(cuda).open().unwrap()
}

fn engine(emulator: &Emulator) -> Engine {
    let driver = driver(emulator);
    Engine::builder().cuda(driver.cuda().clone()).driver(driver).build()
}

fn file(folder: &Path) -> (PathBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
    let path = folder.join("from");
    std::fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

#[test]
fn copies_pass_through_the_memory_of_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let (from, bytes) = file(folder.path());
    for version in ["1.11", "1.14", "1.20"] {
        let emulator = Emulator::posing_as(version);
        let to = folder.path().join(version);
        assert_eq!(dependent::copy_with(&engine(&emulator), &from, &to).unwrap(), bytes.len() as u64);
        assert!(std::fs::read(&to).unwrap() == bytes, "{version}");
        assert!(emulator.live("peak-gpu-bytes") >= bytes.len() as i64, "{version}: not through the GPU");
        assert_eq!(emulator.live("allocations"), 0, "{version}");
    }
}

#[test]
fn copies_by_cufile_register_files_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (from, bytes) = file(folder.path());
    for version in ["1.11", "1.14", "1.20"] {
        let emulator = Emulator::posing_as(version);
        let to = folder.path().join(version);
        let copied = dependent::by_cufile::copy_with(&driver(&emulator), &from, &to).unwrap();
        assert_eq!(copied, bytes.len() as u64);
        assert!(std::fs::read(&to).unwrap() == bytes, "{version}");
        let calls = ["cuFileHandleRegister", "cuFileBufRegister"].map(|name| emulator.calls(name));
        assert_eq!(calls, [2, 1], "{version}");
    }
}

#[test]
fn older_versions_lack_newer_functions() {
    let found = |version| Emulator::posing_as(version).exports("cuFileReadv");
    assert!(!found("1.11") && !found("1.18") && found("1.19") && found("1.20"));
}

#[test]
fn a_refused_allocation_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (from, _) = file(folder.path());
    let emulator = Emulator::start();
    emulator.fault("cudaMalloc", "err=2");
    let error = dependent::copy_with(&engine(&emulator), &from, &folder.path().join("to")).unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
}

#[test]
fn programs_take_the_emulator_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let (from, bytes) = file(folder.path());
    let to = folder.path().join("to");
    let emulator = Emulator::start();
    let mut program = Command::new(env!("CARGO_BIN_EXE_dependent"));
    let output = program.arg(&from).arg(&to).envs(emulator.variables()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read(&to).unwrap() == bytes);
}
