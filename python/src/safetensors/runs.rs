//! The bytes of a slice: ranges of a file at regular distances, which lie in the memory without gaps. They take as much
//! memory as the slice has axes, however many ranges there are.

use std::ops::Range;

/// Bytes that are adjacent in the file and in the memory. All fields are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub file_offset: u64,
    pub buffer_offset: usize,
    pub len_bytes: usize,
}

/// Stretches of the same length, at regular distances in the file. There is at least one, and it has bytes.
pub struct Runs {
    pub first: Stretch,
    /// The slowest first. Only those with more than one stretch.
    axes: Vec<Axis>,
}

struct Axis {
    len: usize,
    stride_bytes: u64,
}

impl Stretch {
    /// Returns the range in the memory.
    pub fn in_buffer(&self) -> Range<usize> {
        self.buffer_offset..self.buffer_offset + self.len_bytes
    }

    pub fn file_end(&self) -> u64 {
        self.file_offset + self.len_bytes as u64
    }
}

impl Runs {
    /// Returns one stretch.
    pub fn one(first: Stretch) -> Self {
        Self { first, axes: Vec::new() }
    }

    /// Repeats a stretch along axes of so many stretches, at distances in bytes of the file. The slowest is first.
    /// Returns `None` if memory cannot have as many bytes.
    pub fn new(first: Stretch, axes: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        let axes = axes.filter(|(len, _)| *len > 1);
        let axes = axes.map(|(len, stride_bytes)| Some(Axis { len: len.try_into().ok()?, stride_bytes }));
        let runs = Self { first, axes: axes.collect::<Option<_>>()? };
        let bytes = runs.axes.iter().try_fold(first.len_bytes, |bytes, axis| bytes.checked_mul(axis.len))?;
        first.buffer_offset.checked_add(bytes)?;
        Some(runs)
    }

    pub fn count(&self) -> usize {
        self.axes.iter().map(|axis| axis.len).product()
    }

    /// Returns the range of all stretches in the memory.
    pub fn in_buffer(&self) -> Range<usize> {
        let start = self.first.buffer_offset;
        start..start + self.count() * self.first.len_bytes
    }

    /// Returns the numbers of the stretches that have bytes in this range of the memory.
    pub fn numbers(&self, range: &Range<usize>) -> Range<usize> {
        let Range { start, end } = self.in_buffer();
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from >= to {
            return 0..0;
        }
        (from - start) / self.first.len_bytes..(to - start).div_ceil(self.first.len_bytes)
    }

    /// Returns the parts of the stretches that lie in this range of the memory.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = Stretch> {
        self.numbers(&range).map(move |number| {
            let Stretch { file_offset, buffer_offset, len_bytes } = self.nth(number);
            let (from, to) = (range.start.max(buffer_offset), range.end.min(buffer_offset + len_bytes));
            let file_offset = file_offset + (from - buffer_offset) as u64;
            Stretch { file_offset, buffer_offset: from, len_bytes: to - from }
        })
    }

    fn nth(&self, number: usize) -> Stretch {
        let (mut rest, mut file_offset) = (number, self.first.file_offset);
        for axis in self.axes.iter().rev() {
            file_offset += (rest % axis.len) as u64 * axis.stride_bytes;
            rest /= axis.len;
        }
        let buffer_offset = self.first.buffer_offset + number * self.first.len_bytes;
        Stretch { file_offset, buffer_offset, len_bytes: self.first.len_bytes }
    }
}
