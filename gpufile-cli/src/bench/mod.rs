//! `gpufile bench`: a workload of [`workload`], or named cases.
//!
//! Each named case and number of threads prints a line in the format of the programs in `benches/peers`:
//!
//! ```text
//! peer=NAME case=CASE size=BYTES ops=N threads=T seconds=S best=S gbps=G us_per_op=U cpu=S
//! peer=NAME case=CASE threads=T error=TEXT TO THE END OF THE LINE
//! ```
//!
//! - `seconds` is the median of the repetitions. `gbps` and `us_per_op` follow from it.
//! - `best` is the fastest repetition.
//! - `cpu` is the CPU seconds, user and system, that the process spent during the fastest repetition.
//! - `threads=0` leaves the number of threads to the engine.
//!
//! [`reads`], [`writes`], [`first_load`], [`blocks`], [`stores`], [`several`] and [`models`] have the measurements, each
//! with its row ([`case`]), and `objects` those of a URL. [`memory`] has the buffers, and compares them with the file.
//! [`fresh`] has the files in the folder of FILE. [`timing`] has the clock, and [`lines`] prints.

mod blocks;
mod case;
mod first_load;
mod fresh;
mod lines;
mod memory;
mod models;
mod objects;
mod reads;
mod several;
mod stores;
mod timing;
mod workload;
mod writes;

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::{self, Scope, ScopedJoinHandle};

use clap::ValueHint;
use gpufile::cuda::{Cuda, Device};
use gpufile::{Engine, File, OpenOptions, Settings};
use serde_json::json;

use crate::failure::Failure;
use crate::location::{Location, path_parser};
use crate::progress::Bar;
use crate::remote::RequestArgs;
use crate::stderr::complain;
use crate::table::print_json;
use crate::values::Words;
use case::{Case, Run};
use first_load::{Before, load_twice};
use lines::Lines;
use memory::DeviceMemory;
use workload::WorkloadArgs;

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

struct Bench {
    path: PathBuf,
    /// A multiple of 16 MiB; the rest of the file stays untouched.
    file_bytes: usize,
    repeats: usize,
    settings: Settings,
}

impl Bench {
    /// Returns an engine; 0 threads leave the number to the settings.
    fn engine(&self, threads: usize) -> Engine {
        let builder = Engine::builder().settings(self.settings.clone());
        if threads == 0 { builder.build() } else { builder.threads(threads).build() }
    }

    fn options(&self, threads: usize) -> OpenOptions {
        File::options().read(true).engine(&self.engine(threads))
    }

    /// Returns the number of bytes of device memory that the cases share. They are enough for all of each case. For a
    /// small file they are enough for a part of some cases.
    fn device_bytes(&self) -> usize {
        if self.file_bytes < GIB { self.file_bytes } else { self.file_bytes.max(2 * GIB) }
    }
}

/// Measures transfers: named cases on a file, or a workload.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile bench /data                            a new file in /data, with all patterns
  gpufile bench model.bin                        reads the file, in each of three sizes
  gpufile bench model.bin --cases                all named cases of one GPU
  gpufile bench model.bin --gpu 0,1 gpus         the cases of several GPUs, which only run if named
  gpufile bench https://example.org/model.bin    an object of a server

