//! The program `gpufile`. It reports this machine's routes between files and GPUs, measures them, and moves files.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpufile_cli::run(std::env::args_os())
}
