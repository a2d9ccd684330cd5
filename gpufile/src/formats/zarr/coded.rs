//! Coded chunks: the codecs of zarrs decode and encode them on the host, and each band of the array is copied at once.

use std::borrow::Cow;
use std::ops::Range;

use zarrs::array::ArrayError;
use zarrs::array::codec::{ArrayToBytesCodecTraits, CodecOptions};
use zarrs::array_subset::ArraySubset;

use super::array::Array;
use super::error::{ZarrError, guarded};
use super::grid::{Chunks, Extent};
use super::parallel::share;
use super::runs::Runs;
use super::target::Target;
use crate::Engine;
use crate::formats::clip::clip;
use crate::formats::memory::{addressable, out_of_memory, zeroed};
use crate::formats::{Error, Result};
use crate::memory::Memory;

/// The number of bytes of the array that are decoded or encoded at a time, unless one row of chunks has more. Also
/// limits the bytes of chunks that are decoded as a whole at a time, unless one chunk has more.
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
    for band in bands(array, region)? {
        let bytes = match array.needs_whole_chunks() {
            true => decode_whole_chunks(array, &band, engine)?,
            false => decode(array, &band)?,
        };
        // SAFETY: the caller's promise; the band lies in the region.
        unsafe { target.put(band.start, &bytes) }.map_err(|error| array.copy_error(error))?;
    }
    Ok(())
}

/// Decodes a band, and of its chunks only the parts in the band where the codecs can do that.
fn decode(array: &Array, band: &Band) -> Result<Vec<u8>> {
    let subset = ArraySubset::new_with_ranges(&band.region);
    let bytes = guarded(|| {
        let decoded = array.as_zarrs().retrieve_array_subset_opt(&subset, &CodecOptions::default())?;
        decoded.into_fixed().map(Cow::into_owned).map_err(ArrayError::from)
    });
    let bytes = bytes.map_err(|message| array.error(culprit(array, &band.region, message)))?;
    match bytes.len() == band.len_bytes {
        true => Ok(bytes),
        false => {
            let message = format!("{} bytes instead of {}", bytes.len(), band.len_bytes);
            Err(array.error(ZarrError::Codec { message }))
        }
    }
}

/// Decodes all chunks of a band as a whole.
fn decode_whole_chunks(array: &Array, band: &Band, engine: &Engine) -> Result<Vec<u8>> {
    let mut bytes = zeroed(&array.folder(), band.len_bytes)?;
    let target = Target::new(Memory::on_host(bytes.as_mut_ptr(), bytes.len()), engine);
    let target = target.map_err(|error| array.copy_error(error))?;
    each_chunk(array, band, engine.settings().threads(), |indices, extent, runs, options| {
        let Some(chunk) = decode_chunk(array, indices, extent, options)? else {
            let fill = array.as_zarrs().fill_value().as_ne_bytes();
            // SAFETY: in the bytes of the band; chunks are disjoint, and each has one turn.
            return unsafe { target.fill(runs, fill) }.map_err(|error| array.copy_error(error));
        };
        runs.iter().try_for_each(|run| {
            let run_bytes = &chunk[run.in_chunk as usize..][..runs.run_bytes];
            // SAFETY: as above.
            unsafe { target.put(run.in_region, run_bytes) }.map_err(|error| array.copy_error(error))
        })
    })?;
    Ok(bytes)
}

/// Calls `work` for each chunk of a band, with its indices, its extent, its runs in the band, and options by which zarrs
/// uses the processors that other chunks leave. Uses fewer threads where the chunks would take too much memory.
fn each_chunk(
    array: &Array,
    band: &Band,
    threads: usize,
    work: impl Fn(&[u64], &Extent, &Runs, &CodecOptions) -> Result<()> + Sync,
) -> Result<()> {
    let chunks = array.checked(Chunks::meeting(array.as_zarrs(), &band.region))?;
    let at_a_time = (BAND_BYTES / array.longest_chunk_bytes().max(1)).min(chunks.count());
    let threads = threads.min(at_a_time as usize).max(1);
    let mut options = CodecOptions::default();
    options.set_concurrent_target((options.concurrent_target() / threads).max(1));
    share(chunks.count(), 1, threads, |turn| {
        let indices = chunks.indices(turn.start);
        let extent = Extent::of(array.as_zarrs(), &indices, array.element_bytes());
        let extent = array.checked(extent.and_then(|extent| extent.meeting(&band.region)))?;
        let runs = Runs::new(&extent.origin, &extent.shape, &band.region, array.element_bytes());
        work(&indices, &extent, &runs, &options)
    })
}

