//! The cases that read FILE, into the memory of GPU 0 or of the host.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fs, io, thread};

use cufile::{BufSliceMut, FileProperties};
use gpufile::{DirectIo, File, IoFuture, IoRange, Request, page_cache};

use super::case::{Case, DEFAULT, SOME, Unit};
use super::memory::{DeviceMemory, HostMemory, Lcg, POISON, compare, compare_each, in_order};
use super::timing::{Measured, timed};
use super::{Bench, GIB, KIB, MIB, Result, spawn};

pub const CASES: &[Case] = &[
    Case::device("first-byte", "Starts an engine, opens FILE and reads 4 KiB", DEFAULT, first_byte)
        .shown_in(Unit::Milliseconds),
    Case::device("first-kernel", "Time of a first list of ranges beyond later ones", DEFAULT, first_kernel)
        .shown_in(Unit::Milliseconds),
    Case::device("read-default", "All of FILE in one call, with the default threads", DEFAULT, read),
    Case::device("read", "All of FILE in one call", &[1, 2, 4, 8, 12, 16], read),
    Case::device("scatter-4k", "65,536 reads of 4 KiB at random places", SOME, |bench, memory, threads| {
        scatter(bench, memory, threads, &PAGES)
    }),
    Case::device("scatter-64k", "16,384 reads of 64 KiB at random places", SOME, |bench, memory, threads| {
        scatter(bench, memory, threads, &BLOCKS)
    }),
    Case::device("scatter-1m", "2,048 reads of 1 MiB at random places", SOME, |bench, memory, threads| {
        scatter(bench, memory, threads, &Scatter { size: MIB, ops: 2048, stride: 1 })
    }),
    Case::device(
        "scatter-4k-scattered",
        "scatter-4k into random places of the memory",
        SOME,
        |bench, memory, threads| scatter(bench, memory, threads, &Scatter { stride: 7919, ..PAGES }),
    ),
    Case::device(
        "scatter-64k-scattered",
        "scatter-64k into random places of the memory",
        SOME,
        |bench, memory, threads| scatter(bench, memory, threads, &Scatter { stride: 7919, ..BLOCKS }),
    ),
    Case::device(
        "mapped-scatter-4k",
        "scatter-4k with File::map_unchecked",
        SOME,
        |bench, memory, threads| mapped_scatter(bench, memory, threads, &PAGES, unchecked),
    ),
    Case::device(
        "mapped-scatter-512",
        "262,144 reads of 512 B with File::map_unchecked",
        SOME,
        |bench, memory, threads| {
            mapped_scatter(bench, memory, threads, &Scatter { stride: 1, ..OF_512 }, unchecked)
        },
    ),
    Case::device(
        "mapped-scatter-4k-scattered",
        "scatter-4k-scattered with File::map_unchecked",
        DEFAULT,
        |bench, memory, threads| {
            mapped_scatter(bench, memory, threads, &Scatter { stride: 7919, ..PAGES }, unchecked)
        },
    ),
    Case::device(
        "mapped-scatter-700-scattered",
        "262,144 reads of 700 B into random places with File::map_unchecked",
        DEFAULT,
        |bench, memory, threads| mapped_scatter(bench, memory, threads, &OF_700, unchecked),
    ),
    Case::device(
        "mapped-scatter-512-scattered",
        "262,144 reads of 512 B into random places with File::map_unchecked",
        DEFAULT,
        |bench, memory, threads| mapped_scatter(bench, memory, threads, &OF_512, unchecked),
    ),
    Case::device(
        "mapped-scatter-64-scattered",
        "1,048,576 reads of 64 B into random places with File::map_unchecked",
        DEFAULT,
        |bench, memory, threads| mapped_scatter(bench, memory, threads, &OF_64, unchecked),
    ),
    Case::device(
        "mapped-checked-4k-scattered",
        "mapped-scatter-4k-scattered with File::map",
        DEFAULT,
        |bench, memory, threads| {
            mapped_scatter(bench, memory, threads, &Scatter { stride: 7919, ..PAGES }, File::map)
        },
    ),
    Case::device(
        "mapped-checked-700-scattered",
        "mapped-scatter-700-scattered with File::map",
        DEFAULT,
        |bench, memory, threads| mapped_scatter(bench, memory, threads, &OF_700, File::map),
    ),
    Case::device(
        "mapped-checked-512-scattered",
        "mapped-scatter-512-scattered with File::map",
        DEFAULT,
        |bench, memory, threads| mapped_scatter(bench, memory, threads, &OF_512, File::map),
    ),
    Case::device(
        "mapped-checked-64-scattered",
        "mapped-scatter-64-scattered with File::map",
        DEFAULT,
        |bench, memory, threads| mapped_scatter(bench, memory, threads, &OF_64, File::map),
    ),
    Case::device("read-many-16m", "64 reads of 16 MiB in one call", SOME, read_many),
    Case::device("stream-1g", "A read of 1 GiB on a stream", DEFAULT, |bench, memory, threads| {
        stream_read(bench, memory, threads, Until::StreamIsDone)
    }),
    Case::device("stream-1g-call", "The call of stream-1g alone", DEFAULT, |bench, memory, threads| {
        stream_read(bench, memory, threads, Until::CallReturns)
    })
    .shown_in(Unit::Microseconds),
    Case::device("latency-4k", "20,000 reads of 4 KiB, one after the other", DEFAULT, latency)
        .shown_in(Unit::Microseconds),
    Case::device("direct-read", "Up to 2 GiB of FILE from the disk, not the page cache", SOME, direct_read),
    Case::host("host-read", "All of FILE into host memory", host_read),
    Case::host("host-read", "All of FILE into host memory", host_pread).of_peer("pread"),
    Case::host("host-calls-4k", "10,000 reads of 4 KiB into host memory, one after the other", host_calls)
        .shown_in(Unit::Microseconds),
    Case::host("host-futures-4k", "host-calls-4k by futures, all in flight at once", host_futures)
        .shown_in(Unit::Microseconds),
];

