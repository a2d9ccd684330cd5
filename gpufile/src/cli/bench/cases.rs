//! The cases: a table, and a function for each row.
//!
//! Each case moves bytes between FILE and the memory of GPU 0. The host cases move them between FILE and a vector. The
//! time leaves these steps out, unless the doc of a case includes them:
//!
//! - making an engine, and opening a file
//! - building the list of ranges
//! - poisoning the memory, and dropping the page cache
//! - comparing the bytes afterwards

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fs, io, thread};

use crate::{DirectIo, File, IoRange, MappedFile, ReadRequest, WriteRequest, page_cache};
use cufile::FileProperties;

use super::blocks::{IN_ONE_FILE, fetch_blocks, gather, store_blocks};
use super::fresh::Fresh;
use super::memory::{DeviceMemory, HostMemory, Lcg, POISON, compare, compare_each, in_order};
use super::timing::{Measured, timed};
use super::{Bench, GIB, KIB, MIB, Result};

/// A measurement, under the name that all peers have for it.
pub struct Case {
    pub peer: &'static str,
    pub name: &'static str,
    /// The numbers of threads, one after the other; 0 leaves the number to the engine.
    pub threads: &'static [usize],
    pub run: Run,
    /// True if it writes to FILE itself.
    pub overwrites: bool,
}

pub enum Run {
    Device(OnDevice),
    Host(OnHost),
}
type OnDevice = fn(&Bench, &mut DeviceMemory, usize) -> Result<Measured>;
type OnHost = fn(&Bench, usize) -> Result<Measured>;

const DEFAULT: &[usize] = &[0];
const SOME: &[usize] = &[0, 4, 8, 16];

pub const CASES: &[Case] = &[
    device("first-byte", DEFAULT, first_byte),
    device("read-default", DEFAULT, read),
    device("read", &[1, 2, 4, 8, 12, 16], read),
    device("scatter-4k", SOME, |bench, memory, threads| scatter(bench, memory, threads, &PAGES)),
    device("scatter-64k", SOME, |bench, memory, threads| scatter(bench, memory, threads, &BLOCKS)),
    device("scatter-1m", SOME, |bench, memory, threads| {
        scatter(bench, memory, threads, &Scatter { size: MIB, ops: 2048, stride: 1 })
    }),
    device("scatter-4k-scattered", SOME, |bench, memory, threads| {
        scatter(bench, memory, threads, &Scatter { stride: 7919, ..PAGES })
    }),
    device("scatter-64k-scattered", SOME, |bench, memory, threads| {
        scatter(bench, memory, threads, &Scatter { stride: 7919, ..BLOCKS })
    }),
    device("mapped-scatter-4k", SOME, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &PAGES, unchecked)
    }),
    device("mapped-scatter-512", SOME, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &Scatter { stride: 1, ..OF_512 }, unchecked)
    }),
    device("mapped-scatter-4k-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &Scatter { stride: 7919, ..PAGES }, unchecked)
    }),
    device("mapped-scatter-700-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_700, unchecked)
    }),
    device("mapped-scatter-512-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_512, unchecked)
    }),
    device("mapped-scatter-64-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_64, unchecked)
    }),
    device("mapped-checked-4k-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &Scatter { stride: 7919, ..PAGES }, File::map)
    }),
    device("mapped-checked-700-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_700, File::map)
    }),
    device("mapped-checked-512-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_512, File::map)
    }),
    device("mapped-checked-64-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_64, File::map)
    }),
    device("kv-fetch-16k", DEFAULT, fetch_blocks::<16, IN_ONE_FILE>),
    device("kv-fetch-64k", DEFAULT, fetch_blocks::<64, IN_ONE_FILE>),
    device("kv-fetch-256k", DEFAULT, fetch_blocks::<256, IN_ONE_FILE>),
    device("kv-files-fetch-64k", DEFAULT, fetch_blocks::<64, 16>),
    device("kv-store-16k", DEFAULT, store_blocks::<16, IN_ONE_FILE>),
    device("kv-store-64k", DEFAULT, store_blocks::<64, IN_ONE_FILE>),
    device("kv-store-256k", DEFAULT, store_blocks::<256, IN_ONE_FILE>),
    device("kv-files-store-64k", DEFAULT, store_blocks::<64, 16>),
    device("gather-4k", DEFAULT, gather::<4, 65_536>),
    device("gather-64k", DEFAULT, gather::<64, 16_384>),
    device("read-many-16m", SOME, read_many),
    device("stream-1g", DEFAULT, |bench, memory, threads| {
        stream_read(bench, memory, threads, Until::StreamIsDone)
    }),
    device("stream-1g-call", DEFAULT, |bench, memory, threads| {
        stream_read(bench, memory, threads, Until::CallReturns)
    }),
    device("latency-4k", DEFAULT, latency),
    overwriting("write-over", &[0, 1, 4, 8, 16], write_over),
    overwriting("write-over-clean", DEFAULT, write_over_clean),
    device("write-fresh", DEFAULT, write_fresh),
    device("write-fresh-files", DEFAULT, write_fresh_files),
    device("direct-read", SOME, direct_read),
    overwriting("direct-write", SOME, direct_write),
    host("gpufile", "host-read", host_read),
    host("pread", "host-read", host_pread),
];

