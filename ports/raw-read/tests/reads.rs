//! Tests of the program on the libraries that the environment names, or on the system's.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_raw-read")).args(arguments).output().expect("the program")
}

#[test]
fn the_gpu_gets_the_bytes_of_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data.bin");
    std::fs::write(&path, (0..300_001_u32).map(|at| (at ^ (at >> 8)) as u8).collect::<Vec<_>>())
        .expect("a file");
    let output = run(&[path.to_str().expect("a path in UTF-8")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"300001 bytes\n");
}

#[test]
fn a_missing_file_is_an_error() {
    let output = run(&["/no/such/file"]);
    assert!(!output.status.success() && output.stdout.is_empty());
}