/// Starts an engine, opens the file and reads its first bytes. Only a CUDA context exists before, so this case runs
/// first and once.
fn first_byte(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let size = 4 * KIB;
    let mut target = memory.first_mut(size);
    let mut opened = None;
    let lap =
        timed(|| opened.insert(bench.options(threads).open(&bench.path)?).read_exact_at(&mut target, 0))?;
    compare(&bench.path, memory, &in_order(size, size))?;
    Ok(Measured { size, ops: 1, laps: vec![lap] })
}

/// Returns the time that the first list of scattered ranges takes beyond later ones: kernels are loaded and staging
/// buffers allocated. The workers, their bounce buffers and CUDA have been used before.
fn first_kernel(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let file = bench.options(threads).open(&bench.path)?;
    let ranges = Scatter { stride: 7919, ..BLOCKS }.ranges(bench, memory);
    for _ in 0..3 {
        file.read_exact_at(&mut memory.first_mut(bench.file_bytes), 0)?;
    }
    let mut lap = || {
        let mut target = memory.poisoned(memory.len_bytes())?;
        timed(|| file.read_many(&mut target, &ranges))
    };
    let first = lap()?;
    let later = [lap()?, lap()?, lap()?];
    compare_each(&bench.path, &memory.to_host(&ranges)?, &ranges)?;
    Ok(Measured { size: 0, ops: 1, laps: vec![first.beyond(later)] })
}

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

fn scatter(bench: &Bench, memory: &mut DeviceMemory, threads: usize, scatter: &Scatter) -> Result<Measured> {
    let file = bench.options(threads).open(&bench.path)?;
    scattered(bench, memory, scatter, |target, ranges| file.read_many(target, ranges))
}

/// Reads the same ranges from a mapping. The warm-up touches every page that is read.
fn mapped_scatter(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
    scatter: &Scatter,
    map: fn(&File) -> gpufile::Result<File>,
) -> Result<Measured> {
    let mapped = map(&bench.options(threads).open(&bench.path)?)?;
    scattered(bench, memory, scatter, |target, ranges| mapped.read_many(target, ranges))
}

fn scattered(
    bench: &Bench,
    memory: &mut DeviceMemory,
    scatter: &Scatter,
    read: impl Fn(&mut BufSliceMut<'_>, &[IoRange]) -> gpufile::Result<()>,
) -> Result<Measured> {
    let ranges = scatter.ranges(bench, memory);
    let laps = bench.warm_laps(|| {
        let mut target = memory.poisoned(memory.len_bytes())?;
        timed(|| read(&mut target, &ranges))
    })?;
    compare_each(&bench.path, &memory.to_host(&ranges)?, &ranges)?;
    Ok(Measured { size: scatter.size, ops: ranges.len(), laps })
}

/// Maps without protection against writers.
fn unchecked(file: &File) -> gpufile::Result<File> {
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
            let requests = parts.map(|(offset, part)| Request { file: &file, buffer: part, offset });
            file.engine().read_many(&mut requests.collect::<Vec<_>>())
        })
    })?;
    compare(&bench.path, memory, &in_order(ops * size, 64 * KIB))?;
    Ok(Measured { size, ops, laps })
}

