//! One case: it makes files and engines, runs the planned threads, and compares everything.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};
use std::{process, thread};

use cufile::FileSystems;
use gpufile::formats::safetensors::Checkpoint;
use gpufile::{Cause, Engine, OpenOptions, RoutePolicy};
use testkit::bed::Bed;

use crate::faults::Counts;
use crate::interpose;
use crate::left::Alive;
use crate::memory::Noise;
use crate::plan::{NOISE_BYTES, Plan, SPARE_BYTES};
use crate::say;
use crate::worker::{OwnSlot, Report, Saved, Start, Worker, still_works};

pub struct Case<'a> {
    pub bed: &'a Bed,
    pub noise: &'a Noise,
    pub folder: &'a Path,
    pub plan: &'a Plan,
    pub seed: u64,
    /// True if writes may fail without a planned fault.
    pub is_full: bool,
    /// The time in which transfers in flight must end.
    pub patience: Duration,
}

#[derive(Default)]
pub struct Outcome {
    pub problems: Vec<String>,
    pub counts: Counts,
    pub done: Vec<&'static str>,
    pub failures: usize,
    pub failure_texts: Vec<String>,
    pub dropped: usize,
}

/// The running case, and its beginning.
static RUNNING: Mutex<Option<(Instant, String)>> = Mutex::new(None);

pub fn running(case: Option<String>) {
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = case.map(|text| (Instant::now(), text));
}

/// Ends the process if a case does not end.
pub fn watch() {
    static BEGUN: Once = Once::new();
    let look = || {
        loop {
            thread::sleep(Duration::from_secs(1));
            let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((since, text)) = &*running
                && since.elapsed() > Duration::from_secs(120)
            {
                say(&format!("{text} does not end"));
                process::abort();
            }
        }
    };
    BEGUN.call_once(|| drop(thread::spawn(look)));
}