const fn device(name: &'static str, threads: &'static [usize], run: OnDevice) -> Case {
    Case { peer: "gpufile", name, threads, run: Run::Device(run), overwrites: false }
}

const fn overwriting(name: &'static str, threads: &'static [usize], run: OnDevice) -> Case {
    Case { overwrites: true, ..device(name, threads, run) }
}

const fn host(peer: &'static str, name: &'static str, run: OnHost) -> Case {
    Case { peer, name, threads: &[0, 1, 2], run: Run::Host(run), overwrites: false }
}

/// Measures the start of an engine, the opening of the file and a read of its first bytes. Only a CUDA context exists
/// before. This case therefore runs first and once.
fn first_byte(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let size = 4 * KIB;
    let mut target = memory.first_mut(size);
    let mut opened = None;
    let lap =
        timed(|| opened.insert(bench.options(threads).open(&bench.path)?).read_exact_at(&mut target, 0))?;
    compare(&bench.path, memory, &in_order(size, size))?;
    Ok(Measured { size, ops: 1, laps: vec![lap] })
}

/// Reads all of the file in one call.
fn read(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let size = bench.file_bytes;
    let file = bench.options(threads).open(&bench.path)?;
    let laps = bench.warm_laps(|| {
        let mut target = memory.poisoned(size)?;
        timed(|| file.read_exact_at(&mut target, 0))
    })?;
    compare(&bench.path, memory, &in_order(size, 64 * KIB))?;
    Ok(Measured { size, ops: 1, laps })
}

/// Many reads at pseudo-random places. Read i goes to slot (i * stride) % ops of the memory.
struct Scatter {
    size: usize,
    ops: usize,
    stride: usize,
}

const PAGES: Scatter = Scatter { size: 4 * KIB, ops: 65_536, stride: 1 };
const BLOCKS: Scatter = Scatter { size: 64 * KIB, ops: 16_384, stride: 1 };
const OF_700: Scatter = Scatter { size: 700, ops: 262_144, stride: 7919 };
const OF_512: Scatter = Scatter { size: 512, ..OF_700 };
const OF_64: Scatter = Scatter { size: 64, ops: 1 << 20, stride: 7919 };

impl Scatter {
    /// The ranges, or as many of them as the memory has slots for.
    fn ranges(&self, bench: &Bench, memory: &DeviceMemory) -> Vec<IoRange> {
        let &Scatter { size, ops, stride } = self;
        let ops = ops.min(memory.len_bytes() / size);
        let mut chance = Lcg::default();
        let range = |i| IoRange {
            file_offset: (chance.below(bench.file_bytes / size) * size) as u64,
            buffer_offset: i * stride % ops * size,
            len_bytes: size,
        };
        (0..ops).map(range).collect()
    }
}