/// Decodes a chunk, if it has a file.
fn decode_chunk(
    array: &Array,
    indices: &[u64],
    extent: &Extent,
    options: &CodecOptions,
) -> Result<Option<Vec<u8>>> {
    let zarrs = array.as_zarrs();
    let failed = |message| chunk_error(array, indices, message);
    let encoded = guarded(|| zarrs.retrieve_encoded_chunk(indices)).map_err(failed)?;
    let Some(encoded) = encoded else { return Ok(None) };
    has_memory(array, extent.len_bytes)?;
    let bytes = guarded(|| {
        let representation = zarrs.chunk_array_representation(indices)?;
        let decoded = zarrs.codecs().decode(encoded.into(), &representation, options)?;
        decoded.into_fixed().map(Cow::into_owned).map_err(ArrayError::from)
    });
    let bytes = bytes.map_err(failed)?;
    match bytes.len() as u64 == extent.len_bytes {
        true => Ok(Some(bytes)),
        false => Err(failed(format!("{} bytes instead of {}", bytes.len(), extent.len_bytes))),
    }
}

/// Returns the error of zarrs for a chunk.
fn chunk_error(array: &Array, indices: &[u64], message: String) -> Error {
    let key = clip(array.as_zarrs().chunk_key(indices).as_str());
    array.error(ZarrError::Chunk { key, message })
}

/// Checks that the host has memory for a chunk. Without memory, zarrs would end the process.
///
/// # Errors
/// [`Error::Memory`].
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

/// Encodes all chunks of a band, in as many threads as zarrs would use. Elements beyond the array get the fill value.
/// zarrs by itself would read them from the old file, which may be damaged.
fn encode(array: &Array, band: &Band, bytes: &[u8]) -> Result<()> {
    let zarrs = array.as_zarrs();
    let threads = CodecOptions::default().concurrent_target();
    each_chunk(array, band, threads, |indices, extent, runs, options| {
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
        guarded(|| zarrs.store_chunk_opt(indices, chunk, options))
            .map_err(|message| chunk_error(array, indices, message))
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
            let extent = array.checked(Extent::at(array.as_zarrs(), &corner, element_bytes))?;
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

/// Returns the error of the first damaged chunk of a region. Tries one chunk after the other, because the error of
/// zarrs does not name it.
fn culprit(array: &Array, region: &[Range<u64>], message: String) -> ZarrError {
    let all = || ZarrError::Codec { message: message.clone() };
    let Ok(chunks) = Chunks::meeting(array.as_zarrs(), region) else { return all() };
    for number in 0..chunks.count() {
        let indices = chunks.indices(number);
        let Ok(extent) = Extent::of(array.as_zarrs(), &indices, array.element_bytes()) else { return all() };
        let part =
            region.iter().zip(extent.origin.iter().zip(&extent.shape)).map(|(wanted, (&origin, &len))| {
                wanted.start.max(origin) - origin..wanted.end.min(origin + len) - origin
            });
        let part = ArraySubset::new_with_ranges(&part.collect::<Vec<_>>());
        let read = guarded(|| {
            let options = CodecOptions::default();
            array.as_zarrs().retrieve_chunk_subset_opt(&indices, &part, &options).map(drop)
        });
        if let Err(message) = read {
            return ZarrError::Chunk { key: clip(chunks.key(&indices).as_str()), message };
        }
    }
    all()
}
