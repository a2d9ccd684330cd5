//! `cargo xtask coverage` checks the table in cufile/PORTING.md. The table must have every function, and each test
//! in it must call its function. The documentation must find each function by its C name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::artifacts;
use crate::functions::Functions;
use crate::limited;
use crate::workspace::{target_folder, workspace};

const TABLE: &str = "cufile/PORTING.md";
const SAFE: &str = "cufile/src";
const BOUND: &str = "cufile-sys/src/functions.rs";
const REAL: &str = "testkit/src/bin/real_library";

/// The time limit of one test.
const LIMIT: Duration = Duration::from_secs(60);

pub fn run() -> Result<()> {
    let bound = bound()?;
    let (table, known) = (rows(TABLE)?, Functions::cufile()?);
    let (real, safe) = (sources(&workspace().join(REAL))?, sources(&workspace().join(SAFE))?);
    let mut tests = Tests::build()?;
    let extra = table.keys().filter(|function| !bound.contains(*function));
    let mut failures: Vec<_> = extra.map(|function| format!("{function} is not in {BOUND}")).collect();
    let (mut complete, mut on_real) = (0, 0);
    for function in &bound {
        let mut wrong = Vec::new();
        let name = function.strip_suffix("_v2").unwrap_or(function);
        if !safe.contains(&format!("#[doc(alias = \"{name}\")]")) {
            wrong.push(format!("is no alias in {SAFE}"));
        }
        on_real += usize::from(is_called(&real, function));
        match table.get(function).map(Vec::as_slice) {
            Some([_, _, since, test]) => {
                // The table omits the oldest release, and adds text after the others.
                let is_since = known.since(function).unwrap_or_default();
                if since.split(';').next() != Some(is_since) {
                    wrong.push(format!("is since {is_since:?} by xtask/src/functions, not {since:?}"));
                }
                let test = code(test);
                match tests.calls(&test) {
                    Ok(calls) if calls.contains(function) => {}
                    Ok(_) => wrong.push(format!("{test} does not call it")),
                    Err(error) => wrong.push(error.clone()),
                }
            }
            None => wrong.push("has no row".to_owned()),
            Some(_) => wrong.push("has a row with more or fewer cells than the others".to_owned()),
        }
        complete += usize::from(wrong.is_empty());
        failures.extend(wrong.into_iter().map(|wrong| format!("{TABLE}: {function}: {wrong}")));
    }
    println!(
        "{complete} of {} functions: in the table, and called by the test named there ({} tests on the emulator); {on_real} called in real libraries too",
        bound.len(),
        tests.calls.len()
    );
    match failures.len() {
        0 => Ok(()),
        count => bail!("wrong, {count} in all:\n  {}", failures.join("\n  ")),
    }
}

/// Returns every function bound, by the name of its symbol; `cargo xtask regen-bindings --check` compares them with
/// the header.
fn bound() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(workspace().join(BOUND)).context(BOUND)?;
    let name = |line: &str| Some(line.trim().strip_prefix("name: \"")?.strip_suffix("\",")?.to_owned());
    Ok(text.lines().filter_map(name).collect())
}

fn rows(file: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let text = fs::read_to_string(workspace().join(file)).with_context(|| file.to_owned())?;
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `cuFile")) {
        let cells = line.trim().trim_matches('|').split('|');
        let cells: Vec<_> = cells.map(|cell| cell.trim().to_owned()).collect();
        let function = code(&cells[0]);
        ensure!(rows.insert(function.clone(), cells).is_none(), "{file}: {function} has two rows");
    }
    Ok(rows)
}

/// Returns `cuFileDriverClose_v2` for "`cuFileDriverClose` (`_v2`)".
fn code(cell: &str) -> String {
    cell.split('`').skip(1).step_by(2).collect()
}

fn sources(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        text += &if path.is_dir() { sources(&path)? } else { fs::read_to_string(&path)? };
    }
    Ok(text)
}

/// Returns whether `source` takes `function` out of a table of functions.
fn is_called(source: &str, function: &str) -> bool {
    let field = format!(".{function}");
    let whole = |(at, _): (usize, &str)| source[at + field.len()..].starts_with(['(', ')', '?']);
    source.match_indices(&field).any(whole)
}

struct Tests {
    programs: BTreeMap<String, PathBuf>,
    scratch: PathBuf,
    calls: BTreeMap<String, Result<BTreeSet<String>, String>>,
}

impl Tests {
    fn build() -> Result<Self> {
        // As `.ci/run` builds its tests: a package alone would have other features, and be built again.
        let arguments = ["test", "--quiet", "--no-run", "--workspace", "--all-features"];
        let built = artifacts::build(&arguments)?;
        let programs = built.into_iter().filter(|artifact| artifact.kind == "test");
        let scratch = target_folder().join("coverage");
        fs::create_dir_all(&scratch)?;
        Ok(Self {
            programs: programs.map(|artifact| (artifact.name, artifact.path)).collect(),
            scratch: fs::canonicalize(scratch)?,
            calls: BTreeMap::new(),
        })
    }

    /// Returns the functions that `test`, a `file::name`, calls when it runs alone. Each test runs once, for
    /// all of its functions.
    fn calls(&mut self, test: &str) -> &Result<BTreeSet<String>, String> {
        if !self.calls.contains_key(test) {
            let calls = self.run(test).map_err(|error| format!("{error:#}"));
            self.calls.insert(test.to_owned(), calls);
        }
        &self.calls[test]
    }

    fn run(&self, test: &str) -> Result<BTreeSet<String>> {
        let (file, name) = test.split_once("::").with_context(|| format!("{test:?} is not FILE::TEST"))?;
        let program = self.programs.get(file).with_context(|| format!("there is no test program {file}"))?;
        let notes = self.scratch.join("calls");
        fs::write(&notes, "")?;
        let mut command = Command::new(program);
        command.args(["--exact", name]).env("CUFILE_EMULATOR_CALLS", &notes).env_remove("CUFILE_EMULATOR");
        // By default, a real libcufile logs into the working directory.
        command.current_dir(&self.scratch);
        let run = limited::run(&mut command, LIMIT)?;
        match run.status {
            None => bail!("{test} hangs"),
            Some(status) if !status.success() => {
                eprint!("{}{}", run.stdout, run.stderr);
                bail!("{test} fails")
            }
            Some(_) => ensure!(run.stdout.contains("1 passed"), "there is no test {test}"),
        }
        Ok(fs::read_to_string(&notes)?.lines().map(str::to_owned).collect())
    }
}
