//! The cases that load FILE in fresh processes, because a process loads its model once. Each repetition is a process of
//! this program, which prints the times of its first load and of the second.

use std::env;
use std::io::{BufRead, BufReader, Read, Write, stdout};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::slice;
use std::time::Instant;

use gpufile::cuda::{Cuda, Device};
use gpufile::formats::safetensors::{Checkpoint, Placement};

use super::case::{Case, DEFAULT, Unit};
use super::memory::{DeviceMemory, compare, in_order};
use super::models::{Model, compare_parts, reload};
use super::timing::{Lap, Measured, timed};
use super::{Bench, KIB, Result};
use crate::cpu::cpu_seconds;
use crate::failure::Failure;

pub const CASES: &[Case] = &[
    Case::device("first-load", "First load of FILE in a process that has used the GPU", DEFAULT, first)
        .shown_in(Unit::Milliseconds),
    Case::device("first-load-again", "Second load of FILE in such a process", DEFAULT, again)
        .shown_in(Unit::Milliseconds),
    Case::device("first-load-and-start", "Start of a process and its first load", DEFAULT, and_start)
        .shown_in(Unit::Milliseconds),
    Case::gpus("gpus-load-all-first", "First load of a model to all GPUs in a process", to_all),
];

/// The preparation of a fresh process before its clock starts.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Before {
    /// CUDA has started, and the GPU has been used.
    Cuda,
    /// None. The time begins with the start of the process.
    Nothing,
}

/// Measures the first load of a process in which CUDA has started: making the engine, opening the file, allocating the
/// memory, and reading.
fn first(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    measured(bench, || {
        Ok(FreshProcess::run(&bench.path, slice::from_ref(memory.device()), threads, Before::Cuda)?.first)
    })
}

fn again(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    measured(bench, || {
        Ok(FreshProcess::run(&bench.path, slice::from_ref(memory.device()), threads, Before::Cuda)?.again)
    })
}

fn and_start(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    measured(bench, || {
        Ok(FreshProcess::run(&bench.path, slice::from_ref(memory.device()), threads, Before::Nothing)?.first)
    })
}

fn to_all(bench: &Bench, gpus: &[Device], threads: usize) -> Result<Measured> {
    let model = Model::new(bench, &gpus[0], threads)?;
    let lap = || Ok(FreshProcess::run(&model.fresh.path, gpus, threads, Before::Cuda)?.first);
    Ok(Measured { size: model.len_bytes, ..measured(bench, lap)? })
}

/// Runs the repetitions after one that brings program and libraries into the page cache.
fn measured(bench: &Bench, lap: impl FnMut() -> Result<Lap>) -> Result<Measured> {
    Ok(Measured { size: bench.file_bytes, ops: 1, laps: bench.warm_laps(lap)? })
}

struct FreshProcess {
    first: Lap,
    again: Lap,
}

impl FreshProcess {
    fn run(file: &Path, gpus: &[Device], threads: usize, before: Before) -> Result<Self> {
        let kind = match before {
            Before::Cuda => "cuda",
            Before::Nothing => "nothing",
        };
        let mut command = Command::new(env::current_exe()?);
        let ordinals: Vec<_> = gpus.iter().map(|gpu| gpu.ordinal().to_string()).collect();
        command.arg("bench").arg(file).args(["--loads-after", kind]);
        command.args(["--gpu", &ordinals.join(","), "--threads", &threads.to_string()]);
        let start = Instant::now();
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(process.stdout.take().ok_or("the output is a pipe")?);
        let mut next_line = || -> Result<(String, f64)> {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            Ok((line, start.elapsed().as_secs_f64()))
        };
        let first = next_line()?;
        let again = next_line()?;
        let mut problem = String::new();
        if let Some(mut errors) = process.stderr.take() {
            errors.read_to_string(&mut problem)?;
        }
        let status = process.wait()?;
        if !status.success() {
            return Err(format!("the process of a first load failed: {status}: {}", problem.trim()).into());
        }
        let lap_of = |line: &str| {
            let (seconds, cpu) = line.trim().split_once(' ').ok_or("a line has two numbers")?;
            Ok::<_, Box<dyn std::error::Error>>(Lap::new(seconds.parse()?, cpu.parse()?))
        };
        let (line, since_start) = first;
        let (seconds, cpu_seconds) = lap_of(&line)?.seconds();
        let seconds = if before == Before::Nothing { since_start } else { seconds };
        Ok(Self { first: Lap::new(seconds, cpu_seconds), again: lap_of(&again.0)? })
    }
}

