use std::collections::HashMap;
use std::{env, fs};

use gpufile::{Engine, File, RoutePolicy};
use testkit::bed::{Bed, pattern};
use testkit::this_test;

const LEN: usize = (2 << 20) + 777;

/// Reads and writes on the emulator, in a process of its own, and returns the lines of its ranges.
fn lines(variables: &[&str]) -> Vec<String> {
    let bed = Bed::emulated();
    let log = bed.path("ranges");
    let mut command = this_test();
    command.env("CUFILE_TEST_CHILD", "1");
    for variable in ["NVTX_INJECTION64_PATH", "NVTX_LIBRARY"] {
        command.env_remove(variable);
    }
    for variable in variables {
        command.env(variable, bed.emulator.as_ref().unwrap().path());
    }
    let output = command.env("CUFILE_EMULATOR_NVTX", &log).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Returns whether this is the process that a test started, after it has done its transfers.
fn is_child() -> bool {
    if env::var_os("CUFILE_TEST_CHILD").is_none() {
        return false;
    }
    let bed = Bed::emulated();
    bed.file("data", &pattern(LEN));
    let engine = Engine::builder().driver(bed.driver.clone()).threads(2).chunk_bytes(1 << 20).build();
    let options = File::options().read(true).write(true).policy(RoutePolicy::PosixOnly);
    let file = options.engine(&engine).open(bed.path("data")).unwrap();
    let mut device = bed.device.alloc(LEN).unwrap();
    file.read_exact_at(&mut device, 0).unwrap();
    file.write_all_at(&device, 0).unwrap();
    file.read_exact_at(&mut bed.device.alloc(100).unwrap(), 0).unwrap();
    true
}

#[test]
fn profilers_see_transfers_chunks_and_waits() {
    if is_child() {
        return;
    }
    let lines = lines(&["NVTX_LIBRARY"]);
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for line in &lines {
        *counts.entry(line.split_once(' ').unwrap().1).or_default() += 1;
    }
    let whole = format!("{LEN} bytes");
    for (text, count) in [
        (format!("gpufile: read of {whole}"), 1),
        (format!("gpufile: write of {whole}"), 1),
        ("gpufile: read of 100 bytes".to_owned(), 1),
        ("gpufile: read of a chunk of 1048576 bytes".to_owned(), 2),
        ("gpufile: write of a chunk of 1048576 bytes".to_owned(), 2),
        ("gpufile: wait for copies".to_owned(), 6),
    ] {
        assert_eq!(counts.get(text.as_str()), Some(&count), "{text}: {lines:?}");
    }
    // Each range ends, and none twice.
    assert_eq!(counts["end"] * 2, lines.len());
    assert!(lines.iter().all(|line| !line.starts_with('-')), "{lines:?}");
}

#[test]
fn processes_without_a_profiler_have_no_ranges() {
    if !is_child() {
        assert_eq!(lines(&[]), [""; 0]);
    }
}
