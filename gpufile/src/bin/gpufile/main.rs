//! The program `gpufile`. It reports this machine's routes between files and GPUs, and measures them.

mod bench;
mod check;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// The reason why a command ended early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A file, a variable or a GPU cannot be used.
    #[error("{0}")]
    Other(String),
    /// The output cannot be written.
    #[error("{0}")]
    Output(#[from] io::Error),
}

/// The end of a message about the command.
const COMMANDS: &str = "choose `check`, `bench`, `help` or `--version`";

fn main() -> ExitCode {
    match run(&env::args_os().skip(1).collect::<Vec<_>>()) {
        Ok(status) => status,
        // The reader of the output has seen enough.
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

/// Writes to the standard error output. Where nobody reads it, the exit status still tells of the failure.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let (command, rest) = match arguments {
        [] => return Err(Failure::Usage(format!("no command is given: {COMMANDS}"))),
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
        other => Err(Failure::Usage(format!("there is no command {other:?}: {COMMANDS}"))),
    }
}

fn say(text: &str) -> Result<ExitCode, Failure> {
    writeln!(io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn usage() -> String {
    format!("usage:\n\n{}\n\n{}", check::USAGE, bench::usage())
}
