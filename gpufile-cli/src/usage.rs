//! Mistakes in the command line, and help.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Command;
use clap::error::ErrorKind;

use super::failure::Failure;
use super::location::Location;

pub const ENVIRONMENT: &str = "\
Environment:
  GPUFILE_NUM_THREADS and others set defaults; `gpufile check` shows those that are set
  NO_COLOR                       turns colours off

Exit status: 0 done, 1 failed, 2 wrong command line, 130 ended by Ctrl-C.
`check` also ends with 3 for a fallback and 4 for no route to a GPU.";

/// Prints help, or returns the mistake in one line.
pub fn of_clap(error: &clap::Error, program: &Command) -> Result<ExitCode, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            write!(io::stdout(), "{}", error.render())?;
            Ok(ExitCode::SUCCESS)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let names: Vec<_> = program.get_subcommands().map(|command| command.get_name()).collect();
            Err(Failure::Usage(format!("no command given: choose {}", names.join(", "))))
        }
        _ => Err(Failure::Usage(one_line(&error.render().to_string()))),
    }
}

fn one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let end = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|rest| text.find(rest)).min();
    let paragraphs = text[..end.unwrap_or(text.len())].split("\n\n");
    // Such a tip is for values that begin with a dash.
    let useful = paragraphs.filter(|paragraph| !paragraph.trim_start().starts_with("tip: to pass"));
    let lines = useful.map(|paragraph| paragraph.split_whitespace().map(shown).collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}

/// Removes from a quoted URL what may be secret.
fn shown(word: &str) -> String {
    if let Some((before, rest)) = word.split_once('\'')
        && let Some((url, after)) = rest.rsplit_once('\'')
        && Location::from(OsString::from(url)).path().is_none()
    {
        return format!("{before}'{}'{after}", gpufile::remote::without_secrets(url));
    }
    word.to_owned()
}

pub fn hint(arguments: &[OsString], program: &Command) -> String {
    let named = arguments.iter().skip(1).find_map(|argument| program.find_subcommand(argument));
    match named {
        Some(command) => format!("`gpufile {} --help` has an example.", command.get_name()),
        None => "`gpufile --help` lists the commands.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::Cli;

    fn mistake(arguments: &[&str]) -> String {
        let arguments = [&["gpufile"], arguments].concat();
        let Err(error) = Cli::try_parse_from(arguments) else { panic!("no mistake") };
        of_clap(&error, &Cli::command()).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_are_one_line_without_usage() {
        assert_eq!(mistake(&["bench", "a", "--fast"]), "unexpected argument '--fast' found");
        assert!(mistake(&[]).starts_with("no command given: choose check, bench, "));
        assert_eq!(
            mistake(&["bench", "a", "--repeat", "1"]),
            "unexpected argument '--repeat' found; tip: a similar argument exists: '--repeats'"
        );
        assert_eq!(
            mistake(&["bench", "a", "--repeats", "0"]),
            "invalid value '0' for '--repeats <N>': 0 is not in 1..=100"
        );
        assert!(mistake(&["frobnicate"]).starts_with("unrecognized subcommand 'frobnicate'"));
    }

    #[test]
    fn mistakes_show_no_secrets_of_urls() {
        let text = mistake(&["ls", "a", "https://me:secret@example.org/b?secret"]);
        assert_eq!(text, "unexpected argument 'https://example.org/b' found");
        let text = mistake(&["bench", "a", "s3://me:secret@bucket/b"]);
        assert!(text.starts_with("invalid value 's3://bucket/b' for '[CASE]...': "), "{text}");
    }

    #[test]
    fn help_of_each_command_fits_a_screen() {
        let commands = Cli::command();
        for command in commands.get_subcommands() {
            let Err(help) = Cli::try_parse_from(["gpufile", command.get_name(), "--help"]) else { panic!() };
            let help = help.render().to_string();
            assert!(help.lines().count() <= 50, "{help}");
            assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
            assert!(help.contains("Example"), "{help}");
        }
    }

    #[test]
    fn definitions_of_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
