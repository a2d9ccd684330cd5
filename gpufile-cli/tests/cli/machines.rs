//! The program `gpufile` as a user runs it on a machine without a GPU.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fs, io};

use gpufile::{File, RouteKind};

const MIB: usize = 1 << 20;

fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(crate::program::built());
    for library in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        command.env(library, "/nonexistent/library.so");
    }
    command.args(arguments);
    command
}

fn run<S: AsRef<OsStr>>(arguments: &[S], variables: &[(&str, &str)]) -> (i32, String, String) {
    let output = command(arguments).envs(variables.iter().copied()).output().unwrap();
    let Output { status, stdout, stderr } = output;
    let code = status.code().unwrap_or_else(|| panic!("{status}"));
    (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn file(folder: &Path, len_bytes: usize) -> PathBuf {
    let path = folder.join("file");
    let bytes: Vec<u8> =
        (0..len_bytes as u32 / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    fs::write(&path, bytes).unwrap();
    path
}

fn lines(out: &str) -> Vec<HashMap<&str, &str>> {
    let measurements = out.lines().filter(|line| line.starts_with("peer="));
    measurements.map(|line| line.split(' ').map(|field| field.split_once('=').unwrap()).collect()).collect()
}

#[test]
fn the_route_without_cuda_is_unavailable() {
    // In this process, only a host without CUDA shows the route. `check.rs` shows it everywhere.
    if gpufile::cuda::Cuda::load().is_ok() {
        return eprintln!("skipped: there is CUDA");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = File::open(file(folder.path(), MIB)).unwrap();
    assert_eq!(file.route().kind(), RouteKind::Unavailable);
    assert!(file.route().why_not_gds().is_some_and(|reason| reason.contains("libcuda")));
    let mut buffer = vec![0; MIB];
    file.read_exact_at(&mut buffer, 0).unwrap();
}

fn nobody() -> Stdio {
    io::pipe().unwrap().1.into()
}

#[test]
fn closed_output_does_not_change_the_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 16 * MIB);
    let (folder, path) = (folder.path().to_str().unwrap(), path.to_str().unwrap());
    let cases: &[(&[&str], i32)] = &[
        (&["frobnicate"], 2),
        (&["bench", "/nonexistent/file"], 1),
        (&["bench", path, "--repeats", "1", "host"], 0),
        (&["check", folder], 4),
        (&["check", "/nonexistent/file"], 1),
        (&["--help"], 0),
        (&["--version"], 0),
    ];
    for (arguments, expected) in cases {
        let status = command(arguments).stdout(nobody()).stderr(nobody()).status().unwrap();
        assert_eq!(status.code(), Some(*expected), "{arguments:?}");
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "the file of the check is removed");
}

#[test]
fn full_output_is_a_failure() {
    for arguments in [&["check"][..], &["--help"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(arguments).stdout(full).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && err.contains("No space left"), "{err}");
    }
}

#[test]
fn bench_without_gpu_runs_host_cases_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    // The last four bytes do not count.
    let path = file(folder.path(), 32 * MIB + 4);
    let before = fs::read(&path).unwrap();
    let (status, out, err) =
        run(&["bench", path.to_str().unwrap(), "--cases", "--repeats", "2"].map(OsStr::new), &[]);
    assert_eq!((status, err.lines().count()), (0, 2), "{out}{err}");
    assert!(err.contains("gpufile: no GPU, so only host cases run: libcuda could not be loaded"), "{err}");

    let lines = lines(&out);
    let found: Vec<_> = lines.iter().map(|line| (line["peer"], line["case"], line["threads"])).collect();
    let cases = [
        ("gpufile", "host-read"),
        ("pread", "host-read"),
        ("gpufile", "host-calls-4k"),
        ("gpufile", "host-futures-4k"),
    ];
    let expected: Vec<_> = cases
        .iter()
        .flat_map(|(peer, case)| ["0", "1", "2"].map(|threads| (*peer, *case, threads)))
        .collect();
    assert_eq!(found, expected);
    for line in lines {
        let number = |name: &str| line[name].parse::<f64>().unwrap();
        let is_whole = line["case"] == "host-read";
        let (size, ops) = if is_whole { (32.0 * MIB as f64, 1.0) } else { (4096.0, 10_000.0) };
        assert_eq!((number("size"), number("ops")), (size, ops), "{line:?}");
        let (seconds, best) = (number("seconds"), number("best"));
        assert!(0.0 < best && best <= seconds && number("cpu") >= 0.0, "{line:?}");
        assert!((number("gbps") * seconds * 1e9 / (size * ops) - 1.0).abs() < 0.1, "{line:?}");
        assert!((number("us_per_op") - seconds * 1e6 / ops).abs() < 0.01, "{line:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn cases_and_threads_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 16 * MIB);
    let path = path.to_str().unwrap();
    let (status, out, err) = run(&["bench", path, "--threads", "3", "--repeats", "1", "host"], &[]);
    assert_eq!((status, &*err), (0, ""), "nobody asked for a GPU: {out}");
    assert_eq!(lines(&out).iter().map(|line| line["threads"]).collect::<Vec<_>>(), ["3"; 4]);

    let (status, out, err) = run(&["bench", path, "scatter", "write-over", "--overwrite"], &[]);
    assert_eq!((status, &*out), (1, ""));
    assert!(!err.contains("left out") && err.contains("scatter-4k needs a GPU: libcuda"), "{err}");
    // Some cases of the group leave the file alone.
    for arguments in [&["bench", path, "write"][..], &["bench", path, "write", "--json"]] {
        let (status, out, err) = run(arguments, &[]);
        assert_eq!((status, &*out), (1, ""), "{err}");
        let left_out = "left out, because they overwrite FILE (add --overwrite to permit that): write-over";
        assert!(err.contains(left_out) && err.contains("write-fresh needs a GPU"), "{err}");
    }
}

#[test]
fn cases_of_gpus_need_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 16 * MIB);
    let path = path.to_str().unwrap();
    let (status, out, err) = run(&["bench", path, "gpus"], &[]);
    assert_eq!((status, &*out), (1, ""));
    assert!(err.starts_with("gpufile: gpus-") && err.contains(" needs a GPU: libcuda"), "{err}");
    let (status, out, err) = run(&["bench", path, "--gpu", "0,1", "gpus"], &[]);
    assert_eq!((status, &*out), (1, ""), "{err}");
    assert!(err.starts_with("gpufile: cannot use --gpu: libcuda could not be loaded"), "{err}");
    let (status, _, err) = run(&["bench", path, "--host", "gpus"], &[]);
    assert!(status == 2 && err.contains("gpus is a named case"), "{err}");
}

#[test]
fn bench_reports_settings_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 16 * MIB);
    let arguments = ["bench", path.to_str().unwrap(), "--repeats", "1", "host-read"];
    let (status, out, err) = run(&arguments, &[("GPUFILE_CHUNK_SIZE", "70001")]);
    assert_eq!((status, lines(&out).len()), (0, 6), "{out}");
    assert!(
        err.starts_with("gpufile: settings from environment variables: ") && err.contains("70001"),
        "{err}"
    );
    let (status, _, err) = run(&arguments, &[("GPUFILE_CHUNK_SIZE", "few")]);
    assert!(status == 1 && err.contains("GPUFILE_CHUNK_SIZE is \"few\""), "{err}");
}

