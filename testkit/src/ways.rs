//! The ways to transfer: a row for each method of `File` that takes memory, with a function that calls it.
//!
//! Tests and programs that try every method take them from this list, so a new method is one row here:
//!
//! | program | tries each way |
//! |---|---|
//! | `gpufile/tests/file/ways.rs` | on every kind of memory and route, and at the end of a file |
//! | `tests/tests/fault_table/engine.rs` | with a fault in each call of CUDA and cuFile |
//! | `tests/tests/acknowledged_bytes` | in random plans of several threads, under random faults |
//! | `gpufile/tests/after_fork/table.rs` | in a forked child |
//! | `gpufile/examples/stress` | at random for minutes, on a GPU |

use std::error::Error;
use std::{fmt, fs};

use cufile::cuda::Stream;
use cufile::{BufSlice, BufSliceMut, IoBuf};
use gpufile::{File, IoFuture, IoRange, Result};

use crate::memory::Memory;

/// A way to transfer.
pub struct Way {
    /// The method of `File`.
    pub name: &'static str,
    /// The direction of the bytes.
    pub moves: Moves,
    /// A call of the method.
    pub call: Call,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The direction of a transfer's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    /// From the file to memory.
    Reads(AtEnd),
    /// From memory to the file, which grows if it must.
    Writes,
}

/// The outcome of a read beyond the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// The number of bytes before the end, and unspecified memory behind.
    Short,
    /// An error.
    Fails,
}

