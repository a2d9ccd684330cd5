//! The facts of an array, checked when it is opened: sizes, coding, and the folder for errors. `transfer` reads and
//! writes arrays.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::codecs::Chain;
use super::error::{ZarrError, guarded};
use super::grid::{self, Element, ZarrsArray};
use super::metadata;
use super::store::FileStore;
use crate::formats::memory::check_len;
use crate::formats::{Error, Result};
use crate::{Cause, Engine};

/// An array on a [`FileStore`], of version 3 or 2.
///
/// Buffers have the elements in C order and in the byte order of this machine. The files may have other orders. A chunk
/// without a file has the fill value. A chunk here is always one of Zarr.
///
/// # Raw chunks
/// A raw chunk is a file with the same bytes as the elements of the chunk in memory, without compression,
/// checksum, transposition or sharding. Either all chunks of an array are raw or none: see
/// [`has_raw_chunks`](Self::has_raw_chunks).
///
/// The engine transfers raw chunks directly between their files and the buffer, several files at a time. It checks the
/// lengths of the files that it reads. At the edge of the array, a file also has elements beyond the array: writing
/// gives them the fill value.
///
/// A read or write of raw chunks is direct if the bytes that are adjacent in both the chunk and the region are a whole
/// chunk or at least 512 bytes. The chunk with the first element of the region decides for all. Otherwise the chunks are
/// read or written as coded chunks.
///
/// # Coded chunks
/// This crate decodes all other chunks on the host, and zarrs encodes them, in several threads. For a GPU, the elements
/// are copied in bands of the array, of about 128 MiB or one row of chunks. A write gives elements beyond the array the
/// fill value.
///
/// Of chunks without compression, a read reads the bytes of the region. From a shard, it reads the index and the
/// chunks in the region. All other chunks are decoded as a whole even for a small region. Checksums of what is read
/// are checked.
///
/// # Unknown sources
/// Metadata is untrusted input, and an array without files may claim any size. For a store from an unknown source,
/// check [`len_bytes`](Self::len_bytes) before you allocate memory for all of the array.
///
/// A read takes memory for the chunks that it decodes at a time: 128 MiB of them, or one. For a chunk of n bytes, that is
/// at most 6 n and 64 KiB, and 2 n for each level of shards. The metadata says n. A decoder takes at most 2^15 bytes for
/// each byte that it decodes. A file that is longer than its chunk can be is not read. A shard may have 2^22 chunks, and
/// its index takes 16 bytes for each. Memory that the host lacks is an error.
///
/// # Example
/// The [module](super) has an example for host memory. With a GPU:
///
/// ```no_run
/// use std::sync::Arc;
///
/// use gpufile::Engine;
/// use gpufile::formats::zarr::{Array, FileStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Engine::global().cuda()?.device(0)?;
/// let array = Array::open(&Arc::new(FileStore::new("era5.zarr")), "temperature")?;
/// let everything = array.read_to_device(&device)?;
/// let mut some = device.alloc(24 * 721 * 1440 * array.element_bytes())?;
/// array.read_region_into(&[0..24, 0..721, 0..1440], &mut some)?;
/// # Ok(())
/// # }
/// ```
pub struct Array {
    array: ZarrsArray,
    element: Element,
    len_bytes: u64,
    longest_chunk_bytes: u64,
    chain: Chain,
}

impl Array {
    /// Opens an array by its path in the store, such as `/group/array`. The path `/` is an array in the folder of the
    /// store itself.
    ///
    /// # Errors
    /// [`Error::Zarr`] if there is no array, or if [`new`](Self::new) refuses it.
    pub fn open(store: &Arc<FileStore>, path: &str) -> Result<Self> {
        let path = format!("/{}", path.trim_matches('/'));
        let opened = metadata::read(store, &path).and_then(|metadata| {
            // zarrs must not make codecs that are not supported, and its errors name no field.
            Chain::of(&metadata, Element { bytes: 1, number_bytes: 1 })?;
            guarded(|| ZarrsArray::new_with_metadata(store.clone(), &path, metadata))
                .map_err(|message| ZarrError::Open { message })
        });
        match opened {
            Ok(array) => Self::new(array),
            Err(error) => Err(Error::Zarr { path: folder(store, &path), error }),
        }
    }