Without --io, an existing file is only read. Letters are gdsio's, but --size is for each GPU. The
routes host and posix may find the file in the page cache. Named cases with --overwrite write back
the file's bytes, need 16 MiB, and use FILE.fresh-*.")]
pub struct Args {
    /// The file, or a folder for a new one, which is removed afterwards, or a URL.
    #[arg(value_name = "PATH", required_unless_present_any = ["list", "file", "dir"],
        value_hint = ValueHint::AnyPath)]
    path: Option<Location>,
    /// Named cases or groups of cases, such as `scatter`, instead of a workload.
    #[arg(value_name = "CASE", hide_possible_values = true, value_parser = Words::new(case_words(), known))]
    cases: Vec<String>,
    /// Runs all named cases, except those of several GPUs.
    #[arg(long = "cases", conflicts_with = "cases")]
    all_cases: bool,
    /// The file, instead of PATH (as in gdsio).
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "dir", value_parser = path_parser())]
    file: Option<PathBuf>,
    /// The folder for a new file, instead of PATH (as in gdsio).
    #[arg(short = 'D', long, value_name = "DIR", value_parser = path_parser())]
    dir: Option<PathBuf>,
    /// Permits writing to an existing file. A workload replaces its contents.
    #[arg(long)]
    overwrite: bool,
    /// Repetitions of each case, after a warm-up [default: 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    repeats: Option<u16>,
    /// Threads of the engine; 0 is the engine's default.
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u16).range(0..=1024))]
    threads: Option<u16>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Lists the cases.
    #[arg(long)]
    list: bool,
    /// Loads the file twice in this process, after this preparation. The cases of first loads start such processes.
    #[arg(long, value_name = "BEFORE", value_enum, hide = true)]
    loads_after: Option<Before>,
    #[command(flatten, next_help_heading = "Workload")]
    workload: WorkloadArgs,
    #[command(flatten)]
    requests: RequestArgs,
}

/// Returns all cases, `first-byte` first.
fn all_cases() -> impl Iterator<Item = &'static Case> {
    let tables = [
        reads::CASES,
        first_load::CASES,
        blocks::CASES,
        stores::CASES,
        writes::CASES,
        several::CASES,
        models::CASES,
    ];
    tables.into_iter().flatten()
}

fn case_words() -> Vec<&'static str> {
    let mut words: Vec<_> = all_cases().map(|case| case.name).collect();
    words.dedup();
    words
}

fn known(name: &str) -> Result<String, String> {
    match all_cases().any(|case| names(name, case.name)) {
        true => Ok(name.to_owned()),
        false => Err("`gpufile bench --list` lists the cases".to_owned()),
    }
}

fn list(is_json: bool) -> Result<ExitCode, Failure> {
    let mut cases: Vec<_> = all_cases().collect();
    cases.dedup_by_key(|case| case.name);
    if is_json {
        let of_case = |Case { name, about, unit, run, overwrites, .. }: &&Case| {
            let (unit, memory) = (unit.symbol(), run.memory());
            json!({ "case": name, "about": about, "unit": unit, "memory": memory, "overwrites": overwrites })
        };
        print_json(&cases.iter().map(of_case).collect())?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    for Case { name, about, overwrites, .. } in cases {
        let needs = if *overwrites { " (with --overwrite)" } else { "" };
        writeln!(stdout(), "{name:<width$}  {about}{needs}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn overwriting(cases: &[&Case]) -> String {
    let names: Vec<_> = cases.iter().filter(|case| case.overwrites).map(|case| case.name).collect();
    names.join(", ")
}

/// Returns the file or folder, and the names of cases. After --file or --dir, all words are cases.
fn target(arguments: &Args) -> Result<Option<(&Path, Vec<String>)>, Failure> {
    let Args { file, dir, cases, .. } = arguments;
    let path = arguments.path.as_ref().and_then(Location::path);
    let Some(named) = file.as_deref().or(dir.as_deref()) else {
        return Ok(path.map(|path| (path, cases.clone())));
    };
    let mut cases = cases.clone();
    if let Some(first) = path {
        let problem = |hint| {
            Failure::Usage(format!("the path is already {named:?}, and {first:?} is not a case: {hint}"))
        };
        cases.insert(0, known(&first.to_string_lossy()).map_err(problem)?);
    }
    Ok(Some((named, cases)))
}

fn chosen(wanted: &[String], may_overwrite: bool) -> Result<Vec<&'static Case>, Failure> {
    if !may_overwrite && let Some(name) = wanted.iter().find(|name| is_overwriting(name)) {
        return Err(Failure::Usage(format!("{name} overwrites FILE: add --overwrite to permit that")));
    }
    // The cases of several GPUs need as much memory on each, so they run only if they are named.
    let is_wanted = |case: &&Case| match wanted {
        [] => !matches!(case.run, Run::Gpus(_)),
        wanted => wanted.iter().any(|name| names(name, case.name)),
    };
    Ok(all_cases().filter(is_wanted).collect())
}

fn is_overwriting(name: &str) -> bool {
    all_cases().any(|case| case.name == name && case.overwrites)
}

/// Returns true if `wanted` names the case, or a group with the case: `scatter` for `scatter-4k`.
fn names(wanted: &str, name: &str) -> bool {
    let is_case = all_cases().any(|case| case.name == wanted);
    name == wanted || !is_case && name.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('-'))
}

pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    if let Some(url) = arguments.path.as_ref().and_then(Location::url).filter(|_| !arguments.list) {
        return match (&arguments.file, &arguments.dir) {
            (None, None) => objects::run(url, arguments),
            _ => Err(Failure::Usage("give a URL, or --file or --dir".to_owned())),
        };
    }
    arguments.requests.check_unused()?;
    let target = target(arguments)?.filter(|_| !arguments.list);
    let Some((path, cases)) = target else { return list(arguments.json) };
    if let Some(before) = arguments.loads_after {
        let listed = arguments.workload.memory.gpu.as_slice();
        let gpus = if listed.is_empty() { &[0] } else { listed };
        return load_twice(&bench(path, arguments)?, gpus, arguments.threads.unwrap_or(0).into(), before);
    }
    if arguments.all_cases || !cases.is_empty() {
        // The GPUs of named cases are no workload.
        let memory = &arguments.workload.memory;
        let no_workload = match memory.host {
            true => WorkloadArgs::default(),
            false => WorkloadArgs { memory: memory.clone(), ..WorkloadArgs::default() },
        };
        if arguments.workload == no_workload && !path.is_dir() {
            return named_cases(path, &cases, arguments);
        }
        let case = cases
            .first()
            .map_or("--cases runs named cases".to_owned(), |case| format!("{case} is a named case"));
        let problem = format!("{case}: leave it out, or give a file and no workload options");
        return Err(Failure::Usage(problem));
    }
    if arguments.repeats.is_some() {
        return Err(Failure::Usage("--repeats is for named cases: use --duration".to_owned()));
    }
    let Args { workload, threads, overwrite, json, .. } = arguments;
    workload::run(path, workload, *threads, *overwrite, *json)
}

