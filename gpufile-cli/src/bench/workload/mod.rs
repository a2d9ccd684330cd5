//! `gpufile bench` with a workload: transfers of one size by several threads, in every combination that the options
//! name.
//!
//! [`args`] has the options, [`target_file`] the file, [`worker`] one thread. [`report`] prints the rows.

mod args;
mod report;
mod target_file;
mod worker;

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Instant;

use hdrhistogram::Histogram;

pub use args::WorkloadArgs;
use args::{Io, Via};
use report::{Format, Report};
use target_file::TargetFile;
use worker::{Buffer, HostBuffer, Job, Tally, Worker};

use gpufile::{DirectIo, Engine, File, Settings, page_cache};

use super::{KIB, MIB, Result, spawn};
use crate::cpu::cpu_seconds;
use crate::failure::Failure;
use crate::progress::Bar;
use crate::stderr::complain;
use crate::target::Place;
use crate::units::Bytes;

#[derive(Debug, Clone, PartialEq)]
struct Run {
    io: Io,
    via: Via,
    io_bytes: usize,
    /// Threads at each place.
    workers: u64,
    depth: u64,
}

impl Run {
    fn fits(&self, region_bytes: u64) -> bool {
        region_bytes / (self.io_bytes as u64) >= self.workers.max(self.depth)
    }
}

struct Row {
    run: Run,
    /// The memory, and the bytes moved to or from it.
    places: Vec<(String, u64)>,
    route: String,
    /// The share in the page cache when the run began; `None` if the system does not tell.
    cached: Option<f64>,
    seconds: f64,
    cpu_seconds: f64,
    read_bytes: u64,
    written_bytes: u64,
    latency: Histogram<u64>,
}

fn runs(arguments: &WorkloadArgs, io: &[Io], via: &[Via]) -> Vec<Run> {
    let or =
        |given: &[u64], default: &[u64]| if given.is_empty() { default.to_vec() } else { given.to_vec() };
    let sizes = or(&arguments.io_size, &[64 * KIB as u64, MIB as u64, 16 * MIB as u64]);
    let (workers, depths) = (or(&arguments.workers, &[4]), or(&arguments.depth, &[1]));
    let mut runs = Vec::new();
    for &io in io {
        for &via in via {
            for &depth in &depths {
                for &workers in &workers {
                    for &io_bytes in &sizes {
                        runs.push(Run { io, via, io_bytes: io_bytes as usize, workers, depth });
                    }
                }
            }
        }
    }
    runs
}

pub fn run(
    path: &Path,
    arguments: &WorkloadArgs,
    threads: Option<u16>,
    overwrite: bool,
    json: bool,
) -> Result<ExitCode, Failure> {
    let settings = Settings::from_env().map_err(|error| Failure::Other(error.to_string()))?;
    let (places, via) = places(arguments)?;
    let all = [Io::WRITE, Io::READ, Io::RAND_WRITE, Io::RAND_READ];
    let default = if path.is_file() { &[Io::READ][..] } else { &all };
    let io = if arguments.io.is_empty() { default } else { &arguments.io };
    let mut runs = runs(arguments, io, &via);
    let needed = arguments.size.map(|size| size.saturating_mul(places.len() as u64));
    let writes = io.iter().any(|io| io.writes);
    let len_bytes = needed.unwrap_or_else(|| target_file::default_len(path));
    let region_bytes = len_bytes / places.len() as u64;
    if arguments.io_size.is_empty() && runs.iter().any(|run| run.fits(region_bytes)) {
        // A default that does not fit was asked for by nobody.
        runs.retain(|run| run.fits(region_bytes));
    }
    // No size has more of a file than there is.
    let is_whole = path.is_file() && len_bytes >= target_file::default_len(path);
    check(&runs, region_bytes, if is_whole { "name a longer file" } else { "raise --size" })?;
    let file = TargetFile::new(path, len_bytes, writes, overwrite)?;
    let format = match (json, arguments.csv) {
        (true, _) => Format::Json,
        (_, true) => Format::Csv,
        _ => Format::Table,
    };
    if file.is_made() {
        complain(&format!("{:?} is new, and is removed afterwards", file.path));
    }
    let mut report = Report::new(format)?;
    let mut status = ExitCode::SUCCESS;
    let count = runs.len() as u64;
    let bar = Bar::of_steps(count, "measuring");
    for run in runs {
        let size = Bytes(run.io_bytes as u64);
        bar.say(format!("{} ({}), {size}, {} workers", run.io.name(), run.via.name(), run.workers));
        let host = [Place::Host];
        let places = if run.via == Via::Host { &host[..] } else { &places[..] };
        let setting = Setting { settings: &settings, arguments, threads, file: &file, region_bytes };
        match setting.measure(&run, places) {
            Ok(row) => bar.hidden(|| report.row(row))?,
            Err(error) => {
                let error = super::one_line(&error);
                bar.hidden(|| report.failure(&run, &error));
                status = ExitCode::FAILURE;
            }
        }
        bar.add(1);
    }
    drop(bar);
    report.end()?;
    Ok(status)
}