/// Reads many ranges in one call.
fn scatter(bench: &Bench, memory: &mut DeviceMemory, threads: usize, scatter: &Scatter) -> Result<Measured> {
    let ranges = scatter.ranges(bench, memory);
    let file = bench.options(threads).open(&bench.path)?;
    let laps = bench.warm_laps(|| {
        let mut target = memory.poisoned(memory.len_bytes())?;
        timed(|| file.read_many(&mut target, &ranges))
    })?;
    compare_each(&bench.path, &memory.to_host(&ranges)?, &ranges)?;
    Ok(Measured { size: scatter.size, ops: ranges.len(), laps })
}

/// Reads the same ranges from a mapping. The warm-up touches every page that is read.
fn mapped_scatter(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
    scatter: &Scatter,
    map: fn(&File) -> crate::Result<MappedFile>,
) -> Result<Measured> {
    let ranges = scatter.ranges(bench, memory);
    let file = bench.options(threads).open(&bench.path)?;
    let mapped = map(&file)?;
    let laps = bench.warm_laps(|| {
        let mut target = memory.poisoned(memory.len_bytes())?;
        timed(|| mapped.read_many(&mut target, &ranges))
    })?;
    compare_each(&bench.path, &memory.to_host(&ranges)?, &ranges)?;
    Ok(Measured { size: scatter.size, ops: ranges.len(), laps })
}

/// Maps the file without protection against writers.
fn unchecked(file: &File) -> crate::Result<MappedFile> {
    // SAFETY: this program does not write the file while it is mapped; the usage text forbids that to others.
    unsafe { file.map_unchecked() }
}

/// Makes 64 large reads in one call. The time includes the making of the requests.
fn read_many(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let size = 16 * MIB;
    let ops = (bench.file_bytes / size).min(64);
    let file = bench.options(threads).open(&bench.path)?;
    let laps = bench.warm_laps(|| {
        let target = memory.poisoned(ops * size)?;
        timed(|| {
            let parts = (0..).step_by(size).zip(target.chunks(size));
            let requests = parts.map(|(offset, part)| ReadRequest::new(&file, offset, part));
            file.engine().read_many(&mut requests.collect::<crate::Result<Vec<_>>>()?)
        })
    })?;
    compare(&bench.path, memory, &in_order(ops * size, 64 * KIB))?;
    Ok(Measured { size, ops, laps })
}

/// The end of the time of a stream-ordered read.
#[derive(PartialEq)]
enum Until {
    CallReturns,
    StreamIsDone,
}

/// Makes one read that is part of a stream's work, without cuFile.
fn stream_read(bench: &Bench, memory: &mut DeviceMemory, threads: usize, until: Until) -> Result<Measured> {
    let size = GIB.min(bench.file_bytes);
    let file = bench.options(threads).open(&bench.path)?;
    let stream = memory.device().stream()?;
    let mut buffer = Some(memory.device().alloc(size)?);
    let laps = bench.warm_laps(|| {
        let mut target = buffer.take().ok_or("the last read failed")?;
        target.fill(POISON)?;
        let mut read = None;
        let lap = timed(|| {
            read = Some(file.read_at_on_stream(&stream, target, 0));
            if until == Until::StreamIsDone { stream.synchronize() } else { Ok(()) }
        })?;
        let (count, target) = read.ok_or("there was a read")?.wait();
        if count? < size {
            return Err("the read was short".into());
        }
        buffer = Some(target);
        Ok(lap)
    })?;
    compare(&bench.path, &buffer.ok_or("the last read failed")?, &in_order(size, 64 * KIB))?;
    Ok(Measured { size, ops: 1, laps })
}

/// Makes one small read after the other.
fn latency(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let (size, ops, places) = (4 * KIB, 20_000, 1024);
    let offset = |i| (i % places * size) as u64;
    let file = bench.options(threads).open(&bench.path)?;
    let laps = bench.warm_laps(|| {
        let mut target = memory.poisoned(size)?;
        timed(|| (0..ops).try_for_each(|i| file.read_exact_at(&mut target, offset(i))))
    })?;
    let last = IoRange { file_offset: offset(ops - 1), buffer_offset: 0, len_bytes: size };
    compare(&bench.path, memory, &[last])?;
    Ok(Measured { size, ops, laps })
}

