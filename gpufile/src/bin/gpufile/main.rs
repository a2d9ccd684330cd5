//! The program `gpufile`: the means of this machine to move bytes between files and GPUs, and how fast they are.

mod bench;
mod check;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// The reason why a command ended early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// There is nothing to work on.
    #[error("{0}")]
    Other(String),
    /// The output cannot be written.
    #[error("{0}")]
    Output(#[from] io::Error),
}

fn main() -> ExitCode {
    match run(&env::args_os().skip(1).collect::<Vec<_>>()) {
        Ok(status) => status,
        // Whoever reads the output has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error @ Failure::Usage(_)) => {
            complain(&format!("gpufile: {error}\n\n{}", usage()));
            ExitCode::from(2)
        }
        Err(error) => {
            complain(&format!("gpufile: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to the standard error output. The exit status is left to say it if nobody reads there.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let (command, rest) = match arguments {
        [] => return Err(Failure::Usage("which command?".to_owned())),
        [command, rest @ ..] => (command.to_string_lossy(), rest),
    };
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return say(&usage());
    }
    match &*command {
        "bench" => bench::run(rest),
        "check" => check::run(rest),
        "help" => say(&usage()),
        "--version" | "-V" => say(concat!("gpufile ", env!("CARGO_PKG_VERSION"))),
        other => Err(Failure::Usage(format!("{other:?}: no such command"))),
    }
}

fn say(text: &str) -> Result<ExitCode, Failure> {
    writeln!(io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn usage() -> String {
    format!("usage:\n\n{}\n\n{}", check::USAGE, bench::usage())
}
