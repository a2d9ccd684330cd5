//! Checks of one real library. `cargo xtask conformance` runs them in a separate process, because a failing check may
//! crash or hang.
//!
//! usage: `real_library GROUP LIBRARY VERSION`, or `real_library open`; each line names a check that begins, held or
//! failed. So the last line names the check that hangs.

mod before_open;
mod checks;
mod cudart;
mod open;
mod parameters;
mod symbols;

use std::path::Path;
use std::process::ExitCode;

use checks::{Checks, say};

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
