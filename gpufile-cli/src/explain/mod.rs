//! `gpufile explain`: what a code or a message means, what usually causes it, what to do, and the check that proves it.
//!
//! Each table is a file: [`cufile_codes`], [`cuda_codes`], [`errnos`], [`messages`] of gpufile, [`causes`] of `gpufile check`,
//! and [`troubles`] by what the user saw. Their texts are clauses without a full stop. [`find`] recognises them in a text, and [`page`] makes
//! docs/troubleshooting.md from them.

mod causes;
mod code;
mod cuda_codes;
mod cufile_codes;
mod errnos;
mod find;
mod messages;
mod page;
mod phrases;
#[cfg(test)]
mod tests;
mod troubles;

use std::io;
use std::process::ExitCode;

use serde_json::json;

use self::find::Answer;
use super::failure::Failure;
use super::findings::Page;
use super::table::{bold, print, print_json};

/// Explains a code or a message: what it means, its usual cause, what to do, and what proves it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile explain 5001
  gpufile explain -5                 the byte count of a stream-ordered transfer
  gpufile explain CUDA_ERROR_SYSTEM_NOT_READY
  gpufile explain 'ERROR cufio-fs:199 NVMe Driver not registered with nvidia-fs!!!'
  gpufile explain no-udev-record     a word of `check --json` and `check --prometheus`
  gpufile explain - < cufile.log     each line from the standard input

Numbers are codes of cuFile, of CUDA, or of the operating system.
The exit status is 1 if nothing is known about any of it.")]
pub struct Args {
    /// A number, a name or a line; `-` reads lines from the standard input.
    #[arg(required_unless_present = "all", allow_hyphen_values = true, value_name = "CODE|NAME|LINE")]
    what: Vec<String>,
    /// Prints everything that is known, as a page in Markdown.
    #[arg(long, exclusive = true)]
    all: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// The knowledge about a code or a message.
#[derive(Debug, PartialEq)]
pub struct Entry {
    /// The meaning.
    pub meaning: &'static str,
    /// The usual cause.
    pub cause: &'static str,
    /// The remedy.
    pub remedy: &'static str,
    /// The check that proves the cause.
    pub proof: &'static str,
}

const CHECK: &str = "`gpufile check PATH` names the cause";
const TRY: &str = "`gpufile check --try PATH` writes and reads 1 MiB, and shows what was counted";
const LOG: &str = "libcufile's log has the reason: cufile.log in the working directory, or where CUFILE_LOGFILE_PATH says; \
                   CUFILE_LOGGING_LEVEL=TRACE makes it long";
const KERNEL_LOG: &str = "`dmesg | grep nvidia-fs` shows the module's messages";
const SMI: &str = "`nvidia-smi` fails in the same way";

/// Returns what is known about a code of cuFile, positive or negative.
pub fn of_cufile(code: i32) -> Option<&'static Entry> {
    cufile_codes::of(code)
}

/// Returns what is known about a code of the CUDA driver or runtime.
pub fn of_cuda(code: u32) -> Option<&'static Entry> {
    cuda_codes::of(code)
}

/// Prints what is known.
pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    if arguments.all {
        print(&page::page())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut answers: Vec<Answer> = Vec::new();
    let from_input = arguments.what == ["-"];
    // Words of one message need no quotes.
    let texts = if from_input {
        io::stdin().lines().collect::<io::Result<_>>()?
    } else {
        vec![arguments.what.join(" ")]
    };
    for text in &texts {
        for answer in find::all(text) {
            if !answers.contains(&answer) {
                answers.push(answer);
            }
        }
    }
    if arguments.json {
        print_json(&answers.iter().map(to_json).collect())?;
    } else {
        let blocks: Vec<String> = answers.iter().map(block).collect();
        print(&blocks.join("\n"))?;
    }
    match (answers.is_empty(), from_input) {
        (false, _) => Ok(ExitCode::SUCCESS),
        (true, true) => Err(Failure::Other("nothing is known about any of these lines".to_owned())),
        (true, false) => Err(Failure::Other(format!(
            "nothing is known about {:?}; `gpufile check --try PATH` may show the cause",
            texts[0]
        ))),
    }
}

/// Returns an answer as lines.
fn block(answer: &Answer) -> String {
    let Entry { meaning, cause, remedy, proof } = answer.entry;
    let mut page = Page::default();
    for (name, text) in [("meaning", meaning), ("cause", cause), ("what to do", remedy), ("proof", proof)] {
        page.line(name, text);
    }
    format!("{}\n{}", bold(&answer.title), page.text)
}

fn to_json(answer: &Answer) -> serde_json::Value {
    let Entry { meaning, cause, remedy, proof } = answer.entry;
    json!({ "title": answer.title, "meaning": meaning, "cause": cause, "remedy": remedy, "proof": proof })
}

/// Returns whether a text fits a pattern, in which `*` stands for any text. The pattern may end before the text does.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}
