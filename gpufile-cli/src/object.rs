//! An object of a server, to be measured by reads of its beginning.

use std::time::Instant;

use gpufile::remote::{RemoteFile, RemoteOptions};
use gpufile::{Engine, File, Settings};

use super::cpu::cpu_seconds;
use super::failure::Failure;
use super::target::Memory;

/// The bytes of a range that is read for its latency.
pub const SMALL_BYTES: u64 = 4 << 10;
/// The most bytes of a range that is read for its speed.
pub const LARGE_BYTES: u64 = 128 << 20;
/// Seconds that a measurement takes at least.
const LONG: f64 = 0.25;

/// An object, which is opened once for each number of connections.
pub struct Object<'a> {
    url: &'a str,
    options: RemoteOptions,
    settings: Settings,
}

/// Reads of the same range, one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reads {
    pub size: usize,
    pub ops: usize,
    pub seconds: f64,
    pub cpu_seconds: f64,
}

impl<'a> Object<'a> {
    pub fn new(url: &'a str, options: RemoteOptions, settings: Settings) -> Self {
        Self { url, options, settings }
    }

    /// Opens the object with this number of connections; 0 leaves it to the settings. Late answers get no second
    /// request.
    ///
    /// # Errors
    /// The server cannot be reached, or sends no ranges.
    pub fn open(&self, connections: usize) -> Result<RemoteFile, Failure> {
        let builder = Engine::builder().settings(self.settings.clone());
        let engine = if connections == 0 { builder } else { builder.threads(connections) }.build();
        Ok(self.options.clone().engine(&engine).repeat_late(false).open(self.url)?)
    }
}

impl Reads {
    pub fn measure(file: &File, memory: &mut Memory, size: usize, ops: usize) -> Result<Self, Failure> {
        let (cpu_before, start) = (cpu_seconds(), Instant::now());
        for _ in 0..ops {
            file.read_exact_at(&mut memory.first_mut(size), 0)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Self { size, ops, seconds, cpu_seconds: cpu_seconds() - cpu_before })
    }

    /// Reads up to 1 MiB first, then twice as much each time, until that takes long enough.
    pub fn long_enough(file: &File, memory: &mut Memory) -> Result<Self, Failure> {
        let most = memory.len_bytes();
        let (mut size, mut ops) = (most.min(1 << 20), 1);
        loop {
            let reads = Self::measure(file, memory, size, ops)?;
            if reads.seconds >= LONG || size == 0 {
                return Ok(reads);
            }
            (size, ops) = if size < most { (most.min(2 * size), 1) } else { (size, 2 * ops) };
        }
    }

    pub fn bytes(&self) -> u64 {
        self.size as u64 * self.ops as u64
    }

    /// Returns the seconds of each read.
    pub fn latency(&self) -> f64 {
        self.seconds / self.ops as f64
    }
}