/// Loads FILE twice in this process, and prints a line after each load: its seconds, and the seconds of processor time. If
/// nothing was prepared, the processor time of the first load is that of the process. Several GPUs get all tensors of FILE,
/// which is a model then.
pub fn load_twice(bench: &Bench, gpus: &[u32], threads: usize, before: Before) -> Result<ExitCode, Failure> {
    let devices = || -> cufile::Result<Vec<Device>> {
        let cuda = Cuda::load()?;
        gpus.iter().map(|gpu| cuda.device(*gpu)).collect()
    };
    let loaded = || -> Result {
        if before == Before::Cuda {
            for device in devices()? {
                device.alloc(KIB)?.fill(0)?;
            }
        }
        match gpus.len() {
            1 => load_file_twice(bench, || Ok(devices()?.remove(0)), threads, before),
            _ => load_model_twice(bench, devices, threads, before),
        }
    };
    loaded().map_err(|error| Failure::Other(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

fn load_file_twice(
    bench: &Bench,
    device: impl FnOnce() -> cufile::Result<Device>,
    threads: usize,
    before: Before,
) -> Result {
    let size = bench.file_bytes;
    let (mut kept, mut opened) = (None, None);
    let first = timed(|| -> Result {
        let memory = kept.insert(DeviceMemory::new(&device()?, size)?);
        let file = opened.insert(bench.options(threads).open(&bench.path)?);
        Ok(file.read_exact_at(&mut memory.first_mut(size), 0)?)
    })?;
    say_first(&first, before)?;
    let (Some(mut memory), Some(file)) = (kept, opened) else { unreachable!("the load succeeded") };
    let ranges = in_order(size, 64 * KIB);
    compare(&bench.path, &memory, &ranges)?;
    let mut target = memory.poisoned(size)?;
    say(&timed(|| file.read_exact_at(&mut target, 0))?)?;
    compare(&bench.path, &memory, &ranges)
}

fn load_model_twice(
    bench: &Bench,
    devices: impl FnOnce() -> cufile::Result<Vec<Device>>,
    threads: usize,
    before: Before,
) -> Result {
    let placement = Placement::all();
    let mut kept = None;
    let first = timed(|| -> Result {
        let model = Checkpoint::open_with([&bench.path], &bench.options(threads))?;
        let devices = devices()?;
        let placed = model.load().placed(&placement).to_devices(&devices)?;
        kept = Some((model, devices, placed));
        Ok(())
    })?;
    say_first(&first, before)?;
    let Some((model, devices, mut placed)) = kept else { unreachable!("the load succeeded") };
    compare_parts(&model, &placed)?;
    say(&reload(&model, &devices, &mut placed)?)?;
    compare_parts(&model, &placed)
}

fn say_first(lap: &Lap, before: Before) -> Result {
    let (seconds, of_load) = lap.seconds();
    say(&Lap::new(seconds, if before == Before::Nothing { cpu_seconds() } else { of_load }))
}

fn say(lap: &Lap) -> Result {
    let (seconds, cpu_seconds) = lap.seconds();
    let mut out = stdout();
    writeln!(out, "{seconds:.9} {cpu_seconds:.6}")?;
    Ok(out.flush()?)
}
