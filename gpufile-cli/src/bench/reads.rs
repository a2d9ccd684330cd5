//! The cases that read FILE, into the memory of GPU 0 or of the host.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fs, io, thread};

use cufile::{BufSliceMut, FileProperties};
use gpufile::{DirectIo, File, IoRange, Request, page_cache};

use super::memory::{DeviceMemory, HostMemory, Lcg, POISON, compare, compare_each, in_order};
use super::timing::{Measured, timed};
use super::{Bench, GIB, KIB, MIB, Result, spawn};

/// Measures the start of an engine, the opening of the file and a read of its first bytes. Only a CUDA context exists
/// before. This case therefore runs first and once.
pub fn first_byte(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
    let size = 4 * KIB;
    let mut target = memory.first_mut(size);
    let mut opened = None;
    let lap =
        timed(|| opened.insert(bench.options(threads).open(&bench.path)?).read_exact_at(&mut target, 0))?;
    compare(&bench.path, memory, &in_order(size, size))?;
    Ok(Measured { size, ops: 1, laps: vec![lap] })
}

/// Measures the time that the first list of scattered ranges takes beyond later ones: kernels are loaded and staging
/// buffers allocated. The workers, their bounce buffers and CUDA have been used before.
pub fn first_kernel(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
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

/// Reads all of the file in one call.
pub fn read(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
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
pub struct Scatter {
    pub size: usize,
    pub ops: usize,
    pub stride: usize,
}

pub const PAGES: Scatter = Scatter { size: 4 * KIB, ops: 65_536, stride: 1 };
pub const BLOCKS: Scatter = Scatter { size: 64 * KIB, ops: 16_384, stride: 1 };
pub const OF_700: Scatter = Scatter { size: 700, ops: 262_144, stride: 7919 };
pub const OF_512: Scatter = Scatter { size: 512, ..OF_700 };
pub const OF_64: Scatter = Scatter { size: 64, ops: 1 << 20, stride: 7919 };

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
pub fn scatter(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
    scatter: &Scatter,
) -> Result<Measured> {
    let file = bench.options(threads).open(&bench.path)?;
    scattered(bench, memory, scatter, |target, ranges| file.read_many(target, ranges))
}

/// Reads the same ranges from a mapping. The warm-up touches every page that is read.
pub fn mapped_scatter(
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

/// Maps the file without protection against writers.
pub fn unchecked(file: &File) -> gpufile::Result<File> {
    // SAFETY: this program does not write the file while it is mapped; the usage text forbids that to others.
    unsafe { file.map_unchecked() }
}

/// Makes 64 large reads in one call. The time includes the making of the requests.
pub fn read_many(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
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

/// The end of the time of a stream-ordered read.
#[derive(PartialEq)]
pub enum Until {
    CallReturns,
    StreamIsDone,
}

/// Makes one read that is part of a stream's work, without cuFile.
pub fn stream_read(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
    until: Until,
) -> Result<Measured> {
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
pub fn latency(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
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

/// Reads from the disk, not the page cache. There is no warm-up: the first repetition is as cold as the others.
pub fn direct_read(bench: &Bench, memory: &mut DeviceMemory, threads: usize) -> Result<Measured> {
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

/// A file on a disk, not only in the page cache.
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

/// Reads all of the file into host memory in one call.
pub fn host_read(bench: &Bench, threads: usize) -> Result<Measured> {
    let file = bench.options(threads).open(&bench.path)?;
    host_laps(bench, |target| Ok(file.read_exact_at(target, 0)?))
}

/// Reads the same with as many threads of the standard library, each a part of the file.
pub fn host_pread(bench: &Bench, threads: usize) -> Result<Measured> {
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
