//! Checks of one real library. `cargo xtask conformance` runs them in a separate process, because a failing check may
//! crash or hang.
//!
//! usage: `real_library GROUP LIBRARY VERSION`, or `real_library open`; each line names a check that begins, held or
//! failed. So the last line names the check that hangs.

mod before_open;
mod cudart;
mod open;
mod parameters;
mod symbols;

use std::fmt::Debug;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The result of a check: success, or a description of the fault.
type Held = Result<(), String>;

/// Runs checks and keeps count of the failed ones.
#[derive(Default)]
struct Checks {
    failed: usize,
}

impl Checks {
    fn check(&mut self, name: impl AsRef<str>, check: impl FnOnce() -> Held) {
        self.check_if(name, || Some(check()));
    }

    /// Runs a check that returns `None`, and does not apply, if the library lacks a function; `symbols` checks
    /// whether it may.
    fn check_if(&mut self, name: impl AsRef<str>, check: impl FnOnce() -> Option<Held>) {
        let name = name.as_ref();
        say(&format!("begins {name}"));
        match check() {
            None => {}
            Some(Ok(())) => say(&format!("held {name}")),
            Some(Err(what)) => {
                self.failed += 1;
                say(&format!("failed {name}: {what}"));
            }
        }
    }
}

/// Prints one line of the report. The libraries print too, not always whole lines.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A closed pipe means that no reader is left.
    let _ = write!(out, "\nreal_library: {line}\n").and_then(|()| out.flush());
}

/// Checks that the library gave the known answer of this version.
fn expect<T: PartialEq + Debug>(found: T, expected: T) -> Held {
    match found == expected {
        true => Ok(()),
        false => Err(format!("found {found:?}, expected {expected:?}")),
    }
}

/// Returns the value for `version` in a table of (first version, value).
fn by_version<T: Copy>(table: &[(i32, T)], version: i32) -> Option<T> {
    table.iter().rev().find(|(first, _)| *first <= version).map(|(_, value)| *value)
}

/// Returns whether the dynamic loader finds a libcuda by its own search, as the libraries use it.
fn libcuda_is_present() -> bool {
    // SAFETY: loading libcuda runs its initialisers, which are made for that.
    unsafe { !libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY).is_null() }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut checks = Checks::default();
    match arguments.as_slice() {
        ["open"] => open::run(&mut checks),
        [group, library, version] => {
            let (library, Ok(version)) = (Path::new(library), version.parse()) else {
                eprintln!("{version} is no number");
                return ExitCode::from(2);
            };
            match *group {
                "cudart" => cudart::run(&mut checks, library, version),
                "symbols" => symbols::run(&mut checks, library, version),
                "parameters" => parameters::run(&mut checks, library, version),
                "before-open" => before_open::run(&mut checks, library, version),
                _ => {
                    eprintln!("no group {group}");
                    return ExitCode::from(2);
                }
            }
        }
        _ => {
            eprintln!("usage: real_library GROUP LIBRARY VERSION");
            return ExitCode::from(2);
        }
    }
    // A library that ends the process must not pass for one that holds.
    say("ends");
    match checks.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
