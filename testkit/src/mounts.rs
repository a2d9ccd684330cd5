//! The common parts of file systems that are mounted for a test.

use std::process::{Command, Stdio};
use std::{env, io};

/// Returns a mount, or says why there is none.
///
/// # Panics
/// If there is none, and `CUFILE_REQUIRE_MOUNTS=1` requires mounts.
pub(crate) fn or_skip<T>(mount: Result<T, String>) -> Option<T> {
    match mount {
        Ok(mount) => Some(mount),
        Err(reason) if env::var("CUFILE_REQUIRE_MOUNTS").is_ok_and(|value| value == "1") => {
            panic!("{reason}")
        }
        Err(reason) => {
            println!("not checked: a mount for tests: {reason}");
            None
        }
    }
}

/// Gives the calling thread and its children mounts of their own.
///
/// # Errors
/// The reason why that cannot be done.
pub(crate) fn own_mounts() -> Result<(), String> {
    // SAFETY: takes an integer. The process has threads that keep the old namespace, and they mount nothing.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(format!("no mounts of its own: {}", io::Error::last_os_error()));
    }
    run("mount", &["--make-rprivate", "/"])
}

/// # Errors
/// The command, if it fails.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_done = status.is_ok_and(|status| status.success());
    is_done.then_some(()).ok_or(format!("{program} {arguments:?}"))
}
