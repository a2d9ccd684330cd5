//! A small engine like fio's for libcufile. Its jobs move blocks between GPU memory and one file, in order or at
//! random, and verify them.
//!
//! usage: fio_engine FILE GPU cufile|posix read|write|randread|randwrite BLOCK SIZE JOBS
//!
//! Each job is a thread with a block of GPU memory and a part of the file, SIZE bytes in all. `cufile` registers that
//! memory and calls cuFile; `posix` goes through pinned host memory, for comparison. The example writes the blocks
//! before it reads them. It verifies every block that it has read and, after writing, every block of the file.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use common::measure::size;
use common::{Arguments, Result, create_buffered, in_threads, open_to_write, require_same};
use cufile::cuda::{Cuda, Device, DeviceBuffer, PinnedBuffer};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const USAGE: &str = "FILE GPU cufile|posix read|write|randread|randwrite BLOCK SIZE JOBS";

struct Plan {
    is_read: bool,
    is_random: bool,
    block_bytes: usize,
    blocks: usize,
    jobs: usize,
}

impl Plan {
    fn of(arguments: &Arguments) -> Result<Self> {
        let (is_read, is_random) = match arguments.optional(3) {
            Some("read") => (true, false),
            Some("write") => (false, false),
            Some("randread") => (true, true),
            Some("randwrite") => (false, true),
            _ => return Err(format!("arguments: {USAGE}").into()),
        };
        let (block_bytes, jobs) = (size(arguments, 4, 0)?, arguments.number::<u8>(6)?.into());
        let blocks = size(arguments, 5, 0)? / block_bytes;
        if jobs == 0 || blocks < jobs {
            return Err(format!("{blocks} blocks for {jobs} jobs").into());
        }
        Ok(Self { is_read, is_random, block_bytes, blocks, jobs })
    }

    /// Returns the blocks of a job, in the order in which the job moves them.
    fn blocks_of(&self, job: usize) -> Vec<usize> {
        let mut blocks: Vec<_> =
            (self.blocks * job / self.jobs..self.blocks * (job + 1) / self.jobs).collect();
        // The same order each time, so that runs can be compared.
        let mut state = job as u64 + 1;
        for last in (1..blocks.len()).rev().filter(|_| self.is_random) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            blocks.swap(last, (state >> 33) as usize % (last + 1));
        }
        blocks
    }

    fn offset(&self, block: usize) -> u64 {
        (block * self.block_bytes) as u64
    }

    /// Returns the bytes of a block, which differ from those of every other.
    fn contents(&self, block: usize) -> Vec<u8> {
        let word = |index: usize| ((block << 24) ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        (0..self.block_bytes.div_ceil(8)).flat_map(word).take(self.block_bytes).collect()
    }
}

/// A job's memory, and its means of transfer.
enum Way<'a> {
    Cufile { handle: &'a FileHandle, buffer: RegisteredBuffer<DeviceBuffer> },
    Posix { file: &'a File, host: PinnedBuffer, device: DeviceBuffer },
}

impl Way<'_> {
    fn read(&mut self, offset: u64) -> Result {
        match self {
            Self::Cufile { handle, buffer } => Ok(handle.read_exact_at(buffer, offset)?),
            Self::Posix { file, host, device } => {
                file.read_exact_at(host, offset)?;
                Ok(device.copy_from_host(0, host)?)
            }
        }
    }

    fn write(&mut self, offset: u64) -> Result {
        match self {
            Self::Cufile { handle, buffer } => Ok(handle.write_all_at(buffer, offset)?),
            Self::Posix { file, host, device } => {
                device.copy_to_host(0, host)?;
                Ok(file.write_all_at(host, offset)?)
            }
        }
    }

    fn fill(&mut self, bytes: &[u8]) -> Result {
        match self {
            Self::Cufile { handle, buffer } => Ok(handle.driver().cuda().copy(bytes, buffer)?),
            Self::Posix { device, .. } => Ok(device.copy_from_host(0, bytes)?),
        }
    }

    fn contents(&self) -> Result<Vec<u8>> {
        match self {
            Self::Cufile { buffer, .. } => Ok(buffer.get().to_vec()?),
            Self::Posix { device, .. } => Ok(device.to_vec()?),
        }
    }
}

fn main() -> ExitCode {
    common::run(USAGE, |arguments| {
        let plan = Plan::of(&arguments)?;
        let path = arguments.path(0)?;
        let plain = create_buffered(path)?;
        if plan.is_read {
            for block in 0..plan.blocks {
                plain.write_all_at(&plan.contents(block), plan.offset(block))?;
            }
            plain.sync_all()?;
        }

        let (gpu, mode) = (arguments.number(1)?, arguments.optional(2).unwrap_or_default());
        let elapsed = match mode {
            "cufile" => {
                let driver = Driver::open()?;
                let handle = FileHandle::register(&driver, open_to_write(path)?)?;
                run(&plan, &driver.cuda().device(gpu)?, |device| {
                    let memory = device.alloc(plan.block_bytes)?;
                    let buffer = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?;
                    Ok(Way::Cufile { handle: &handle, buffer })
                })?
            }
            "posix" => run(&plan, &Cuda::load()?.device(gpu)?, |device| {
                let host = device.alloc_pinned(plan.block_bytes)?;
                Ok(Way::Posix { file: &plain, host, device: device.alloc(plan.block_bytes)? })
            })?,
            _ => return Err(format!("arguments: {USAGE}").into()),
        };

        if !plan.is_read {
            let mut found = vec![0; plan.block_bytes];
            for block in 0..plan.blocks {
                plain.read_exact_at(&mut found, plan.offset(block))?;
                require_same(&found, &plan.contents(block), &format!("block {block} of the file"))?;
            }
        }
        let (bytes, seconds) = (plan.blocks * plan.block_bytes, elapsed.as_secs_f64());
        let (rw, jobs) = (arguments.optional(3).unwrap_or_default(), plan.jobs);
        let (gbps, iops) = (bytes as f64 / seconds / 1e9, plan.blocks as f64 / seconds);
        println!(
            "mode={mode} rw={rw} jobs={jobs} bytes={bytes} seconds={seconds:.6} gbps={gbps:.2} iops={iops:.0}"
        );
        Ok(())
    })
}

/// Runs the jobs, each with the result of `open`. Returns the time of the slowest job, without filling and verifying
/// its blocks.
fn run<'a>(
    plan: &Plan,
    device: &Device,
    open: impl Fn(&Device) -> Result<Way<'a>> + Sync,
) -> Result<Duration> {
    let start = Barrier::new(plan.jobs);
    let times = Mutex::new(Vec::new());
    in_threads(0..plan.jobs, |job| {
        let opened = open(device);
        start.wait();
        let (mut way, mut busy) = (opened?, Duration::ZERO);
        for block in plan.blocks_of(job) {
            if !plan.is_read {
                way.fill(&plan.contents(block))?;
            }
            let begin = Instant::now();
            match plan.is_read {
                true => way.read(plan.offset(block))?,
                false => way.write(plan.offset(block))?,
            }
            busy += begin.elapsed();
            if plan.is_read {
                require_same(&way.contents()?, &plan.contents(block), &format!("block {block}"))?;
            }
        }
        times.lock().expect("no job panics").push(busy);
        Ok(())
    })?;
    Ok(times.into_inner()?.into_iter().max().unwrap_or_default())
}
