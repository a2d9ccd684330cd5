//! `--report FILE`: what an owner of a machine with nvidia-fs or P2PDMA can send to us.
//!
//! The file has the report of `--json`, a verified round trip on each route, the counters before and after them, and
//! libcufile's properties. [`names`] removes paths and names.

mod names;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use gpufile::{Engine, RoutePolicy, Settings};
use serde_json::{Value, json};

use self::names::Names;
use super::attempt::{self, BYTES};
use super::machine::{Machine, Opened};
use super::outcome::Outcome;
use super::root::Root;
use super::target::Target;
use crate::failure::Failure;
use crate::interrupt::Unfinished;

/// The version of the file's form.
const FORM: u32 = 1;

/// Creates the file of the report. An existing one is not replaced.
pub fn create(path: &Path) -> Result<(File, Unfinished), Failure> {
    let created = Unfinished::create(|| File::create_new(path).map(|file| (file, path.to_owned())));
    created.map_err(|error| Failure::Other(format!("cannot create the report {path:?}: {error}")))
}

pub fn write(
    (mut file, unfinished): (File, Unfinished),
    root: &Root,
    check: Value,
    outcomes: &[Outcome],
    machine: (&Machine, &Opened),
    options: Options,
) -> Result<(), Failure> {
    let (machine, opened) = machine;
    let before = counters(root, opened);
    let targets = || outcomes.iter().filter_map(|outcome| outcome.target.as_ref().ok());
    let trips: Vec<Value> =
        targets().flat_map(|target| round_trips(root, target, opened, options.gpu)).collect();
    let report = json!({
        "form": FORM,
        "check": check,
        "properties": lines(opened.driver.as_ref().map(|driver| format!("{:#?}", driver.properties()))),
        "counters_before": before,
        "round_trips": trips,
        "counters_after": counters(root, opened),
    });
    let report = if options.has_names { report } else { Names::of(machine, outcomes).removed_from(&report) };
    let written = file.write_all(format!("{report:#}\n").as_bytes()).and_then(|()| file.sync_all());
    drop(unfinished);
    written.map_err(|error| Failure::Other(format!("cannot write the report: {error}")))
}

pub struct Options {
    pub gpu: u32,
    pub has_names: bool,
}

fn round_trips(root: &Root, target: &Target, opened: &Opened, gpu: u32) -> Vec<Value> {
    let policies = [
        ("auto", RoutePolicy::Auto),
        ("cufile", RoutePolicy::RequireCufile),
        ("posix", RoutePolicy::PosixOnly),
    ];
    let trip = |(name, policy)| {
        let before = counters(root, opened);
        let outcome = attempt::attempt(root, target, &engine(opened, policy), opened, gpu);
        let mut trip = match outcome {
            Err(error) => json!({ "error": error }),
            Ok(attempt) => json!({
                "error": null,
                "gpu": attempt.gpu,
                "route": attempt.route.as_str(),
                "bytes": BYTES,
                "write_seconds": attempt.write.map(|time| time.as_secs_f64()),
                "read_seconds": attempt.read.as_secs_f64(),
                "proven": attempt.proven(),
                "counted": attempt.proof(),
            }),
        };
        trip["policy"] = json!(name);
        trip["path"] = json!(target.path.to_string_lossy());
        trip["counters_before"] = before;
        trip["counters_after"] = counters(root, opened);
        trip
    };
    policies.into_iter().map(trip).collect()
}

/// Returns an engine; an open driver may have a direct route that sysfs does not show.
fn engine(opened: &Opened, policy: RoutePolicy) -> Engine {
    let builder = Engine::builder().settings(Settings::from_env().unwrap_or_default()).policy(policy);
    match (&opened.driver, &opened.cuda) {
        (Some(driver), _) => builder.driver(driver.clone()),
        (None, Ok(cuda)) => builder.cuda(cuda.clone()),
        (None, Err(_)) => builder,
    }
    .build()
}

fn counters(root: &Root, opened: &Opened) -> Value {
    let statistics = opened.driver.as_ref().map(|driver| format!("{:#?}", driver.statistics().basic()));
    json!({
        "libcufile": lines(statistics),
        "nvidia_fs": lines(root.text("/proc/driver/nvidia-fs/stats")),
    })
}

/// Returns lines, which people read more easily in JSON.
fn lines(text: Option<String>) -> Value {
    text.map_or(Value::Null, |text| text.lines().collect())
}
