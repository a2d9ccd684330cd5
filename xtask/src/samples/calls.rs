//! The calls of a sample, compared with those of the C program that it retells.
//!
//! `calls/NNN.txt` has the calls that the C program makes, each with its line there, in a paragraph for each thread or for several
//! equal ones (`63 threads:`). The emulator traces those of the sample. Where they differ, the second line says why (`differs:`).
//! A line `emulator:` has commands for the run of the sample.
//! A call with `-` is only in C, and one with `+` only in the sample. Safe Rust passes the start of an allocation and an offset
//! where C may pass an address within, so both count as an offset. A program that polls a batch does so any number of times, which
//! counts as `n`.

use std::collections::{HashMap, HashSet};
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

/// The calls of a C program, and its arguments.
pub struct Table {
    pub source: String,
    pub arguments: Vec<String>,
    /// The reason why the sample makes other calls.
    pub differs: Option<String>,
    /// Commands to the emulator.
    pub commands: Option<String>,
    threads: Vec<Vec<String>>,
    threads_of_c: Vec<Vec<String>>,
    of_c: HashSet<String>,
}

impl Table {
    /// Returns `None` for a sample without a table.
    pub fn of(sample: &str) -> Result<Option<Self>> {
        let Some(number) = sample.strip_prefix("sample_").and_then(|rest| rest.get(..3)) else {
            return Ok(None);
        };
        let path = workspace().join(format!("xtask/src/samples/calls/{number}.txt"));
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path)?;
        Self::parse(&text).with_context(|| path.display().to_string()).map(Some)
    }

    fn parse(text: &str) -> Result<Self> {
        let (head, calls) = text.split_once('\n').context("an empty table")?;
        let mut words = head.split_whitespace().map(ToOwned::to_owned);
        let source = words.next().context("no name of a C program")?;
        let arguments = words.collect();
        let (differs, calls) = headed("differs: ", calls)?;
        let (commands, calls) = headed("emulator: ", calls)?;
        let (mut threads, mut threads_of_c, mut of_c) = (Vec::new(), Vec::new(), HashSet::new());
        for paragraph in calls.split("\n\n") {
            let counted = paragraph.split_once(" threads:\n");
            let (times, paragraph) = counted.map_or(Ok((1, paragraph)), |(times, paragraph)| {
                times.trim().parse().map(|times| (times, paragraph))
            })?;
            let (mut thread, mut thread_of_c) = (Vec::new(), Vec::new());
            for line in paragraph.lines() {
                let (place, call) = line.trim_start().split_once(' ').context(line.to_owned())?;
                let only_in_c = call.strip_prefix("- ");
                if place != "+" {
                    place.parse::<u32>().context(line.to_owned())?;
                    let call = only_in_c.unwrap_or(call);
                    let words = call.split(' ');
                    of_c.extend(words.filter(|word| word.starts_with("cuFile")).map(ToOwned::to_owned));
                    thread_of_c.push(call.to_owned());
                }
                if only_in_c.is_none() {
                    thread.push(call.to_owned());
                }
            }
            // Calls that are only in C may have kept equal ones apart.
            threads.extend(std::iter::repeat_n(compressed(&thread), times));
            threads_of_c.extend(std::iter::repeat_n(compressed(&thread_of_c), times));
        }
        let has_marks = calls.lines().any(|line| line.trim_start().starts_with('+') || line.contains(" - "));
        ensure!(has_marks <= differs.is_some(), "calls that differ, without a line that says why");
        threads.sort();
        threads_of_c.sort();
        Ok(Self { source, arguments, differs, commands, threads, threads_of_c, of_c })
    }

    /// Returns the first call of the sample's trace that differs.
    pub fn compare(&self, trace: &Path) -> Result<()> {
        self.compare_threads(&self.threads, trace)
    }

    /// Does the same for the C program's trace.
    pub fn compare_c(&self, trace: &Path) -> Result<()> {
        self.compare_threads(&self.threads_of_c, trace)
    }

    fn compare_threads(&self, threads: &[Vec<String>], trace: &Path) -> Result<()> {
        let left_out: Vec<_> = OF_RUST.iter().filter(|function| !self.of_c.contains(**function)).collect();
        let mut traced: Vec<(&str, Vec<&str>)> = Vec::new();
        let text = fs::read_to_string(trace).with_context(|| trace.display().to_string())?;
        for line in text.lines() {
            let (thread, call) = line.split_once(' ').context("a trace of another form")?;
            // A stream that the C program does not register has no flags in Rust.
            let has_flags =
                call.starts_with("cuFileStreamRegister ") && !call.trim_end().ends_with(" flags=0");
            if !has_flags && left_out.iter().any(|function| call.split(' ').next() == Some(**function)) {
                continue;
            }
            match traced.iter_mut().find(|(name, _)| *name == thread) {
                Some((_, calls)) => calls.push(call.trim_end()),
                None => traced.push((thread, vec![call.trim_end()])),
            }
        }
        let mut traced: Vec<_> =
            traced.into_iter().map(|(_, calls)| compressed(&equal_polls(renumbered(&calls)))).collect();
        traced.sort();
        for (found, expected) in traced.iter().zip(threads) {
            let pairs = found.iter().map(Some).chain([None]).zip(expected.iter().map(Some).chain([None]));
            for (found, expected) in pairs {
                ensure!(
                    found == expected,
                    "calls {:?} where the table has {:?}",
                    found.map_or("nothing", String::as_str),
                    expected.map_or("nothing", String::as_str)
                );
            }
        }
        ensure!(
            traced.len() == threads.len(),
            "{} threads make calls, and in the table {} do",
            traced.len(),
            threads.len()
        );
        Ok(())
    }
}

