//! One thread of a run: its blocks, its transfers in flight, and its clock.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cufile::cuda::DeviceBuffer;
use cufile::{IoBuf, IoBufMut, Location};
use gpufile::{File, IoFuture};
use hdrhistogram::Histogram;

use super::super::Result;
use super::super::memory::{Lcg, POISON, Random};
use super::args::Io;
use crate::target::host_bytes;

pub trait Buffer: IoBufMut + Send + 'static {
    fn put(&mut self, bytes: &[u8]) -> Result;
    fn get(&self, bytes: &mut [u8]) -> Result;
}

/// Host memory that begins at a page. The kernel reads to other memory by `O_DIRECT` only through a copy.
pub struct HostBuffer {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl HostBuffer {
    const PAGE_BYTES: usize = 4096;

    pub fn new(len_bytes: usize) -> Result<Self> {
        let bytes = host_bytes(len_bytes.saturating_add(Self::PAGE_BYTES))?;
        let start = bytes.as_ptr().addr().next_multiple_of(Self::PAGE_BYTES) - bytes.as_ptr().addr();
        Ok(Self { bytes, range: start..start + len_bytes })
    }
}

// SAFETY: the range lies in the vector, whose bytes stay at their address.
unsafe impl IoBuf for HostBuffer {
    fn as_ptr(&self) -> *const u8 {
        self.bytes[self.range.clone()].as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.range.len()
    }

    fn location(&self) -> Location {
        Location::HOST
    }
}

// SAFETY: as above, and `&mut self` is the only access.
unsafe impl IoBufMut for HostBuffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes[self.range.clone()].as_mut_ptr()
    }
}

impl Buffer for HostBuffer {
    fn put(&mut self, bytes: &[u8]) -> Result {
        self.bytes[self.range.clone()].copy_from_slice(bytes);
        Ok(())
    }

    fn get(&self, bytes: &mut [u8]) -> Result {
        bytes.copy_from_slice(&self.bytes[self.range.clone()]);
        Ok(())
    }
}

impl Buffer for DeviceBuffer {
    fn put(&mut self, bytes: &[u8]) -> Result {
        Ok(self.copy_from_host(0, bytes)?)
    }

    fn get(&self, bytes: &mut [u8]) -> Result {
        Ok(self.copy_to_host(0, bytes)?)
    }
}

/// The work at one GPU, or at the host.
pub struct Job<'a> {
    pub file: &'a File,
    pub io: Io,
    pub region: Range<u64>,
    pub io_bytes: usize,
    pub workers: u64,
    /// `None` moves each block once, or as many random ones.
    pub duration: Option<Duration>,
    pub read_percent: u8,
    /// The same file, for comparing by plain reads.
    pub verify: Option<&'a std::fs::File>,
    pub is_over: &'a AtomicBool,
}

pub struct Tally {
    /// The nanoseconds of each transfer.
    pub latency: Histogram<u64>,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

impl Default for Tally {
    fn default() -> Self {
        // Three digits, from a nanosecond to an hour.
        let latency = Histogram::new_with_bounds(1, 3_600_000_000_000, 3);
        Self { latency: latency.expect("the bounds are valid"), read_bytes: 0, written_bytes: 0 }
    }
}

struct Flight<B> {
    future: IoFuture<B>,
    start: Instant,
    at: u64,
    is_write: bool,
    expected: Vec<u8>,
}

pub struct Worker<'a, B> {
    job: &'a Job<'a>,
    /// The number of the thread. It moves the blocks that have this remainder, so threads never share one.
    number: u64,
    idle: Vec<B>,
    flights: VecDeque<Flight<B>>,
    chance: Lcg,
    random: Random,
    tally: Tally,
}

impl<'a, B: Buffer> Worker<'a, B> {
    pub fn new(job: &'a Job<'a>, number: u64, mut buffers: Vec<B>) -> Result<Self> {
        let mut random = Random::new(number + 1);
        let mut bytes = host_bytes(job.io_bytes)?;
        for buffer in &mut buffers {
            random.fill(&mut bytes);
            buffer.put(&bytes)?;
        }
        // Threads draw different sequences.
        let chance = Lcg::of(number);
        Ok(Self {
            job,
            number,
            idle: buffers,
            flights: VecDeque::new(),
            chance,
            random,
            tally: Tally::default(),
        })
    }

