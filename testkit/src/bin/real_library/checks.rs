//! Running checks, and the lines of the report.

use std::fmt::Debug;
use std::io::Write;

/// Success, or a description of the fault.
pub type Held = Result<(), String>;

#[derive(Default)]
pub struct Checks {
    pub failed: usize,
}

impl Checks {
    pub fn check(&mut self, name: impl AsRef<str>, check: impl FnOnce() -> Held) {
        self.check_if(name, || Some(check()));
    }

    /// Runs a check that does not apply if it returns `None`, because the library lacks a function; `symbols`
    /// checks whether it may.
    pub fn check_if(&mut self, name: impl AsRef<str>, check: impl FnOnce() -> Option<Held>) {
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

/// Prints a whole line, which the libraries do not always.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A closed pipe means that no reader is left.
    let _ = write!(out, "\nreal_library: {line}\n").and_then(|()| out.flush());
}

/// Checks that the library gave the known answer of this version.
pub fn expect<T: PartialEq + Debug>(found: T, expected: T) -> Held {
    match found == expected {
        true => Ok(()),
        false => Err(format!("found {found:?}, expected {expected:?}")),
    }
}

/// Returns the value for `version` in a table of (first version, value).
pub fn by_version<T: Copy>(table: &[(i32, T)], version: i32) -> Option<T> {
    table.iter().rev().find(|(first, _)| *first <= version).map(|(_, value)| *value)
}

/// Returns whether the dynamic loader finds a libcuda by its own search, as the libraries use it.
pub fn libcuda_is_present() -> bool {
    // SAFETY: loading libcuda runs its initialisers, which are made for that.
    unsafe { !libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY).is_null() }
}
