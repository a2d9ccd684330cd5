//! `gpufile completions` and `gpufile man`, made from the definitions of the arguments.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use super::failure::Failure;

/// Prints completions for a shell.
#[derive(clap::Args)]
#[command(after_help = "Example:
  gpufile completions bash > ~/.local/share/bash-completion/completions/gpufile")]
pub struct Completions {
    /// The shell.
    shell: Shell,
}

/// Prints the manual page of the program or of one command.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  gpufile man > ~/.local/share/man/man1/gpufile.1
  gpufile man bench | man -l -")]
pub struct Man {
    /// The command [default: the program itself].
    command: Option<String>,
}

/// Prints the completions.
pub fn completions(arguments: &Completions, mut program: Command) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "gpufile", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the manual page.
pub fn man(arguments: &Man, mut program: Command) -> Result<ExitCode, Failure> {
    // Gives each command its full name.
    program.build();
    let command = match &arguments.command {
        None => program,
        Some(name) => program
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| Failure::Usage(format!("there is no command {name:?}")))?,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