fn bench(path: &Path, arguments: &Args) -> Result<Bench, Failure> {
    Ok(Bench {
        file_bytes: file_bytes(path)?,
        path: path.to_owned(),
        repeats: usize::from(arguments.repeats.unwrap_or(3)),
        settings: Settings::from_env().map_err(|error| Failure::Other(error.to_string()))?,
    })
}

fn note_settings(settings: &Settings) {
    if *settings != Settings::default() {
        complain(&format!("settings from environment variables: {settings:?}"));
    }
}

fn named_cases(path: &Path, wanted: &[String], arguments: &Args) -> Result<ExitCode, Failure> {
    let mut cases = chosen(wanted, arguments.overwrite)?;
    let bench = bench(path, arguments)?;
    let mut out = Lines::new(arguments.json);
    note_settings(&bench.settings);
    let left_out = overwriting(&cases);
    if !arguments.overwrite && !left_out.is_empty() {
        let why = "because they overwrite FILE (add --overwrite to permit that)";
        complain(&format!("left out, {why}: {left_out}"));
        cases.retain(|case| !case.overwrites);
    }
    // No engine exists before the first case, which measures how long one takes to start.
    let (mut gpus, mut memory) = (Vec::new(), None);
    if cases.iter().any(|case| !matches!(case.run, Run::Host(_))) {
        let listed = &arguments.workload.memory.gpu;
        match Cuda::load().and_then(|cuda| gpus_of(&cuda, listed)) {
            Ok(found) => gpus = found,
            Err(reason) if listed.is_empty() && wanted.is_empty() => {
                complain(&format!("no GPU, so only host cases run: {}", one_line(&reason)));
            }
            Err(reason) if listed.is_empty() => {
                let name =
                    cases.iter().find(|case| !matches!(case.run, Run::Host(_))).map_or("", |case| case.name);
                return Err(Failure::Other(format!("{name} needs a GPU: {}", one_line(&reason))));
            }
            Err(reason) => return Err(Failure::Other(format!("cannot use --gpu: {}", one_line(&reason)))),
        }
    }
    if cases.iter().any(|case| matches!(case.run, Run::Device(_)))
        && let Some(first) = gpus.first()
    {
        memory = Some(DeviceMemory::new(first, bench.device_bytes())?);
    }
    let bar = Bar::of_steps(cases.len() as u64, "measuring");
    let mut status = ExitCode::SUCCESS;
    let threads = arguments.threads.map(usize::from);
    for case in cases {
        bar.say(case.name.to_owned());
        for &threads in threads.as_ref().map_or(case.threads, std::slice::from_ref) {
            let outcome = match (&case.run, &mut memory) {
                (Run::Host(run), _) => run(&bench, threads),
                (Run::Device(run), Some(memory)) => run(&bench, memory, threads),
                (Run::Gpus(run), _) if !gpus.is_empty() => run(&bench, &gpus, threads),
                (Run::Device(_) | Run::Gpus(_), _) => continue,
            };
            if outcome.is_err() {
                status = ExitCode::FAILURE;
            }
            bar.hidden(|| out.line(case.peer, case.name, threads, outcome))?;
        }
        bar.add(1);
    }
    drop(bar);
    out.end()?;
    Ok(status)
}