fn headed<'a>(word: &str, lines: &'a str) -> Result<(Option<String>, &'a str)> {
    let Some(rest) = lines.strip_prefix(word) else { return Ok((None, lines)) };
    let (head, lines) = rest.split_once('\n').context("no calls")?;
    Ok((Some(head.to_owned()), lines))
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

/// Returns the calls, where each poll of a batch asks for as many entries as the one before: safe Rust asks for at most those
/// that are in flight.
fn equal_polls(mut calls: Vec<String>) -> Vec<String> {
    let nr = |call: &str| call.split(' ').find_map(|word| word.strip_prefix("nr=")?.parse::<u32>().ok());
    let without_nr =
        |call: &str| call.split(' ').filter(|word| !word.starts_with("nr=")).collect::<Vec<_>>().join(" ");
    for at in 1..calls.len() {
        let (before, call) = (&calls[at - 1], &calls[at]);
        let is_poll = call.starts_with("cuFileBatchIOGetStatus");
        if is_poll && nr(call) < nr(before) && without_nr(call) == without_nr(before) {
            calls[at] = before.clone();
        }
    }
    calls
}

/// Takes the offset from the start of the allocation.
fn from_start(call: String) -> String {
    let Some((before, buffer_offset)) = call.split_once(" buffer_offset=") else { return call };
    let (offset, after) = buffer_offset.split_once(' ').unwrap_or((buffer_offset, ""));
    let is_within = |word: &&str| word.starts_with("memory") && word.contains('+');
    let Some(word) = before.split(' ').find(is_within) else { return call };
    let (memory, distance) = word.split_once('+').unwrap_or((word, "0"));
    let sum = distance.parse::<i64>().unwrap_or(0) + offset.parse::<i64>().unwrap_or(0);
    format!("{} buffer_offset={sum} {after}", before.replacen(word, memory, 1)).trim_end().to_owned()
}

/// Writes three or more calls whose numbers grow by the same steps as one: `4 x file1(+1)`. Does the same with such lines: `64 x
/// 4 x file1[+1]`.
fn compressed(calls: &[String]) -> Vec<String> {
    runs(&runs(calls, ['(', ')']), ['[', ']'])
}

fn runs(calls: &[String], [open, close]: [char; 2]) -> Vec<String> {
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
                            call.push_str(&format!("{open}{step:+}{close}"));
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
    fn polls_that_ask_for_what_is_left_are_equal() {
        let poll = |nr: u32| format!("cuFileBatchIOGetStatus batch1 min_nr=0 nr={nr} timeout=none");
        let polls = equal_polls([16, 16, 15, 3, 17].map(poll).into());
        assert_eq!(polls, [16, 16, 16, 16, 17].map(poll));
        let other = "cuFileBatchIOGetStatus batch2 min_nr=0 nr=1 timeout=none".to_owned();
        assert_eq!(equal_polls(vec![poll(2), other.clone()]), [poll(2), other]);
    }

    fn tables() -> Vec<(String, Table)> {
        let names = crate::samples::table::SAMPLES.iter().map(|sample| sample.name);
        let tables = names.filter_map(|name| Some((name.to_owned(), Table::of(name).expect(name)?)));
        tables.collect()
    }

    /// Reverses `compressed`.
    fn expanded(call: &str) -> Vec<String> {
        let Some((times, call)) = call.split_once(" x ") else { return vec![call.to_owned()] };
        let (times, brackets) = (times.parse().unwrap_or(3), if call.contains(" x ") { "[]" } else { "()" });
        let (open, close) = brackets.split_at(1);
        let (text, numbers) = parts(call);
        let nth = |n: i64| {
            let (mut call, mut index) = (String::new(), 0);
            while let Some(number) = numbers.get(index) {
                call.push_str(text[index].trim_start_matches(close));
                let step = match text[index + 1].strip_prefix(open) {
                    Some("+") => numbers[index + 1],
                    Some("-") => -numbers[index + 1],
                    _ => 0,
                };
                call.push_str(&(number + n * step).to_string());
                index += if step == 0 { 1 } else { 2 };
            }
            call + text[index].trim_start_matches(close)
        };
        (0..times).map(nth).flat_map(|call| expanded(&call)).collect()
    }

    fn compare(table: &Table, threads: &[Vec<String>]) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("trace");
        let lines = threads
            .iter()
            .enumerate()
            .flat_map(|(thread, calls)| calls.iter().map(move |call| format!("{thread} {call}\n")));
        fs::write(&path, lines.collect::<String>())?;
        table.compare(&path)
    }

    /// Expands every call.
    fn threads(table: &Table) -> Vec<Vec<String>> {
        table.threads.iter().map(|calls| calls.iter().flat_map(|call| expanded(call)).collect()).collect()
    }

    #[test]
    fn each_sample_has_a_table_that_its_own_calls_pass() {
        let tables = tables();
        // Sample 8 makes no call that is traced.
        assert_eq!(tables.len(), 33);
        for (name, table) in &tables {
            compare(table, &threads(table)).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn each_changed_order_size_and_flag_is_noticed() {
        let mut tried = 0;
        for (name, table) in tables() {
            let right = threads(&table);
            // Twice a hundred thousand calls take their time, and are like the others.
            if right.iter().flatten().count() > 10_000 {
                continue;
            }
            let mut noticed = |change: &str, threads: Vec<Vec<String>>| {
                assert!(compare(&table, &threads).is_err(), "{name}: {change}");
                tried += 1;
            };
            let calls = &right[0];
            for at in [0, calls.len() / 2, calls.len() - 1] {
                if calls[at].starts_with("cuFileBatchIOGetStatus")
                    && table.threads[0].iter().any(|call| call.starts_with("n x"))
                {
                    continue;
                }
                let mut changed = right.clone();
                changed[0].remove(at);
                noticed(&format!("without call {at}"), changed);
            }
            for (from, to) in [
                (" size=", " size=1"),
                (" length=", " length=1"),
                (" file_offset=", " file_offset=1"),
                (" flags=", " flags=1"),
                (" O_DIRECT", ""),
                (" O_RDWR", " O_RDONLY"),
                (" nr=", " nr=1"),
            ] {
                if let Some(at) = calls.iter().rposition(|call| call.contains(from)) {
                    let mut changed = right.clone();
                    changed[0][at] = calls[at].replacen(from, to, 1);
                    noticed(&format!("{from} became {to}"), changed);
                }
            }
            let function = |call: &String| call.split(' ').next().map(ToOwned::to_owned);
            let other = calls.windows(2).rposition(|pair| function(&pair[0]) != function(&pair[1]));
            if let Some(at) = other {
                let mut changed = right.clone();
                changed[0].swap(at, at + 1);
                noticed(&format!("calls {at} and the next in another order"), changed);
            }
        }
        assert!(tried > 200, "{tried}");
    }

    #[test]
    fn streams_that_only_rust_registers_have_no_flags() {
        let (_, table) = tables().into_iter().find(|(name, _)| name.starts_with("sample_032")).unwrap();
        for (flags, is_right) in [(0, true), (1, false), (15, false)] {
            let mut calls = threads(&table);
            calls[0].insert(0, format!("cuFileStreamRegister stream1 flags={flags}"));
            assert_eq!(compare(&table, &calls).is_ok(), is_right, "{flags}");
        }
    }

    #[test]
    fn the_guide_to_porting_has_each_sample_and_difference() {
        let guide = fs::read_to_string(workspace().join("cufile/PORTING.md")).unwrap();
        let mut numbers = 0;
        for name in crate::samples::table::SAMPLES.iter().map(|sample| sample.name) {
            let Some(number) = name.strip_prefix("sample_").and_then(|rest| rest.get(..3)) else { continue };
            let row = guide.lines().find(|line| line.starts_with(&format!("| {number} |"))).expect(name);
            let reason = Table::of(name).unwrap().and_then(|table| table.differs).unwrap_or_default();
            assert!(
                row.ends_with(format!("| `{name}` | {reason} |").replace("|  |", "| |").as_str()),
                "{row}"
            );
            let program = workspace().join(format!("cufile/examples/{name}.rs"));
            let program = fs::read_to_string(program).unwrap();
            assert_eq!(program.contains("//! Differs from C: "), !reason.is_empty(), "{name}");
            numbers += 1;
        }
        assert_eq!(numbers, 34);
    }

    #[test]
    fn c_programs_make_the_calls_that_only_they_make() {
        let table =
            "C FILE\ndiffers: because\n 1 - cuFileRead file1\n + cuFileWrite file1\n 2 cuFileDriverClose";
        let table = Table::parse(table).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        fs::write(&path, "5 cuFileRead file3\n5 cuFileDriverClose\n").unwrap();
        assert!(table.compare_c(&path).is_ok() && table.compare(&path).is_err());
        fs::write(&path, "5 cuFileWrite file3\n5 cuFileDriverClose\n").unwrap();
        assert!(table.compare_c(&path).is_err() && table.compare(&path).is_ok());
    }

    #[test]
    fn each_change_of_a_trace_is_noticed() {
        let table = "C\n 1 cuFileHandleRegister file1 O_RDWR\n 2 cuFileRead file1 memory1 size=1";
        let table = Table::parse(table).unwrap();
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