#[test]
fn wrong_arguments_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), MIB);
    let small = path.to_str().unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&[], 2, "no command given: choose check, bench"),
        (&["frobnicate"], 2, "unrecognized subcommand 'frobnicate'"),
        (&["bench"], 2, "the following required arguments were not provided: <PATH>"),
        (&["bench", small, "--repeats"], 2, "a value is required for '--repeats <N>'"),
        (&["bench", small, "--repeats", "0"], 2, "0 is not in 1..=100"),
        (&["bench", small, "--threads", "some"], 2, "invalid value 'some' for '--threads <T>'"),
        (&["bench", small, "--fast"], 2, "unexpected argument '--fast'"),
        (&["bench", small, "scat"], 2, "invalid value 'scat' for '[CASE]...': `gpufile bench --list` lists"),
        (&["bench", small, "write-over"], 2, "write-over overwrites FILE: add --overwrite"),
        (&["bench", small, "direct-write"], 2, "--overwrite"),
        (&["bench", small, "--cases"], 1, "1048576 bytes are too few; name a file of 16 MiB or more"),
        (&["bench", "/nonexistent/file", "--cases"], 1, "\"/nonexistent/file\": No such file or directory"),
        (&["bench", "/dev/null", "--cases"], 1, "\"/dev/null\": not a regular file; name one"),
        (&["man", "frobnicate"], 2, "there is no command \"frobnicate\""),
    ];
    for (arguments, expected_status, expected) in cases {
        let (status, out, err) = run(arguments, &[]);
        assert!(status == *expected_status && err.contains(expected), "{arguments:?}: {status} {out}{err}");
        let lines = if *expected_status == 2 { 2 } else { 1 };
        assert!(err.lines().count() == lines && out.is_empty(), "{arguments:?}: {out}{err}");
    }
}

