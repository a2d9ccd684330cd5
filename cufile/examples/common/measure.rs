//! Code that the timed examples share: optional arguments, repeated and checked runs, and the line with the speed of
//! a run.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cufile::cuda::DeviceBuffer;

use super::{Arguments, Result, contents, require_same};

/// The number of reads into the buffer of a pattern.
pub const READS: usize = 10;

/// The sizes of NVIDIA's guide: a buffer of 1 GiB, and ten reads of 100 MiB into it; or the same parts of another size.
pub struct Sizes {
    pub buffer: usize,
    pub read: usize,
}

impl Sizes {
    /// Returns the sizes from the argument at `position`, or the usual ones without it.
    pub fn from(arguments: &Arguments, position: usize) -> Result<Self> {
        let buffer = size(arguments, position, 1 << 30)?;
        // Whole pages, because the patterns choose the alignment of reads.
        let read = (buffer as u128 * 100 / 1024) as usize & !4095;
        if read == 0 {
            return Err(format!("SIZE: {buffer} bytes are too few; 64KiB are enough").into());
        }
        Ok(Self { buffer, read })
    }
}

/// A measured pattern, and the contents to compare with.
pub struct Pattern {
    number: u32,
    sizes: Sizes,
    buffer: DeviceBuffer,
    contents: Vec<u8>,
}

impl Pattern {
    /// Reads the file by plain calls, for comparison, and takes the buffer for the pattern's reads.
    pub fn new(number: u32, arguments: &Arguments, sizes: Sizes, buffer: DeviceBuffer) -> Result<Self> {
        let contents = contents(arguments.path(0)?, sizes.buffer)?;
        Ok(Self { number, sizes, buffer, contents })
    }

    /// Runs the reads, `READS` from `file_offset` to `buffer_offset` on, and prints the speed of the best of
    /// three runs. A run before them warms up. After each run the buffer must have the file's contents.
    pub fn measure(
        &mut self,
        what: &str,
        file_offset: usize,
        buffer_offset: usize,
        mut run: impl FnMut(&mut DeviceBuffer) -> Result<Duration>,
    ) -> Result {
        let len_bytes = READS * self.sizes.read;
        let mut best = Duration::MAX;
        for round in 0..4 {
            // So that bytes of an earlier run do not pass for those of this one.
            self.buffer.fill(0x5a)?;
            let elapsed = run(&mut self.buffer)?;
            let mut found = vec![0; len_bytes];
            self.buffer.copy_to_host(buffer_offset, &mut found)?;
            require_same(&found, &self.contents[file_offset..][..len_bytes], what)?;
            if round > 0 {
                best = best.min(elapsed);
            }
        }
        report(&self.number.to_string(), what, len_bytes, best);
        Ok(())
    }
}

pub fn timed(work: impl FnOnce() -> Result) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Prints one result, in words without spaces, for people and programs.
pub fn report(pattern: &str, what: &str, bytes: usize, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64();
    let gbps = bytes as f64 / seconds / 1e9;
    println!("pattern={pattern} what={what} bytes={bytes} seconds={seconds:.6} gbps={gbps:.2}");
}

/// Returns the GPU at `position` of the arguments, or the first.
pub fn gpu(arguments: &Arguments, position: usize) -> Result<u32> {
    arguments.optional(position).map_or(Ok(0), |_| arguments.number(position))
}

pub fn size(arguments: &Arguments, position: usize, usual: usize) -> Result<usize> {
    let Some(word) = arguments.optional(position) else { return Ok(usual) };
    let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &word[digits.len()..] {
        "" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let bytes = unit.and_then(|unit: usize| digits.parse::<usize>().ok()?.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        format!("{word}: expected a size, as a number of bytes or with KiB, MiB or GiB").into()
    })
}

/// Fails if output and input are the same file, because creating the output would empty it.
pub fn require_different(input: &Path, output: &Path) -> Result {
    match (fs::canonicalize(input), fs::canonicalize(output)) {
        (Ok(one), Ok(other)) if one == other => {
            Err(format!("{} is the file to be read; write another", output.display()).into())
        }
        _ => Ok(()),
    }
}
