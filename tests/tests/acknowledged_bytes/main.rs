//! Tests that acknowledged bytes stay under any failure, that failures are reported, and that nothing is left behind.
//!
//! A seed gives the plan of each case. Threads write and read files by every call, each its own ranges. Faults strike
//! the n-th calls of functions of the C library, CUDA and cuFile. Then the test compares every file with the results
//! of the calls. `CUFILE_TEST_CASES` is the number of cases. `CUFILE_TEST_SEED` with one case repeats the one that
//! failed, as far as threads allow.

mod case;
mod faults;
mod interpose;
mod left;
mod memory;
mod model;
mod mounts;
mod plan;
mod worker;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, io};

use testkit::Emulator;
use testkit::bed::{Bed, folders};
use testkit::random::{cases, seed};
use testkit::ways::WAYS;

use case::{Case, Outcome};
use faults::{Counts, Fault};
use interpose::Effect;
use memory::Noise;
use mounts::Mounted;
use plan::Plan;

/// Cases of about a minute on two processors.
const DEFAULT_CASES: u64 = 1200;
/// Rounds of a quarter more cases, until faults have struck each function that is often called.
const MOST_ROUNDS: usize = 16;

/// Keeps other tests out: counts and faults hold for the whole process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    interpose::spare_this_thread();
    case::watch();
    turn
}

/// Prints past the test harness, which captures output.
fn say(text: &str) {
    io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}

#[derive(Default)]
struct Sum {
    cases: u64,
    struck_cases: u64,
    counts: Counts,
    done: BTreeMap<&'static str, u64>,
    failed: usize,
    dropped: usize,
}

impl Sum {
    fn add(&mut self, outcome: Outcome) {
        self.cases += 1;
        self.struck_cases += u64::from(outcome.counts.struck() > 0);
        self.counts.add(&outcome.counts);
        outcome.done.iter().for_each(|name| *self.done.entry(name).or_default() += 1);
        self.failed += outcome.failures;
        self.dropped += outcome.dropped;
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} cases, {} of them struck; {} faults struck\nsuccessful: {:?}\nfailed: {}, dropped: {}\n",
            self.cases,
            self.struck_cases,
            self.counts.struck(),
            self.done,
            self.failed,
            self.dropped
        );
        // A long campaign prints many lines.
        let counts = if env::var_os("CUFILE_TEST_CASES").is_some() { &self.counts.0[..] } else { &[] };
        for (name, calls, struck) in counts {
            text.push_str(&format!("{name}: {struck} of {calls} calls\n"));
        }
        text
    }
}

/// Fails on the first case that shows a fault.
fn run_cases(bed: &Bed, folder: &Path, cases: u64, seed: u64, small: bool, sum: &mut Sum) {
    let noise = Noise::new(bed);
    for case in 0..cases {
        let seed = seed.wrapping_add(case);
        let plan = Plan::new(seed, small);
        let outcome = Case {
            bed,
            noise: &noise,
            folder,
            plan: &plan,
            seed,
            is_full: small,
            patience: Duration::from_secs(20),
        }
        .run();
        if !outcome.problems.is_empty() {
            say(&format!("{plan:#?}"));
            panic!(
                "CUFILE_TEST_SEED={seed} CUFILE_TEST_CASES=1 in {}:\n{}\nfailures: {:#?}",
                folder.display(),
                outcome.problems.join("\n"),
                outcome.failure_texts
            );
        }
        sum.add(outcome);
    }
}

#[test]
fn acknowledged_bytes_survive_every_fault() {
    let _turn = turn();
    let cases = cases(DEFAULT_CASES);
    let seed = seed();
    say(&format!("CUFILE_TEST_SEED={seed} CUFILE_TEST_CASES={cases}"));
    let start = Instant::now();
    let mut sum = Sum::default();
    let folders = folders();
    // Before CUDA 13, each of many copies is a call.
    let old = Emulator::start();
    old.control("runtime-version 12080");
    let beds = [(Bed::emulated(), 3), (Bed::on(old), 1)];
    let run = |cases: u64, sum: &mut Sum| {
        for folder in &folders {
            for (bed, quarters) in &beds {
                let share = (cases * quarters).div_ceil(4 * folders.len() as u64);
                // A single case repeats on every file system. Of many cases, each has another seed.
                let seed = if cases == 1 { seed } else { seed.wrapping_add(sum.cases) };
                run_cases(bed, folder.path(), share, seed, false, sum);
            }
        }
    };
    run(cases, &mut sum);
    // The cases may miss a function that is not called in each of them.
    let missed = |sum: &Sum| -> Vec<_> {
        let often = sum.counts.0.iter().filter(|(_, calls, _)| *calls > sum.cases);
        often.filter(|(.., struck)| *struck == 0).map(|(name, ..)| *name).collect()
    };
    for _ in 0..MOST_ROUNDS {
        if cases >= DEFAULT_CASES && !missed(&sum).is_empty() {
            run(cases / 4, &mut sum);
        }
    }
    say(&format!("{}{:?}", sum.text(), start.elapsed()));
    for (bed, _) in &beds {
        let forgotten = faults::forgotten(bed.emulator.as_ref().unwrap());
        assert!(forgotten.is_empty(), "functions that are called and never fail here: {forgotten:?}");
    }
    if cases >= DEFAULT_CASES {
        assert!(missed(&sum).is_empty(), "no fault struck {:?}", missed(&sum));
        let never: Vec<_> = WAYS.iter().filter(|way| !sum.done.contains_key(way.name)).collect();
        assert!(never.is_empty(), "no case succeeded with {never:?}");
    }
    for folder in folders {
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            0,
            "files left in {}",
            folder.path().display()
        );
    }
}

