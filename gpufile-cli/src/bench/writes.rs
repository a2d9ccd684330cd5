//! The cases that write FILE, or new files beside it, from the memory of GPU 0.

use std::{fs, iter};

use gpufile::{DirectIo, File, IoRange, Request};

use super::case::{Case, DEFAULT, SOME};
use super::fresh::Fresh;
use super::memory::{DeviceMemory, compare, in_order};
use super::reads::OnDisk;
use super::timing::{Measured, timed};
use super::{Bench, GIB, MIB, Result};

pub const CASES: &[Case] = &[
    Case::device("write-over", "All of FILE over existing bytes in one call", &[0, 1, 4, 8, 16], write_over)
        .overwriting(),
    Case::device(
        "write-over-clean",
        "write-over of a file whose bytes are all on the disk",
        DEFAULT,
        write_over_clean,
    )
    .overwriting(),
    Case::device("write-fresh", "A new file as long as FILE, with opening and closing", DEFAULT, write_fresh),
    Case::device("write-fresh-files", "Four new files in one call", DEFAULT, write_fresh_files),
    Case::device("direct-write", "Up to 2 GiB of FILE to the disk, not the page cache", SOME, direct_write)
        .overwriting(),
];

/// Overwrites all of the file with its own bytes. The comparison finds wrong bytes, but not missing writes.
fn write_over(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    overwrite(bench, memory, threads, |_| Ok(()))
}

fn write_over_clean(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    overwrite(bench, memory, threads, File::sync_all)
}

fn overwrite(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
    before: impl Fn(&File) -> gpufile::Result<()>,
) -> Result<Measured> {
    let size = bench.file_bytes;
    memory.load(bench)?;
    let file = bench.options(threads).write(true).open(&bench.path)?;
    let laps = bench.warm_laps(|| {
        before(&file)?;
        timed(|| file.write_all_at(&memory.first(size), 0))
    })?;
    file.sync_all()?;
    compare(&bench.path, memory, &in_order(size, MIB))?;
    Ok(Measured { size, ops: 1, laps })
}

/// Writes a new file each time. The time includes opening and closing.
fn write_fresh(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let size = bench.file_bytes;
    memory.load(bench)?;
    let fresh = Fresh::beside(&bench.path, 0);
    let options = bench.options(threads).write(true);
    let laps = bench.warm_laps(|| {
        fresh.remove()?;
        timed(|| fresh.create(&options)?.write_all_at(&memory.first(size), 0))
    })?;
    let len_bytes = fs::metadata(&fresh.path)?.len();
    if len_bytes != size as u64 {
        return Err(format!("the new file has {len_bytes} of {size} bytes").into());
    }
    compare(&fresh.path, memory, &in_order(size, MIB))?;
    Ok(Measured { size, ops: 1, laps })
}

fn write_fresh_files(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    const FILES: usize = 4;
    let part = bench.file_bytes / FILES / MIB * MIB;
    memory.load(bench)?;
    let fresh: [_; FILES] = std::array::from_fn(|number| Fresh::beside(&bench.path, number));
    let options = bench.options(threads).write(true);
    let laps = bench.warm_laps(|| {
        fresh.iter().try_for_each(Fresh::remove)?;
        timed(|| {
            let files =
                fresh.iter().map(|fresh| fresh.create(&options)).collect::<gpufile::Result<Vec<_>>>()?;
            let parts = (0..).map(|number| memory.part(number * part..(number + 1) * part));
            let request = |(file, buffer)| Request { file, buffer, offset: 0 };
            let requests: Vec<_> = iter::zip(&files, parts).map(request).collect();
            files[0].engine().write_many(&requests)
        })
    })?;
    for (number, fresh) in fresh.iter().enumerate() {
        let range = |range: IoRange| IoRange { buffer_offset: range.buffer_offset + number * part, ..range };
        compare(&fresh.path, memory, &in_order(part, MIB).into_iter().map(range).collect::<Vec<_>>())?;
    }
    Ok(Measured { size: part, ops: FILES, laps })
}

/// Writes to the disk without a warm-up.
fn direct_write(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let size = bench.file_bytes.min(2 * GIB);
    let disk = OnDisk::open(&bench.path)?;
    memory.load(bench)?;
    let options = bench.options(threads).write(true).direct_write(DirectIo::Always);
    let file = options.open(&bench.path)?;
    let laps = bench.cold_laps(|| {
        disk.drop_cache()?;
        timed(|| file.write_all_at(&memory.first(size), 0))
    })?;
    compare(&bench.path, memory, &in_order(size, MIB))?;
    Ok(Measured { size, ops: 1, laps })
}
