//! `cargo xtask samples` runs the ported samples. On the emulator it also runs each with the faults that must make it
//! fail.

mod calls;
mod failures;
mod host;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use failures::Failures;
use host::Host;
use table::{SAMPLES, Sample};

/// The slowest sample takes seconds.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Options {
    emulator: bool,
    library: Option<PathBuf>,
    dir: Option<PathBuf>,
    c_sources: Option<PathBuf>,
    bin_dir: Option<PathBuf>,
    names: Vec<String>,
}

impl Options {
    pub fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value =
                || words.next().map(PathBuf::from).with_context(|| format!("{word} needs a path"));
            match *word {
                "--emulator" => options.emulator = true,
                "--library" => options.library = Some(value()?),
                "--dir" => options.dir = Some(value()?),
                "--c-sources" => options.c_sources = Some(value()?),
                "--bin-dir" => options.bin_dir = Some(value()?),
                option if option.starts_with('-') => bail!("{option}: no such option"),
                name => options.names.push(name.to_owned()),
            }
        }
        ensure!(
            !options.emulator || options.library.is_none(),
            "--emulator and --library exclude each other"
        );
        ensure!(options.emulator || options.c_sources.is_none(), "--c-sources needs --emulator");
        Ok(options)
    }
}

pub fn run(options: &Options) -> Result<()> {
    let is_called = |sample: &Sample, name: &String| sample.name.contains(name.as_str());
    for name in &options.names {
        ensure!(
            SAMPLES.iter().any(|sample| is_called(sample, name)),
            "{name}: no sample has that in its name"
        );
    }
    let chosen = |sample: &&Sample| {
        options.names.is_empty() || options.names.iter().any(|name| is_called(sample, name))
    };
    let host = Host::prepare(options)?;
    if let Some(sources) = &options.c_sources {
        return run_c(&host, sources, SAMPLES.iter().filter(chosen));
    }

    let mut failures = Failures::default();
    let mut tally = [("samples", 0, 0), ("patterns", 0, 0), ("programs", 0, 0)];
    println!("{:<44} {:<8} {:>7}  last line", "sample", "result", "seconds");
    for sample in SAMPLES.iter().filter(chosen) {
        let group = match sample.name {
            name if name.starts_with("sample_") => 0,
            name if name.starts_with("pattern_") => 1,
            _ => 2,
        };
        let files = host.folder().join(sample.name);
        fs::create_dir_all(&files)?;
        let mut all = true;
        for call in sample.calls {
            all &= host.run(sample, call, &files)?;
        }
        if options.emulator && all {
            all = host.compare_calls(sample, &files)?;
        }
        // If samples cannot succeed, their failures prove little.
        if options.emulator && all {
            failures.run(&host, sample, &files)?;
        }
        fs::remove_dir_all(&files)?;
        let (_, passed, total) = &mut tally[group];
        *passed += usize::from(all);
        *total += 1;
    }
    failures.print();

    let passed = tally.iter().all(|(_, passed, total)| passed == total) && failures.wrong == 0;
    let there = tally.iter().filter(|(_, _, total)| *total > 0);
    let words: Vec<_> = there.map(|(what, passed, total)| format!("{passed} of {total} {what}")).collect();
    print!("{}", words.join(", "));
    println!("{}", if options.emulator { format!("; {failures}") } else { String::new() });
    ensure!(passed, "some samples did not do what they should");
    Ok(())
}

fn run_c<'a>(host: &Host, sources: &Path, samples: impl Iterator<Item = &'a Sample>) -> Result<()> {
    println!("{:<44} {:<8} {:>7}", "C program", "calls", "seconds");
    let mut compared = Vec::new();
    for sample in samples {
        let files = host.folder().join(sample.name);
        fs::create_dir_all(&files)?;
        compared.extend(host.compare_c(sample, sources, &files)?);
        fs::remove_dir_all(&files)?;
    }
    let equal = compared.iter().filter(|equal| **equal).count();
    println!("{equal} of {} C programs that compile here make the calls of their tables", compared.len());
    ensure!(!compared.is_empty() && equal == compared.len(), "some C programs do not");
    Ok(())
}