/// A call with one range of the file and a whole memory, or with a list of ranges of both. A transfer in flight owns
/// its memory.
pub enum Call {
    /// Reads one range, and returns the number of bytes.
    Read(fn(&File, &mut BufSliceMut<'_>, u64) -> Result<usize>),
    /// Writes one range.
    Write(fn(&File, &BufSlice<'_>, u64) -> Result<()>),
    /// Starts one range.
    Start(fn(&File, Memory, u64) -> IoFuture<Memory>),
    /// Starts one range in a stream's order.
    StartOnStream(fn(&File, &Stream, Memory, u64) -> IoFuture<Memory>),
    /// Reads a list.
    ReadList(fn(&File, &mut BufSliceMut<'_>, &[IoRange]) -> Result<Outcomes>),
    /// Writes a list.
    WriteList(fn(&File, &BufSlice<'_>, &[IoRange]) -> Result<Outcomes>),
    /// Starts a list, and waits for its end.
    StartList(fn(&File, Memory, Vec<IoRange>) -> Ended),
    /// Starts a list in a stream's order, and waits for its end.
    StartListOnStream(fn(&File, &Stream, Memory, &[IoRange]) -> Ended),
}

/// The end of a list that owned its memory.
pub type Ended = (Result<Outcomes>, Memory);

/// The outcome of a list's transfer.
#[derive(Debug)]
pub enum Outcomes {
    /// The number of bytes of all ranges.
    All(usize),
    /// The number of bytes of each range, or its failure.
    Each(Vec<Result<usize>>),
}

impl Outcomes {
    /// Returns the number of bytes of all ranges.
    ///
    /// # Errors
    /// The first failure of a range.
    pub fn sum(self) -> Result<usize> {
        match self {
            Self::All(count) => Ok(count),
            Self::Each(outcomes) => outcomes.into_iter().sum(),
        }
    }

    /// Takes whole ranges, because writes write them or fail.
    fn of_writes(outcomes: Vec<Result<()>>, ranges: &[IoRange]) -> Self {
        let each = outcomes.into_iter().zip(ranges);
        Self::Each(each.map(|(outcome, range)| outcome.map(|()| range.len_bytes)).collect())
    }
}

use AtEnd::{Fails, Short};
use Call::{Read, ReadList, Start, StartList, StartListOnStream, StartOnStream, Write, WriteList};
use Moves::{Reads, Writes};
use Outcomes::{All, Each};

/// Every method of `File` that takes memory, except [`EXCEPTIONS`].
#[rustfmt::skip]
pub const WAYS: &[Way] = &[
    Way { name: "read_at", moves: Reads(Short), call: Read(|file, part, at| file.read_at(part, at)) },
    Way { name: "read_exact_at", moves: Reads(Fails), call: Read(|file, part, at| file.read_exact_at(part, at).map(|()| part.len_bytes())) },
    Way { name: "write_all_at", moves: Writes, call: Write(|file, part, at| file.write_all_at(part, at)) },

    Way { name: "read_at_async", moves: Reads(Short), call: Start(|file, memory, at| file.read_at_async(memory, at)) },
    Way { name: "write_all_at_async", moves: Writes, call: Start(|file, memory, at| file.write_all_at_async(memory, at)) },
    Way { name: "read_at_on_stream", moves: Reads(Short), call: StartOnStream(|file, stream, memory, at| file.read_at_on_stream(stream, memory, at)) },
    Way { name: "write_all_at_on_stream", moves: Writes, call: StartOnStream(|file, stream, memory, at| file.write_all_at_on_stream(stream, memory, at)) },

    Way { name: "read_many", moves: Reads(Fails), call: ReadList(|file, part, list| file.read_many(part, list).map(|()| All(bytes_of(list)))) },
    Way { name: "write_many", moves: Writes, call: WriteList(|file, part, list| file.write_many(part, list).map(|()| All(bytes_of(list)))) },
    Way { name: "read_many_each", moves: Reads(Short), call: ReadList(|file, part, list| file.read_many_each(part, list).map(Each)) },
    Way { name: "write_many_each", moves: Writes, call: WriteList(|file, part, list| Ok(Outcomes::of_writes(file.write_many_each(part, list)?, list))) },

    Way { name: "read_many_async", moves: Reads(Fails), call: StartList(|file, memory, list| wait(file.read_many_async(memory, list), All)) },
    Way { name: "write_many_async", moves: Writes, call: StartList(|file, memory, list| wait(file.write_many_async(memory, list), All)) },
    Way { name: "read_many_each_async", moves: Reads(Short), call: StartList(|file, memory, list| wait(file.read_many_each_async(memory, list), Each)) },
    Way { name: "write_many_each_async", moves: Writes, call: StartList(|file, memory, list| wait(file.write_many_each_async(memory, list), Each)) },
    Way { name: "read_many_on_stream", moves: Reads(Fails), call: StartListOnStream(|file, stream, memory, list| all(file.read_many_on_stream(stream, memory, list).wait())) },
    Way { name: "write_many_on_stream", moves: Writes, call: StartListOnStream(|file, stream, memory, list| all(file.write_many_on_stream(stream, memory, list).wait())) },
];

/// Methods of `File` that take memory and have no row, with the reason.
pub const EXCEPTIONS: &[(&str, &str)] =
    &[("read_uninit_at", "takes only slices of the host; `contract.rs` and the fork table call it")];

/// Returns the number of bytes of all ranges.
pub fn bytes_of(list: &[IoRange]) -> usize {
    list.iter().map(|range| range.len_bytes).sum()
}

fn wait<O>(transfer: IoFuture<(Memory, Vec<IoRange>), O>, outcomes: fn(O) -> Outcomes) -> Ended {
    let (result, (memory, _)) = transfer.wait();
    (result.map(outcomes), memory)
}

fn all((result, memory): (Result<usize>, Memory)) -> Ended {
    (result.map(All), memory)
}

impl Way {
    /// Returns whether the way writes.
    pub fn is_write(&self) -> bool {
        self.moves == Writes
    }

    /// Returns whether the way takes a list of ranges.
    pub fn is_list(&self) -> bool {
        matches!(self.call, ReadList(_) | WriteList(_) | StartList(_) | StartListOnStream(_))
    }

    /// Returns whether the transfer owns its memory.
    pub fn is_owner(&self) -> bool {
        !matches!(self.call, Read(_) | Write(_) | ReadList(_) | WriteList(_))
    }

    /// Returns whether the way takes a stream.
    pub fn takes_stream(&self) -> bool {
        matches!(self.call, StartOnStream(_) | StartListOnStream(_))
    }

    /// Returns whether each range of the list has an outcome.
    pub fn is_each(&self) -> bool {
        self.name.contains("_each")
    }

    /// Returns ranges for [`run`](Self::run): all of the memory from the beginning of the file, or a list from the end to
    /// the beginning, with gaps.
    pub fn ranges(&self, len_bytes: usize) -> Vec<IoRange> {
        let range =
            |start: usize, len_bytes| IoRange { file_offset: start as u64, buffer_offset: start, len_bytes };
        match self.is_list() {
            true => {
                let step = (len_bytes / 20).max(2);
                (0..len_bytes / step).rev().map(|number| range(number * step, step.div_ceil(5))).collect()
            }
            false => vec![range(0, len_bytes)],
        }
    }

    /// Starts the transfer of one range.
    ///
    /// # Panics
    /// If the way starts none, or takes a stream, and there is none.
    pub fn start(
        &self,
        file: &File,
        stream: Option<&Stream>,
        memory: Memory,
        offset: u64,
    ) -> IoFuture<Memory> {
        match self.call {
            Start(start) => start(file, memory, offset),
            StartOnStream(start) => start(file, stream.expect("a stream"), memory, offset),
            _ => panic!("{self:?} starts no transfer of one range"),
        }
    }

    /// Moves these ranges, and waits for the end. A way of one range moves the whole memory from or to the first of
    /// them. Returns the number of bytes.
    ///
    /// # Panics
    /// If the way takes a stream, and there is none.
    pub fn run(
        &self,
        file: &File,
        stream: Option<&Stream>,
        mut memory: Memory,
        ranges: &[IoRange],
    ) -> (Result<usize>, Memory) {
        let len_bytes = memory.len_bytes();
        let at = ranges.first().map_or(0, |range| range.file_offset);
        let sum = |(result, memory): Ended| (result.and_then(Outcomes::sum), memory);
        match self.call {
            Read(read) => (read(file, &mut memory.part_mut(0..len_bytes), at), memory),
            Write(write) => (write(file, &memory.part(0..len_bytes), at).map(|()| len_bytes), memory),
            Start(_) | StartOnStream(_) => self.start(file, stream, memory, at).wait(),
            ReadList(read) => sum((read(file, &mut memory.part_mut(0..len_bytes), ranges), memory)),
            WriteList(write) => sum((write(file, &memory.part(0..len_bytes), ranges), memory)),
            StartList(start) => sum(start(file, memory, ranges.to_vec())),
            StartListOnStream(start) => sum(start(file, stream.expect("a stream"), memory, ranges)),
        }
    }
}

impl Way {
    /// Moves bytes once, and compares file and memory with what they should be.
    ///
    /// # Errors
    /// Any failure, or [`Wrong`].
    ///
    /// # Panics
    /// If the file cannot be written and read by its path, or if the way takes a stream, and there is none.
    pub fn check<E>(
        &self,
        file: &File,
        stream: Option<&Stream>,
        bytes: &[u8],
        memory: impl FnOnce(&[u8]) -> cufile::Result<Memory>,
    ) -> std::result::Result<(), E>
    where
        E: From<cufile::Error> + From<gpufile::Error> + From<Wrong>,
    {
        let (ranges, mut expected) = (self.ranges(bytes.len()), vec![GAP; bytes.len()]);
        let (in_file, in_memory) =
            if self.is_write() { (&expected[..], bytes) } else { (bytes, &expected[..]) };
        fs::write(file.path(), in_file).expect("the file is written");
        let (count, memory) = self.run(file, stream, memory(in_memory)?, &ranges);
        let (count, wanted) = (count?, bytes_of(&ranges));
        if count != wanted {
            return Err(Wrong(format!("{}: {count} bytes instead of {wanted}", self.name)).into());
        }
        let found = match self.is_write() {
            true => fs::read(file.path()).expect("the file is read"),
            false => memory.to_vec()?,
        };
        for IoRange { buffer_offset, len_bytes, .. } in ranges {
            let place = buffer_offset..buffer_offset + len_bytes;
            expected[place.clone()].copy_from_slice(&bytes[place]);
        }
        match found == expected {
            true => Ok(()),
            false => Err(Wrong(format!("{}: wrong bytes", self.name)).into()),
        }
    }
}

/// A byte that a transfer leaves alone.
const GAP: u8 = 0xee;

/// The difference that [`Way::check`] found.
#[derive(Debug)]
pub struct Wrong(pub String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Wrong {}

/// Another form of an open file, which moves bytes in another way.
pub struct Alike {
    /// A name for messages, with a space at its end.
    pub name: &'static str,
    /// True for files that can be written.
    pub is_writable: bool,
    /// Returns such a file.
    pub of: fn(&File) -> Result<File>,
}

impl fmt::Debug for Alike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Every other form of an open file, and the file itself.
pub const ALIKE: &[Alike] = &[
    Alike { name: "", is_writable: true, of: |file| Ok(file.clone()) },
    Alike { name: "inline ", is_writable: true, of: |file| Ok(file.inline()) },
    Alike { name: "mapped ", is_writable: false, of: File::map },
];