/// Overwrites all of the file with its own bytes. The comparison finds wrong bytes, but not bytes that were not written.
fn write_over(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    overwrite(bench, memory, threads, |_| Ok(()))
}

/// Overwrites the file after the page cache has been written to the disk.
fn write_over_clean(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    overwrite(bench, memory, threads, File::sync_all)
}

fn overwrite(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
    before: impl Fn(&File) -> crate::Result<()>,
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

/// Writes four new files in one call, each from a quarter of the memory.
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
                fresh.iter().map(|fresh| fresh.create(&options)).collect::<crate::Result<Vec<_>>>()?;
            let request =
                |(number, file)| WriteRequest::new(file, 0, memory.part(number * part..(number + 1) * part));
            let requests = files.iter().enumerate().map(request).collect::<crate::Result<Vec<_>>>()?;
            files[0].engine().write_many(&requests)
        })
    })?;
    for (number, fresh) in fresh.iter().enumerate() {
        let range = |range: IoRange| IoRange { buffer_offset: range.buffer_offset + number * part, ..range };
        compare(&fresh.path, memory, &in_order(part, MIB).into_iter().map(range).collect::<Vec<_>>())?;
    }
    Ok(Measured { size: part, ops: FILES, laps })
}

/// Reads from the disk, not the page cache. There is no warm-up: the first repetition is as cold as the others.
fn direct_read(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let size = bench.file_bytes.min(2 * GIB);
    let disk = OnDisk::open(&bench.path)?;
    let file = bench.options(threads).direct_read(DirectIo::Always).open(&bench.path)?;
    let laps = bench.cold_laps(|| {
        let mut target = memory.poisoned(size)?;
        disk.drop_cache()?;
        timed(|| file.read_exact_at(&mut target, 0))
    })?;
    compare(&bench.path, memory, &in_order(size, 64 * KIB))?;
    Ok(Measured { size, ops: 1, laps })
}

/// Writes to the disk, not the page cache. There is no warm-up.
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

/// A file on a disk, not only in the page cache.
struct OnDisk(fs::File);

impl OnDisk {
    fn open(path: &Path) -> Result<Self> {
        let file = fs::File::open(path)?;
        match FileProperties::of(&file)?.file_system.as_str() {
            "tmpfs" => {
                Err(format!("{path:?} is on tmpfs, which has no disk to measure; name a file on a disk")
                    .into())
            }
            _ => Ok(Self(file)),
        }
    }

    fn drop_cache(&self) -> io::Result<()> {
        page_cache::drop(&self.0, 0..u64::MAX)
    }
}

/// Reads all of the file into host memory in one call.
fn host_read(bench: &Bench, threads: usize) -> Result<Measured> {
    let file = bench.options(threads).open(&bench.path)?;
    host_laps(bench, |target| Ok(file.read_exact_at(target, 0)?))
}

/// Reads the same with as many threads of the standard library, each a part of the file.
fn host_pread(bench: &Bench, threads: usize) -> Result<Measured> {
    let threads = if threads == 0 { bench.settings.threads() } else { threads };
    let file = &fs::File::open(&bench.path)?;
    let share = bench.file_bytes.div_ceil(threads).next_multiple_of(4 * KIB);
    host_laps(bench, |target| {
        thread::scope(|scope| {
            let parts = (0..).step_by(share).zip(target.chunks_mut(share));
            let running: Vec<_> =
                parts.map(|(offset, part)| scope.spawn(move || file.read_exact_at(part, offset))).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("pread does not panic"))
        })?;
        Ok(())
    })
}

fn host_laps(bench: &Bench, read: impl Fn(&mut [u8]) -> Result) -> Result<Measured> {
    let size = bench.file_bytes;
    let mut memory = HostMemory::new(size);
    let laps = bench.warm_laps(|| {
        let target = memory.poisoned();
        timed(|| read(target))
    })?;
    compare(&bench.path, &memory, &in_order(size, 64 * KIB))?;
    Ok(Measured { size, ops: 1, laps })
}
