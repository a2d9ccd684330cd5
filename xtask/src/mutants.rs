//! Runs a random sample of mutants: small changes to the code, which some test should notice.
//!
//! cargo-mutants makes and judges them, in the files that `.cargo/mutants.toml` lists. It works in a copy of the
//! workspace, which stays from run to run and saves builds. The unit tests of the mutant's crate run first; for
//! mutants that are left, its test programs follow, and then all others.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::workspace::{package, workspace};

#[derive(Debug, PartialEq)]
pub struct Options {
    count: usize,
    seed: u64,
    list: bool,
    /// The commit from which files with mutants differ.
    since: Option<String>,
}

impl Options {
    /// Parses `--count N`, `--seed S`, `--since COMMIT` and `--list`.
    pub fn parse(options: &[&str]) -> Result<Self> {
        let mut parsed = Self { count: 100, seed: 1, list: false, since: None };
        let mut words = options.iter();
        while let Some(&option) = words.next() {
            let mut value = || words.next().with_context(|| format!("{option} needs a value"));
            let number = |value: &str| value.parse().with_context(|| format!("{option} is a number"));
            match option {
                "--count" => {
                    parsed.count = number(value()?)? as usize;
                    ensure!(parsed.count > 0, "--count 0 runs nothing");
                }
                "--seed" => parsed.seed = number(value()?)?,
                "--since" => parsed.since = Some(value()?.to_string()),
                "--list" => parsed.list = true,
                _ => bail!("{option}: not an option"),
            }
        }
        Ok(parsed)
    }
}

const PACKAGES: [&str; 3] = ["cufile", "gpufile", "gpufile-cli"];
/// The package of the tests that span crates.
const TESTS: &str = "cufile-tests";

#[derive(Default)]
struct Outcomes {
    caught: Vec<String>,
    survived: Vec<String>,
    unviable: Vec<String>,
}

