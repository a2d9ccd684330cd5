//! Decoding chunks: the parts of a chunk that lie in a region, from its file to memory of the region.
//!
//! Nothing is allocated by a number in a file. The metadata says how many bytes a chunk has. From that follow the most
//! bytes that it can have between two codecs and in its file: see [`longest`]. A decoder gets memory of that length at
//! most, and of at most [`MOST_BYTES_PER_BYTE`] for each byte that it decodes.

use std::borrow::Cow;

use super::chunk::{Decoder, Place, Source};
use super::codecs::{Chain, Packing, Serializer};
use super::longest::longest;
use super::runs::{Run, Runs};
use super::shards;
use super::target::Target;
use super::transpose::transpose;
use super::unpack::{MOST_BYTES_PER_BYTE, checked, unpack};
use crate::formats::Result;

/// The most bytes that are read at a time from a chunk that is not compressed.
const SEGMENT_BYTES: usize = 1 << 20;

/// The most unwanted bytes between two runs that are read with them.
const GAP_BYTES: u64 = 4 << 10;

const SEGMENT_RUNS: usize = 4 << 10;

impl Decoder<'_> {
    /// Reads the part of a chunk that lies in the region. The part must not be empty.
    pub fn read(&self, chain: &Chain, source: Source<'_>, place: Place<'_>, threads: usize) -> Result<()> {
        if chain.packings.is_empty() {
            return self.read_unpacked(chain, source, place, threads);
        }
        let bytes = self.unpacked(chain, source, place.shape, threads)?;
        self.read_unpacked(chain, Source::Held(&bytes), place, threads)
    }

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
