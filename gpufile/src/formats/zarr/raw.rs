//! Raw chunks: the engine transfers them directly between their files and the buffer.

use std::borrow::Cow;
use std::ops::Range;

use super::array::Array;
use super::error::ZarrError;
use super::grid::{Chunks, Extent};
use super::parallel::share;
use super::runs::Runs;
use super::target::{Target, repeated};
use crate::formats::Result;
use crate::formats::error::of_entry;
use crate::memory::Memory;
use crate::{Engine, File, IoRange, Request};

/// The shortest run, in bytes, that is worth a read.
const MIN_RUN_BYTES: usize = 512;

/// The number of threads that open files and wait for the engine. While some open files, the engine reads for others.
const READERS: usize = 4;

/// The files that one thread opens at a time. All together stay below the usual limit of 1024 files.
const FILES: u64 = 64;

/// The bytes of chunks that one thread reads at a time.
const TURN_BYTES: u64 = 512 << 20;

/// The runs that one thread reads at a time, unless one chunk has more.
const RUNS: usize = 32 << 10;

/// The bytes of padding that are written at a time.
const PADDING_BYTES: usize = 1 << 20;

/// Returns whether to transfer a region of raw chunks directly. The chunk with its first element decides.
pub(super) fn suits(array: &Array, region: &[Range<u64>]) -> Result<bool> {
    if !array.has_raw_chunks() {
        return Ok(false);
    }
    let start: Vec<_> = region.iter().map(|wanted| wanted.start).collect();
    let extent = array.checked(Extent::at(array.as_zarrs(), &start, array.element()))?;
    let run_bytes = extent.usual_run_bytes(region, array.element_bytes());
    Ok(run_bytes >= MIN_RUN_BYTES || run_bytes as u64 >= extent.len_bytes)
}

/// Reads a region of the array, which is not empty.
///
/// # Safety
/// The memory must be that of an `IoBufMut` as long as the region. It must stay, and nothing else may use it, during
/// the call.
pub(super) unsafe fn read(
    array: &Array,
    region: &[Range<u64>],
    memory: &Memory,
    engine: &Engine,
) -> Result<()> {
    let chunks = array.checked(Chunks::meeting(array.as_zarrs(), region))?;
    let first = array.checked(Extent::of(array.as_zarrs(), &chunks.indices(0), array.element()))?;
    let mut files = (TURN_BYTES / first.len_bytes.max(1)).clamp(1, FILES);
    let mut readers = READERS;
    if array.store().is_remote() {
        // Each thread waits for an answer of the server before it opens the next object.
        readers = readers.max(engine.settings().threads);
        let all = FILES * READERS as u64;
        files = files.min(all.min(chunks.count()).div_ceil(readers as u64));
    }
    share(chunks.count(), files, readers, |turn| {
        // SAFETY: the caller's promise; chunks are disjoint, and each has one turn.
        unsafe { Turn::new(array, region, memory, engine).read(&chunks, turn) }
    })
}

/// The files that one thread has open, and the ranges to read from them.
struct Turn<'a> {
    array: &'a Array,
    region: &'a [Range<u64>],
    memory: &'a Memory,
    engine: &'a Engine,
    files: Vec<File>,
    /// The number of the file, the offset in it in bytes, and the memory to fill.
    parts: Vec<(usize, u64, Memory)>,
}

impl<'a> Turn<'a> {
    fn new(array: &'a Array, region: &'a [Range<u64>], memory: &'a Memory, engine: &'a Engine) -> Self {
        Self { array, region, memory, engine, files: Vec::new(), parts: Vec::new() }
    }