    pub fn run(mut self) -> Result<Tally> {
        let outcome = self.transfer_all();
        if outcome.is_err() {
            self.job.is_over.store(true, Ordering::Relaxed);
        }
        outcome.map(|()| self.tally)
    }

    fn transfer_all(&mut self) -> Result {
        let Job { workers, io_bytes, ref region, .. } = *self.job;
        let blocks = (region.end - region.start) / io_bytes as u64;
        let own = (blocks - self.number).div_ceil(workers);
        let end = self.job.duration.map(|duration| Instant::now() + duration);
        for turn in 0.. {
            let is_done = end.map_or(turn == own, |end| Instant::now() >= end);
            if is_done || self.job.is_over.load(Ordering::Relaxed) {
                break;
            }
            let chosen =
                if self.job.io.is_random { self.chance.below(own as usize) as u64 } else { turn % own };
            let at = region.start + (chosen * workers + self.number) * io_bytes as u64;
            let Io { reads, writes, .. } = self.job.io;
            let is_write = writes && !(reads && self.chance.below(100) < usize::from(self.job.read_percent));
            self.transfer(at, is_write)?;
        }
        while !self.flights.is_empty() {
            self.finish_oldest()?;
        }
        Ok(())
    }

    /// Starts a transfer, and waits for an earlier one if there is no buffer. With one buffer, waits for its end.
    fn transfer(&mut self, at: u64, is_write: bool) -> Result {
        // Two transfers of one block at the same time would have no certain outcome.
        while self.idle.is_empty() || self.flights.iter().any(|flight| flight.at == at) {
            self.finish_oldest()?;
        }
        let Some(mut buffer) = self.idle.pop() else { return Err("there is no buffer".into()) };
        let expected = self.prepare(&mut buffer, at, is_write)?;
        let start = Instant::now();
        if self.idle.is_empty() && self.flights.is_empty() {
            let file = self.job.file;
            match is_write {
                true => file.write_all_at(&buffer, at)?,
                false => file.read_exact_at(&mut buffer, at)?,
            }
            return self.record(buffer, start, at, is_write, &expected);
        }
        let future = match is_write {
            true => self.job.file.write_all_at_async(buffer, at),
            false => self.job.file.read_at_async(buffer, at),
        };
        self.flights.push_back(Flight { future, start, at, is_write, expected });
        Ok(())
    }

    /// Returns the bytes to compare with, if any.
    fn prepare(&mut self, buffer: &mut B, at: u64, is_write: bool) -> Result<Vec<u8>> {
        let Some(file) = self.job.verify else { return Ok(Vec::new()) };
        let mut expected = host_bytes(self.job.io_bytes)?;
        expected.fill(POISON);
        if is_write {
            self.random.fill(&mut expected);
            buffer.put(&expected)?;
        } else {
            // An earlier read must not pass for this one.
            buffer.put(&expected)?;
            file.read_exact_at(&mut expected, at)?;
        }
        Ok(expected)
    }

    fn finish_oldest(&mut self) -> Result {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let (outcome, buffer) = flight.future.wait();
        let count = outcome?;
        if count < buffer.len_bytes() {
            return Err(
                format!("the file ended within the {} bytes at {}", buffer.len_bytes(), flight.at).into()
            );
        }
        self.record(buffer, flight.start, flight.at, flight.is_write, &flight.expected)
    }