fn gpus_of(cuda: &Cuda, listed: &[u32]) -> cufile::Result<Vec<Device>> {
    match listed {
        [] => (0..cuda.device_count()?).map(|ordinal| cuda.device(ordinal)).collect(),
        listed => listed.iter().map(|ordinal| cuda.device(*ordinal)).collect(),
    }
}

fn file_bytes(path: &Path) -> Result<usize, Failure> {
    const UNIT: u64 = 16 << 20;
    let failed = |problem: &dyn Display| Failure::Other(format!("{path:?}: {problem}"));
    let metadata = fs::metadata(path).map_err(|error| failed(&error))?;
    match metadata.len() / UNIT * UNIT {
        _ if !metadata.is_file() => Err(failed(&"not a regular file; name one of 16 MiB or more")),
        0 => {
            Err(failed(&format_args!("{} bytes are too few; name a file of 16 MiB or more", metadata.len())))
        }
        bytes => usize::try_from(bytes).map_err(|error| failed(&error)),
    }
}

/// Spawns a thread in a scope. `Scope::spawn` panics where there can be no more threads.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let spawned = thread::Builder::new().spawn_scoped(scope, work);
    spawned.map_err(|error| format!("cannot start a thread: {error}").into())
}

fn one_line(text: &dyn Display) -> String {
    text.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_selected_by_name_or_group() {
        let all = case_words();
        let selected =
            |wanted: &str| -> Vec<&str> { all.iter().copied().filter(|name| names(wanted, name)).collect() };
        for name in &all {
            assert_eq!(selected(name), [*name], "a case is no group: `read` is not `read-default`");
            for (end, _) in name.match_indices('-') {
                let group = &name[..end];
                let members = all.iter().copied().filter(|other| other.starts_with(&name[..=end])).collect();
                let expected: Vec<_> = if all.contains(&group) { vec![group] } else { members };
                assert_eq!(selected(group), expected, "{group}");
            }
        }
        assert!(selected("scatter").len() > 1 && selected("read") == ["read"], "there are groups and cases");
        assert_eq!((selected("writ"), selected("")), (vec![], vec![]));
    }

    #[test]
    fn first_byte_is_the_first_case() {
        assert_eq!(all_cases().next().unwrap().name, "first-byte");
    }

    #[test]
    fn rows_of_cases_are_complete() {
        let all: Vec<_> = all_cases().collect();
        for (number, Case { peer, name, about, threads, run, .. }) in all.iter().enumerate() {
            assert!((10..=70).contains(&about.len()) && !about.ends_with('.'), "{name}: {about:?}");
            assert!(!threads.is_empty(), "{name}");
            assert_eq!(name.split('-').next() == Some(run.memory()), run.memory() != "gpu", "{name}");
            assert!(
                all[..number].iter().all(|other| (other.peer, other.name) != (peer, name)),
                "{name} twice"
            );
            assert!(
                all[..number].iter().all(|other| (other.about == *about) == (other.name == *name)),
                "{about:?} twice"
            );
        }
    }
}
