//! Buffers on the GPU or the host, behind one type.

use std::ops::Range;

use gpufile::cuda::{Device, DeviceBuffer, PinnedBuffer, Stream};
use gpufile::{BufSlice, BufSliceMut, File, IoFuture, IoRange};

use super::Result;
use super::content::compare;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Device,
    Pinned,
    Host,
}

pub enum Memory {
    Device(DeviceBuffer),
    Pinned(PinnedBuffer),
    Host(Vec<u8>),
}

/// A transfer that owns its buffer. Calling it waits for its end.
pub type Pending = Box<dyn FnOnce() -> (gpufile::Result<usize>, Memory)>;

/// Evaluates an expression with the buffer of any kind.
macro_rules! with {
    ($memory:expr, $buffer:ident => $result:expr) => {
        match $memory {
            Memory::Device($buffer) => $result,
            Memory::Pinned($buffer) => $result,
            Memory::Host($buffer) => $result,
        }
    };
}

/// Begins a transfer that owns the buffer of any kind.
macro_rules! pending {
    ($memory:expr, $buffer:ident => $begun:expr) => {
        match $memory {
            Memory::Device($buffer) => {
                let begun = $begun;
                Box::new(move || wrap(begun.wait(), Memory::Device))
            }
            Memory::Pinned($buffer) => {
                let begun = $begun;
                Box::new(move || wrap(begun.wait(), Memory::Pinned))
            }
            Memory::Host($buffer) => {
                let begun = $begun;
                Box::new(move || wrap(begun.wait(), Memory::Host))
            }
        }
    };
}

impl Memory {
    pub fn new(device: Option<&Device>, kind: Kind, len: usize) -> Result<Self> {
        Ok(match (device, kind) {
            (Some(device), Kind::Device) => Self::Device(device.alloc(len)?),
            (Some(device), Kind::Pinned) => Self::Pinned(device.alloc_pinned(len)?),
            _ => Self::Host(vec![0; len]),
        })
    }

    pub fn part(&self, range: Range<usize>) -> BufSlice<'_> {
        with!(self, buffer => BufSlice::new(buffer, range))
    }

    pub fn part_mut(&mut self, range: Range<usize>) -> BufSliceMut<'_> {
        with!(self, buffer => BufSliceMut::new(buffer, range))
    }

    pub fn set(&mut self, offset: usize, bytes: &[u8]) -> Result {
        match self {
            Self::Device(buffer) => buffer.copy_from_host(offset, bytes)?,
            Self::Pinned(buffer) => buffer[offset..offset + bytes.len()].copy_from_slice(bytes),
            Self::Host(buffer) => buffer[offset..offset + bytes.len()].copy_from_slice(bytes),
        }
        Ok(())
    }

    pub fn get(&self, range: Range<usize>) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Device(buffer) => {
                let mut bytes = vec![0; range.len()];
                buffer.copy_to_host(range.start, &mut bytes)?;
                bytes
            }
            Self::Pinned(buffer) => buffer[range].to_vec(),
            Self::Host(buffer) => buffer[range].to_vec(),
        })
    }

    /// Fails unless the buffer has these bytes from `start` on. After a mismatch, it copies the buffer to the
    /// host once more, to tell wrong contents from a wrong copy.
    pub fn compare(&self, start: usize, expected: &[u8], what: impl Fn() -> String) -> Result {
        let found = || self.get(start..start + expected.len());
        let Err(difference) = compare(&found()?, expected, &what) else { return Ok(()) };
        let again = match compare(&found()?, expected, &what) {
            Ok(()) => "nothing differs".to_owned(),
            Err(same) if same == difference => "the same".to_owned(),
            Err(other) => other,
        };
        Err(format!("{difference}; copied to the host once more: {again}").into())
    }

    /// Begins to read into the whole buffer, ordered with the stream if there is one.
    pub fn read(self, file: &File, offset: u64, stream: Option<&Stream>) -> Pending {
        match stream {
            Some(stream) => pending!(self, buffer => file.read_at_on_stream(stream, buffer, offset)),
            None => pending!(self, buffer => file.read_at_async(buffer, offset)),
        }
    }

    /// Begins to write the whole buffer, ordered with the stream if there is one.
    pub fn write(self, file: &File, offset: u64, stream: Option<&Stream>) -> Pending {
        match stream {
            Some(stream) => pending!(self, buffer => file.write_all_at_on_stream(stream, buffer, offset)),
            None => pending!(self, buffer => file.write_all_at_async(buffer, offset)),
        }
    }

    /// Reads many ranges into the buffer, which the transfer owns until its end. Each has an outcome if `each` is set.
    pub fn read_many(self, file: &File, ranges: Vec<IoRange>, each: bool) -> (gpufile::Result<usize>, Self) {
        let pending: Pending = match each {
            false => pending!(self, buffer => List(file.read_many_async(buffer, ranges), Ok)),
            true => pending!(self, buffer => List(file.read_many_each_async(buffer, ranges), sum)),
        };
        pending()
    }

    /// Writes the buffer, which the transfer owns until its end, to many ranges. Each has an outcome if `each` is set.
    pub fn write_many(self, file: &File, ranges: Vec<IoRange>, each: bool) -> (gpufile::Result<usize>, Self) {
        let pending: Pending = match each {
            false => pending!(self, buffer => List(file.write_many_async(buffer, ranges), Ok)),
            true => pending!(self, buffer => List(file.write_many_each_async(buffer, ranges), sum)),
        };
        pending()
    }

    /// Reads many ranges into the buffer, in the stream's order.
    pub fn read_many_on_stream(
        self,
        file: &File,
        ranges: &[IoRange],
        stream: &Stream,
    ) -> (gpufile::Result<usize>, Self) {
        let pending: Pending = pending!(self, buffer => file.read_many_on_stream(stream, buffer, ranges));
        pending()
    }

    /// Writes the buffer to many ranges, in the stream's order.
    pub fn write_many_on_stream(
        self,
        file: &File,
        ranges: &[IoRange],
        stream: &Stream,
    ) -> (gpufile::Result<usize>, Self) {
        let pending: Pending = pending!(self, buffer => file.write_many_on_stream(stream, buffer, ranges));
        pending()
    }
}

/// A transfer of many ranges, and the function that returns the number of bytes.
struct List<B, O>(IoFuture<(B, Vec<IoRange>), O>, fn(O) -> gpufile::Result<usize>);

impl<B, O> List<B, O> {
    fn wait(self) -> (gpufile::Result<usize>, B) {
        let (result, (buffer, _)) = self.0.wait();
        (result.and_then(self.1), buffer)
    }
}

fn sum(outcomes: Vec<gpufile::Result<usize>>) -> gpufile::Result<usize> {
    outcomes.into_iter().sum()
}

fn wrap<B>(
    (result, buffer): (gpufile::Result<usize>, B),
    memory: impl FnOnce(B) -> Memory,
) -> (gpufile::Result<usize>, Memory) {
    (result, memory(buffer))
}
