//! `gpufile explain`: what a code or a message means, what usually causes it, what to do, and the check that proves it.
//!
//! docs/troubleshooting.md has all of it. [`page`] parses it; [`find`] and [`log`] recognise its subjects in a text and in a
//! log.

mod code;
mod find;
mod log;
mod page;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use self::code::Code;
use self::find::Subject;
use self::log::Finding;
use self::page::{Entry, PAGE};
use super::failure::Failure;
use super::findings::Page;
use super::table::{bold, print, print_json};

/// Explains a code, a message or a log: what it means, its usual cause, what to do, and what proves it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile explain 5001
  gpufile explain -5                 the byte count of a stream-ordered transfer
  gpufile explain CUDA_ERROR_SYSTEM_NOT_READY
  gpufile explain 'ERROR cufio-fs:199 NVMe Driver not registered with nvidia-fs!!!'
  gpufile explain no-udev-record     a word of `check --json` and `check --prometheus`
  gpufile explain cufile.log         a log: each finding once, with its first line
  dmesg | gpufile explain -

Numbers are codes of cuFile, of CUDA, or of the operating system.
The exit status is 1 if nothing is known about any of it.")]
pub struct Args {
    /// A number, a name, a line, or a log's file; `-` reads the standard input.
    #[arg(required_unless_present = "all", allow_hyphen_values = true, value_name = "CODE|NAME|LINE|FILE")]
    what: Vec<String>,
    /// Prints everything that is known, as a page in Markdown.
    #[arg(long, exclusive = true)]
    all: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Returns the remedy for a code of cuFile, positive or negative.
pub fn remedy_of_cufile(code: i32) -> Option<&'static str> {
    PAGE.of_code(Code::CuFile(code.unsigned_abs())).map(|entry| entry.remedy)
}

/// Returns the remedy for a code of the CUDA driver or runtime.
pub fn remedy_of_cuda(code: u32) -> Option<&'static str> {
    PAGE.of_code(Code::Cuda(code)).map(|entry| entry.remedy)
}

pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    if arguments.all {
        print(page::TEXT)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let [log] = &*arguments.what
        && (log == "-" || Path::new(log).is_file())
    {
        let findings = match log.as_str() {
            "-" => log::read(io::stdin().lock()),
            path => File::open(path).and_then(|file| log::read(BufReader::new(file))),
        };
        let findings = findings.map_err(|error| Failure::Other(format!("cannot read {log:?}: {error}")))?;
        let blocks = findings.iter().map(|found| (found.subject, Some(found)));
        return answer(arguments, &blocks.collect::<Vec<_>>(), "nothing is known about any of these lines");
    }
    // Words of one message need no quotes.
    let text = arguments.what.join(" ");
    let blocks: Vec<_> = find::in_text(&text).into_iter().map(|subject| (subject, None)).collect();
    let unknown = format!("nothing is known about {text:?}; `gpufile check --try PATH` may show the cause");
    answer(arguments, &blocks, &unknown)
}

fn answer(
    arguments: &Args,
    blocks: &[(Subject, Option<&Finding>)],
    unknown: &str,
) -> Result<ExitCode, Failure> {
    if arguments.json {
        print_json(&blocks.iter().map(|(subject, found)| to_json(*subject, *found)).collect())?;
    } else {
        let blocks: Vec<String> = blocks.iter().map(|(subject, found)| block(*subject, *found)).collect();
        print(&blocks.join("\n"))?;
    }
    match blocks.is_empty() {
        false => Ok(ExitCode::SUCCESS),
        true => Err(Failure::Other(unknown.to_owned())),
    }
}

fn block(subject: Subject, found: Option<&Finding>) -> String {
    let mut page = Page::default();
    if let Some(Finding { count, line, text, .. }) = found {
        let lines = if *count == 1 { "line" } else { "lines, first" };
        let count = if *count == 1 { String::new() } else { format!("{count} ") };
        page.line("seen", &format!("{count}{lines} {line}: {text}"));
    }
    page.line("meaning", &subject.meaning());
    if let Some(Entry { cause, remedy, proof, .. }) = subject.entry() {
        for (name, text) in [("cause", cause), ("what to do", remedy), ("proof", proof)] {
            page.line(name, text);
        }
    }
    format!("{}\n{}", bold(&subject.title()), page.text)
}

fn to_json(subject: Subject, found: Option<&Finding>) -> serde_json::Value {
    let entry = subject.entry();
    let mut answer = json!({
        "title": subject.title(),
        "meaning": subject.meaning(),
        "cause": entry.map(|entry| entry.cause),
        "remedy": entry.map(|entry| entry.remedy),
        "proof": entry.map(|entry| entry.proof),
    });
    if let Some(Finding { count, line, text, .. }) = found {
        answer["count"] = json!(count);
        answer["line"] = json!(line);
        answer["text"] = json!(text);
    }
    answer
}
