//! `gpufile completions` and `gpufile man`, made from the definitions of the arguments.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::failure::Failure;
use super::values::Words;

const COMMANDS: [&str; 13] = [
    "check",
    "bench",
    "cp",
    "load",
    "ls",
    "verify",
    "compress",
    "decompress",
    "cache",
    "top",
    "explain",
    "completions",
    "man",
];

/// Prints completions for a shell.
#[derive(clap::Args)]
#[command(after_help = "Example:
  gpufile completions bash > ~/.local/share/bash-completion/completions/gpufile")]
pub struct Completions {
    /// The shell.
    shell: ServerShell,
}

/// The shells of Linux servers.
#[derive(Clone, Copy, clap::ValueEnum)]
enum ServerShell {
    Bash,
    Fish,
    Zsh,
}

/// Prints the manual page of the program or of one command.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  gpufile man > ~/.local/share/man/man1/gpufile.1
  gpufile man bench | man -l -")]
pub struct Man {
    /// The command [default: the program itself].
    #[arg(hide_possible_values = true, value_parser = Words::new(COMMANDS, |name| Ok(name.to_owned())))]
    command: Option<String>,
}

pub fn completions(arguments: &Completions, mut program: Command) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    let shell = match arguments.shell {
        ServerShell::Bash => Shell::Bash,
        ServerShell::Fish => Shell::Fish,
        ServerShell::Zsh => Shell::Zsh,
    };
    clap_complete::generate(shell, &mut program, "gpufile", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub fn man(arguments: &Man, program: Command) -> Result<ExitCode, Failure> {
    let mut program = program.disable_help_subcommand(true);
    // Gives each command its full name.
    program.build();
    let command = match &arguments.command {
        None => &program,
        Some(name) => program
            .find_subcommand(name)
            .ok_or_else(|| Failure::Usage(format!("there is no command {name:?}")))?,
    };
    io::stdout().write_all(&page(command, &program)?)?;
    Ok(ExitCode::SUCCESS)
}

fn page(command: &Command, program: &Command) -> io::Result<Vec<u8>> {
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    let mut rest = Roff::default();
    rest.control("SH", ["SYNOPSIS"]).text(synopsis(command));
    rest.to_writer(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::default();
    for (title, lines) in notes(&command.get_after_help().map(ToString::to_string).unwrap_or_default()) {
        rest.control("SH", [title.as_str()]).control("nf", []).text([roman(lines)]).control("fi", []);
    }
    rest.control("SH", ["SEE ALSO"]).text(see_also(command, program));
    rest.to_writer(&mut text)?;
    Ok(text)
}

fn synopsis(command: &Command) -> Vec<Inline> {
    let mut line = vec![bold(command.get_bin_name().unwrap_or(command.get_name()))];
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let values = argument.get_num_args().is_some_and(|count| count.takes_values());
        let names = argument.get_value_names().unwrap_or_default();
        let value = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
        let option = match (argument.get_short(), argument.get_long()) {
            (Some(short), _) => format!("-{short}"),
            (None, Some(long)) => format!("--{long}"),
            (None, None) => String::new(),
        };
        let (before, after) = if argument.is_required_set() { (" ", "") } else { (" [", "]") };
        line.push(roman(before));
        line.push(bold(&option));
        if values {
            line.push(roman(if option.is_empty() { "" } else { " " }));
            line.push(italic(value));
        }
        line.push(roman(after));
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("COMMAND")]);
    }
    line
}

/// Splits the text at the end of the help: what follows `Examples:` or `Environment:`, and the rest.
fn notes(text: &str) -> Vec<(String, String)> {
    let mut sections: Vec<(String, String)> = Vec::new();
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        let (title, lines) = match paragraph.split_once(":\n") {
            Some((title, lines)) if !title.contains(' ') => (title.to_uppercase(), lines),
            _ => ("NOTES".to_owned(), paragraph),
        };
        match sections.last_mut().filter(|(last, _)| *last == title) {
            Some((_, before)) => *before += &format!("\n\n{lines}"),
            None => sections.push((title, lines.to_owned())),
        }
    }
    sections
}

fn see_also(command: &Command, program: &Command) -> Vec<Inline> {
    let names = program.get_subcommands().map(|other| format!("gpufile-{}", other.get_name()));
    let own = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let pages = std::iter::once("gpufile".to_owned()).chain(names).filter(|name| *name != own);
    let mut line = Vec::new();
    for name in pages {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(&name), roman("(1)")]);
    }
    line
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn manual_pages_name_values_and_other_pages() {
        let mut program = crate::Cli::command().disable_help_subcommand(true);
        program.build();
        for command in program.get_subcommands().chain([&program]) {
            let text = String::from_utf8(page(command, &program).unwrap()).unwrap();
            let (_, also) = text.split_once(".SH \"SEE ALSO\"\n").unwrap_or_else(|| panic!("{text}"));
            let others = program.get_subcommands().count();
            assert_eq!(also.matches("(1)").count(), others, "{also}");
            // The first line of a paragraph in `.nf` would be a request of roff.
            assert!(!text.contains("\n.gpufile") && text.contains(".SH SYNOPSIS\n\\fBgpufile"), "{text}");
            let long = command
                .get_arguments()
                .filter(|argument| !argument.is_hide_set())
                .filter(|argument| argument.get_num_args().is_some_and(|n| n.takes_values()));
            for argument in long {
                let name = argument.get_value_names().unwrap()[0].as_str();
                let shown = name.replace('-', "\\-");
                assert!(
                    text.split(".SH DESCRIPTION").next().unwrap().contains(&format!("\\fI{shown}\\fR")),
                    "{name}: {text}"
                );
            }
        }
    }

    #[test]
    fn completions_list_commands_cases_and_words() {
        let names: Vec<_> =
            crate::Cli::command().get_subcommands().map(|it| it.get_name().to_owned()).collect();
        assert_eq!(names, COMMANDS);
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut crate::Cli::command(), "gpufile", &mut text);
            let text = String::from_utf8(text).unwrap();
            // clap_complete gives fish no values of arguments without an option.
            let words = ["randwrite", "always", "first-byte", "scatter-4k"];
            for word in &words[..if shell == Shell::Fish { 2 } else { 4 }] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn ends_of_helps_become_sections() {
        let found = notes("Examples:\n  one\n  two\n\nA note.\n\nMore of it:\n  x");
        let expected = [("EXAMPLES", "  one\n  two"), ("NOTES", "A note.\n\nMore of it:\n  x")];
        assert_eq!(found, expected.map(|(title, lines)| (title.to_owned(), lines.to_owned())));
    }
}
