//! Decoding chunks: the parts of a chunk that lie in a region, from its file to memory of the region.
//!
//! Nothing is allocated by a number in a file. The metadata says how many bytes a chunk has. From that follow the most
//! bytes that it can have between two codecs and in its file: see [`longest`]. A decoder gets memory of that length at
//! most, and of at most [`MOST_BYTES_PER_BYTE`] for each byte that it decodes.

use std::borrow::Cow;
use std::ops::Range;

use super::array::Array;
use super::codecs::{Chain, Packing, Serializer};
use super::error::{ZarrError, plain_text};
use super::grid::{Element, chunk_bytes};
use super::runs::{Run, Runs};
use super::shards;
use super::target::Target;
use super::transpose::transpose;
use super::unpack::{MOST_BYTES_PER_BYTE, checked, unpack};
use crate::File;
use crate::formats::clip::clip;
use crate::formats::memory::{addressable, zeroed};
use crate::formats::{Error, Result};

/// The chunk that is read, for errors, and the memory that it is read into.
#[derive(Clone, Copy)]
pub(super) struct Decoder<'a> {
    pub array: &'a Array,
    pub key: &'a str,
    /// The part of the array that the target has.
    pub region: &'a [Range<u64>],
    pub target: &'a Target,
}

/// A chunk as it is stored.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// A range of a file, in bytes.
    File {
        file: &'a File,
        start: u64,
        len_bytes: u64,
    },
    Held(&'a [u8]),
}

/// The place of a chunk in the array, in elements.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub origin: &'a [u64],
    pub shape: &'a [u64],
}

/// The most bytes that are read at a time from a chunk that is not compressed.
const SEGMENT_BYTES: usize = 1 << 20;

/// The most unwanted bytes between two runs that are read with them.
const GAP_BYTES: u64 = 4 << 10;

/// The most runs of a segment.
const SEGMENT_RUNS: usize = 4 << 10;

/// Returns the most bytes that a chunk of this shape has after this number of packings. Compressed data are hardly longer
/// than the data: this leaves a quarter, and 4 KiB for each header.
pub(super) fn longest(chain: &Chain, shape: &[u64], element: Element, packings: usize) -> u64 {
    let serialized = match &chain.serializer {
        Serializer::Bytes { .. } => chunk_bytes(shape, element).unwrap_or(u64::MAX),
        Serializer::Shards(shards) => shards::longest(shards, shape, element),
    };
    match packings as u64 {
        0 => serialized,
        packings => {
            serialized.saturating_add(serialized / 4).saturating_add(packings.saturating_mul(4 << 10))
        }
    }
}