fn places(arguments: &WorkloadArgs) -> Result<(Vec<Place>, Vec<Via>), Failure> {
    let via = &arguments.via;
    if !via.is_empty() && via.iter().all(|&via| via == Via::Host) {
        return Ok((vec![Place::Host], via.clone()));
    }
    let (places, why_host) = arguments.memory.places()?;
    let on_host = matches!(places[..], [Place::Host]);
    match (on_host, &why_host) {
        (false, _) if via.is_empty() => Ok((places, vec![Via::AUTO])),
        (false, _) => Ok((places, via.clone())),
        (true, _) if via.is_empty() => {
            if let Some(why) = why_host {
                complain(&format!("{why}; measuring host memory"));
            }
            Ok((places, vec![Via::Host]))
        }
        (true, Some(why)) => Err(Failure::Other(format!("{why}; only --via host works here"))),
        (true, None) => Err(Failure::Usage("--host allows only --via host".to_owned())),
    }
}

fn check(runs: &[Run], region_bytes: u64, advice: &str) -> Result<(), Failure> {
    match runs.iter().find(|run| !run.fits(region_bytes)) {
        None => Ok(()),
        Some(Run { io_bytes, workers, depth, .. }) => Err(Failure::Usage(format!(
            "{workers} workers and depth {depth}, with {} per transfer, need more than {} of the file: {advice}",
            Bytes(*io_bytes as u64),
            Bytes(region_bytes)
        ))),
    }
}

struct Setting<'a> {
    settings: &'a Settings,
    arguments: &'a WorkloadArgs,
    threads: Option<u16>,
    file: &'a TargetFile,
    region_bytes: u64,
}

impl Setting<'_> {
    fn measure(&self, run: &Run, places: &[Place]) -> Result<Row> {
        let engine = Engine::builder().settings(self.settings.clone());
        let engine = match self.threads.filter(|&threads| threads > 0) {
            Some(threads) => engine.threads(usize::from(threads)),
            None => engine,
        };
        let mut options = File::options().read(true).write(run.io.writes).engine(&engine.build());
        if let Via::Gpu(policy) = run.via {
            options = options.policy(policy);
        }
        if let Some(direct) = self.arguments.direct {
            options = options.direct_read(direct).direct_write(direct);
        }
        let mut file = options.open(&self.file.path)?;
        let plain = std::fs::File::open(&self.file.path)?;
        let is_direct = self.arguments.direct == Some(DirectIo::Always);
        if self.arguments.cold || is_direct {
            page_cache::evict(&plain, 0..u64::MAX)?;
        }
        if is_direct {
            // A transfer is one request at the disk, and no more are in flight than the options say.
            file = file.with_chunk_bytes(run.io_bytes);
        }
        let cached = page_cache::residency(&plain, 0..u64::MAX).ok().map(|found| found.fraction());
        let is_over = AtomicBool::new(false);
        let jobs = places.iter().enumerate().map(|(number, _)| Job {
            file: &file,
            io: run.io,
            region: self.region(number as u64),
            io_bytes: run.io_bytes,
            workers: run.workers,
            duration: self.arguments.duration,
            read_percent: self.arguments.mix.unwrap_or(70),
            verify: self.arguments.verify.then_some(&plain),
            is_over: &is_over,
        });
        let jobs: Vec<_> = jobs.collect();
        let (tallies, seconds, cpu_seconds) = all_threads(run, places, &jobs)?;
        let mut row = Row {
            run: run.clone(),
            places: Vec::new(),
            route: match run.via {
                Via::Host => "host memory".to_owned(),
                Via::Gpu(_) => file.route().kind().to_string(),
            },
            cached,
            seconds,
            cpu_seconds,
            read_bytes: 0,
            written_bytes: 0,
            latency: Tally::default().latency,
        };
        for (place, tallies) in places.iter().zip(tallies.chunks(run.workers as usize)) {
            let bytes = |tally: &Tally| tally.read_bytes + tally.written_bytes;
            row.places.push((place.name(), tallies.iter().map(bytes).sum()));
            for tally in tallies {
                row.read_bytes += tally.read_bytes;
                row.written_bytes += tally.written_bytes;
                row.latency.add(&tally.latency)?;
            }
        }
        Ok(row)
    }

    fn region(&self, number: u64) -> Range<u64> {
        number * self.region_bytes..(number + 1) * self.region_bytes
    }
}

