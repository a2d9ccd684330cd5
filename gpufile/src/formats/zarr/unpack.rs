//! The decoders of compressed bytes. Each writes into memory of a fixed length, so the compressed bytes cannot make it
//! allocate more. `decode` chooses the length.

use std::ffi::c_int;
use std::io::{self, Read};

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};

use super::codecs::Packing;

/// The most bytes that a decoder makes of one byte. In zstd, four bytes are a block that repeats one byte 131,072 times.
/// No other codec has more.
pub(super) const MOST_BYTES_PER_BYTE: u64 = 1 << 15;

/// The length of a checksum, in bytes.
pub(super) const CHECKSUM_BYTES: usize = 4;

/// Decodes all of `packed`, and returns the number of bytes that it wrote. blosc may use several threads.
///
/// # Errors
/// The text of the error, also if `unpacked` is too short.
pub(super) fn unpack(
    packing: Packing,
    packed: &[u8],
    unpacked: &mut [u8],
    threads: usize,
) -> Result<usize, String> {
    match packing {
        Packing::Gzip => read_to_end(MultiGzDecoder::new(packed), unpacked),
        Packing::Zlib => read_to_end(ZlibDecoder::new(packed), unpacked),
        Packing::Zstd => {
            zstd::bulk::decompress_to_buffer(packed, unpacked).map_err(|error| error.to_string())
        }
        Packing::Blosc => unpack_blosc(packed, unpacked, threads),
        Packing::Crc32c => {
            let content = checked(packed)?;
            unpacked.get_mut(..content.len()).ok_or_else(too_long)?.copy_from_slice(content);
            Ok(content.len())
        }
    }
}

/// Returns the bytes before a checksum.
pub(super) fn checked(bytes: &[u8]) -> Result<&[u8], String> {
    let Some((content, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(format!("{} bytes are too few for a checksum", bytes.len()));
    };
    match crc32c::crc32c(content) == u32::from_le_bytes(*checksum) {
        true => Ok(content),
        false => Err("the checksum crc32c is wrong".to_owned()),
    }
}

fn too_long() -> String {
    "the data are longer than the chunk".to_owned()
}

/// Reads until the end, where decoders compare their checksums.
fn read_to_end(mut decoder: impl Read, unpacked: &mut [u8]) -> Result<usize, String> {
    let mut done = 0;
    loop {
        let mut beyond = [0];
        let rest = if done < unpacked.len() { &mut unpacked[done..] } else { &mut beyond[..] };
        match decoder.read(rest) {
            Ok(0) => return Ok(done),
            Ok(_) if done == unpacked.len() => return Err(too_long()),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn unpack_blosc(packed: &[u8], unpacked: &mut [u8], threads: usize) -> Result<usize, String> {
    let invalid = || Err("blosc: the data are damaged".to_owned());
    let (mut len_bytes, mut packed_bytes, mut block_bytes) = (0, 0, 0);
    // SAFETY: reads `packed.len()` bytes at most, and writes an integer.
    if unsafe { blosc_src::blosc_cbuffer_validate(packed.as_ptr().cast(), packed.len(), &mut len_bytes) } != 0
    {
        return invalid();
    }
    // SAFETY: `blosc_cbuffer_validate` has checked that the header is there. Writes three integers.
    unsafe {
        blosc_src::blosc_cbuffer_sizes(
            packed.as_ptr().cast(),
            &mut len_bytes,
            &mut packed_bytes,
            &mut block_bytes,
        );
    }
    if len_bytes > unpacked.len() {
        return Err(too_long());
    }
    if len_bytes == 0 {
        return Ok(0);
    }
    if block_bytes == 0 || block_bytes > len_bytes {
        return invalid();
    }
    // Each thread has memory for three blocks. With so many threads, that is three times the length.
    let threads = threads.clamp(1, (len_bytes / block_bytes).max(1));
    reserve_once(3 * threads * block_bytes)?;
    let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
    // SAFETY: `blosc_cbuffer_validate` has checked the header against the length. At most `len_bytes` bytes are written,
    // which `unpacked` has.
    let done = unsafe {
        blosc_src::blosc_decompress_ctx(
            packed.as_ptr().cast(),
            unpacked.as_mut_ptr().cast(),
            len_bytes,
            threads,
        )
    };
    if usize::try_from(done) == Ok(len_bytes) { Ok(len_bytes) } else { invalid() }
}

/// Checks that there is memory for blosc, which does not check that itself.
fn reserve_once(len_bytes: usize) -> Result<(), String> {
    let mut bytes = Vec::<u8>::new();
    let reserved = bytes.try_reserve_exact(len_bytes);
    std::hint::black_box(bytes);
    reserved.map_err(|_| format!("blosc: there is no memory for {len_bytes} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 300 KiB of one byte, as three codecs write them.
    fn packed() -> [(Packing, Vec<u8>); 3] {
        let content = vec![7; LEN];
        let (mut gzip, mut zlib) = (Vec::new(), Vec::new());
        let level = flate2::Compression::fast();
        flate2::bufread::GzEncoder::new(&content[..], level).read_to_end(&mut gzip).unwrap();
        flate2::bufread::ZlibEncoder::new(&content[..], level).read_to_end(&mut zlib).unwrap();
        let zstd = zstd::bulk::compress(&content, 1).unwrap();
        [(Packing::Gzip, gzip), (Packing::Zlib, zlib), (Packing::Zstd, zstd)]
    }

    const LEN: usize = 300 << 10;

    #[test]
    fn decoders_fill_memory_of_the_exact_length_only() {
        for (packing, packed) in packed() {
            let mut unpacked = vec![0; LEN];
            assert_eq!(unpack(packing, &packed, &mut unpacked, 1), Ok(LEN), "{packing:?}");
            assert!(unpacked.iter().all(|byte| *byte == 7));
            assert_eq!(unpack(packing, &packed, &mut vec![0; LEN + 9], 1), Ok(LEN), "{packing:?}");
            assert!(unpack(packing, &packed, &mut unpacked[..LEN - 1], 1).is_err(), "{packing:?}");
            assert!(unpack(packing, &packed[..packed.len() - 1], &mut unpacked, 1).is_err(), "{packing:?}");
        }
    }

    #[test]
    fn gzip_members_follow_each_other() {
        let [(gzip, packed), ..] = packed();
        assert_eq!(unpack(gzip, &packed.repeat(2), &mut vec![0; 2 * LEN], 1), Ok(2 * LEN));
    }

    #[test]
    fn repeated_bytes_unpack_to_at_most_the_most() {
        // A zstd frame without a length, of blocks that repeat a byte.
        let (block, last) = ([2, 0, 16, 7], [3, 0, 16, 7]);
        let frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 0x38][..], &block.repeat(63), &last].concat();
        let mut unpacked = vec![0; 64 << 17];
        assert_eq!(unpack(Packing::Zstd, &frame, &mut unpacked, 1), Ok(64 << 17));
        assert!((64 << 17) <= frame.len() as u64 * MOST_BYTES_PER_BYTE);
    }
}
