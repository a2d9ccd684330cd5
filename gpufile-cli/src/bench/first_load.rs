//! The cases that load FILE in fresh processes, because a process loads its model once. Each repetition is a process of
//! this program, which prints the times of its first load and of the second.

use std::env;
use std::io::{BufRead, BufReader, Read, Write, stdout};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use gpufile::cuda::{Cuda, Device};

use super::memory::{DeviceMemory, compare, in_order};
use super::timing::{Lap, Measured, cpu_seconds, timed};
use super::{Bench, KIB, Result};
use crate::failure::Failure;

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
pub fn first(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    measured(bench, || Ok(FreshProcess::run(bench, memory.device(), threads, Before::Cuda)?.first))
}

/// Measures the second load of such a process.
pub fn again(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    measured(bench, || Ok(FreshProcess::run(bench, memory.device(), threads, Before::Cuda)?.again))
}

/// Measures the time from the start of a process to the end of its first load.
pub fn and_start(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    measured(bench, || Ok(FreshProcess::run(bench, memory.device(), threads, Before::Nothing)?.first))
}

/// Runs the repetitions after one that brings program and libraries into the page cache.
fn measured(bench: &Bench, lap: impl FnMut() -> Result<Lap>) -> Result<Measured> {
    Ok(Measured { size: bench.file_bytes, ops: 1, laps: bench.warm_laps(lap)? })
}

/// The times of a process that has ended.
struct FreshProcess {
    first: Lap,
    again: Lap,
}

impl FreshProcess {
    fn run(bench: &Bench, gpu: &Device, threads: usize, before: Before) -> Result<Self> {
        let kind = match before {
            Before::Cuda => "cuda",
            Before::Nothing => "nothing",
        };
        let mut command = Command::new(env::current_exe()?);
        command.arg("bench").arg(&bench.path).args(["--loads-after", kind]);
        command.args(["--gpu", &gpu.ordinal().to_string(), "--threads", &threads.to_string()]);
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
/// nothing was prepared, the processor time of the first load is that of the process.
pub fn load_twice(bench: &Bench, gpu: u32, threads: usize, before: Before) -> Result<ExitCode, Failure> {
    let loaded = || -> Result {
        let cuda = || Cuda::load()?.device(gpu);
        if before == Before::Cuda {
            let mut used = cuda()?.alloc(KIB)?;
            used.fill(0)?;
        }
        let size = bench.file_bytes;
        let (mut kept, mut opened) = (None, None);
        let first = timed(|| -> Result {
            let memory = kept.insert(DeviceMemory::new(&cuda()?, size)?);
            let file = opened.insert(bench.options(threads).open(&bench.path)?);
            Ok(file.read_exact_at(&mut memory.first_mut(size), 0)?)
        })?;
        let (seconds, of_load) = first.seconds();
        say(&Lap::new(seconds, if before == Before::Nothing { cpu_seconds() } else { of_load }))?;
        let (Some(mut memory), Some(file)) = (kept, opened) else { unreachable!("the load succeeded") };
        let ranges = in_order(size, 64 * KIB);
        compare(&bench.path, &memory, &ranges)?;
        let mut target = memory.poisoned(size)?;
        say(&timed(|| file.read_exact_at(&mut target, 0))?)?;
        compare(&bench.path, &memory, &ranges)
    };
    loaded().map_err(|error| Failure::Other(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

fn say(lap: &Lap) -> Result {
    let (seconds, cpu_seconds) = lap.seconds();
    let mut out = stdout();
    writeln!(out, "{seconds:.9} {cpu_seconds:.6}")?;
    Ok(out.flush()?)
}