impl Decoder<'_> {
    /// Reads the part of a chunk that lies in the region. The part must not be empty.
    pub fn read(&self, chain: &Chain, source: Source<'_>, place: Place<'_>, threads: usize) -> Result<()> {
        if chain.packings.is_empty() {
            return self.read_unpacked(chain, source, place, threads);
        }
        let bytes = self.unpacked(chain, source, place.shape, threads)?;
        self.read_unpacked(chain, Source::Held(&bytes), place, threads)
    }

    /// Undoes the packings of a chunk.
    fn unpacked<'s>(
        &self,
        chain: &Chain,
        source: Source<'s>,
        shape: &[u64],
        threads: usize,
    ) -> Result<Cow<'s, [u8]>> {
        let element = self.array.element();
        let (len_bytes, most_bytes) =
            (source.len_bytes(), longest(chain, shape, element, chain.packings.len()));
        if len_bytes > most_bytes {
            let text = format!("{len_bytes} bytes are more than the {most_bytes} that such a chunk can have");
            return Err(self.error(text));
        }
        let mut bytes = source.whole(self)?;
        for (number, &packing) in chain.packings.iter().enumerate().rev() {
            if packing == Packing::Crc32c {
                let content = checked(&bytes).map_err(|text| self.error(text))?.len();
                match &mut bytes {
                    Cow::Borrowed(bytes) => *bytes = &bytes[..content],
                    Cow::Owned(bytes) => bytes.truncate(content),
                }
                continue;
            }
            let needed_bytes = longest(chain, shape, element, number);
            let most_bytes = (bytes.len() as u64).saturating_mul(MOST_BYTES_PER_BYTE);
            let mut unpacked = self.zeroed(needed_bytes.min(most_bytes))?;
            let done = unpack(packing, &bytes, &mut unpacked, threads).map_err(|text| self.error(text))?;
            unpacked.truncate(done);
            bytes = Cow::Owned(unpacked);
        }
        Ok(bytes)
    }

    fn read_unpacked(
        &self,
        chain: &Chain,
        source: Source<'_>,
        place: Place<'_>,
        threads: usize,
    ) -> Result<()> {
        let Some(order) = &chain.order else {
            return self.read_serialized(&chain.serializer, source, place, threads);
        };
        if let Serializer::Bytes { .. } = chain.serializer {
            self.check_len(source, place.shape)?;
        }
        let element = self.array.element();
        let stored_shape: Vec<_> = order.iter().map(|&axis| place.shape[axis]).collect();
        let mut stored = self.zeroed(self.chunk_bytes(place.shape)?)?;
        self.read_whole(&chain.serializer, source, &stored_shape, &mut stored, threads)?;
        let mut chunk = self.zeroed(stored.len() as u64)?;
        transpose(&stored, &mut chunk, place.shape, order, element.bytes);
        drop(stored);
        self.read_serialized(&Serializer::Bytes { swapped_bytes: 1 }, Source::Held(&chunk), place, threads)
    }

    /// Reads all elements of a chunk to host memory, in the order in which they are stored.
    fn read_whole(
        &self,
        serializer: &Serializer,
        source: Source<'_>,
        shape: &[u64],
        chunk: &mut [u8],
        threads: usize,
    ) -> Result<()> {
        let region: Vec<_> = shape.iter().map(|&axis| 0..axis).collect();
        let target = Target::on_host(chunk);
        let whole = Decoder { region: &region, target: &target, ..*self };
        let place = Place { origin: &vec![0; shape.len()], shape };
        whole.read_serialized(serializer, source, place, threads)
    }

    fn read_serialized(
        &self,
        serializer: &Serializer,
        source: Source<'_>,
        place: Place<'_>,
        threads: usize,
    ) -> Result<()> {
        match serializer {
            Serializer::Bytes { swapped_bytes } => self.read_elements(*swapped_bytes, source, place),
            Serializer::Shards(shards) => shards::read(self, shards, source, place, threads),
        }
    }

    /// Reads elements that follow each other in the source. Reads only the parts that have wanted ones.
    fn read_elements(&self, swapped_bytes: usize, source: Source<'_>, place: Place<'_>) -> Result<()> {
        self.check_len(source, place.shape)?;
        let runs = self.runs(place);
        if let (Source::Held(bytes), 1) = (source, swapped_bytes) {
            return runs.iter().try_for_each(|run| {
                self.put(run.in_region, &bytes[run.in_chunk as usize..][..runs.run_bytes])
            });
        }
        let mut pieces = pieces(&runs).peekable();
        let (mut segment, mut bytes) = (Vec::new(), Vec::new());
        while let Some((first, len)) = pieces.next() {
            let start = first.in_chunk;
            let mut end = start + len as u64;
            segment.clear();
            segment.push((first, len));
            while segment.len() < SEGMENT_RUNS
                && let Some((run, len)) = pieces.next_if(|(run, len)| {
                    run.in_chunk - end <= GAP_BYTES
                        && run.in_chunk + *len as u64 - start <= SEGMENT_BYTES as u64
                })
            {
                segment.push((run, len));
                end = run.in_chunk + len as u64;
            }
            bytes.resize((end - start) as usize, 0);
            source.read(start, &mut bytes)?;
            if swapped_bytes > 1 {
                bytes.chunks_exact_mut(swapped_bytes).for_each(<[u8]>::reverse);
            }
            for &(run, len) in &segment {
                self.put(run.in_region, &bytes[(run.in_chunk - start) as usize..][..len])?;
            }
        }
        Ok(())
    }

    /// Checks that a source has all elements of a chunk, and no more bytes.
    fn check_len(&self, source: Source<'_>, shape: &[u64]) -> Result<()> {
        let (needed_bytes, found_bytes) = (self.chunk_bytes(shape)?, source.len_bytes());
        match found_bytes == needed_bytes {
            true => Ok(()),
            false => {
                Err(self.error(format_args!("{found_bytes} bytes of elements instead of {needed_bytes}")))
            }
        }
    }

    /// Fills the part of a chunk that lies in the region with the fill value.
    pub fn fill(&self, place: Place<'_>) -> Result<()> {
        let fill = self.array.as_zarrs().fill_value().as_ne_bytes();
        // SAFETY: the runs lie in the region. Chunks are disjoint, and each is read once.
        let filled = unsafe { self.target.fill(&self.runs(place), fill) };
        filled.map_err(|error| self.array.copy_error(error))
    }

    fn put(&self, start: usize, bytes: &[u8]) -> Result<()> {
        // SAFETY: a run lies in the region. Chunks are disjoint, and each is read once.
        unsafe { self.target.put(start, bytes) }.map_err(|error| self.array.copy_error(error))
    }

    fn runs(&self, place: Place<'_>) -> Runs {
        Runs::new(place.origin, place.shape, self.region, self.array.element_bytes())
    }

    pub fn chunk_bytes(&self, shape: &[u64]) -> Result<u64> {
        self.array.checked(chunk_bytes(shape, self.array.element()))
    }

    pub fn zeroed(&self, len_bytes: u64) -> Result<Vec<u8>> {
        let folder = self.array.folder();
        zeroed(&folder, addressable(&folder, len_bytes)?)
    }

    pub fn error(&self, text: impl std::fmt::Display) -> Error {
        self.array.error(ZarrError::Chunk { key: clip(self.key), message: plain_text(text) })
    }
}

