//! The most bytes that chunks and shards can have, as their metadata say.

use super::codecs::{Chain, Serializer, Shards};
use super::grid::{Element, chunk_bytes};
use super::unpack::CHECKSUM_BYTES;

/// The bytes of an entry of a shard's index: the offset and the length of a chunk in the shard, in bytes.
pub(super) const ENTRY_BYTES: usize = 16;

/// Returns the most bytes that a chunk of this shape has after this number of packings. Compressed data are hardly longer
/// than the data: this leaves a quarter, and 4 KiB for each header.
pub(super) fn longest(chain: &Chain, shape: &[u64], element: Element, packings: usize) -> u64 {
    let serialized = match &chain.serializer {
        Serializer::Bytes { .. } => chunk_bytes(shape, element).unwrap_or(u64::MAX),
        Serializer::Shards(shards) => longest_shard(shards, shape, element),
    };
    match packings as u64 {
        0 => serialized,
        packings => {
            serialized.saturating_add(serialized / 4).saturating_add(packings.saturating_mul(4 << 10))
        }
    }
}

/// Returns the most bytes of a shard of this shape, if its chunks do not overlap and leave no gaps.
fn longest_shard(shards: &Shards, shape: &[u64], element: Element) -> u64 {
    let counts = shape.iter().zip(&shards.chunk_shape).map(|(len, chunk)| len.div_ceil(*chunk));
    let count = counts.fold(1_u64, u64::saturating_mul);
    let chunk = longest(&shards.chain, &shards.chunk_shape, element, shards.chain.packings.len());
    count.saturating_mul(chunk.saturating_add(ENTRY_BYTES as u64)).saturating_add(CHECKSUM_BYTES as u64)
}
