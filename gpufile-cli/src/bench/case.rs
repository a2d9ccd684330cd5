//! A row that describes a case. The rows themselves are `CASES` of the other modules here, next to their functions.
//!
//! A case moves bytes between FILE and the memory of GPU 0. The cases `gpus-…` move them between FILE and all GPUs of
//! the command line, the host cases between FILE and a vector. The time leaves these steps out, unless the doc of a case
//! includes them:
//!
//! - making an engine, and opening a file
//! - building the list of ranges
//! - poisoning the memory, and dropping the page cache
//! - comparing the bytes afterwards

use gpufile::cuda::Device;

use super::memory::DeviceMemory;
use super::timing::Measured;
use super::{Bench, Result};

/// A measurement, under the name that all peers have for it.
pub struct Case {
    pub peer: &'static str,
    pub name: &'static str,
    pub about: &'static str,
    pub unit: Unit,
    /// The numbers of threads, one after the other; 0 leaves the number to the engine.
    pub threads: &'static [usize],
    pub run: Run,
    pub overwrites: bool,
}

/// The figure of a line that a comparison shows.
#[derive(Clone, Copy)]
pub enum Unit {
    GbPerSecond,
    /// Of all operations together.
    Milliseconds,
    /// Of one operation.
    Microseconds,
}

pub enum Run {
    Device(OnDevice),
    Gpus(OnGpus),
    Host(OnHost),
}
type OnDevice = fn(&Bench, &mut DeviceMemory, usize) -> Result<Measured>;
type OnGpus = fn(&Bench, &[Device], usize) -> Result<Measured>;
type OnHost = fn(&Bench, usize) -> Result<Measured>;

pub const DEFAULT: &[usize] = &[0];
pub const SOME: &[usize] = &[0, 4, 8, 16];

impl Case {
    pub const fn device(
        name: &'static str,
        about: &'static str,
        threads: &'static [usize],
        run: OnDevice,
    ) -> Self {
        Self::new(name, about, threads, Run::Device(run))
    }

    /// Makes a case whose name begins with `gpus-`.
    pub const fn gpus(name: &'static str, about: &'static str, run: OnGpus) -> Self {
        Self::new(name, about, DEFAULT, Run::Gpus(run))
    }

    pub const fn host(name: &'static str, about: &'static str, run: OnHost) -> Self {
        Self::new(name, about, &[0, 1, 2], Run::Host(run))
    }

    const fn new(name: &'static str, about: &'static str, threads: &'static [usize], run: Run) -> Self {
        Self { peer: "gpufile", name, about, unit: Unit::GbPerSecond, threads, run, overwrites: false }
    }

    /// Shows the case in another unit than GB/s.
    pub const fn shown_in(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    pub const fn overwriting(mut self) -> Self {
        self.overwrites = true;
        self
    }

    pub const fn of_peer(mut self, peer: &'static str) -> Self {
        self.peer = peer;
        self
    }
}

impl Unit {
    pub fn symbol(self) -> &'static str {
        match self {
            Self::GbPerSecond => "GB/s",
            Self::Milliseconds => "ms",
            Self::Microseconds => "us",
        }
    }
}

impl Run {
    pub fn memory(&self) -> &'static str {
        match self {
            Self::Device(_) => "gpu",
            Self::Gpus(_) => "gpus",
            Self::Host(_) => "host",
        }
    }
}
