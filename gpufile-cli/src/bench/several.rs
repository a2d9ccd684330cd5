//! The cases that read FILE into several GPUs at once, and the ceiling of their links.

use std::thread;

use gpufile::cuda::Device;
use gpufile::{IoBufMut, IoRange, Request};

use super::case::Case;
use super::memory::{DeviceMemory, compare, in_order};
use super::timing::{Lap, Measured, timed};
use super::{Bench, KIB, MIB, Result, spawn};

pub const CASES: &[Case] = &[
    Case::gpus("gpus-link", "Pinned memory to all GPUs: the ceiling of the others", pinned_copies)
        .of_peer("cuda"),
    Case::gpus("gpus-read", "Another part of FILE to each GPU", read_each),
    Case::gpus("gpus-read-file", "All of FILE to each GPU", read_file_by_each),
    Case::gpus("gpus-read-many", "Parts of 16 MiB to the GPUs in turn, in one call", read_many_on_all),
    Case::gpus("gpus-one-alone", "All of FILE to the first GPU, after the others were in use", one_alone),
];

fn memories(gpus: &[Device], len_bytes: usize) -> Result<Vec<DeviceMemory>> {
    Ok(gpus.iter().map(|gpu| DeviceMemory::new(gpu, len_bytes)).collect::<Result<_, _>>()?)
}

/// Returns the bytes of FILE for each GPU, a multiple of 1 MiB.
///
/// # Errors
/// FILE has less for each.
fn share_of(bench: &Bench, gpus: &[Device]) -> Result<usize> {
    match bench.file_bytes / gpus.len() / MIB * MIB {
        0 => Err(format!("FILE is too short: it has less than 1 MiB for each of {} GPUs", gpus.len()).into()),
        share => Ok(share),
    }
}

fn on_each<T: Send>(items: Vec<T>, work: impl Fn(usize, T) -> gpufile::Result<()> + Sync) -> Result {
    let work = &work;
    thread::scope(|scope| {
        let threads = items.into_iter().enumerate();
        let threads = threads.map(|(number, item)| spawn(scope, move || work(number, item)));
        let threads: Vec<_> = threads.collect::<Result<_>>()?;
        threads.into_iter().try_for_each(|thread| thread.join().expect("a transfer does not panic"))?;
        Ok(())
    })
}

/// Copies pinned memory to all GPUs at the same time: the ceiling of the other cases.
fn pinned_copies(bench: &Bench, gpus: &[Device], _threads: usize) -> Result<Measured> {
    let size = share_of(bench, gpus)?;
    let mut targets = Vec::new();
    for gpu in gpus {
        let len_bytes = size.min(64 * MIB);
        targets.push((gpu.alloc_pinned(len_bytes)?, gpu.alloc(len_bytes)?, gpu.stream()?));
    }
    let laps = bench.warm_laps(|| {
        timed(|| {
            on_each(targets.iter_mut().collect(), |_, (source, target, stream)| {
                let copied = (0..size).step_by(source.len()).try_for_each(|start| {
                    let len_bytes = source.len().min(size - start);
                    // SAFETY: both are as long. They live until the stream is idle below, and nothing else uses them.
                    unsafe { stream.copy_to_device(target.as_mut_ptr(), &source[..len_bytes]) }
                });
                Ok(stream.synchronize().and(copied)?)
            })
        })
    })?;
    Ok(Measured { size, ops: gpus.len(), laps })
}

/// Reads another part of FILE into each GPU, by a thread for each and one engine.
fn read_each(bench: &Bench, gpus: &[Device], threads: usize) -> Result<Measured> {
    let size = share_of(bench, gpus)?;
    let file = bench.options(threads).open(&bench.path)?;
    let mut memories = memories(gpus, size)?;
    let laps = bench.warm_laps(|| {
        let targets: Result<Vec<_>> = memories.iter_mut().map(|memory| memory.poisoned(size)).collect();
        let targets = targets?;
        timed(|| on_each(targets, |gpu, mut target| file.read_exact_at(&mut target, (gpu * size) as u64)))
    })?;
    for (gpu, memory) in memories.iter().enumerate() {
        let ranges = in_order(size, 64 * KIB).into_iter();
        let ranges =
            ranges.map(|range| IoRange { file_offset: range.file_offset + (gpu * size) as u64, ..range });
        compare(&bench.path, memory, &ranges.collect::<Vec<_>>())?;
    }
    Ok(Measured { size, ops: gpus.len(), laps })
}

fn read_file_by_each(bench: &Bench, gpus: &[Device], threads: usize) -> Result<Measured> {
    let size = bench.file_bytes;
    let file = bench.options(threads).open(&bench.path)?;
    let mut memories = memories(gpus, size)?;
    let laps = bench.warm_laps(|| {
        let targets: Result<Vec<_>> = memories.iter_mut().map(|memory| memory.poisoned(size)).collect();
        let targets = targets?;
        timed(|| on_each(targets, |_, mut target| file.read_exact_at(&mut target, 0)))
    })?;
    memories.iter().try_for_each(|memory| compare(&bench.path, memory, &in_order(size, 64 * KIB)))?;
    Ok(Measured { size, ops: gpus.len(), laps })
}

fn read_many_on_all(bench: &Bench, gpus: &[Device], threads: usize) -> Result<Measured> {
    let size = 16 * MIB;
    let ops = bench.file_bytes / size;
    let file = bench.options(threads).open(&bench.path)?;
    let mut memories = memories(gpus, ops.div_ceil(gpus.len()) * size)?;
    let laps = bench.warm_laps(|| {
        let mut parts = Vec::new();
        for (gpu, memory) in memories.iter_mut().enumerate() {
            let len_bytes = memory.len_bytes();
            let numbers = (gpu..ops).step_by(gpus.len());
            parts.extend(numbers.zip(memory.poisoned(len_bytes)?.chunks(size)));
        }
        timed(|| {
            let request =
                |(number, part)| Request { file: &file, buffer: part, offset: (number * size) as u64 };
            file.engine().read_many(&mut parts.into_iter().map(request).collect::<Vec<_>>())
        })
    })?;
    for (gpu, memory) in memories.iter().enumerate() {
        let range = |(slot, number): (usize, usize)| IoRange {
            file_offset: (number * size) as u64,
            buffer_offset: slot * size,
            len_bytes: size,
        };
        let ranges: Vec<_> = (gpu..ops).step_by(gpus.len()).enumerate().map(range).collect();
        if !ranges.is_empty() {
            compare(&bench.path, memory, &ranges)?;
        }
    }
    Ok(Measured { size, ops, laps })
}

/// Reads all of FILE into the first GPU alone, after the engine has used the others.
fn one_alone(bench: &Bench, gpus: &[Device], threads: usize) -> Result<Measured> {
    let size = bench.file_bytes;
    let file = bench.options(threads).open(&bench.path)?;
    let share = share_of(bench, gpus)?;
    let mut others = memories(gpus, share)?;
    let targets: Result<Vec<_>> = others.iter_mut().map(|memory| memory.poisoned(share)).collect();
    on_each(targets?, |_, mut target| file.read_exact_at(&mut target, 0))?;
    drop(others);
    let mut memory = DeviceMemory::new(&gpus[0], size)?;
    let laps: Vec<Lap> = bench.warm_laps(|| {
        let mut target = memory.poisoned(size)?;
        timed(|| file.read_exact_at(&mut target, 0))
    })?;
    compare(&bench.path, &memory, &in_order(size, 64 * KIB))?;
    Ok(Measured { size, ops: 1, laps })
}
