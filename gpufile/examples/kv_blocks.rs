//! Stores blocks of a KV cache in files, and fetches them into other blocks.
//!
//! usage: kv_blocks [--cufile|--posix] FILE [GPU] [PIECE]
//!
//! An inference server keeps the keys and values of its tokens in paged memory. Each layer of the model has a tensor of
//! keys and one of values, and a block of tokens has one piece in each of them. One call moves a list of blocks, however
//! scattered they are, by [`gpufile::IoRange`]s or requests:
//!
//! | files | call |
//! |---|---|
//! | one file, with a slot for each block | [`gpufile::File::write_many`], [`gpufile::File::read_many`] |
//! | a file for each sequence of tokens | [`gpufile::Engine::write_many`], [`gpufile::Engine::read_many`] |
//!
//! PIECE is the size of a piece, 64KiB by default. The example creates FILE, and for the sequences FILE.0, FILE.1 and
//! FILE.2, which it removes. It compares FILE and all of the memory with a model on the host. It needs a GPU.

mod common;

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use common::{Arguments, KIB, Result, require_file, require_same};
use gpufile::cuda::DeviceBuffer;
use gpufile::{Engine, Error, File, IoRange, Request};

const LAYERS: usize = 8;
/// The pieces of a block: its keys and its values in each layer.
const PIECES: usize = 2 * LAYERS;
const BLOCKS: usize = 24;
/// The number of blocks that each call moves.
const MOVED: usize = BLOCKS / 2;
/// The number of blocks of each sequence.
const SEQUENCES: [usize; 3] = [5, 1, 6];
const POISON: u8 = 0x5a;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] FILE [GPU] [PIECE]", |arguments| {
        let shape = Shape { piece_bytes: arguments.size(2, 64 * KIB)? };
        let mut original = vec![0; BLOCKS * shape.block_bytes()];
        fs::File::open("/dev/urandom")?.read_exact(&mut original)?;
        let memory = arguments.device(1)?.alloc(original.len())?;
        let mut cache = Cache { shape, memory, original };

        // Two halves of the cache, each in an order of its own.
        let half = |first| (first..first + MOVED).map(|i| i * 7 % BLOCKS).collect::<Vec<_>>();
        one_file(&arguments, &mut cache, &half(0), &half(MOVED))?;
        file_for_each_sequence(&arguments, &mut cache, &half(0), &half(MOVED))?;
        println!("contents match");
        Ok(())
    })
}

/// Stores blocks in the slots of one file and fetches them into other blocks. Then does the same the other way round, over
/// the slots that hold bytes.
fn one_file(arguments: &Arguments, cache: &mut Cache, some: &[usize], others: &[usize]) -> Result {
    let path = arguments.path(0)?;
    let file = arguments.create(path)?;
    println!("route: {}", file.route());
    let shape = cache.shape;
    let slots: Vec<_> = (0..MOVED).map(|i| i * 5 % MOVED).collect();
    for (stored, fetched) in [(some, others), (others, some)] {
        cache.restore()?;
        let start = Instant::now();
        file.write_many(&cache.memory, &shape.ranges(stored, &slots))?;
        shape.report("stored", "one file", start);
        require_file(path, &cache.slots_of(stored, &slots))?;

        cache.memory.fill(POISON)?;
        let start = Instant::now();
        file.read_many(&mut cache.memory, &shape.ranges(fetched, &slots))?;
        shape.report("fetched", "one file", start);
        cache.require_moved(stored, fetched)?;
    }
    // The error of a slot that was never stored has the number of a range.
    match file.read_many(&mut cache.memory, &shape.ranges(&some[..2], &[0, MOVED])) {
        Err(Error::Entry { entry, error, .. }) if entry / PIECES == 1 => {
            println!("block {} was never stored: {error}", some[entry / PIECES]);
            Ok(())
        }
        other => Err(format!("a slot that was never stored: {other:?}").into()),
    }
}

/// Stores sequences of blocks, each in a file, and fetches them into other blocks.
fn file_for_each_sequence(
    arguments: &Arguments,
    cache: &mut Cache,
    some: &[usize],
    others: &[usize],
) -> Result {
    let mut files = Vec::new();
    for number in 0..SEQUENCES.len() {
        let mut path = arguments.path(0)?.to_owned().into_os_string();
        path.push(format!(".{number}"));
        files.push(Removed(arguments.create(&PathBuf::from(path))?));
    }
    cache.restore()?;
    let start = Instant::now();
    cache.store_sequences(&files, some)?;
    cache.shape.report("stored", "a file for each sequence", start);

    cache.memory.fill(POISON)?;
    let start = Instant::now();
    cache.fetch_sequences(&files, others)?;
    cache.shape.report("fetched", "a file for each sequence", start);
    cache.require_moved(some, others)
}