/// Returns the tallies, place by place, and the seconds and CPU seconds.
fn all_threads(run: &Run, places: &[Place], jobs: &[Job<'_>]) -> Result<(Vec<Tally>, f64, f64)> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        // Opens at the latest when this returns, so no worker waits for one that could not be spawned.
        let closed = gate.write();
        let (preparing, prepared) = mpsc::channel();
        let mut threads = Vec::new();
        for (place, job) in places.iter().zip(jobs) {
            for number in 0..run.workers {
                let start = Start { preparing: preparing.clone(), gate: &gate };
                let outcome = move || one_thread(run, place, job, number, start);
                // Boxes of errors stay in their threads.
                let thread = spawn(scope, move || outcome().map_err(|error| error.to_string()));
                threads.push(thread.inspect_err(|_| job.is_over.store(true, Ordering::Relaxed))?);
            }
        }
        drop(preparing);
        // Fails when no worker prepares any more. Their clocks start when the gate opens.
        let _ = prepared.recv();
        let cpu_before = cpu_seconds();
        drop(closed);
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let cpu = cpu_seconds() - cpu_before;
        let outcome = |outcome: thread::Result<Result<_, String>>| -> Result<(Tally, [Instant; 2])> {
            Ok(outcome.map_err(|_| "a worker panicked")??)
        };
        let outcomes = outcomes.into_iter().map(outcome).collect::<Result<Vec<_>>>()?;
        let (tallies, clocks): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
        let start = clocks.iter().map(|[start, _]| *start).min();
        let end = clocks.iter().map(|[_, end]| *end).max();
        let seconds = end.zip(start).map_or(0.0, |(end, start)| (end - start).as_secs_f64());
        Ok((tallies, seconds, cpu))
    })
}

/// Returns the tally, the start and the end. All threads start together, when each has its buffers or has failed to
/// get them.
fn one_thread(
    run: &Run,
    place: &Place,
    job: &Job<'_>,
    number: u64,
    start: Start<'_>,
) -> Result<(Tally, [Instant; 2])> {
    match place {
        Place::Host => {
            let buffers = (0..run.depth).map(|_| HostBuffer::new(run.io_bytes)).collect();
            start.run(buffers, job, number)
        }
        Place::Gpu(device) => {
            let buffers = (0..run.depth).map(|_| Ok(device.alloc(run.io_bytes)?)).collect();
            start.run(buffers, job, number)
        }
    }
}

struct Start<'a> {
    /// Lives while the thread prepares.
    preparing: Sender<()>,
    gate: &'a RwLock<()>,
}

impl Start<'_> {
    fn run<B: Buffer>(
        self,
        buffers: Result<Vec<B>>,
        job: &Job<'_>,
        number: u64,
    ) -> Result<(Tally, [Instant; 2])> {
        let worker = buffers.and_then(|buffers| Worker::new(job, number, buffers));
        drop(self.preparing);
        drop(self.gate.read());
        let start = Instant::now();
        let tally = worker?.run()?;
        Ok((tally, [start, Instant::now()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_all_combinations_in_order() {
        let arguments =
            WorkloadArgs { io_size: vec![10, 20], workers: vec![1, 3], ..WorkloadArgs::default() };
        let runs = runs(&arguments, &[Io::READ, Io::WRITE], &[Via::Host]);
        let found: Vec<_> = runs.iter().map(|run| (run.io.name(), run.workers, run.io_bytes)).collect();
        let of = |io| [(io, 1, 10), (io, 1, 20), (io, 3, 10), (io, 3, 20)];
        assert_eq!(found, [of("read"), of("write")].concat());
        assert!(check(&runs, 60, "").is_ok());
        let error = check(&runs, 59, "").unwrap_err().to_string();
        assert!(
            error.contains("3 workers and depth 1, with 20 B per transfer, need more than 59 B"),
            "{error}"
        );
    }
}
