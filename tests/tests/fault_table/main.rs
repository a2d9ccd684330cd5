//! Tests of every failure of every function of cuFile and CUDA that the crates call.
//!
//! The tables of the bindings list all functions, the sources show those that the crates call, and a first run of
//! each scenario those that it calls. The faults of a function are every code that it may return, an unknown code,
//! every errno, and short, late and endless transfers. After each, the error must be the fault's, everything must be
//! given back, and the same scenario must succeed.
//!
//! The first call of a function meets all its faults, and the other calls a few of them. `FAULT_TABLE=all` strikes every
//! call of every scenario with every fault. With `FAULT_TABLE=few`, first calls meet a few too, which suits sanitizers:
//! most codes of a function take the same way.

mod cuda;
mod engine;
mod expected;
mod faults;
mod never;
mod scenarios;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use cuda_rt_sys::{driver, runtime};
use cufile::Driver;
use cufile::cuda::Device;
use faults::{Effect, Fault};
use testkit::bed::libraries;
use testkit::ways::Wrong;
use testkit::{Emulator, in_threads};

#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    opened: bool,
    run: &'static (dyn Fn(&Stage) -> Result<(), Problem> + Sync),
}

/// The reason why a| scenario did not succeed.
#[derive(Debug)]
enum Problem {
    Cufile(cufile::Error),
    Engine(gpufile::Error),
    /// A transfer returned this number of bytes.
    Short(usize),
    Wrong(String),
}

impl From<cufile::Error> for Problem {
    fn from(error: cufile::Error) -> Self {
        Problem::Cufile(error)
    }
}

impl<B> From<cufile::Failed<B>> for Problem {
    fn from(failed: cufile::Failed<B>) -> Self {
        Problem::Cufile(failed.error)
    }
}

impl From<gpufile::Error> for Problem {
    fn from(error: gpufile::Error) -> Self {
        Problem::Engine(error)
    }
}

impl From<Wrong> for Problem {
    fn from(wrong: Wrong) -> Self {
        Problem::Wrong(wrong.0)
    }
}

fn same(right: bool, what: &str) -> Result<(), Problem> {
    if right { Ok(()) } else { Err(Problem::Wrong(what.to_owned())) }
}

fn moved(wanted: usize, bytes: usize) -> Result<(), Problem> {
    if bytes == wanted { Ok(()) } else { Err(Problem::Short(bytes)) }
}

struct Stage {
    // The fields drop in this order.
    opened: Option<Opened>,
    emulator: Emulator,
    folder: tempfile::TempDir,
}

struct Opened {
    device: Device,
    driver: Driver,
}

impl Stage {
    fn new(opened: bool) -> Self {
        let emulator = Emulator::start();
        let opened = opened.then(|| {
            let (library, cuda) = libraries(&emulator);
            let device = cuda.device(0).expect("GPU 0");
            let driver = Driver::builder().library(library).cuda(cuda).open().expect("the driver opens");
            Opened { device, driver }
        });
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self { opened, emulator, folder: folder.expect("a folder for test files") }
    }

    fn bed(&self) -> &Opened {
        self.opened.as_ref().expect("a scenario with an open driver")
    }

    fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn live(&self) -> BTreeMap<&'static str, i64> {
        expected::KINDS.iter().map(|kind| (*kind, self.emulator().live(kind))).collect()
    }

    fn descriptors(&self) -> usize {
        let descriptors = fs::read_dir("/proc/self/fd").expect("the descriptors").flatten();
        let files = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
        files.filter(|file| file.starts_with(self.folder.path())).count()
    }
}

/// Returns all functions, and the execution of a batch's entry, which can fail alone.
fn functions() -> impl Iterator<Item = &'static str> {
    let tables = [cufile_sys::Functions::SYMBOLS, runtime::Functions::SYMBOLS, driver::Functions::SYMBOLS];
    tables.into_iter().flatten().map(|symbol| symbol.name).chain([faults::BATCH_ENTRY])
}

fn calls_of(scenario: &Scenario) -> BTreeMap<&'static str, u64> {
    let stage = Stage::new(scenario.opened);
    let counts = || functions().map(|name| (name, stage.emulator().calls(name) as u64));
    let before: BTreeMap<_, _> = counts().collect();
    thread::scope(|scope| scope.spawn(|| (scenario.run)(&stage)).join())
        .expect("a scenario that does not panic")
        .unwrap_or_else(|problem| panic!("{}: {problem:?}", scenario.name));
    counts().map(|(name, count)| (name, count - before[name])).filter(|(_, count)| *count > 0).collect()
}

