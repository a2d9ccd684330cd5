//! The commands `check`, `ls`, `cache` and `top` on files, names and outputs that something is wrong with.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::{fs, io};

mod program;

use program::{command, file, names};

/// Returns the exit status, the standard output and the standard error output.
fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let code = status.code().unwrap_or_else(|| panic!("{status}"));
    (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Makes a pipe that nobody writes to.
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
    for change in [None, Some("--drop"), Some("--warm")] {
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
        assert!(err.contains("is unknown: only its owner") && out.contains('?'), "{out}{err}");
        let (status, out, _) = nobody(&["--warm", "--json"]).unwrap();
        let found: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(status == 0 && found[0]["bytes"] == 5000 && found[0]["after"].is_null(), "{out}");
        let (status, _, err) = nobody(&[]).unwrap();
        assert!(status == 1 && err.contains("not permitted"), "{err}");
    }
}
