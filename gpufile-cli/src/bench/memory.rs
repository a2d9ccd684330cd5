//! The memory of transfers, and its comparison with a file.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cufile::{BufSlice, BufSliceMut, IoBuf};
use gpufile::IoRange;
use gpufile::cuda::{Device, DeviceBuffer};

use super::{Bench, MIB, Result};
use crate::failure::Failure;
use crate::target::host_bytes;

/// The byte that fills a buffer before a read, so that bytes of an earlier read cannot pass for later ones.
pub const POISON: u8 = 0x5a;

/// Memory that can be compared with a file.
pub trait Contents {
    fn copy(&self, offset: usize, target: &mut [u8]) -> Result;
}

pub struct DeviceMemory {
    buffer: DeviceBuffer,
    holds: Holds,
}

#[derive(PartialEq)]
enum Holds {
    File,
    Random(usize),
    Other,
}

impl DeviceMemory {
    pub fn new(device: &Device, len_bytes: usize) -> Result<Self, Failure> {
        let buffer = device.alloc(len_bytes).map_err(|error| Failure::Other(error.to_string()))?;
        Ok(Self { buffer, holds: Holds::Other })
    }

    pub fn len_bytes(&self) -> usize {
        self.buffer.len_bytes()
    }

    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// Fills the memory with all of the file, unless it holds that already. Plain reads: a write of the memory to
    /// the file then changes no byte, even if the engine reads wrong bytes.
    pub fn load(&mut self, bench: &Bench) -> Result {
        if self.holds != Holds::File {
            let file = fs::File::open(&bench.path)?;
            let mut bytes = vec![0; 16 * MIB];
            for offset in (0..bench.file_bytes).step_by(bytes.len()) {
                file.read_exact_at(&mut bytes, offset as u64)?;
                self.buffer.copy_from_host(offset, &bytes)?;
            }
            self.holds = Holds::File;
        }
        Ok(())
    }

    pub fn load_random(&mut self, len_bytes: usize) -> Result {
        if !matches!(self.holds, Holds::Random(held_bytes) if held_bytes >= len_bytes) {
            let (mut random, mut bytes) = (Random::new(1), vec![0; 16 * MIB]);
            for offset in (0..len_bytes).step_by(bytes.len()) {
                let part = &mut bytes[..(16 * MIB).min(len_bytes - offset)];
                random.fill(part);
                self.buffer.copy_from_host(offset, part)?;
            }
            self.holds = Holds::Random(len_bytes);
        }
        Ok(())
    }

    /// Returns a copy of the memory as far as the ranges go: thousands of ranges are compared with it faster than with
    /// the memory.
    pub fn to_host<'a>(&self, ranges: impl IntoIterator<Item = &'a IoRange>) -> Result<HostMemory> {
        let end = ranges.into_iter().map(|range| range.buffer_offset + range.len_bytes).max().unwrap_or(0);
        let mut copy = HostMemory::new(end)?;
        self.copy(0, &mut copy.0)?;
        Ok(copy)
    }

    pub fn first(&self, len_bytes: usize) -> BufSlice<'_> {
        self.part(0..len_bytes)
    }

    pub fn part(&self, range: Range<usize>) -> BufSlice<'_> {
        self.buffer.slice(range)
    }

    pub fn first_mut(&mut self, len_bytes: usize) -> BufSliceMut<'_> {
        self.holds = Holds::Other;
        self.buffer.slice_mut(..len_bytes)
    }

    pub fn poisoned(&mut self, len_bytes: usize) -> Result<BufSliceMut<'_>> {
        self.buffer.fill(POISON)?;
        Ok(self.first_mut(len_bytes))
    }
}

impl Contents for DeviceBuffer {
    fn copy(&self, offset: usize, target: &mut [u8]) -> Result {
        Ok(self.copy_to_host(offset, target)?)
    }
}

impl Contents for DeviceMemory {
    fn copy(&self, offset: usize, target: &mut [u8]) -> Result {
        Ok(self.buffer.copy_to_host(offset, target)?)
    }
}

