//! The program `gpufile` as a user runs it on a machine without a GPU.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

const MIB: usize = 1 << 20;

/// The program where cargo built it, or, on a host that has only the test programs, above their folder.
fn program() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_gpufile"));
    let above = || env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("gpufile");
    if built.exists() { built } else { above() }
}

/// The exit status, and what went to either output.
fn run<S: AsRef<OsStr>>(arguments: &[S], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(program());
    for library in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        command.env(library, "/nonexistent/library.so");
    }
    let command = command.args(arguments).envs(variables.iter().copied());
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A file whose bytes differ from place to place.
fn file(folder: &Path, len_bytes: usize) -> PathBuf {
    let path = folder.join("file");
    let bytes: Vec<u8> =
        (0..len_bytes as u32 / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    fs::write(&path, bytes).unwrap();
    path
}

/// The fields of each line of a measurement.
fn lines(out: &str) -> Vec<HashMap<&str, &str>> {
    let measurements = out.lines().filter(|line| line.starts_with("peer="));
    measurements.map(|line| line.split(' ').map(|field| field.split_once('=').unwrap()).collect()).collect()
}

#[test]
fn check_tells_what_is_missing_and_the_route_of_a_file_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (status, out, err) = run(&[OsStr::new("check"), folder.path().as_os_str()], &[]);
    assert_eq!((status, &*err), (0, ""), "{out}");
    for part in [
        "libcuda could not be loaded (set CUDA_LIBRARY",
        "libcudart could not be loaded (set CUDART_LIBRARY",
        "libcufile could not be loaded (set CUFILE_LIBRARY",
        "/nonexistent/library.so",
        "nvidia-fs",
        "P2PDMA",
        "threads",
        "file system",
        "O_DIRECT",
        "% cached",
        "POSIX through pinned host memory",
        "not cuFile in its compatibility mode",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the file is removed");
}

#[test]
fn check_leaves_a_file_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    fs::write(&path, "precious").unwrap();
    let (status, out, _) = run(&[OsStr::new("check"), path.as_os_str()], &[]);
    assert_eq!(status, 0, "{out}");
    assert!(out.contains("POSIX through pinned host memory"), "{out}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn check_names_a_wrong_variable_and_a_missing_file_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [OsStr::new("check"), folder.path().as_os_str()];
    let (status, out, _) = run(&arguments, &[("GPUFILE_NUM_THREADS", "many")]);
    assert_eq!(status, 1, "{out}");
    assert!(out.contains("GPUFILE_NUM_THREADS is \"many\"") && out.contains("route"), "{out}");

    let (status, out, _) = run(&["check", "/nonexistent/file"], &[]);
    assert_eq!(status, 1, "{out}");
    assert!(out.contains("kernel") && out.contains("cannot open \"/nonexistent/file\""), "{out}");
}

#[test]
fn without_a_gpu_the_host_cases_run_and_the_reason_is_said() {
    let folder = tempfile::tempdir().unwrap();
    // Not all of it counts.
    let path = file(folder.path(), 32 * MIB + 4);
    let before = fs::read(&path).unwrap();
    let (status, out, err) =
        run(&[OsStr::new("bench"), path.as_os_str(), OsStr::new("--repeats"), OsStr::new("2")], &[]);
    assert_eq!((status, &*err), (0, ""), "{out}");
    assert!(out.contains("# no GPU: libcuda could not be loaded"), "{out}");

    let lines = lines(&out);
    let found: Vec<_> = lines.iter().map(|line| (line["peer"], line["case"], line["threads"])).collect();
    let peers = ["gpufile", "pread"].iter().flat_map(|&peer| ["0", "1", "2"].map(|threads| (peer, threads)));
    let expected: Vec<_> = peers.map(|(peer, threads)| (peer, "host-read", threads)).collect();
    assert_eq!(found, expected);
    for line in lines {
        let number = |name: &str| line[name].parse::<f64>().unwrap();
        assert_eq!((number("size"), number("ops")), (32.0 * MIB as f64, 1.0), "{line:?}");
        let (seconds, best) = (number("seconds"), number("best"));
        assert!(0.0 < best && best <= seconds && number("cpu") >= 0.0, "{line:?}");
        assert!((number("gbps") * seconds * 1e9 / number("size") - 1.0).abs() < 0.1, "{line:?}");
        assert!((number("us_per_op") - seconds * 1e6).abs() < 0.01, "{line:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn cases_and_threads_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 16 * MIB);
    let path = path.to_str().unwrap();
    let (status, out, _) = run(&["bench", path, "--threads", "3", "--repeats", "1", "host"], &[]);
    assert_eq!(status, 0, "{out}");
    assert!(!out.contains("no GPU"), "nobody asked for one: {out}");
    assert_eq!(lines(&out).iter().map(|line| line["threads"]).collect::<Vec<_>>(), ["3", "3"]);

    let (status, out, _) = run(&["bench", path, "scatter", "write-over"], &[]);
    assert_eq!((status, lines(&out).len()), (0, 0), "{out}");
}

#[test]
fn the_environment_sets_the_engine_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 16 * MIB);
    let arguments = ["bench", path.to_str().unwrap(), "--repeats", "1", "host-read"];
    let (status, out, _) = run(&arguments, &[("GPUFILE_TASK_SIZE", "70001")]);
    assert_eq!((status, lines(&out).len()), (0, 6), "{out}");
    assert!(out.starts_with("# ") && out.contains("70001"), "{out}");
    let (status, _, err) = run(&arguments, &[("GPUFILE_TASK_SIZE", "few")]);
    assert!(status == 1 && err.contains("GPUFILE_TASK_SIZE is \"few\""), "{err}");
}

#[test]
fn wrong_arguments_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), MIB);
    let small = path.to_str().unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&[], 2, "which command?"),
        (&["frobnicate"], 2, "frobnicate: no such command"),
        (&["bench"], 2, "which FILE?"),
        (&["bench", small, "--repeats"], 2, "--repeats is 1 to 100"),
        (&["bench", small, "--repeats", "0"], 2, "--repeats is 1 to 100"),
        (&["bench", small, "--threads", "some"], 2, "--threads is 0 to 1024"),
        (&["bench", small, "--fast"], 2, "--fast: no such option"),
        (&["bench", small, "scat"], 2, "there is no case or group of cases `scat`"),
        (&["bench", small], 1, "1048576 bytes are too few; the cases need 16 MiB"),
        (&["bench", "/nonexistent/file"], 1, "/nonexistent/file: No such file or directory"),
        (&["bench", "/"], 1, "/: not a regular file"),
        (&["check", "one", "two"], 2, "two: one FILE or DIR"),
        (&["check", "--all"], 2, "--all: no such option"),
    ];
    for (arguments, expected_status, expected) in cases {
        let (status, out, err) = run(arguments, &[]);
        assert!(status == *expected_status && err.contains(expected), "{arguments:?}: {status} {out}{err}");
        assert_eq!(err.contains("usage:"), *expected_status == 2, "{arguments:?}: {err}");
    }
    for arguments in [&["help"][..], &["--help"], &["bench", small, "--help"], &["check", "-h"]] {
        let (status, out, _) = run(arguments, &[]);
        assert!(status == 0 && out.contains("gpufile bench FILE") && out.contains("host-read"), "{out}");
    }
}
