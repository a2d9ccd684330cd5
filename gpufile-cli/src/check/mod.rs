//! `gpufile check`: the route of files on this machine, why no better one is taken, and what would change that.
//!
//! Facts are gathered by one module each, from sysfs, procfs, the environment and the libraries. `verdict` turns them
//! into causes without any call of the system. `text` and `json` print the outcome.

mod acs;
mod addresses;
mod attempt;
mod block;
mod cause;
mod causes;
mod codes;
mod compare;
mod container;
mod cufile_json;
mod effect;
#[cfg(test)]
mod fake_tests;
mod features;
mod gpus;
mod json;
mod kernel;
mod keys;
mod labels;
mod libraries;
mod limit;
mod log_file;
mod lustre;
mod machine;
mod metrics;
mod modules;
mod mounts;
mod network;
mod nvidia_fs;
mod objects;
mod outcome;
mod pci;
mod report;
#[cfg(test)]
mod right_facts;
mod root;
mod storage;
mod storages;
mod target;
mod text;
mod unusable;
mod variables;
mod verdict;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{panic, thread};

use clap::ValueHint;
use gpufile::{Engine, RouteKind, RoutePolicy, Settings};

use self::cause::CannotOpen;
use self::machine::{Machine, Opened};
use self::outcome::{Outcome, Verdict};
use self::root::Root;
use self::target::Target;
use super::failure::Failure;
use super::location::{Location, path_parser};
use super::prometheus;
use super::remote::RequestArgs;
use super::stderr::complain;
use super::table::{print, printable};
use super::units::Time;

/// Reports the route that files take to a GPU, why it is not a faster one, and what would change that.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile check /data
  gpufile check --try --json /data /scratch
  gpufile check /proc/1234/fd/5      the file as another program opened it
  gpufile check --require cufile /data && start-training
  gpufile check --compare last-week.json /data
  gpufile check https://example.org/model.safetensors     reads the object for some seconds

The exit status is that of the worst path:
  0  fast: the bytes bypass host memory, with GPUDirect Storage or P2PDMA
  3  fallback: the bytes pass through host memory
  4  impossible: there is no CUDA or no GPU
  1  failed: a variable has a wrong value, a path cannot be used, or --try failed
  2  the command line is wrong")]
pub struct Args {
    /// Files or folders to check, which stay unchanged; or URLs of objects.
    #[arg(default_value = ".", value_hint = ValueHint::AnyPath)]
    path: Vec<Location>,
    /// Checks every mount that holds files, instead of paths.
    #[arg(long, conflicts_with = "path")]
    all_mounts: bool,
    /// Exits with 0 if each path has this route (fast, cufile, gpu), else with 1.
    #[arg(long, value_name = "ROUTE", hide_possible_values = true)]
    require: Option<Require>,
    /// Tests the route: writes and reads 1 MiB in a temporary file next to PATH.
    #[arg(long = "try")]
    tries: bool,
    /// The GPU to use for --try.
    #[arg(long, default_value_t = 0, value_name = "N")]
    gpu: u32,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Prints metrics in Prometheus' text format.
    #[arg(long, conflicts_with_all = ["json", "verbose"])]
    prometheus: bool,
    /// Writes the metrics into FILE, for node_exporter's textfile collector.
    #[arg(long, value_name = "FILE", value_parser = path_parser(), conflicts_with_all = ["json", "prometheus", "verbose"])]
    textfile: Option<PathBuf>,
    /// Prints labels for Kubernetes' node feature discovery.
    #[arg(long, conflicts_with_all = ["json", "prometheus", "textfile", "verbose"])]
    labels: bool,
    /// Prints what changed since a report of --json.
    #[arg(long, value_name = "OLD", value_parser = path_parser(), conflicts_with_all = ["prometheus", "textfile", "labels", "verbose"])]
    compare: Option<PathBuf>,
    /// Also writes a report to send: round trips on each route, counters.
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    report: Option<PathBuf>,
    /// Keeps paths and names in the report.
    #[arg(long, requires = "report")]
    with_names: bool,
    /// Prints all facts, and every file that was tried for each library.
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    requests: RequestArgs,
}

