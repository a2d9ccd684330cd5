//! The program `gpufile`: a module for each command, and the manners that all of them share. [`run`] runs it.
//!
//! | exit status | meaning |
//! |---|---|
//! | 0 | The command did what it was asked for. For `check`, the fastest route is there. |
//! | 1 | A file, a variable or a GPU cannot be used, or bytes were wrong. |
//! | 2 | The command line is wrong. |
//! | 3, 4 | `check` found a fallback, or no route to a GPU. |
//! | 128 + N | The signal N ended the command: 130 for Ctrl-C. |
//!
//! A command has a struct `Args` and a function `run`. Results go to the standard output. Messages and progress go to the
//! standard error output, which `stderr` writes. A reader who leaves early does not change the exit status.

mod bench;
mod cache;
mod check;
mod compress;
mod cp;
mod cpu;
mod explain;
mod failure;
mod files;
mod findings;
mod interrupt;
mod load;
mod location;
mod ls;
mod model;
mod nvidia_fs;
mod object;
mod pages;
mod progress;
mod prometheus;
mod remote;
mod standard_streams;
mod stderr;
mod table;
mod target;
mod top;
mod units;
mod usage;
mod values;
mod verify;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use failure::Failure;

/// The command line.
#[derive(Parser)]
#[command(
    name = "gpufile",
    version,
    about = "Shows how files reach this machine's GPUs, measures the speed, and copies, loads and verifies files.",
    after_help = usage::ENVIRONMENT,
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(check::Args),
    Bench(Box<bench::Args>),
    Cp(cp::Args),
    Load(load::Args),
    Ls(ls::Args),
    Verify(verify::Args),
    Compress(compress::Compress),
    Decompress(compress::Decompress),
    Cache(cache::Args),
    Top(top::Args),
    Explain(explain::Args),
    Completions(pages::Completions),
    Man(pages::Man),
}

/// Runs the program with its arguments, of which the first is the program's name. Returns its exit status.
///
/// The program writes to the standard outputs of the process. While it runs, it handles Ctrl-C.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    standard_streams::reopen_closed();
    let arguments: Vec<_> = arguments.into_iter().collect();
    stderr::follow(&arguments);
    let _watch = interrupt::watch();
    let outcome = match Cli::try_parse_from(&arguments) {
        Ok(Cli { command: Command::Check(arguments) }) => check::run(&arguments),
        Ok(Cli { command: Command::Bench(arguments) }) => bench::run(&arguments),
        Ok(Cli { command: Command::Cp(arguments) }) => cp::run(&arguments),
        Ok(Cli { command: Command::Load(arguments) }) => load::run(&arguments),
        Ok(Cli { command: Command::Ls(arguments) }) => ls::run(&arguments),
        Ok(Cli { command: Command::Verify(arguments) }) => verify::run(&arguments),
        Ok(Cli { command: Command::Compress(arguments) }) => compress::compress(&arguments),
        Ok(Cli { command: Command::Decompress(arguments) }) => compress::decompress(&arguments),
        Ok(Cli { command: Command::Cache(arguments) }) => cache::run(&arguments),
        Ok(Cli { command: Command::Top(arguments) }) => top::run(&arguments),
        Ok(Cli { command: Command::Explain(arguments) }) => explain::run(&arguments),
        Ok(Cli { command: Command::Completions(arguments) }) => {
            pages::completions(&arguments, Cli::command())
        }
        Ok(Cli { command: Command::Man(arguments) }) => pages::man(&arguments, Cli::command()),
        Err(error) => usage::of_clap(&error, &Cli::command()),
    };
    match outcome {
        Ok(status) => status,
        // The reader of the output has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error @ Failure::Usage(_)) => {
            stderr::end(&error.to_string(), Some(&usage::hint(&arguments, &Cli::command())), 2);
            ExitCode::from(2)
        }
        Err(error) => {
            stderr::end(&error.to_string(), None, 1);
            ExitCode::FAILURE
        }
    }
}
