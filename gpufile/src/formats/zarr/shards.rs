//! Shards: chunks that have an index and chunks. Only the chunks that lie in the region are read.

use super::chunk::{Decoder, Place, Source};
use super::codecs::{Index, Shards};
use super::grid::chunk_bytes;
use super::longest::ENTRY_BYTES;
use super::parallel::{self, share};
use super::unpack::{CHECKSUM_BYTES, checked};
use crate::formats::Result;

/// The most chunks that a shard may have. Its index then takes 64 MiB.
const MAX_CHUNKS: u64 = 4 << 20;

/// The most bytes of chunks that are decoded at a time, unless one has more.
const AT_A_TIME_BYTES: u64 = 128 << 20;

pub(super) fn read(
    decoder: &Decoder<'_>,
    shards: &Shards,
    source: Source<'_>,
    place: Place<'_>,
    threads: usize,
) -> Result<()> {
    let counts = place.shape.iter().zip(&shards.chunk_shape);
    let counts: Option<Vec<_>> =
        counts.map(|(len, chunk)| len.is_multiple_of(*chunk).then(|| len / chunk)).collect();
    let Some(counts) = counts else {
        let (chunk, shard) = (&shards.chunk_shape, place.shape);
        return Err(decoder.error(format_args!("chunks of {chunk:?} do not divide a shard of {shard:?}")));
    };
    let index = read_index(decoder, shards.index, source, &counts)?;

    // The chunks that lie in the region: the number of the first along each axis, and how many.
    let axes = place.origin.iter().zip(&shards.chunk_shape).zip(decoder.region);
    let (firsts, wanted): (Vec<_>, Vec<_>) = axes
        .zip(place.shape)
        .map(|(((origin, chunk), region), len)| {
            let start = region.start.saturating_sub(*origin) / chunk;
            let end = (region.end - origin).min(*len).div_ceil(*chunk);
            (start, end - start)
        })
        .unzip();
    let chunk_bytes = chunk_bytes(&shards.chunk_shape, decoder.array.element());
    let chunk_bytes = decoder.array.checked(chunk_bytes)?;
    let count = wanted.iter().product();
    let waits = matches!(source, Source::File { .. }) && decoder.array.store().is_remote();
    let threads = parallel::threads(threads, count, chunk_bytes, AT_A_TIME_BYTES, waits);
    share(count, 1, threads, |turn| {
        let (mut rest, mut number, mut stride) = (turn.start, 0, 1);
        let mut origin = place.origin.to_vec();
        for axis in (0..origin.len()).rev() {
            let at = firsts[axis] + rest % wanted[axis];
            rest /= wanted[axis];
            number += at * stride;
            stride *= counts[axis];
            origin[axis] += at * shards.chunk_shape[axis];
        }
        let chunk = Place { origin: &origin, shape: &shards.chunk_shape };
        let entry = &index[number as usize * ENTRY_BYTES..][..ENTRY_BYTES];
        let [offset, len_bytes] = [0, 8].map(|at| {
            let bytes = *entry[at..].first_chunk().expect("an entry has 16 bytes");
            if shards.index.is_big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
        });
        if (offset, len_bytes) == (u64::MAX, u64::MAX) {
            return decoder.fill(chunk);
        }
        let Some(source) = source.part(offset, len_bytes) else {
            let shard_bytes = source.len_bytes();
            return Err(decoder.error(format_args!(
                "the index says {len_bytes} bytes at byte {offset} of a shard of {shard_bytes}"
            )));
        };
        decoder.read(&shards.chain, source, chunk, 1)
    })
}

/// Reads the index of a shard with `counts` chunks along its axes.
fn read_index(decoder: &Decoder<'_>, index: Index, source: Source<'_>, counts: &[u64]) -> Result<Vec<u8>> {
    let count = counts.iter().try_fold(1_u64, |count, axis| count.checked_mul(*axis));
    let Some(count) = count.filter(|count| *count <= MAX_CHUNKS) else {
        return Err(decoder.error(format_args!("a shard has more than {MAX_CHUNKS} chunks")));
    };
    let checksum_bytes = if index.has_checksum { CHECKSUM_BYTES } else { 0 };
    let index_bytes = count * ENTRY_BYTES as u64 + checksum_bytes as u64;
    let start = if index.is_at_start { Some(0) } else { source.len_bytes().checked_sub(index_bytes) };
    let Some(part) = start.and_then(|start| source.part(start, index_bytes)) else {
        let shard_bytes = source.len_bytes();
        return Err(decoder.error(format_args!(
            "a shard of {shard_bytes} bytes is too short for its index of {index_bytes}"
        )));
    };
    let mut bytes = part.whole(decoder)?.into_owned();
    if index.has_checksum {
        let content = checked(&bytes).map_err(|text| decoder.error(format_args!("the index: {text}")))?.len();
        bytes.truncate(content);
    }
    Ok(bytes)
}