impl<'a> Source<'a> {
    pub fn len_bytes(&self) -> u64 {
        match self {
            Source::File { len_bytes, .. } => *len_bytes,
            Source::Held(bytes) => bytes.len() as u64,
        }
    }

    /// Returns a part; `None` if the source is too short.
    pub fn part(self, start: u64, len_bytes: u64) -> Option<Self> {
        let end = start.checked_add(len_bytes).filter(|&end| end <= self.len_bytes())?;
        Some(match self {
            Source::File { file, start: file_start, .. } => {
                Source::File { file, start: file_start + start, len_bytes }
            }
            Source::Held(bytes) => Source::Held(&bytes[start as usize..end as usize]),
        })
    }

    /// Reads bytes from `start` on, which the source has.
    fn read(self, start: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Source::File { file, start: file_start, .. } => Ok(file.read_exact_at(into, file_start + start)?),
            Source::Held(bytes) => {
                into.copy_from_slice(&bytes[start as usize..][..into.len()]);
                Ok(())
            }
        }
    }

    /// Returns all bytes.
    pub fn whole(self, decoder: &Decoder<'_>) -> Result<Cow<'a, [u8]>> {
        match self {
            Source::Held(bytes) => Ok(Cow::Borrowed(bytes)),
            Source::File { len_bytes, .. } => {
                let mut bytes = decoder.zeroed(len_bytes)?;
                self.read(0, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}

/// Cuts runs into pieces of at most [`SEGMENT_BYTES`] bytes, in the order of the chunk.
fn pieces(runs: &Runs) -> impl Iterator<Item = (Run, usize)> + '_ {
    runs.iter().flat_map(move |run| {
        (0..runs.run_bytes).step_by(SEGMENT_BYTES).map(move |done| {
            let piece = Run { in_chunk: run.in_chunk + done as u64, in_region: run.in_region + done };
            (piece, SEGMENT_BYTES.min(runs.run_bytes - done))
        })
    })
}