    /// Reads the chunks with these numbers.
    ///
    /// # Safety
    /// As for [`read`].
    unsafe fn read(mut self, chunks: &Chunks<'_>, turn: Range<u64>) -> Result<()> {
        for number in turn {
            let chunk = Chunk::of(self.array, chunks, number, self.region)?;
            match self.array.store().open(&chunk.name)? {
                Some((file, found_bytes)) => {
                    chunk.check_len(self.array, found_bytes)?;
                    for run in chunk.runs.iter() {
                        let part = self.memory.ptr.wrapping_add(run.in_region);
                        let part = self.memory.part(part, chunk.runs.run_bytes);
                        self.parts.push((self.files.len(), run.in_chunk, part));
                    }
                    self.files.push(file);
                }
                None => {
                    let fill = self.array.as_zarrs().fill_value().as_ne_bytes();
                    let filled = Target::new(*self.memory, self.engine)
                        // SAFETY: the caller's promise.
                        .and_then(|target| unsafe { target.fill(&chunk.runs, fill) });
                    filled.map_err(|error| self.array.copy_error(error))?;
                }
            }
            if self.parts.len() >= RUNS {
                self.flush()?;
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        let files = &self.files;
        let requests = self.parts.iter_mut().map(|(file, offset, part)| Request {
            file: &files[*file],
            buffer: part,
            offset: *offset,
        });
        let mut requests: Vec<_> = requests.collect();
        self.engine.read_many(&mut requests).map_err(of_entry)?;
        self.parts.clear();
        self.files.clear();
        Ok(())
    }
}

struct Chunk {
    key: String,
    name: String,
    len_bytes: u64,
    runs: Runs,
}

impl Chunk {
    fn of(array: &Array, chunks: &Chunks<'_>, number: u64, region: &[Range<u64>]) -> Result<Self> {
        let indices = chunks.indices(number);
        let extent = Extent::of(array.as_zarrs(), &indices, array.element());
        let extent = array.checked(extent.and_then(|extent| extent.meeting(region)))?;
        let runs = Runs::new(&extent.origin, &extent.shape, region, array.element_bytes());
        let key = chunks.key(&indices).to_string();
        let name = array.store().name_of(&key).map(Cow::into_owned);
        let name = name.ok_or_else(|| array.error(ZarrError::no_chunk_key(&key)))?;
        Ok(Self { key, name, len_bytes: extent.len_bytes, runs })
    }

    fn check_len(&self, array: &Array, found_bytes: u64) -> Result<()> {
        match found_bytes == self.len_bytes {
            true => Ok(()),
            false => Err(array.error(ZarrError::ChunkLength {
                key: self.key.clone(),
                needed_bytes: self.len_bytes,
                found_bytes,
            })),
        }
    }
}

/// Writes the whole array, `region`, which is not empty.
///
/// # Safety
/// The memory must be that of an `IoBuf` as long as the array. It must stay during the call.
pub(super) unsafe fn write(
    array: &Array,
    region: &[Range<u64>],
    memory: &Memory,
    engine: &Engine,
) -> Result<()> {
    let chunks = array.checked(Chunks::meeting(array.as_zarrs(), region))?;
    share(chunks.count(), 1, engine.settings().threads, |turn| {
        let chunk = Chunk::of(array, &chunks, turn.start, region)?;
        let range = |run: super::runs::Run| IoRange {
            file_offset: run.in_chunk,
            buffer_offset: run.in_region,
            len_bytes: chunk.runs.run_bytes,
        };
        let ranges: Vec<_> = chunk.runs.iter().map(range).collect();
        array.store().save(&chunk.name, |file| {
            if chunk.runs.total_bytes() < chunk.len_bytes {
                pad(file, array.as_zarrs().fill_value().as_ne_bytes(), chunk.len_bytes)?;
            }
            file.write_many(memory, &ranges).map_err(of_entry)
        })
    })
}

/// Fills a new file with the fill value, for a chunk that has elements beyond the array.
fn pad(file: &File, fill: &[u8], len_bytes: u64) -> crate::Result<()> {
    if fill.iter().all(|byte| *byte == 0) {
        return file.set_len(len_bytes);
    }
    let pattern = repeated(fill, PADDING_BYTES);
    let mut done = 0;
    while done < len_bytes {
        let len = (len_bytes - done).min(pattern.len() as u64);
        file.write_all_at(&pattern[..len as usize], done)?;
        done += len;
    }
    Ok(())
}
