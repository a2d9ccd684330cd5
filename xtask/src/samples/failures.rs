//! The failure cases: a sample must fail with a message that names the cause, or succeed despite the fault.

use std::fmt;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

use super::LIMIT;
use super::host::Host;
use super::table::{Argument, Case, Sample};
use crate::limited;

#[derive(Default)]
pub struct Failures {
    lines: Vec<String>,
    run: usize,
    pub wrong: usize,
}

enum Row {
    Try(Attempt),
    Not { what: &'static str, reason: &'static str },
}

struct Attempt {
    what: String,
    words: Vec<String>,
    /// The position of the file that is a byte too short.
    short: Option<usize>,
    fault: &'static str,
    /// A part of the message; `None` if the sample must succeed nevertheless.
    cause: Option<String>,
}

impl Failures {
    /// Puts the sample's files into `files`.
    pub fn run(&mut self, host: &Host, sample: &Sample, files: &Path) -> Result<()> {
        let words = host.words(sample.calls[0], files)?;
        for row in rows(host, sample, &words, files)? {
            let (what, result, said) = match &row {
                Row::Try(attempt) => {
                    let (result, said) = self.attempt(host, sample, attempt)?;
                    (attempt.what.as_str(), result, said)
                }
                Row::Not { what, reason } => (*what, "-".to_owned(), (*reason).to_owned()),
            };
            self.lines.push(line(sample.name, what, &result, &said));
        }
        Ok(())
    }

    /// Returns whether the sample ended as it must, and its message.
    fn attempt(&mut self, host: &Host, sample: &Sample, attempt: &Attempt) -> Result<(String, String)> {
        let Attempt { words, short, fault, cause, .. } = attempt;
        let file = short.map(|position| File::options().write(true).open(&words[position])).transpose()?;
        let len_bytes = file.as_ref().map_or(Ok(0), |file| file.metadata().map(|of| of.len()))?;
        if let Some(file) = &file {
            file.set_len(len_bytes - 1)?;
        }
        let run = limited::run(host.command(sample.name, words).env("CUFILE_EMULATOR", fault), LIMIT)?;
        if let Some(file) = &file {
            file.set_len(len_bytes)?;
        }

        let named = cause.as_ref().is_none_or(|cause| run.stderr.contains(cause));
        let result = match run.status.map(|status| status.code()) {
            None => "hangs",
            Some(None) => "is killed by a signal",
            Some(Some(0)) => "succeeds",
            Some(Some(101)) => "panics",
            Some(Some(_)) if !named => "does not name the cause",
            Some(Some(_)) => "fails",
        };
        let right = result == if cause.is_some() { "fails" } else { "succeeds" };
        self.run += 1;
        self.wrong += usize::from(!right);
        let result = if right { result.to_owned() } else { format!("WRONG, {result}") };
        // The line begins with the name already, and the folder adds no information.
        let folder = format!("{}/", host.folder().display());
        let said = run.stderr.trim_end().replace('\n', " | ").replace(&folder, "");
        let said = said.trim_start_matches(sample.name).trim_start_matches(": ");
        Ok((result, said.to_owned()))
    }

    pub fn print(&self) {
        if !self.lines.is_empty() {
            println!("\n{}", line("sample", "failure case", "result", "message"));
            println!("{}\n", self.lines.join("\n"));
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failure cases", self.run)?;
        match self.wrong {
            0 => Ok(()),
            wrong => write!(f, ", {wrong} of them WRONG"),
        }
    }
}

fn line(name: &str, what: &str, result: &str, said: &str) -> String {
    format!("{name:<18} {what:<56} {result:<8} {said}")
}

fn rows(host: &Host, sample: &Sample, words: &[String], files: &Path) -> Result<Vec<Row>> {
    let row = |what: String, cause: String| Attempt {
        what,
        words: words.to_vec(),
        short: None,
        fault: "",
        cause: Some(cause),
    };
    let replaced = |position: usize, word: String, attempt: Attempt| {
        let mut words = words.to_vec();
        words[position] = word;
        Row::Try(Attempt { words, ..attempt })
    };
    let arguments = || sample.calls[0].iter().enumerate();

    let (mut missing, mut short, mut gpu) = (Vec::new(), Vec::new(), Vec::new());
    for (position, argument) in arguments() {
        let place = format!("argument {}", position + 1);
        if let Argument::Gpu(_) = argument {
            let attempt = row(format!("GPU 99: {place}"), "no GPU 99".to_owned());
            gpu.push(replaced(position, "99".to_owned(), attempt));
        }
        let is_input = host.input(*argument).is_some();
        if is_input {
            let attempt = row(format!("too short: {place}"), words[position].clone());
            short.push(Row::Try(Attempt { short: Some(position), ..attempt }));
        }
        let (what, path) = match argument {
            Argument::Output => ("no folder", files.join("no-such-folder/file")),
            _ if is_input => ("no file", files.join("no-such-file")),
            _ => continue,
        };
        let path = path.to_str().context("a path that is not UTF-8")?.to_owned();
        missing.push(replaced(position, path.clone(), row(format!("{what}: {place}"), path)));
    }
    if missing.is_empty() {
        missing.push(Row::Not { what: "no file", reason: "takes none" });
    }
    if short.is_empty() {
        short.push(Row::Not { what: "too short", reason: "makes its files itself, or takes none" });
    }
    let mut rows: Vec<_> = missing.into_iter().chain(short).chain(gpu).collect();

    let takes_gpu = arguments().any(|(_, argument)| matches!(argument, Argument::Gpu(_)));
    let no_gpu = if takes_gpu { Case::Faults(&[]) } else { sample.no_gpu };
    for (what, case) in [
        ("no GPU", no_gpu),
        ("registration", sample.registration),
        ("transfer", sample.transfer),
        ("other", Case::Faults(sample.other)),
    ] {
        let (faults, survives) = match case {
            Case::Faults(faults) => (faults, false),
            Case::Survives(faults) => (faults, true),
            Case::Not(reason) => {
                rows.push(Row::Not { what, reason });
                continue;
            }
        };
        rows.extend(faults.iter().map(|fault| {
            let attempt = row(format!("{what}: {}", fault.trim_start_matches("fault ")), cause(fault));
            let cause = attempt.cause.filter(|_| !survives);
            Row::Try(Attempt { fault, cause, ..attempt })
        }));
    }
    Ok(rows)
}

/// Returns the number of moved bytes, or the failed function.
fn cause(fault: &str) -> String {
    let setting = |key: &str| fault.split_whitespace().find_map(|word| word.strip_prefix(key));
    match setting("short=").or(setting("bytes=")) {
        Some(bytes) => format!("{bytes} of "),
        None if fault == "gpus 0" => "no CUDA device".to_owned(),
        None => {
            let function = fault.split_whitespace().nth(1).unwrap_or_default();
            function.trim_end_matches("_v2").to_owned()
        }
    }
}
