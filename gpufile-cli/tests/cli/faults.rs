//! The commands `check`, `ls`, `cache` and `top` on files, names and outputs that something is wrong with.

use std::ffi::{CString, OsStr};
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::{fs, io, ptr};

use gpufile::formats::safetensors::{TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};

use crate::program::{command, file, names};

fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let code = status.code().unwrap_or_else(|| panic!("{status}"));
    (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn pipe(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name is terminated and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

#[test]
fn failures_keep_their_exit_status_without_a_reader() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 5000);
    let path = path.to_str().unwrap();
    for arguments in [&["cache", path, "/nonexistent"][..], &["cache", "--json", path, "/nonexistent"]] {
        let nobody: Stdio = io::pipe().unwrap().1.into();
        let status = command(arguments).stdout(nobody).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn cache_refuses_a_pipe_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    pipe(&path);
    for change in [None, Some("--drop")] {
        let (status, out, err) = run(command(["cache"]).args(change).arg(&path));
        assert!(status == 1 && out.is_empty() && err.contains("only regular files"), "{out}{err}");
    }
}

#[test]
fn cache_changes_files_of_other_users() {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: only root can become another user");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = file(folder.path(), "file", 5000);
    let nobody = |arguments: &[&str]| {
        let mut command = command(["cache"]);
        command.args(arguments).arg(&path).uid(65_534).gid(65_534);
        command.output().map(|_| run(&mut command))
    };
    let (status, out, err) = match nobody(&["--drop"]) {
        Ok(outcome) => outcome,
        Err(error) => return eprintln!("skipped: another user cannot run the program: {error}"),
    };
    assert_eq!(status, 0, "{out}{err}");
    // Some kernels tell everyone.
    if !err.is_empty() {
        assert!(
            err.contains("is cached: the kernel tells only its owner") && out.contains('?'),
            "{out}{err}"
        );
        let (status, out, _) = nobody(&["--drop", "--json"]).unwrap();
        let found: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(status == 0 && found[0]["bytes"] == 5000 && found[0]["after"].is_null(), "{out}");
        let (status, _, err) = nobody(&[]).unwrap();
        assert!(status == 1 && err.contains("not permitted"), "{err}");
    }
}

fn check(path: &Path) -> Command {
    let mut command = command(["check"]);
    for library in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        command.env(library, "/nonexistent/library.so");
    }
    command.arg(path);
    command
}

#[test]
fn relative_configuration_begins_at_the_current_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("my.json"), r#"{"properties": {"force_compat_mode": true}}"#).unwrap();
    let mut check = check(folder.path());
    let (_, out, _) = run(check.current_dir(folder.path()).env("CUFILE_ENV_PATH_JSON", "my.json"));
    assert!(out.contains("properties.force_compat_mode is true in my.json"), "{out}");
}

#[test]
fn broken_configurations_are_named_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    pipe(&path("pipe"));
    fs::write(path("bom.json"), "\u{feff}{}").unwrap();
    fs::write(path("binary.json"), [0xff, 0xfe]).unwrap();
    for (file, reason) in [
        (path("pipe"), "not a regular file"),
        ("/dev/zero".into(), "not a regular file"),
        (path("."), "not a regular file"),
        (path("none.json"), "No such file"),
        (path("bom.json"), "not JSON"),
        (path("binary.json"), "invalid utf-8"),
    ] {
        let mut check = check(folder.path());
        let (_, out, _) = run(check.args(["--json"]).env("CUFILE_ENV_PATH_JSON", &file));
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        let causes = report["paths"][0]["causes"].as_array().unwrap();
        let broken = causes.iter().find(|cause| cause["cause"] == "broken-cufile-json").unwrap();
        assert!(broken["problem"].as_str().unwrap().contains(reason), "{broken}");
        assert!(broken["remedy"].as_str().unwrap().contains("unset CUFILE_ENV_PATH_JSON"), "{broken}");
    }
}

#[test]
fn wrong_variable_is_the_first_thing_to_do() {
    let mut check = check(Path::new("/nonexistent"));
    let (status, out, _) = run(check.arg("/").env("GPUFILE_NUM_THREADS", "x"));
    assert!(status == 1 && out.contains("\n/: FAILED: a variable is wrong\n"), "{out}");
    assert!(out.contains("  2. the environment variable GPUFILE_NUM_THREADS is \"x\""), "{out}");
}