#[test]
fn help_lists_commands_and_examples() {
    let (status, out, err) = run(&["--help"], &[]);
    assert!(status == 0 && err.is_empty() && out.contains("  bench "), "{out}{err}");
    for command in ["bench", "check", "completions", "man"] {
        let (status, out, err) = run(&[command, "--help"], &[]);
        assert!(
            status == 0 && err.is_empty() && out.contains(&format!("\n  gpufile {command} ")),
            "{out}{err}"
        );
        assert_eq!(run(&["help", command], &[]), (0, out, String::new()));
        let (status, out, err) = run(&["man", command], &[]);
        assert!(status == 0 && err.is_empty() && out.starts_with(".ie"), "{out}{err}");
    }
    let (status, out, _) = run(&["bench", "--list"], &[]);
    assert!(
        status == 0 && out.contains("\nhost-read ") && out.contains("  All of FILE into host memory\n"),
        "{out}"
    );
    let (status, out, _) = run(&["completions", "bash"], &[]);
    assert!(status == 0 && out.contains("bench"), "{out}");
}

#[test]
fn codes_are_explained_in_every_form() {
    for arguments in [&["5001"][..], &["-5001"], &["--", "-5001"], &["cuFileDriverOpen", "failed:", "5001"]] {
        let (status, out, err) = run(&[&["explain"], arguments].concat(), &[]);
        assert_eq!((status, &*err), (0, ""), "{arguments:?}");
        assert!(out.starts_with("CU_FILE_DRIVER_NOT_INITIALIZED (5001)\n  meaning "), "{arguments:?}: {out}");
        assert!(
            ["\n  cause ", "\n  what to do ", "\n  proof "].iter().all(|line| out.contains(line)),
            "{out}"
        );
    }
    let (status, out, _) = run(&["explain", "--json", "-5"], &[]);
    assert!(status == 0 && out.contains("\"title\": \"EIO (errno 5, Input/output error)\""), "{out}");
    let (status, out, err) = run(&["explain", "nothing", "known"], &[]);
    assert_eq!((status, &*out), (1, ""));
    assert!(err.starts_with("gpufile: nothing is known about \"nothing known\""), "{err}");
    let (status, out, _) = run(&["explain", "--all"], &[]);
    assert!(status == 0 && out.starts_with("# Troubleshooting\n"), "{out}");
}

#[test]
fn logs_are_explained_from_standard_input_or_a_file() {
    let log = " 25-11-2026 17:23:19:123 [pid=1 tid=1] NOTICE  cufio-drv:720 running in compatible mode\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cufile.log");
    fs::write(&path, format!("{log}a line about nothing\n{log}")).unwrap();
    let output = command(&["explain", "-"]).stdin(fs::File::open(&path).unwrap()).output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && out.matches("  meaning ").count() == 1, "{out}");
    let of_file = run(&["explain", path.to_str().unwrap()], &[]);
    assert_eq!(of_file, (0, out, String::new()));
    let output = command(&["explain", "-"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

/// The library alone must not make its users build what only the program needs.
#[test]
fn library_without_the_program_has_no_more_dependencies() {
    let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../gpufile/Cargo.toml"));
    // A host with only the test programs has no sources.
    let Ok(manifest) = manifest else { return };
    let section = manifest.split("\n[").find_map(|section| section.strip_prefix("dependencies]")).unwrap();
    let required: Vec<_> = section
        .lines()
        .filter(|line| !line.contains("optional = true") && !line.starts_with('#'))
        .filter_map(|line| line.split([' ', '.']).next().filter(|name| !name.is_empty()))
        .collect();
    assert_eq!(required, ["cuda-rt-sys", "cufile", "libc", "thiserror"]);
    let features: Vec<_> = manifest
        .lines()
        .filter(|line| line.starts_with("default = ") || line.starts_with("formats = "))
        .collect();
    let only_formats = ["default = [\"formats\"]", "formats = [\"dep:serde\", \"dep:serde_json\"]"];
    assert_eq!(features, only_formats, "other default features could bring more");
}
