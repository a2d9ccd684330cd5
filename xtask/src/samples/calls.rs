//! The calls of a sample, compared with those of the C program that it retells.
//!
//! `calls/NNN.txt` has the calls that the C program makes, each with its line there. The emulator traces those of the sample.
//! Safe Rust passes the start of an allocation and an offset where C may pass an address within, so both count as an offset. A
//! program that polls a batch does so any number of times, which counts as `n`.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::workspace::workspace;

/// Functions that safe Rust calls where a C program may leave them out: it opens the driver, gives back what it registered,
/// asks for the limits of a batch, and registers each stream.
const OF_RUST: &[&str] = &[
    "cuFileDriverOpen",
    "cuFileDriverClose",
    "cuFileDriverGetProperties",
    "cuFileBufDeregister",
    "cuFileHandleDeregister",
    "cuFileStreamRegister",
    "cuFileStreamDeregister",
];

/// The calls of a C program, and the arguments that it had.
pub struct Table {
    pub arguments: Vec<String>,
    threads: Vec<Vec<String>>,
}

impl Table {
    /// Returns the table for a sample; `None` if there is none.
    pub fn of(sample: &str) -> Result<Option<Self>> {
        let Some(number) = sample.strip_prefix("sample_").and_then(|rest| rest.get(..3)) else {
            return Ok(None);
        };
        let path = workspace().join(format!("xtask/src/samples/calls/{number}.txt"));
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path)?;
        let (head, calls) = text.split_once('\n').context("an empty table")?;
        let arguments = head.split_whitespace().skip(1).map(ToOwned::to_owned).collect();
        let mut threads = Vec::new();
        for thread in calls.split("\n\n") {
            let calls = thread.lines().map(|line| {
                let (_, call) =
                    line.trim_start().split_once(' ').with_context(|| format!("{path:?}: {line:?}"))?;
                Ok(call.to_owned())
            });
            threads.push(calls.collect::<Result<Vec<_>>>()?);
        }
        threads.sort();
        Ok(Some(Self { arguments, threads }))
    }

    /// Compares the calls in a trace with these.
    ///
    /// # Errors
    /// The first call that differs.
    pub fn compare(&self, trace: &Path) -> Result<()> {
        let left_out: Vec<_> = OF_RUST.iter().filter(|function| !self.calls(function)).collect();
        let mut traced: Vec<(&str, Vec<&str>)> = Vec::new();
        let text = fs::read_to_string(trace).with_context(|| trace.display().to_string())?;
        for line in text.lines() {
            let (thread, call) = line.split_once(' ').context("a trace of another form")?;
            if left_out.iter().any(|function| call.split(' ').next() == Some(**function)) {
                continue;
            }
            match traced.iter_mut().find(|(name, _)| *name == thread) {
                Some((_, calls)) => calls.push(call.trim_end()),
                None => traced.push((thread, vec![call.trim_end()])),
            }
        }
        let mut traced: Vec<_> =
            traced.into_iter().map(|(_, calls)| compressed(&renumbered(&calls))).collect();
        traced.sort();
        for (found, expected) in traced.iter().zip(&self.threads) {
            let pairs = found.iter().map(Some).chain([None]).zip(expected.iter().map(Some).chain([None]));
            for (found, expected) in pairs {
                ensure!(
                    found == expected,
                    "calls {:?} where C has {:?}",
                    found.map_or("nothing", String::as_str),
                    expected.map_or("nothing", String::as_str)
                );
            }
        }
        ensure!(
            traced.len() == self.threads.len(),
            "{} threads make calls, and in C {} do",
            traced.len(),
            self.threads.len()
        );
        Ok(())
    }

    fn calls(&self, function: &str) -> bool {
        self.threads.iter().flatten().any(|call| call.split(' ').any(|word| word == function))
    }
}