#[test]
fn names_of_files_are_escaped_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("\x1b]0;owned\x07\n");
    fs::create_dir(&inner).unwrap();
    let path = inner.join("\x1b]0;owned\x07\n.safetensors");
    let tensor = TensorData::new("w", Dtype::U8, &[4], &[1_u8; 4][..]);
    save(&path, &[tensor], &SaveOptions::new()).unwrap();
    for arguments in [&["cache"][..], &["check", "/dev/null"], &["ls"], &["load", "--host"]] {
        let (status, out, err) = run(command(arguments).arg(&path));
        assert!([0, 3].contains(&status), "{out}{err}");
        assert!(out.contains("\\u{1b}]0;owned\\u{7}\\n.safetensors"), "{out}");
        assert!(
            !out.contains(['\x1b', '\x07']) && !out.lines().any(|line| line.starts_with(".safetensors")),
            "{out}"
        );
    }
}

#[test]
fn broken_zarr_arrays_are_named_beside_the_others() {
    if cfg!(not(feature = "zarr")) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let array = r#"{"zarr_format":2,"shape":[6],"chunks":[2],"dtype":"<f4","compressor":null,"fill_value":0,"order":"C","filters":null}"#;
    let node = |name: &[u8], file: &str, text: &str| {
        let inner = folder.path().join(OsStr::from_bytes(name));
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join(file), text).unwrap();
    };
    let broken = r#"{"zarr_format":3,"node_type":"arr"#;
    node(b"alone", "zarr.json", broken);
    let (status, out, err) = run(command(["ls"]).arg(folder.path().join("alone")));
    assert!(status == 1 && out.is_empty() && err.contains("alone/zarr.json\": EOF"), "{out}{err}");

    node(b".", ".zgroup", r#"{"zarr_format":2}"#);
    node(b"caf\xe9", ".zarray", array);
    node(b"group", "zarr.json", "{}");
    node(b"group/inner", ".zarray", array);
    node(b"half", ".zarray", &array[..20]);
    fs::create_dir(folder.path().join("loop")).unwrap();
    symlink("zarr.json", folder.path().join("loop/zarr.json")).unwrap();
    let (status, out, err) = run(command(["ls", "--json"]).arg(folder.path()));
    let listed: serde_json::Value = serde_json::from_str(&out).unwrap();
    let names: Vec<_> =
        listed["tensors"].as_array().unwrap().iter().map(|array| array["name"].as_str().unwrap()).collect();
    assert_eq!((status, names), (1, vec!["/caf\u{fffd}", "/group/inner"]), "{out}{err}");
    for named in ["alone/zarr.json", "group/zarr.json", "half", "loop"] {
        assert_eq!(err.lines().filter(|line| line.contains(named)).count(), 1, "{named}: {err}");
    }
}

#[test]
fn check_reports_the_route_that_cp_takes() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file(folder.path(), "file", 5000);
    for commands in ["", "p2pdma 1", "nvidia-fs 2 17 4095"] {
        for mode in ["auto", "off"] {
            let variables = [("CUFILE_EMULATOR", commands), ("GPUFILE_COMPAT_MODE", mode)];
            let mut copy = command(["cp", "--json", "--gpu", "0"]);
            let (status, out, err) = run(copy.arg(&path).arg(folder.path().join("copy")).envs(variables));
            assert_eq!(status, 0, "{out}{err}");
            let copied: serde_json::Value = serde_json::from_str(&out).unwrap();
            let route = copied["routes"][0].as_str().unwrap();
            let (_, out, _) = run(command(["check"]).arg(&path).envs(variables));
            let verdict: Vec<_> = out.split("\n\n").next().unwrap().split_whitespace().collect();
            assert!(verdict.join(" ").ends_with(&format!("({route})")), "{route}: {out}");
        }
    }
}

#[test]
fn top_sends_no_sequences_to_a_dumb_terminal() {
    for (term, expected) in [("dumb", false), ("xterm", true)] {
        let (mut terminal, mut end) = (-1, -1);
        let none = ptr::null_mut();
        // SAFETY: the call writes two descriptors, and takes no name and no settings.
        let code = unsafe { libc::openpty(&mut terminal, &mut end, none, ptr::null_mut(), ptr::null_mut()) };
        if code != 0 {
            return eprintln!("skipped: no terminal: {}", io::Error::last_os_error());
        }
        // SAFETY: nothing else owns the new descriptors.
        let (terminal, end) = unsafe { (OwnedFd::from_raw_fd(terminal), OwnedFd::from_raw_fd(end)) };
        let mut top = command(["top", "--count", "1"]);
        let status = top.env("TERM", term).stdout(end).status().unwrap();
        drop(top);
        let mut out = Vec::new();
        // The terminal without its other end is an error.
        let _ = fs::File::from(terminal).read_to_end(&mut out);
        assert!(status.success() && !out.is_empty());
        assert_eq!(out.contains(&b'\x1b'), expected, "{term}: {}", out.escape_ascii());
    }
}