/// The time without `--timeout`.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let mut paths: Vec<PathBuf> =
        arguments.path.iter().filter_map(Location::path).map(Path::to_owned).collect();
    if paths.len() < arguments.path.len() {
        return objects(arguments);
    }
    let limit = arguments.requests.path_timeout()?.unwrap_or(PATIENCE);
    let old = arguments.compare.as_deref().map(compare::read).transpose()?;
    let file = arguments.report.as_deref().map(report::create).transpose()?;
    let root = Root::of_machine();
    if arguments.all_mounts {
        paths = mounts::with_files(&root.text("/proc/self/mountinfo").unwrap_or_default());
    }
    let (machine, opened) = Machine::gather(&root);
    let engine = engine(&machine, &opened);
    let tries = arguments.tries.then_some(arguments.gpu);
    let checker = Arc::new(Checker { root, machine, opened, engine, tries });
    let outcomes: Vec<Outcome> = paths.into_iter().map(|path| checker.outcome_within(limit, path)).collect();
    let Checker { root, machine, opened, .. } = &*checker;
    let worst = outcomes.iter().map(Outcome::verdict).max().unwrap_or(Verdict::Failed);
    let status = match arguments.require {
        Some(require) => u8::from(!outcomes.iter().all(|outcome| require.is_met(outcome))),
        None => worst.status(),
    };
    let json = || json::report(machine, &outcomes, worst, status);
    if let (Some(path), Some(file)) = (&arguments.report, file) {
        let options = report::Options { gpu: arguments.gpu, has_names: arguments.with_names };
        report::write(file, root, json(), &outcomes, (machine, opened), options)?;
        complain(&format!("the report is in {path:?}; read it before you send it"));
    }
    let changes = old.map(|old| compare::changes(&old, &json()));
    let report = match arguments {
        Args { json: true, .. } => {
            let mut report = json();
            if let Some(changes) = changes {
                report["changes"] = changes.into();
            }
            format!("{report:#}\n")
        }
        Args { textfile: Some(path), .. } => {
            prometheus::write(path, &metrics::of(&json()))?;
            String::new()
        }
        Args { labels: true, .. } => labels::of(&json()),
        Args { compare: Some(path), .. } => match changes.unwrap_or_default() {
            none if none.is_empty() => format!("nothing has changed since {path:?}\n"),
            some => some.iter().map(|change| format!("{}\n", printable(change))).collect(),
        },
        Args { prometheus: true, .. } => metrics::of(&json()),
        Args { verbose, .. } => text::report(machine, &outcomes, *verbose),
    };
    print(&report)?;
    Ok(ExitCode::from(status))
}

/// The least route that `--require` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Require {
    // The bytes bypass host memory. A doc comment would make the help twice as long.
    Fast,
    // libcufile moves the bytes.
    Cufile,
    // The bytes reach a GPU.
    Gpu,
}

impl Require {
    fn is_met(self, outcome: &Outcome) -> bool {
        let verdict = outcome.verdict();
        let is_by_cufile = || outcome.target.as_ref().is_ok_and(|target| target.route != RouteKind::Posix);
        match self {
            Self::Fast => verdict == Verdict::Fast,
            Self::Cufile => verdict <= Verdict::Fallback && is_by_cufile(),
            Self::Gpu => verdict <= Verdict::Fallback,
        }
    }
}

fn objects(arguments: &Args) -> Result<ExitCode, Failure> {
    let urls: Vec<&str> = arguments.path.iter().filter_map(Location::url).collect();
    if urls.len() < arguments.path.len() {
        return Err(Failure::Usage("paths and URLs are checked by separate calls".to_owned()));
    }
    let is_for_paths = arguments.tries
        || arguments.prometheus
        || arguments.labels
        || arguments.require.is_some()
        || [&arguments.report, &arguments.textfile, &arguments.compare].iter().any(|file| file.is_some());
    if is_for_paths {
        let text = "--try, --require, --prometheus, --textfile, --labels, --compare and --report are for paths, not for URLs";
        return Err(Failure::Usage(text.to_owned()));
    }
    objects::run(&urls, &arguments.requests.options()?, arguments.json)
}

/// Returns an engine with the libraries that are open. Its files have the same routes as in other programs.
fn engine(machine: &Machine, opened: &Opened) -> Engine {
    // The route is worth knowing even where a variable is wrong.
    let builder = Engine::builder().settings(Settings::from_env().unwrap_or_default());
    // Without a direct route in sight, an engine opens no driver, and an open one would change the routes.
    let opens_driver = machine.policy != RoutePolicy::Auto || machine.may_be_direct();
    match (&opened.driver, &opened.cuda) {
        (Some(driver), _) if opens_driver => builder.driver(driver.clone()),
        (_, Ok(cuda)) => builder.cuda(cuda.clone()),
        (_, Err(_)) => builder,
    }
    .build()
}

struct Checker {
    root: Root,
    machine: Machine,
    opened: Opened,
    engine: Engine,
    tries: Option<u32>,
}

impl Checker {
    /// Returns the outcome for a path, also if its file system does not answer within the limit.
    fn outcome_within(self: &Arc<Self>, limit: Duration, path: PathBuf) -> Outcome {
        let (sender, receiver) = mpsc::sync_channel(1);
        let start = {
            let (this, path) = (Arc::clone(self), path.clone());
            thread::Builder::new().name("check".to_owned()).spawn(move || {
                // Nobody waits any more after the limit.
                let _ = sender.send(this.outcome(&path));
            })
        };
        // Without a thread there is no limit.
        let Ok(thread) = start else { return self.outcome(&path) };
        match receiver.recv_timeout(limit) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => {
                let error = format!("{path:?} did not answer within {}", Time(limit));
                let causes = verdict::causes_without_path(&self.machine, &CannotOpen::NoAnswer(limit));
                Outcome::new(&path, Err(error), causes, None)
            }
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => panic::resume_unwind(panic),
                Ok(_) => self.outcome(&path),
            },
        }
    }

    fn outcome(&self, path: &Path) -> Outcome {
        let Self { root, machine, opened, engine, tries } = self;
        let target = Target::of(root, path, engine);
        let causes = match &target {
            Ok(target) => verdict::causes(machine, target),
            Err(error) => verdict::causes_without_path(machine, &CannotOpen::of(path, error)),
        };
        let attempt = tries.and_then(|gpu| {
            target.as_ref().ok().map(|target| attempt::attempt(root, target, engine, opened, gpu))
        });
        Outcome::new(path, target, causes, attempt)
    }
}