/// A fault, and the call of a scenario that it strikes.
struct Case<'a> {
    scenario: Scenario,
    function: &'static str,
    after: u64,
    fault: &'a Fault,
}

const LIMIT: Duration = Duration::from_secs(60);

impl Case<'_> {
    /// Runs on a thread without a context, and releases held calls. Also returns whether there were any.
    fn run(&self, stage: &Arc<Stage>) -> Result<(Result<(), Problem>, bool), String> {
        let (sender, receiver) = mpsc::channel();
        let (scenario, shared) = (self.scenario, Arc::clone(stage));
        let thread = thread::spawn(move || {
            let outcome = (scenario.run)(&shared);
            drop(shared);
            let _ = sender.send(outcome);
        });
        // A release ends the fault, so it must not come before the call.
        let release = || stage.emulator().control("held") > 0 && stage.emulator().control("release") > 0;
        let (started, mut was_held) = (Instant::now(), false);
        let outcome = loop {
            match receiver.recv_timeout(Duration::from_millis(2)) {
                Ok(outcome) => break outcome,
                Err(RecvTimeoutError::Disconnected) => return Err("panics".to_owned()),
                Err(RecvTimeoutError::Timeout) if started.elapsed() > LIMIT => return Err("hangs".to_owned()),
                Err(RecvTimeoutError::Timeout) => was_held |= release(),
            }
        };
        // A scenario may end without the held work.
        was_held |= release();
        thread.join().map_err(|_| "panics".to_owned())?;
        Ok((outcome, was_held))
    }

    /// Returns true if the fault was reported, or `None` if it did not strike; fails if its outcome is wrong.
    fn check(&self, stage: &Arc<Stage>) -> Result<Option<bool>, String> {
        let emulator = stage.emulator();
        let (live, calls) = (stage.live(), emulator.calls(self.function));
        emulator.fault(self.function, &format!("after={} {}", self.after, self.fault.settings));
        let (outcome, was_held) = self.run(stage)?;
        emulator.control("clear");
        if emulator.calls(self.function) - calls <= self.after as i64 {
            return Ok(None);
        }
        if self.fault.settings.contains("hold=1") && !was_held {
            return Err("is not held".to_owned());
        }
        expected::judge(self.scenario.name, self.function, &self.fault.effect, &outcome)?;
        let left = self.settled(stage, &live);
        if let Some(kind) = left.iter().find(|kind| !expected::may_be_left(self.function, kind)) {
            return Err(format!("leaves {kind} after {outcome:?}"));
        }
        let live = stage.live();
        if let (Err(problem), _) = self.run(stage)? {
            return Err(format!("fails afterwards: {problem:?}"));
        }
        let left = self.settled(stage, &live);
        match left.iter().find(|kind| !expected::may_be_left(self.function, kind)) {
            Some(kind) => Err(format!("leaves {kind} when nothing strikes")),
            None => Ok(Some(outcome.is_err())),
        }
    }

    /// Returns the resources that differ from before, when the threads of an engine have ended.
    fn settled(&self, stage: &Stage, before: &BTreeMap<&'static str, i64>) -> Vec<&'static str> {
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let differing: Vec<_> =
                stage.live().into_iter().filter(|(kind, count)| before[kind] != *count).collect();
            let unexpected = differing.iter().any(|(kind, _)| !expected::may_be_left(self.function, kind));
            if !unexpected || Instant::now() > deadline {
                return differing.into_iter().map(|(kind, _)| kind).collect();
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl std::fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { scenario, function, after, fault } = self;
        write!(f, "{}: {function} after={after} {}", scenario.name, fault.settings)
    }
}

struct Row {
    scenario: Scenario,
    function: &'static str,
    calls: u64,
    /// True where the function meets all its faults.
    first: bool,
}

/// Strikes every function, and returns the number of cases. With `is_exact`, a failure must be reported unless the
/// table excepts it. The first call of a function meets `most` of its faults.
fn strike(scenarios: &[Scenario], most: usize, is_exact: bool) -> usize {
    let mut met = BTreeSet::new();
    let mut rows = Vec::new();
    for scenario in scenarios {
        for (function, calls) in calls_of(scenario) {
            rows.push(Row { scenario: *scenario, function, calls, first: met.insert(function) });
        }
    }
    let (calls, first, others) = match env::var("FAULT_TABLE").as_deref() {
        Ok("all") => (32, usize::MAX, usize::MAX),
        Ok("few") => (3, 8, 1),
        _ => (3, most, 3),
    };
    let rows = Mutex::new(rows.into_iter());
    let reports = Mutex::new(BTreeMap::<&str, [usize; 3]>::new());
    let wrong = Mutex::new(Vec::new());
    let work = || {
        while let Some(row) = { rows.lock().expect("no panic").next() } {
            if wrong.lock().expect("no panic").len() > 50 {
                // More wrong rows would show nothing new.
                break;
            }
            // Resources that faults keep alive must not add up over all rows.
            let stage = Arc::new(Stage::new(row.scenario.opened));
            let descriptors = stage.descriptors();
            let faults = faults::of(row.function, scenarios::LEN);
            for after in 0..row.calls.min(calls) {
                let count = if row.first && after == 0 { first } else { others };
                for fault in faults::some(&faults, count, row.function, after) {
                    let Row { scenario, function, .. } = row;
                    let case = Case { scenario, function, after, fault };
                    match case.check(&stage) {
                        Ok(Some(reported)) => {
                            let kind =
                                if fault.effect == Effect::Nothing { 2 } else { usize::from(!reported) };
                            reports.lock().expect("no panic").entry(function).or_default()[kind] += 1;
                        }
                        Ok(None) => {}
                        Err(what) => wrong.lock().expect("no panic").push(format!("{case}: {what}")),
                    }
                }
            }
            let left = stage.descriptors() - descriptors;
            if left > 0 && !expected::may_be_left(row.function, "descriptors") {
                let what = format!("{}: {} leaves {left} descriptors", row.scenario.name, row.function);
                wrong.lock().expect("no panic").push(what);
            }
        }
    };
    in_threads([work, work]);
    let reports = reports.into_inner().expect("no panic");
    let mut wrong = wrong.into_inner().expect("no panic");
    if is_exact {
        let failures = |(function, [reported, silent, _]): (&&str, &[usize; 3])| {
            (reported + silent > 0).then(|| expected::check_reports(function, *reported, *silent).err())
        };
        wrong.extend(reports.iter().filter_map(failures).flatten());
    }
    assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
    reports.values().flatten().sum()
}

fn all() -> Vec<Scenario> {
    [scenarios::SCENARIOS, cuda::SCENARIOS].concat()
}

#[test]
fn cufile_reports_every_failure_and_leaks_nothing() {
    println!("{} cases", strike(&all(), usize::MAX, true));
}

#[test]
fn the_engine_reports_or_handles_every_failure() {
    println!("{} cases", strike(&engine::scenarios(), 16, false));
}

#[test]
fn batches_take_their_entries_in_any_order() {
    for scenario in scenarios::SCENARIOS.iter().filter(|scenario| scenario.name.contains("batch")) {
        let stage = Stage::new(scenario.opened);
        stage.emulator().control("reverse-completions 1");
        let live = stage.live();
        (scenario.run)(&stage).unwrap_or_else(|problem| panic!("{}: {problem:?}", scenario.name));
        assert_eq!(stage.live(), live, "{}", scenario.name);
    }
}

fn words(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            words(&path, found);
        } else if !["bindings.rs", "functions.rs"].iter().any(|name| path.ends_with(name)) {
            let is_part = |character: char| character.is_alphanumeric() || character == '_';
            for line in fs::read_to_string(&path).expect("a source").lines() {
                let code = line.split("//").next().unwrap_or_default();
                let outside = code.split('"').step_by(2);
                let words = outside.flat_map(|text| text.split(|character| !is_part(character)));
                found.extend(words.map(str::to_owned));
            }
        }
    }
}

#[test]
fn scenarios_call_every_function_that_the_crates_call() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut found = BTreeSet::new();
    for package in ["cufile-sys", "cuda-rt-sys", "cufile", "gpufile"] {
        words(&workspace.join(package).join("src"), &mut found);
    }
    let called: BTreeSet<_> = functions().filter(|name| found.contains(*name)).collect();
    assert!(called.len() > 80, "{called:?}");
    let calls = |scenarios: &[Scenario]| -> BTreeSet<_> {
        scenarios.iter().flat_map(|scenario| calls_of(scenario).into_keys()).collect()
    };
    let (safe, more) = (calls(scenarios::SCENARIOS), calls(cuda::SCENARIOS));
    let missing: Vec<_> =
        called.iter().filter(|name| !safe.contains(*name) && !more.contains(*name)).collect();
    assert!(missing.is_empty(), "no scenario calls {missing:?}");
    let names = cufile_sys::Functions::SYMBOLS.iter().map(|symbol| symbol.name);
    let unused: Vec<_> = names.filter(|name| !safe.contains(name)).collect();
    assert!(unused.is_empty(), "no scenario without `unsafe` calls {unused:?}");
}