pub struct HostMemory(Vec<u8>);

impl HostMemory {
    pub fn new(len_bytes: usize) -> Result<Self, Failure> {
        Ok(Self(host_bytes(len_bytes)?))
    }

    pub fn poisoned(&mut self) -> &mut [u8] {
        self.0.fill(POISON);
        &mut self.0
    }
}

impl Contents for HostMemory {
    fn copy(&self, offset: usize, target: &mut [u8]) -> Result {
        target.copy_from_slice(&self.0[offset..][..target.len()]);
        Ok(())
    }
}

/// Fails unless the memory and a file hold the same bytes, in 64 of the ranges: the first, the last, and random others.
pub fn compare(path: &Path, memory: &impl Contents, ranges: &[IoRange]) -> Result {
    const MOST: usize = 64;
    let mut chance = Lcg::default();
    let last = ranges.len() - 1;
    let chosen = (0..ranges.len().min(MOST)).map(|turn| match turn {
        turn if last < MOST => turn,
        0 => 0,
        1 => last,
        _ => chance.below(ranges.len()),
    });
    compare_each(path, memory, chosen.map(|number| &ranges[number]))
}

pub fn compare_each<'a>(
    path: &Path,
    memory: &impl Contents,
    ranges: impl IntoIterator<Item = &'a IoRange>,
) -> Result {
    let (file, mut expected, mut found) = (fs::File::open(path)?, Vec::new(), Vec::new());
    for &IoRange { file_offset, buffer_offset, len_bytes } in ranges {
        expected.resize(len_bytes, 0);
        found.resize(len_bytes, 0);
        file.read_exact_at(&mut expected, file_offset)?;
        memory.copy(buffer_offset, &mut found)?;
        if expected != found {
            let at = expected.iter().zip(&found).take_while(|(expected, found)| expected == found).count();
            return Err(format!(
                "wrong bytes: {len_bytes} bytes at {file_offset} of {path:?} differ from those at {buffer_offset} of the memory, \
                 first at byte {at}: {:#04x} in the file, {:#04x} in the memory",
                expected[at],
                found[at]
            )
            .into());
        }
    }
    Ok(())
}

/// Returns adjacent ranges, at the same places in file and memory.
pub fn in_order(total_bytes: usize, len_bytes: usize) -> Vec<IoRange> {
    let range = |at| IoRange { file_offset: at as u64, buffer_offset: at, len_bytes };
    (0..total_bytes).step_by(len_bytes).map(range).collect()
}

/// The pseudo-random numbers that all peers use.
pub struct Lcg(u64);

impl Default for Lcg {
    fn default() -> Self {
        Self(42)
    }
}

impl Lcg {
    pub fn of(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 20) as usize % limit
    }
}

/// Random bytes that do not repeat, by splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed << 48)
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..word.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_finds_one_wrong_byte_in_any_range() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..100_000).map(|i| (i / 251) as u8).collect();
        fs::write(file.path(), &bytes).unwrap();
        let len_bytes = bytes.len();
        for (part, at) in
            [(10, 0), (10, 9), (10, len_bytes - 1), (len_bytes, 12_345), (len_bytes / 4, 12_345)]
        {
            let ranges = in_order(len_bytes, part);
            let mut memory = HostMemory(bytes.clone());
            compare(file.path(), &memory, &ranges).unwrap();
            memory.0[at] ^= 1;
            let error = compare(file.path(), &memory, &ranges).unwrap_err().to_string();
            assert!(error.contains(&format!("first at byte {}:", at % part)), "{part} {at}: {error}");
        }
    }

    #[test]
    fn compare_finds_bytes_that_were_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [7; 4096]).unwrap();
        let mut memory = HostMemory::new(4096).unwrap();
        memory.poisoned()[1..].fill(7);
        assert!(compare(file.path(), &memory, &in_order(4096, 4096)).is_err());
    }
}
