//! Coded chunks: this crate decodes them on the host, and zarrs encodes them. Each band of the array is copied to or
//! from a GPU at once.

use std::ops::Range;

use zarrs::array::{ArrayError, codec::CodecOptions};

use super::array::Array;
use super::chunk::{Decoder, Place, Source};
use super::error::{ZarrError, guarded};
use super::grid::{Chunks, Extent};
use super::parallel::{self, share};
use super::runs::Runs;
use super::store;
use super::target::Target;
use crate::Engine;
use crate::formats::clip::clip;
use crate::formats::memory::{addressable, out_of_memory, zeroed};
use crate::formats::{Error, Result};
use crate::memory::Memory;

/// The number of bytes of the array that are copied to or from a GPU at a time, unless one row of chunks has more. Also
/// limits the bytes of chunks that are decoded or encoded at a time, unless one chunk has more.
const BAND_BYTES: u64 = 128 << 20;

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
    let target = Target::new(*memory, engine).map_err(|error| array.copy_error(error))?;
    if target.is_on_host() {
        return decode(array, region, &target, engine);
    }
    for band in bands(array, region)? {
        let mut bytes = zeroed(&array.folder(), band.len_bytes)?;
        decode(array, &band.region, &Target::on_host(&mut bytes), engine)?;
        // SAFETY: the caller's promise; the band lies in the region.
        unsafe { target.put(band.start, &bytes) }.map_err(|error| array.copy_error(error))?;
    }
    Ok(())
}

/// Decodes the parts of chunks that lie in a region to the memory of the region.
fn decode(array: &Array, region: &[Range<u64>], target: &Target, engine: &Engine) -> Result<()> {
    let most_threads = engine.settings().threads;
    each_chunk(array, region, most_threads, |indices, extent, threads| {
        let key = array.as_zarrs().chunk_key(indices).to_string();
        let name = array.store().name_of(&key);
        let name = name.ok_or_else(|| array.error(ZarrError::no_chunk_key(&key)))?;
        let decoder = Decoder { array, key: &key, region, target };
        let place = Place { origin: &extent.origin, shape: &extent.shape };
        let Some((file, len_bytes)) = array.store().open(&name)? else { return decoder.fill(place) };
        let source = Source::File { file: &file, start: 0, len_bytes };
        decoder.read(array.chain(), source, place, (most_threads / threads).max(1))
    })
}

/// Calls `work` for each chunk of a region, with its indices, its extent, and the number of threads that do so at a
/// time. Uses fewer threads where the chunks would take too much memory.
fn each_chunk(
    array: &Array,
    region: &[Range<u64>],
    threads: usize,
    work: impl Fn(&[u64], &Extent, usize) -> Result<()> + Sync,
) -> Result<()> {
    let chunks = array.checked(Chunks::meeting(array.as_zarrs(), region))?;
    let (count, chunk_bytes) = (chunks.count(), array.longest_chunk_bytes());
    let threads = parallel::threads(threads, count, chunk_bytes, BAND_BYTES, array.store().is_remote());
    share(chunks.count(), 1, threads, |turn| {
        let indices = chunks.indices(turn.start);
        let extent = Extent::of(array.as_zarrs(), &indices, array.element());
        let extent = array.checked(extent.and_then(|extent| extent.meeting(region)))?;
        work(&indices, &extent, threads)
    })
}

fn chunk_error(array: &Array, indices: &[u64], message: String) -> Error {
    let key = clip(array.as_zarrs().chunk_key(indices).as_str());
    array.error(ZarrError::Chunk { key, message })
}

/// Checks that the host has memory for a chunk. Without memory, zarrs would end the process.
fn has_memory(array: &Array, len_bytes: u64) -> Result<()> {
    let mut bytes = Vec::<u8>::new();
    let reserved = bytes.try_reserve_exact(addressable(&array.folder(), len_bytes)?);
    std::hint::black_box(bytes);
    reserved.map_err(|_| out_of_memory(&array.folder(), len_bytes))
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
    let target = Target::new(*memory, engine).map_err(|error| array.copy_error(error))?;
    // zarrs encodes a chunk as a whole, even if only a part of it is in the array.
    has_memory(array, array.longest_chunk_bytes())?;
    for band in bands(array, region)? {
        let mut bytes = zeroed(&array.folder(), band.len_bytes)?;
        // SAFETY: the caller's promise; the band lies in the region.
        unsafe { target.get(band.start, &mut bytes) }.map_err(|error| array.copy_error(error))?;
        encode(array, &band, &bytes)?;
    }
    Ok(())
}

/// Encodes all chunks of a band, in as many threads as zarrs would use. Elements beyond the array get the fill value,
/// because zarrs would read them from the old file, which may be damaged.
fn encode(array: &Array, band: &Band, bytes: &[u8]) -> Result<()> {
    let zarrs = array.as_zarrs();
    let processors = CodecOptions::default().concurrent_target();
    each_chunk(array, &band.region, processors, |indices, extent, threads| {
        let mut options = CodecOptions::default();
        options.set_concurrent_target((processors / threads).max(1));
        let runs = Runs::new(&extent.origin, &extent.shape, &band.region, array.element_bytes());
        let len_bytes = addressable(&array.folder(), extent.len_bytes)?;
        let mut chunk = zeroed(&array.folder(), len_bytes)?;
        if runs.total_bytes() < extent.len_bytes {
            let fill = zarrs.fill_value().as_ne_bytes();
            chunk.chunks_exact_mut(fill.len()).for_each(|element| element.copy_from_slice(fill));
        }
        for run in runs.iter() {
            let target = &mut chunk[run.in_chunk as usize..][..runs.run_bytes];
            target.copy_from_slice(&bytes[run.in_region..][..runs.run_bytes]);
        }
        let refused = |message| chunk_error(array, indices, message);
        guarded(|| match zarrs.store_chunk_opt(indices, chunk, &options) {
            Err(ArrayError::StorageError(error)) => store::cause(error).map(Err),
            stored => stored.map(Ok).map_err(|error| error.to_string()),
        })
        .map_err(refused)?
    })
}

/// Adjacent rows of a region, whose bytes are one range of it.
struct Band {
    region: Vec<Range<u64>>,
    /// The start of the band in the region's bytes, and its length, in bytes.
    start: usize,
    len_bytes: usize,
}

/// Cuts a region into bands that end where chunks end.
fn bands(array: &Array, region: &[Range<u64>]) -> Result<Vec<Band>> {
    let element_bytes = array.element_bytes();
    let row_bytes = region.iter().skip(1).map(|wanted| wanted.end - wanted.start).product::<u64>();
    let row_bytes = row_bytes * element_bytes as u64;
    let Some(rows) = region.first() else {
        return Ok(vec![Band { region: Vec::new(), start: 0, len_bytes: element_bytes }]);
    };
    let mut corner: Vec<_> = region.iter().map(|wanted| wanted.start).collect();
    let mut bands = Vec::new();
    let mut start = rows.start;
    while start < rows.end {
        let mut end = start;
        while end < rows.end && (end == start || (end - start) * row_bytes < BAND_BYTES) {
            corner[0] = end;
            let extent = array.checked(Extent::at(array.as_zarrs(), &corner, array.element()))?;
            end = (extent.origin[0] + extent.shape[0]).min(rows.end);
        }
        let mut band = region.to_vec();
        band[0] = start..end;
        bands.push(Band {
            region: band,
            start: addressable(&array.folder(), (start - rows.start) * row_bytes)?,
            len_bytes: addressable(&array.folder(), (end - start) * row_bytes)?,
        });
        start = end;
    }
    Ok(bands)
}