impl Case<'_> {
    pub fn run(&self) -> Outcome {
        let folder = self.folder.join("case");
        running(Some(format!("CUFILE_TEST_SEED={} in {}", self.seed, folder.display())));
        fs::create_dir(&folder).unwrap();
        let outcome = self.run_in(&folder);
        fs::remove_dir_all(&folder).unwrap();
        running(None);
        outcome
    }

    fn run_in(&self, folder: &Path) -> Outcome {
        let Self { bed, noise, plan, .. } = *self;
        let emulator = bed.emulator.as_ref().expect("the emulator, whose calls can fail");
        let nvme = if plan.gds { FileSystems::NVME.bits() } else { 0 };
        emulator.control(&format!("nvidia-fs 2 17 {nvme}"));
        emulator.control(&format!("require-context {}", u8::from(plan.require_context)));
        emulator.control(&format!("rmw {}", u8::from(plan.gds)));
        let before = Alive::now(emulator, folder);

        let engines = [self.engine(), self.engine()];
        let paths = self.create(folder);
        let options: Vec<_> = (0..paths.len()).map(|file| self.options(&engines[0], &paths, file)).collect();
        // Threads that open the files themselves may use a separate engine.
        let other = &engines[usize::from(plan.other_engine)];
        let other: Vec<_> = options.iter().map(|options| options.clone().engine(other)).collect();
        let files: Vec<_> =
            options.iter().zip(&paths).map(|(options, path)| options.open(path).unwrap()).collect();
        let ends: Vec<_> = (0..paths.len()).map(|file| plan.file_end(file) as u64).collect();
        let start = Start {
            noise,
            engine: &engines[0],
            options: &other,
            paths: &paths,
            files: &files,
            ends: &ends,
            folder,
        };
        let (reports, mut counts, mut problems) = self.run_threads(&start);

        let mut outcome = Outcome::default();
        for report in &reports {
            outcome.done.extend(&report.done);
            outcome.failure_texts.extend_from_slice(&report.failures);
            outcome.dropped += report.dropped;
        }
        outcome.failures = outcome.failure_texts.len();
        if counts.struck() == 0 && outcome.failures > 0 && !self.is_full {
            problems.push("calls failed though no fault struck".to_owned());
        }
        if counts.to_be_told(plan) > 0 && outcome.failures + outcome.dropped == 0 {
            problems.push("a call failed, and nobody was told".to_owned());
        }
        self.check_lengths(&paths, &reports, &mut problems);
        for (number, file) in files.iter().enumerate() {
            let at = if plan.files[number].front_bytes > 0 {
                0
            } else {
                plan.file_end(number).next_multiple_of(4096)
            };
            if let Err(error) = still_works(noise, file, at as u64) {
                problems.push(format!("the engine does not work any more, file {number}: {error}"));
            }
        }
        for report in &reports {
            self.check_read(report, &mut problems);
            self.check_loaded(report, &mut problems);
        }
        let (slots, saved) = reports.into_iter().map(|report| (report.slots, report.saved)).unzip();
        plan.late_faults.iter().for_each(|fault| fault.plan(emulator));
        interpose::arm();
        let before_end = Counts::now(emulator);
        drop((files, options, other, engines));
        interpose::disarm();
        emulator.control("clear");
        counts.add(&Counts::now(emulator).since(&before_end, &plan.late_faults));
        // From here on, nothing can be in flight.
        problems.extend(before.leftovers(emulator, folder, &counts, self.patience));
        self.check_contents(&paths, slots, &mut problems);
        self.check_saved(saved, &mut problems);
        self.check_folder(folder, &counts, &mut problems);
        Outcome { problems, counts, ..outcome }
    }

    fn engine(&self) -> Engine {
        let plan = &self.plan.engine;
        let mut engine = Engine::builder()
            .driver(self.bed.driver.clone())
            .threads(plan.threads)
            .bounce_buffer_bytes(plan.bounce_buffer_bytes)
            .gds_threshold_bytes(plan.gds_threshold_bytes)
            .overread(plan.overread);
        if let Some(bytes) = plan.bounce_memory_bytes {
            engine = engine.bounce_memory_bytes(bytes);
        }
        if let Some(bytes) = plan.chunk_bytes {
            engine = engine.chunk_bytes(bytes);
        }
        engine.build()
    }

    fn create(&self, folder: &Path) -> Vec<PathBuf> {
        let create = |(number, file): (usize, &crate::plan::FilePlan)| {
            let path = folder.join(format!("file {number}"));
            fs::write(&path, &self.noise.bytes[..file.len_bytes]).unwrap();
            path
        };
        self.plan.files.iter().enumerate().map(create).collect()
    }

    fn options(&self, engine: &Engine, paths: &[PathBuf], file: usize) -> OpenOptions {
        let plan = &self.plan.files[file];
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .engine(engine)
            .direct_read(plan.direct_read)
            .direct_write(plan.direct_write);
        let wanted = options.clone().policy(plan.policy);
        match wanted.open(&paths[file]) {
            // cuFile does not accept the file.
            Err(error) if matches!(error.cause(), Cause::NoCufile(_)) => options.policy(RoutePolicy::Auto),
            _ => wanted,
        }
    }

    fn run_threads(&self, start: &Start<'_>) -> (Vec<Report>, Counts, Vec<String>) {
        let emulator = self.bed.emulator.as_ref().unwrap();
        let ready = Barrier::new(self.plan.threads.len() + 1);
        thread::scope(|scope| {
            let run = |number: usize| {
                let plan = &self.plan.threads[number];
                let mut worker = Worker::new(start, number, plan, self.slots(Some(number)));
                let ready = &ready;
                scope.spawn(move || {
                    ready.wait();
                    // The threads wait until the faults are armed.
                    ready.wait();
                    worker.run(plan);
                    worker.report
                })
            };
            let threads: Vec<_> = (0..self.plan.threads.len()).map(run).collect();
            ready.wait();
            self.plan.faults.iter().for_each(|fault| fault.plan(emulator));
            let before = Counts::now(emulator);
            interpose::arm();
            ready.wait();
            let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            interpose::disarm();
            emulator.control("clear");
            let counts = Counts::now(emulator).since(&before, &self.plan.faults);
            let mut problems = Vec::new();
            let mut reports = Vec::new();
            for report in joined {
                match report {
                    Ok(report) => reports.push(report),
                    Err(_) => problems.push("a thread panicked".to_owned()),
                }
            }
            let nobody = Report { slots: self.slots(None), ..Report::default() };
            reports.push(nobody);
            (reports, counts, problems)
        })
    }

    /// Returns the slots of a thread, or of nobody.
    fn slots(&self, owner: Option<usize>) -> Vec<OwnSlot> {
        let slots = self.plan.slots.iter().enumerate().filter(|(_, slot)| slot.owner == owner);
        let own = |(number, slot): (usize, &crate::plan::Slot)| {
            let start = slot.start as usize;
            let filled = self.plan.files[slot.file].len_bytes.clamp(start, start + slot.len_bytes) - start;
            let mut bytes = vec![0; slot.len_bytes];
            bytes[..filled].copy_from_slice(&self.noise.bytes[start.min(NOISE_BYTES)..][..filled]);
            OwnSlot::new(number, slot.file, slot.start, bytes, filled)
        };
        slots.map(own).collect()
    }

    fn check_lengths(&self, paths: &[PathBuf], reports: &[Report], problems: &mut Vec<String>) {
        for slot in reports.iter().flat_map(|report| &report.slots) {
            let len_bytes = fs::metadata(&paths[slot.file]).unwrap().len();
            let end = slot.start + slot.acknowledged_end as u64;
            if slot.acknowledged_end > 0 && len_bytes < end {
                problems.push(format!("file {} has {len_bytes} bytes, {end} were acknowledged", slot.file));
            }
        }
        for (file, end) in reports.iter().flat_map(|report| &report.lengths) {
            let len_bytes = fs::metadata(&paths[*file]).unwrap().len();
            if len_bytes < *end {
                problems.push(format!("file {file} has {len_bytes} bytes, and was made {end} long"));
            }
        }
    }

    fn check_loaded(&self, report: &Report, problems: &mut Vec<String>) {
        for loaded in &report.loaded {
            let found = loaded.buffer.to_vec().unwrap();
            let noise = &self.noise.bytes;
            let is_this = |tensors: &&Vec<(usize, usize)>| {
                let pairs = tensors.iter().zip(&loaded.ranges);
                tensors.len() == loaded.ranges.len()
                    && pairs
                        .clone()
                        .all(|((start, len), range)| found[range.clone()] == noise[*start..start + len])
            };
            if !loaded.possible.iter().any(|tensors| is_this(&tensors)) {
                problems.push("what was loaded is none of what may have been saved".to_owned());
            }
        }
    }

    fn check_read(&self, report: &Report, problems: &mut Vec<String>) {
        for read in &report.read {
            let bytes = read.buffer.to_vec().unwrap();
            for (at, len_bytes, expected) in &read.parts {
                if let Some((first, last)) = expected.wrong(&bytes[*at..][..*len_bytes], &self.noise.bytes) {
                    let text = &read.text;
                    problems
                        .push(format!("read wrong bytes from {first} to {last} of the part at {at}: {text}"));
                }
            }
        }
    }

    fn check_contents(&self, paths: &[PathBuf], slots: Vec<Vec<OwnSlot>>, problems: &mut Vec<String>) {
        for (number, path) in paths.iter().enumerate() {
            let file = fs::File::open(path).unwrap();
            let len_bytes = file.metadata().unwrap().len() as usize;
            let most = self.plan.file_end(number).next_multiple_of(4096) + SPARE_BYTES;
            if len_bytes > most.max(self.plan.files[number].len_bytes) {
                problems.push(format!("file {number} has {len_bytes} bytes, and nobody wrote behind {most}"));
            }
            for slot in slots.iter().flatten().filter(|slot| slot.file == number) {
                let all = self.plan.slots[slot.number].len_bytes;
                let mut found = vec![0; all.min(len_bytes.saturating_sub(slot.start as usize))];
                file.read_exact_at(&mut found, slot.start).unwrap();
                if let Some((first, last)) = slot.expected.wrong(&found, &self.noise.bytes) {
                    let Self { plan, .. } = self;
                    problems.push(format!(
                        "file {number} has wrong bytes from {first} to {last} of slot {} at {} of thread {:?}",
                        slot.number, slot.start, plan.slots[slot.number].owner
                    ));
                }
            }
        }
    }

    /// Checks that each saved file has one whole contents, the acknowledged ones or later ones.
    fn check_saved(&self, saved: Vec<[Saved; 2]>, problems: &mut Vec<String>) {
        for saved in saved.into_iter().flatten() {
            let possible = saved.possible();
            let Saved { path, array, acknowledged, .. } = saved;
            if !path.exists() {
                if acknowledged.is_some() {
                    problems.push(format!("{} is gone", path.display()));
                }
                continue;
            }
            let is_whole = |tensors: &Vec<(usize, usize)>| {
                if array { self.is_array(&path, tensors) } else { self.is_model(&path, tensors) }
            };
            if !possible.iter().any(is_whole) {
                problems.push(format!("{} has none of the contents that it may have", path.display()));
            }
        }
    }

    fn is_array(&self, path: &Path, tensors: &[(usize, usize)]) -> bool {
        let (start, len_bytes) = tensors[0];
        fs::read(path).unwrap().ends_with(&self.noise.bytes[start..start + len_bytes])
    }

    fn is_model(&self, path: &Path, tensors: &[(usize, usize)]) -> bool {
        let options =
            OpenOptions::new().engine(&Engine::builder().threads(1).build()).policy(RoutePolicy::PosixOnly);
        let Ok(model) = Checkpoint::open_with([path], &options) else { return false };
        model.tensors().len() == tensors.len()
            && tensors.iter().enumerate().all(|(number, (start, len_bytes))| {
                model
                    .read_tensor(&format!("tensor {number}"))
                    .is_ok_and(|bytes| bytes == self.noise.bytes[*start..start + len_bytes])
            })
    }

    fn check_folder(&self, folder: &Path, counts: &Counts, problems: &mut Vec<String>) {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let names: BTreeSet<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        for name in names.iter().filter(|name| name.ends_with(".tmp")) {
            if !counts.is_struck("unlink") {
                problems.push(format!("{name} was left behind"));
            }
        }
    }
}