    /// Takes an array of zarrs, for example from its `ArrayBuilder`. The metadata need not be written yet.
    ///
    /// # Errors
    /// [`Error::Zarr`] if the elements have no bytes or differ in length, if the array or a chunk is too large, or if a
    /// codec is [not supported](super#supported-arrays).
    pub fn new(array: zarrs::array::Array<FileStore>) -> Result<Self> {
        let check = || {
            let element = grid::element(&array)?;
            let len_bytes = grid::array_bytes(&array, element)?;
            let mut longest_chunk_bytes = grid::longest_chunk_bytes(&array, element)?;
            if array.chunk_grid_shape().iter().all(|&chunks| chunks > 0) {
                let first = grid::Extent::of(&array, &vec![0; array.dimensionality()], element)?;
                longest_chunk_bytes = longest_chunk_bytes.max(first.len_bytes);
            }
            Ok((element, len_bytes, longest_chunk_bytes, Chain::of(array.metadata(), element)?))
        };
        match check() {
            Ok((element, len_bytes, longest_chunk_bytes, chain)) => {
                Ok(Self { array, element, len_bytes, longest_chunk_bytes, chain })
            }
            Err(error) => Err(Error::Zarr { path: folder(&array.storage(), array.path().as_str()), error }),
        }
    }

    /// Returns the array of zarrs, which has the data type, the chunks, the codecs and the attributes.
    pub fn as_zarrs(&self) -> &zarrs::array::Array<FileStore> {
        &self.array
    }

    /// Returns the length of each axis, in elements. Empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        self.array.shape()
    }

    /// Returns the number of bytes of one element.
    pub fn element_bytes(&self) -> usize {
        self.element.bytes
    }

    pub(super) fn element(&self) -> Element {
        self.element
    }

    /// Returns the number of bytes of all elements.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(super) fn longest_chunk_bytes(&self) -> u64 {
        self.longest_chunk_bytes
    }

    pub(super) fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Returns whether the chunks are [raw](#raw-chunks).
    pub fn has_raw_chunks(&self) -> bool {
        self.chain.is_raw()
    }

    pub(super) fn check_buffer(&self, region: &[Range<u64>], buffer_bytes: usize) -> Result<()> {
        let shape = self.shape();
        let lies_within =
            |(wanted, &axis): (&Range<u64>, &u64)| wanted.start <= wanted.end && wanted.end <= axis;
        if region.len() != shape.len() || !region.iter().zip(shape).all(lies_within) {
            let (region, shape) = (region.to_vec(), shape.to_vec());
            return Err(self.error(ZarrError::NoSuchRegion { region, shape }));
        }
        // A region has at most the elements of the array. `new` has checked that their product does not overflow.
        let elements = region.iter().map(|wanted| wanted.end - wanted.start).product::<u64>();
        let what = || match region.iter().zip(shape).all(|(wanted, &axis)| *wanted == (0..axis)) {
            true => "the array".to_owned(),
            false => "the region".to_owned(),
        };
        check_len(&self.folder(), what, elements * self.element.bytes as u64, buffer_bytes)
    }

    pub(super) fn folder(&self) -> PathBuf {
        folder(&self.store(), self.array.path().as_str())
    }

    pub(super) fn store(&self) -> Arc<FileStore> {
        self.array.storage()
    }

    pub(super) fn engine(&self) -> Result<Engine> {
        let found = self.store().reading().engine_or_global();
        found.map_err(|cause| crate::Error::Open { path: self.folder(), cause }.into())
    }

    pub(super) fn error(&self, error: ZarrError) -> Error {
        Error::Zarr { path: self.folder(), error }
    }

    pub(super) fn checked<T>(&self, result: Result<T, ZarrError>) -> Result<T> {
        result.map_err(|error| self.error(error))
    }

    pub(super) fn copy_error(&self, error: cufile::Error) -> Error {
        let path = self.folder();
        crate::Error::File { operation: "copy elements of", path, cause: Cause::from(error) }.into()
    }
}

fn folder(store: &FileStore, path: &str) -> PathBuf {
    match path.trim_matches('/') {
        "" => store.folder().to_owned(),
        path => store.folder().join(path),
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array")
            .field("path", &self.folder())
            .field("shape", &self.shape())
            .field("data_type", self.array.data_type())
            .field("has_raw_chunks", &self.has_raw_chunks())
            .finish_non_exhaustive()
    }
}
