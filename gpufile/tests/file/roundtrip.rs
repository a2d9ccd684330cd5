//! Tests of the example `roundtrip` as a user runs it.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fs};

/// Returns the command of the example, from where cargo puts the examples of the build that this test belongs
/// to.
fn roundtrip() -> Command {
    let this = env::current_exe().unwrap();
    let example: PathBuf = this.parent().unwrap().parent().unwrap().join("examples/roundtrip");
    assert!(
        example.exists(),
        "{} is missing: run `cargo test --workspace`, or build it first",
        example.display()
    );
    Command::new(example)
}

fn run(command: &mut Command) -> (bool, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Runs on this host as it is, and with libcuda hidden.
fn each(test: impl Fn(&mut dyn FnMut() -> Command)) {
    test(&mut roundtrip);
    test(&mut || {
        let mut command = roundtrip();
        command.env("CUDA_LIBRARY", "/nonexistent/libcuda.so.1");
        command
    });
}

#[test]
fn odd_sizes_round_trip_unchanged() {
    each(|command| {
        for size in ["0", "1", "4095", "1000001", "9MiB"] {
            let folder = tempfile::tempdir().unwrap();
            let (success, out, err) = run(command().args(["--size", size]).arg(folder.path()));
            assert!(success, "{size}: {out}{err}");
            assert!(out.contains("write: ") && out.contains("read: ") && out.contains("route: "), "{out}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the file is removed");
        }
    });
}

#[test]
fn roundtrip_without_libcuda_uses_host_memory_and_says_why() {
    let (success, out, _) =
        run(roundtrip().env("CUDA_LIBRARY", "/nonexistent/libcuda.so.1").args(["--size", "64KiB"]));
    assert!(success);
    assert!(out.contains("65536 bytes of host memory, because there is no GPU"), "{out}");
    assert!(out.contains("/nonexistent/libcuda.so.1"), "{out}");
}

#[test]
fn roundtrip_refuses_bad_paths_and_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let existing = folder.path().join("existing");
    fs::write(&existing, "precious").unwrap();
    let missing = folder.path().join("missing/file");
    for (arguments, expected) in [
        (vec![missing.to_str().unwrap()], "No such file or directory"),
        (vec![existing.to_str().unwrap()], "File exists"),
        (vec!["--size"], "--size needs a value"),
        (vec!["--size", "12XB"], "expected bytes"),
        (vec!["--size", "-5"], "invalid digit"),
        (vec!["--size", "99999999999GiB"], "too large"),
        (vec!["--frobnicate"], "no such option"),
    ] {
        let (success, _, err) = run(roundtrip().args(&arguments));
        assert!(!success && err.contains(expected), "{arguments:?}: {err}");
    }
    assert_eq!(fs::read(&existing).unwrap(), b"precious");
}

#[test]
fn full_file_system_error_is_printed() {
    // A limit on the file's size stands in for a full disk, which would need a mount.
    let folder = tempfile::tempdir().unwrap();
    let example = roundtrip().get_program().to_owned();
    // This uses POSIX, because cuFile turns every errno of a write into EPERM.
    let script = "trap '' XFSZ; ulimit -f 1000; exec \"$0\" --posix --size 8MiB \"$1\"";
    let (success, _, err) = run(Command::new("sh").args(["-c", script]).arg(example).arg(folder.path()));
    assert!(!success && err.contains("File too large") && err.contains("bytes were transferred"), "{err}");
}