#[test]
fn acknowledged_bytes_survive_faults_on_mounted_file_systems() {
    const NAME: &str = "acknowledged_bytes_survive_faults_on_mounted_file_systems";
    let _turn = turn();
    let require = env::var_os("CUFILE_REQUIRE_MOUNTS").is_some_and(|value| value == "1");
    match mounts::is_inside() {
        Some(true) => {}
        Some(false) => {
            assert!(!require, "CUFILE_REQUIRE_MOUNTS=1, but this process may not mount");
            return say("MOUNTS: none tried: this process may not mount");
        }
        None => {
            let said = mounts::inside(NAME);
            return said.lines().filter(|line| line.starts_with("MOUNTS")).for_each(say);
        }
    }
    let cases = cases(DEFAULT_CASES).div_ceil(50);
    let seed = seed();
    let bed = Bed::emulated();
    for kind in &mounts::KINDS {
        match Mounted::new(kind) {
            Ok(mounted) => {
                let mut sum = Sum::default();
                run_cases(&bed, mounted.path(), cases, seed, kind.is_small, &mut sum);
                let (failed, struck) = (sum.failed, sum.counts.struck());
                say(&format!("MOUNTS: {}: {cases} cases, {struck} faults, {failed} failures", kind.name));
            }
            Err(error) => {
                assert!(!require, "CUFILE_REQUIRE_MOUNTS=1, but {} cannot be mounted: {error}", kind.name);
                say(&format!("MOUNTS: {}: NOT TRIED: {error}", kind.name));
            }
        }
    }
}

#[test]
fn saves_fail_when_statx_fails() {
    let _turn = turn();
    let folder = &folders()[0];
    let path = folder.path().join("array.npy");
    case::running(Some("a save whose file cannot be looked at".to_owned()));
    let save = || {
        // The first call looks at the folder. The fault strikes the calls after it.
        interpose::plan(interpose::STATX, 1, u64::MAX, Effect::Errno(libc::EIO));
        interpose::arm();
        let saved = gpufile::formats::npy::write(
            &path,
            "|u1",
            &[3],
            b"abc".as_slice(),
            &gpufile::formats::SaveOptions::new(),
        );
        interpose::disarm();
        saved.is_err()
    };
    let has_failed = std::thread::scope(|scope| scope.spawn(save).join().unwrap());
    case::running(None);
    assert!(has_failed && fs::read_dir(folder.path()).unwrap().count() == 0);
}

/// Returns the number of seeds that show a planted fault.
fn found_in(seeds: u64, fault: impl Fn(u64) -> Fault) -> u64 {
    let bed = Bed::emulated();
    let noise = Noise::new(&bed);
    let folder = &folders()[0];
    let found = (0..seeds).filter(|seed| {
        let mut plan = Plan::new(*seed, false);
        plan.faults = vec![fault(*seed)];
        let case = Case {
            bed: &bed,
            noise: &noise,
            folder: folder.path(),
            plan: &plan,
            seed: *seed,
            is_full: false,
            patience: Duration::from_millis(200),
        };
        !case.run().problems.is_empty()
    });
    found.count() as u64
}

#[test]
fn the_check_finds_lost_bytes_and_leaks() {
    let _turn = turn();
    let found = found_in(20, |seed| Fault::of_c(interpose::PWRITE, Effect::LeavesOutTheLast, seed % 4, 1));
    assert!(found >= 2, "bytes that were not written: found in {found} cases");
    let found = found_in(20, |seed| Fault::of_c(interpose::PREAD, Effect::LeavesOutTheLast, seed % 4, 1));
    assert!(found >= 2, "bytes that were not read: found in {found} cases");
    let found = found_in(10, |seed| Fault::of_c(interpose::CLOSE, Effect::DoesNothing, seed % 2, 1));
    assert!(found >= 2, "descriptors that stay: found in {found} cases");
    let found = found_in(30, |_| Fault::of_c(interpose::RENAME, Effect::DoesNothing, 0, 1));
    assert!(found >= 2, "files that were not replaced: found in {found} cases");
}