/// The lengths of pieces and blocks.
#[derive(Clone, Copy)]
struct Shape {
    piece_bytes: usize,
}

impl Shape {
    fn block_bytes(self) -> usize {
        PIECES * self.piece_bytes
    }

    /// Returns the ranges of blocks in the slots of a file. The pieces of a block are adjacent in its slot.
    fn ranges(self, blocks: &[usize], slots: &[usize]) -> Vec<IoRange> {
        let pieces = |(&block, &slot)| {
            (0..PIECES).map(move |piece| IoRange {
                file_offset: ((slot * PIECES + piece) * self.piece_bytes) as u64,
                buffer_offset: (piece * BLOCKS + block) * self.piece_bytes,
                len_bytes: self.piece_bytes,
            })
        };
        blocks.iter().zip(slots).flat_map(pieces).collect()
    }

    /// Returns the ranges of the blocks of each sequence, in the order of its file.
    fn sequences(self, mut blocks: &[usize]) -> [Vec<IoRange>; SEQUENCES.len()] {
        SEQUENCES.map(|len| {
            let (sequence, rest) = blocks.split_at(len);
            blocks = rest;
            self.ranges(sequence, &(0..len).collect::<Vec<_>>())
        })
    }

    fn report(self, done: &str, files: &str, start: Instant) {
        let gb = (MOVED * self.block_bytes()) as f64 / 1e9;
        println!("{done} {MOVED} blocks, {files}: {:.2} GB/s", gb / start.elapsed().as_secs_f64());
    }
}

/// The paged memory on the GPU, and the bytes that it had at first.
struct Cache {
    shape: Shape,
    memory: DeviceBuffer,
    original: Vec<u8>,
}

impl Cache {
    fn restore(&mut self) -> Result {
        Ok(self.memory.copy_from_host(0, &self.original)?)
    }

    /// Writes the blocks of all sequences to their files in one call.
    fn store_sequences(&self, files: &[Removed], blocks: &[usize]) -> Result {
        let mut requests = Vec::new();
        for (Removed(file), ranges) in files.iter().zip(self.shape.sequences(blocks)) {
            for IoRange { file_offset, buffer_offset, len_bytes } in ranges {
                let piece = self.memory.slice(buffer_offset..buffer_offset + len_bytes);
                requests.push(Request { file, buffer: piece, offset: file_offset });
            }
        }
        Ok(Engine::global().write_many(&requests)?)
    }

    /// Reads the blocks of all sequences from their files in one call.
    fn fetch_sequences(&mut self, files: &[Removed], blocks: &[usize]) -> Result {
        let piece_bytes = self.shape.piece_bytes;
        let mut pieces: Vec<_> = self.memory.slice_mut(..).chunks(piece_bytes).map(Some).collect();
        let mut requests = Vec::new();
        for (Removed(file), ranges) in files.iter().zip(self.shape.sequences(blocks)) {
            for range in ranges {
                let piece = pieces[range.buffer_offset / piece_bytes].take().ok_or("a block came twice")?;
                requests.push(Request { file, buffer: piece, offset: range.file_offset });
            }
        }
        Ok(Engine::global().read_many(&mut requests)?)
    }

    /// Returns the contents of a file with these blocks in its slots.
    fn slots_of(&self, blocks: &[usize], slots: &[usize]) -> Vec<u8> {
        let mut contents = vec![0; slots.len() * self.shape.block_bytes()];
        for IoRange { file_offset, buffer_offset, len_bytes } in self.shape.ranges(blocks, slots) {
            contents[file_offset as usize..][..len_bytes]
                .copy_from_slice(&self.original[buffer_offset..][..len_bytes]);
        }
        contents
    }

    /// Fails unless each block of `to` has the bytes that the same block of `from` had at first, and all other memory is
    /// poisoned.
    fn require_moved(&self, from: &[usize], to: &[usize]) -> Result {
        let mut expected = vec![POISON; self.original.len()];
        let slots: Vec<_> = (0..to.len()).collect();
        for (from, to) in self.shape.ranges(from, &slots).iter().zip(self.shape.ranges(to, &slots)) {
            expected[to.buffer_offset..][..to.len_bytes]
                .copy_from_slice(&self.original[from.buffer_offset..][..from.len_bytes]);
        }
        require_same(&self.memory.to_vec()?, &expected, "the memory")
    }
}

/// A file that is removed when dropped.
struct Removed(File);

impl Drop for Removed {
    fn drop(&mut self) {
        // The comparison stands, even if the file stays.
        let _ = fs::remove_file(self.0.path());
    }
}
