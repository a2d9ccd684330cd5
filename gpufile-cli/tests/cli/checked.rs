//! `gpufile check` for tests: on the emulator, without any library, and in a bare environment.

use std::env;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Uses this file in place of each library.
pub fn check(library: &Path) -> Command {
    let mut command = Command::new(crate::program::built());
    command.env_clear().arg("check");
    // Where qemu runs the program, it finds the C library by this.
    command.envs(env::var_os("QEMU_LD_PREFIX").map(|folder| ("QEMU_LD_PREFIX", folder)));
    for variable in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        command.env(variable, library);
    }
    command
}

pub fn without_libraries() -> Command {
    check(Path::new("/nonexistent/library.so"))
}

pub fn emulated(commands: &str) -> Command {
    let mut command = check(&cufile_emulator::library_path());
    command.env("CUFILE_EMULATOR", commands);
    command
}

/// Requires that the standard error output is empty.
pub fn run(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let out = String::from_utf8(stdout).unwrap();
    assert_eq!(String::from_utf8_lossy(&stderr), "", "{out}");
    (status.code().unwrap(), out)
}

pub fn report(command: &mut Command) -> (i32, Value) {
    let (status, out) = run(command.arg("--json"));
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(report["exit_status"], status);
    (status, report)
}

pub fn causes(report: &Value) -> Vec<&str> {
    report["paths"][0]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["cause"].as_str().unwrap())
        .collect()
}

pub fn is_reachable(report: &Value) -> bool {
    let path = &report["paths"][0];
    ["ext4", "xfs"].contains(&path["file_system"].as_str().unwrap()) && !path["o_direct"].is_null()
}