    fn record(&mut self, buffer: B, start: Instant, at: u64, is_write: bool, expected: &[u8]) -> Result {
        // Longer ones count as an hour.
        self.tally.latency.saturating_record(start.elapsed().as_nanos() as u64);
        let count = if is_write { &mut self.tally.written_bytes } else { &mut self.tally.read_bytes };
        *count += buffer.len_bytes() as u64;
        if let Some(file) = self.job.verify {
            let mut found = host_bytes(expected.len())?;
            match is_write {
                true => file.read_exact_at(&mut found, at)?,
                false => buffer.get(&mut found)?,
            }
            if let Some(place) = expected.iter().zip(&found).position(|(expected, found)| expected != found) {
                let transfer = if is_write { "write" } else { "read" };
                return Err(format!(
                    "wrong bytes after a {transfer} of {} bytes at {at}: byte {place} is {:#04x} instead of {:#04x}",
                    expected.len(),
                    found[place],
                    expected[place]
                )
                .into());
            }
        }
        self.idle.push(buffer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the threads one after the other, on a file of 100 blocks of 700 bytes and some more.
    fn run(io: Io, workers: u64, depth: usize, spoil: Option<u64>) -> Result<(Vec<u8>, Vec<Tally>)> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 70_300])?;
        let file = File::options().read(true).write(true).open(&path)?;
        // Comparing with another file stands for wrong transfers.
        let other = folder.path().join("other");
        let mut bytes = vec![1; 70_300];
        spoil.into_iter().for_each(|at| bytes[at as usize] = 2);
        std::fs::write(&other, bytes)?;
        let verify = std::fs::File::open(if spoil.is_some() { &other } else { &path })?;
        let is_over = AtomicBool::new(false);
        let job = Job {
            file: &file,
            io,
            region: 100..70_300,
            io_bytes: 700,
            workers,
            duration: None,
            read_percent: 50,
            verify: Some(&verify),
            is_over: &is_over,
        };
        let of_worker = |number| {
            let buffers = (0..depth).map(|_| HostBuffer::new(700)).collect::<Result<_>>()?;
            Worker::new(&job, number, buffers)?.run()
        };
        let tallies = (0..workers).map(of_worker).collect::<Result<_>>()?;
        Ok((std::fs::read(&path)?, tallies))
    }

    #[test]
    fn each_block_is_moved_once_by_any_number_of_threads() {
        for (workers, depth) in [(1, 1), (3, 1), (7, 4), (100, 2)] {
            let (_, tallies) = run(Io::READ, workers, depth, None).unwrap();
            assert_eq!(tallies.iter().map(|tally| tally.read_bytes).sum::<u64>(), 70_000);
            assert_eq!(tallies.iter().map(|tally| tally.latency.len()).sum::<u64>(), 100);
            let (bytes, tallies) = run(Io::WRITE, workers, depth, None).unwrap();
            assert_eq!(tallies.iter().map(|tally| tally.written_bytes).sum::<u64>(), 70_000);
            assert!(bytes[..100].iter().chain(&bytes[70_100..]).all(|&byte| byte == 1), "outside");
            assert!(bytes[100..70_100].chunks(700).all(|block| block.iter().any(|&byte| byte != 1)));
        }
    }

    #[test]
    fn random_and_mixed_transfers_stay_in_their_region() {
        for io in [Io::RAND_READ, Io::RAND_WRITE, Io { reads: true, ..Io::RAND_WRITE }] {
            let (bytes, tallies) = run(io, 3, 4, None).unwrap();
            let (read, written) = tallies
                .iter()
                .fold((0, 0), |sum, tally| (sum.0 + tally.read_bytes, sum.1 + tally.written_bytes));
            assert_eq!(read + written, 70_000);
            assert_eq!((read > 0, written > 0), (io.reads, io.writes));
            assert!(bytes[..100].iter().chain(&bytes[70_100..]).all(|&byte| byte == 1), "outside");
        }
    }

    #[test]
    fn wrong_bytes_are_found_and_named() {
        let error = run(Io::READ, 2, 3, Some(100 + 700 * 5 + 17)).err().unwrap().to_string();
        assert!(error.contains("read of 700 bytes at 3600: byte 17 is 0x01 instead of 0x02"), "{error}");
        assert!(run(Io::READ, 2, 3, Some(5)).is_ok(), "nothing reads before the region");
        // What was written is not in the other file.
        let error = run(Io::WRITE, 1, 1, Some(5)).err().unwrap().to_string();
        assert!(error.contains("wrong bytes after a write"), "{error}");
    }

    #[test]
    fn host_buffers_begin_at_a_page() {
        for len_bytes in [0, 1, 700, 65_536, 1 << 20] {
            let mut buffer = HostBuffer::new(len_bytes).unwrap();
            assert!(buffer.as_ptr().addr().is_multiple_of(4096) && buffer.len_bytes() == len_bytes);
            assert_eq!(buffer.as_mut_ptr().cast_const(), buffer.as_ptr());
            let (bytes, mut found) = (vec![7; len_bytes], vec![0; len_bytes]);
            buffer.put(&bytes).unwrap();
            buffer.get(&mut found).unwrap();
            assert_eq!(found, bytes);
        }
    }
}