/// Numbers files, memory and the rest anew by their first use in a thread, because threads run in any order.
fn renumbered(calls: &[&str]) -> Vec<String> {
    let mut numbers: HashMap<String, String> = HashMap::new();
    let mut used: HashMap<&str, usize> = HashMap::new();
    let mut renumber = |word: &str| {
        let kind = ["file", "memory", "host", "stream", "batch"].into_iter().find(|kind| {
            word.strip_prefix(kind).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
        let Some(kind) = kind else { return word.to_owned() };
        let (name, distance) = word.split_once('+').unwrap_or((word, ""));
        let number = numbers.entry(name.to_owned()).or_insert_with(|| {
            let used = used.entry(kind).or_default();
            *used += 1;
            format!("{kind}{used}")
        });
        if distance.is_empty() { number.clone() } else { format!("{number}+{distance}") }
    };
    calls
        .iter()
        .map(|call| call.split(' ').map(&mut renumber).collect::<Vec<_>>().join(" "))
        .map(from_start)
        .collect()
}

/// Returns a transfer with the offset from the start of its allocation.
fn from_start(call: String) -> String {
    let Some((before, buffer_offset)) = call.split_once(" buffer_offset=") else { return call };
    let (offset, after) = buffer_offset.split_once(' ').unwrap_or((buffer_offset, ""));
    let is_within = |word: &&str| word.starts_with("memory") && word.contains('+');
    let Some(word) = before.split(' ').find(is_within) else { return call };
    let (memory, distance) = word.split_once('+').unwrap_or((word, "0"));
    let sum = distance.parse::<i64>().unwrap_or(0) + offset.parse::<i64>().unwrap_or(0);
    format!("{} buffer_offset={sum} {after}", before.replacen(word, memory, 1)).trim_end().to_owned()
}

/// Writes three or more calls that follow each other, and whose numbers grow by the same steps, as one: `4 x file1(+1)`.
fn compressed(calls: &[String]) -> Vec<String> {
    let mut short = Vec::new();
    let mut left = calls;
    while let [first, rest @ ..] = left {
        let (text, numbers) = parts(first);
        let mut run = 1;
        let mut steps: Option<Vec<i64>> = None;
        let mut before = numbers.clone();
        for next in rest {
            let (other, next) = parts(next);
            let step: Vec<i64> = next.iter().zip(&before).map(|(next, before)| next - before).collect();
            if other != text || steps.as_ref().is_some_and(|steps| *steps != step) {
                break;
            }
            steps = Some(step);
            before = next;
            run += 1;
        }
        match steps {
            Some(steps) if run >= 3 => {
                let polls = first.starts_with("cuFileBatchIOGetStatus");
                let mut call = if polls { "n x ".to_owned() } else { format!("{run} x ") };
                for (index, text) in text.iter().enumerate() {
                    call.push_str(text);
                    if let (Some(number), Some(step)) = (numbers.get(index), steps.get(index)) {
                        call.push_str(&number.to_string());
                        if *step != 0 {
                            call.push_str(&format!("({step:+})"));
                        }
                    }
                }
                short.push(call);
                left = &left[run..];
            }
            _ => {
                short.push(first.clone());
                left = rest;
            }
        }
    }
    short
}

/// Returns the text between the numbers of a call, and the numbers.
fn parts(call: &str) -> (Vec<&str>, Vec<i64>) {
    let (mut text, mut numbers) = (Vec::new(), Vec::new());
    let mut left = call;
    while let Some(start) = left.find(|c: char| c.is_ascii_digit()) {
        let digits = &left[start..];
        let len = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        text.push(&left[..start]);
        numbers.push(digits[..len].parse().unwrap_or(i64::MAX));
        left = &digits[len..];
    }
    text.push(left);
    (text, numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(calls: &[&str]) -> Vec<String> {
        compressed(&renumbered(calls))
    }

    #[test]
    fn calls_with_equal_steps_are_written_as_one() {
        let read = |at: usize| format!("cuFileRead file3 memory7+{at} size=10 file_offset={at}");
        let calls: Vec<_> = [0, 10, 20, 30, 45].map(read).into();
        let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
        assert_eq!(
            short(&calls),
            [
                "4 x cuFileRead file1 memory1+0(+10) size=10 file_offset=0(+10)",
                "cuFileRead file1 memory1+45 size=10 file_offset=45"
            ]
        );
        assert_eq!(
            short(&calls[..2]),
            [
                "cuFileRead file1 memory1+0 size=10 file_offset=0",
                "cuFileRead file1 memory1+10 size=10 file_offset=10"
            ]
        );
    }

    #[test]
    fn each_change_of_a_trace_is_noticed() {
        let table = Table {
            arguments: Vec::new(),
            threads: vec![vec![
                "cuFileHandleRegister file1 O_RDWR".to_owned(),
                "cuFileRead file1 memory1 size=1".to_owned(),
            ]],
        };
        let folder = tempfile::tempdir().unwrap();
        let compare = |text: &str| {
            let path = folder.path().join("trace");
            fs::write(&path, text).unwrap();
            table.compare(&path).map_err(|error| error.to_string())
        };
        let right = "5 cuFileDriverOpen \n5 cuFileHandleRegister file4 O_RDWR\n5 cuFileRead file4 memory2 size=1\n5 cuFileDriverClose \n";
        assert_eq!(compare(right), Ok(()));
        for (from, to) in [
            ("size=1", "size=2"),
            ("O_RDWR", "O_RDONLY"),
            ("5 cuFileRead file4", "5 cuFileRead file5"),
            ("5 cuFileRead", "6 cuFileRead"),
            ("5 cuFileRead file4 memory2 size=1\n", ""),
            ("5 cuFileDriverClose", "5 cuFileUseCount \n5 cuFileDriverClose"),
        ] {
            compare(&right.replace(from, to)).unwrap_err();
        }
    }
}