/// Fails without cargo-mutants or nextest, or if the tests fail without a mutant.
pub fn run(options: &Options) -> Result<()> {
    let tree = Tree::copy()?;
    let all = tree.mutants()?;
    let drawn_from = match &options.since {
        None => all.clone(),
        Some(commit) => in_files(&all, &changed_since(commit)?),
    };
    let sample = sample(drawn_from, options.count, options.seed);
    if options.list {
        sample.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    let mut total = Outcomes::default();
    for package in PACKAGES {
        let is_here = |name: &&String| name.starts_with(&format!("{package}/"));
        let mut left: Vec<_> = sample.iter().filter(is_here).cloned().collect();
        let others: Vec<_> = PACKAGES.into_iter().filter(|other| *other != package).chain([TESTS]).collect();
        for (packages, targets) in [(&[package][..], "--lib"), (&[package], "--test=*"), (&others, "--tests")]
        {
            let outcomes = tree.test(&all, &left, packages, targets)?;
            total.unviable.extend(outcomes.unviable);
            total.caught.extend(outcomes.caught);
            left = outcomes.survived;
        }
        total.survived.extend(left);
    }
    println!(
        "\nseed {}: of {} mutants {} do not build, {} were caught, and {} survived",
        options.seed,
        sample.len(),
        total.unviable.len(),
        total.caught.len(),
        total.survived.len()
    );
    total.survived.iter().for_each(|name| println!("  {name}"));
    Ok(())
}

fn changed_since(commit: &str) -> Result<Vec<String>> {
    let diff = Command::new("git")
        .current_dir(workspace())
        .args(["diff", "--name-only", "-z", commit, "--"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start git")?;
    ensure!(diff.status.success(), "git diff {commit}: {}", diff.status);
    Ok(String::from_utf8(diff.stdout)?.split_terminator('\0').map(str::to_owned).collect())
}

/// Returns mutants in these files, with which their names begin.
fn in_files(names: &[String], files: &[String]) -> Vec<String> {
    let is_in = |name: &&String| files.iter().any(|file| name.split(':').next() == Some(file));
    names.iter().filter(is_in).cloned().collect()
}

/// Returns the same names for the same seed, in the order of the source.
fn sample(mut names: Vec<String>, count: usize, seed: u64) -> Vec<String> {
    names.sort();
    let mut state = seed;
    let mut below = |limit: usize| {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    };
    let count = count.min(names.len());
    for place in 0..count {
        let other = place + below(names.len() - place);
        names.swap(place, other);
    }
    names.truncate(count);
    names.sort();
    names
}

struct Tree(PathBuf);

impl Tree {
    /// Keeps the times of unchanged files, so that cargo does not build them again.
    fn copy() -> Result<Self> {
        let tree = workspace().join("target/mutants/tree");
        let listed = Command::new("git")
            .current_dir(workspace())
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start git")?;
        ensure!(listed.status.success(), "git ls-files: {}", listed.status);
        let mut wanted = BTreeSet::new();
        for name in String::from_utf8(listed.stdout)?.split_terminator('\0') {
            let (from, to) = (workspace().join(name), tree.join(name));
            // The file was removed, but the removal is not committed yet.
            let Ok(bytes) = fs::read(&from) else { continue };
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                fs::create_dir_all(to.parent().context("a path in the tree")?)?;
                fs::write(&to, bytes).with_context(|| format!("cannot write {to:?}"))?;
            }
            wanted.insert(to);
        }
        remove_others(&tree, &wanted)?;
        Ok(Self(tree))
    }

    fn mutants(&self) -> Result<Vec<String>> {
        let output = self.cargo_mutants(&["--list", "--json"]).stderr(Stdio::inherit()).output()?;
        ensure!(
            output.status.success(),
            "cargo mutants: is it there? `cargo install --locked cargo-mutants cargo-nextest`"
        );
        let listed: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        Ok(listed.iter().filter_map(|mutant| mutant["name"].as_str().map(str::to_owned)).collect())
    }

    fn test(&self, all: &[String], names: &[String], packages: &[&str], targets: &str) -> Result<Outcomes> {
        if names.is_empty() {
            return Ok(Outcomes::default());
        }
        let out = self.0.with_file_name("out");
        let _ = fs::remove_dir_all(&out);
        fs::create_dir_all(out.join("mutants.out"))?;
        // Its filters let some unwanted mutants pass. So mutants that were caught before are excluded by name.
        let others = all.iter().filter(|name| !names.contains(name));
        let others: String = others.map(|name| format!("{name}\n")).collect();
        fs::write(out.join("mutants.out/caught.txt"), others)?;
        let mut command = self.cargo_mutants(&["--in-place", "--no-times", "--iterate", "--output"]);
        // Test programs that need a feature are built only with it.
        command
            .arg(&out)
            .arg("--all-features")
            .args(packages.iter().map(|folder| format!("--cargo-arg=--package={}", package(folder))));
        command.arg(format!("--cargo-arg={targets}"));
        let status = command.status().context("cannot start cargo")?;
        let outcomes = out.join("mutants.out/outcomes.json");
        let text = fs::read(&outcomes).with_context(|| format!("cargo mutants: {status}; {outcomes:?}"))?;
        let outcomes: Value = serde_json::from_slice(&text)?;
        let mut found = Outcomes::default();
        for outcome in outcomes["outcomes"].as_array().context("cargo mutants: no outcomes")? {
            let Some(name) = outcome["scenario"]["Mutant"]["name"].as_str() else {
                ensure!(outcome["summary"] == "Success", "the tests fail without a mutant: see {out:?}");
                continue;
            };
            let list = match outcome["summary"].as_str() {
                Some("CaughtMutant" | "Timeout") => &mut found.caught,
                Some("MissedMutant") => &mut found.survived,
                Some("Unviable") => &mut found.unviable,
                other => bail!("cargo mutants: {name}: {other:?}"),
            };
            list.push(name.to_owned());
        }
        let known = found.caught.len() + found.survived.len() + found.unviable.len();
        ensure!(known == names.len(), "cargo mutants ran {known} of {} mutants: {status}", names.len());
        Ok(found)
    }

    fn cargo_mutants(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command.arg("mutants").arg("--dir").arg(&self.0).args(arguments);
        command.env("CARGO_TARGET_DIR", self.0.with_file_name("target")).env("CARGO_INCREMENTAL", "1");
        // nextest ends with the first failure, and runs each test in a process with a time limit.
        command.env("NEXTEST_PROFILE", "mutants");
        // A tenth of the random cases finds nearly as much as all.
        command.env("CUFILE_TEST_CASES", "300");
        command
    }
}

fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_others(&entry.path(), wanted)?;
        } else if !wanted.contains(&entry.path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_determines_the_sample() {
        let names: Vec<_> = (0..1000).map(|number| format!("{number:04}")).collect();
        let reversed: Vec<_> = names.iter().rev().cloned().collect();
        let one = sample(names.clone(), 100, 1);
        assert_eq!(one, sample(reversed, 100, 1));
        assert_ne!(one, sample(names.clone(), 100, 2));
        assert_eq!(one.iter().collect::<BTreeSet<_>>().len(), 100);
        // From all parts, and not more than exist.
        assert_eq!(one.iter().map(|name| &name[..2]).collect::<BTreeSet<_>>().len(), 10);
        assert_eq!(sample(names.clone(), 5000, 1), names);
    }

    #[test]
    fn mutants_belong_to_the_file_they_name() {
        let names = ["a/src/b.rs:1: replace x", "a/src/bb.rs:1: replace x"].map(str::to_owned);
        assert_eq!(in_files(&names, &["a/src/b.rs".to_owned()]), names[..1]);
        assert_eq!(in_files(&names, &[]), [""; 0]);
    }

    #[test]
    fn count_and_seed_options_need_numbers() {
        assert_eq!(Options::parse(&[]).unwrap(), Options { count: 100, seed: 1, list: false, since: None });
        let all = ["--count", "20", "--seed", "7", "--list", "--since", "main"];
        let since = Some("main".to_owned());
        assert_eq!(Options::parse(&all).unwrap(), Options { count: 20, seed: 7, list: true, since });
        for wrong in [&["--count"][..], &["--count", "0"], &["--seed", "x"], &["--since"], &["20"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