#[derive(PartialEq)]
enum Until {
    CallReturns,
    StreamIsDone,
}

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

/// Reads from the disk without a warm-up: the first repetition is as cold as the others.
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

pub struct OnDisk(fs::File);

impl OnDisk {
    pub fn open(path: &Path) -> Result<Self> {
        let file = fs::File::open(path)?;
        match FileProperties::of(&file)?.file_system.as_str() {
            "tmpfs" => {
                Err(format!("{path:?} is on tmpfs, which has no disk to measure; name a file on a disk")
                    .into())
            }
            _ => Ok(Self(file)),
        }
    }

    pub fn drop_cache(&self) -> io::Result<()> {
        page_cache::evict(&self.0, 0..u64::MAX)
    }
}

fn host_read(bench: &Bench, threads: usize) -> Result<Measured> {
    let file = bench.options(threads).open(&bench.path)?;
    host_laps(bench, |target| Ok(file.read_exact_at(target, 0)?))
}

/// Reads the same file with as many threads of the standard library, each of which reads a part.
fn host_pread(bench: &Bench, threads: usize) -> Result<Measured> {
    let threads = if threads == 0 { bench.settings.threads } else { threads };
    let file = &fs::File::open(&bench.path)?;
    let share = bench.file_bytes.div_ceil(threads).next_multiple_of(4 * KIB);
    host_laps(bench, |target| {
        thread::scope(|scope| {
            let parts = (0..).step_by(share).zip(target.chunks_mut(share));
            let running = parts.map(|(offset, part)| spawn(scope, move || file.read_exact_at(part, offset)));
            let running: Vec<_> = running.collect::<Result<_>>()?;
            running.into_iter().try_for_each(|thread| thread.join().expect("pread does not panic"))?;
            Ok(())
        })
    })
}

/// Reads pages by calls.
fn host_calls(bench: &Bench, threads: usize) -> Result<Measured> {
    host_pages(bench, threads, |file, mut pages, offset| {
        pages.iter_mut().enumerate().try_for_each(|(i, page)| file.read_exact_at(page, offset(i)))?;
        Ok(pages)
    })
}

/// Reads the same pages by futures, and waits for them in turn.
fn host_futures(bench: &Bench, threads: usize) -> Result<Measured> {
    host_pages(bench, threads, |file, pages, offset| {
        let start = |(i, page)| file.read_at_async(page, offset(i)).exact();
        let futures: Vec<_> = pages.into_iter().enumerate().map(start).collect();
        let end = |future: IoFuture<_>| {
            let (outcome, page) = future.wait();
            outcome.map(|_| page)
        };
        Ok(futures.into_iter().map(end).collect::<gpufile::Result<_>>()?)
    })
}

fn host_pages(
    bench: &Bench,
    threads: usize,
    read: impl Fn(&File, Vec<Vec<u8>>, &dyn Fn(usize) -> u64) -> Result<Vec<Vec<u8>>>,
) -> Result<Measured> {
    let (size, ops) = (4 * KIB, 10_000);
    let places = (bench.file_bytes / size).clamp(1, 1024);
    let offset = |i| (i % places * size) as u64;
    let file = bench.options(threads).open(&bench.path)?;
    let mut found = Vec::new();
    let laps = bench.warm_laps(|| {
        let pages = (0..ops).map(|_| vec![POISON; size]).collect();
        timed(|| -> Result {
            found = read(&file, pages, &offset)?;
            Ok(())
        })
    })?;
    let mut memory = HostMemory::new(ops * size)?;
    memory.poisoned().chunks_mut(size).zip(&found).for_each(|(part, page)| part.copy_from_slice(page));
    let range = |i| IoRange { file_offset: offset(i), buffer_offset: i * size, len_bytes: size };
    compare(&bench.path, &memory, &(0..ops).map(range).collect::<Vec<_>>())?;
    Ok(Measured { size, ops, laps })
}

fn host_laps(bench: &Bench, read: impl Fn(&mut [u8]) -> Result) -> Result<Measured> {
    let size = bench.file_bytes;
    let mut memory = HostMemory::new(size)?;
    let laps = bench.warm_laps(|| {
        let target = memory.poisoned();
        timed(|| read(target))
    })?;
    compare(&bench.path, &memory, &in_order(size, 64 * KIB))?;
    Ok(Measured { size, ops: 1, laps })
}
