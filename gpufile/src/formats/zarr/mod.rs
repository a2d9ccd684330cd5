//! Zarr arrays in folders and on servers: chunks to and from GPU memory, on the `zarrs` crate.
//!
//! A [`FileStore`] is a folder with arrays and groups of Zarr version 3 or 2, for zarrs and this crate. An [`Array`]
//! on it is read whole or in part into one buffer of the host or a GPU, and written from one buffer. The engine
//! transfers [raw chunks](Array#raw-chunks) directly. This crate decodes other chunks on the host, and zarrs
//! encodes them.
//!
//! With the feature `remote`, [`FileStore::at_url`] reads arrays of web servers and S3.
//!
//! Use [`zarrs`] itself, which this module re-exports, for everything else: creating, resizing, attributes, groups.
//!
//! # Supported arrays
//! | | read and written | refused when the array is opened |
//! |---|---|---|
//! | codecs of version 3 | `bytes`, `transpose`, `gzip`, `zstd`, `blosc` with each of its compressors, `crc32c`, `numcodecs.zlib`, `sharding_indexed` with up to four levels | all others; `index_codecs` other than `bytes` and `crc32c` |
//! | compressors of version 2 | `gzip`, `zlib`, `zstd`, `blosc` | all others, such as `lz4`, `bz2`, `lzma` |
//! | filters of version 2 | | all |
//! | data types of version 3 | all of zarrs with a fixed length | `string`, `bytes`, `fixed_length_utf32`, `null_terminated_bytes`, `struct` |
//! | data types of version 2 | `b1`, `i1` to `i8`, `u1` to `u8`, `f2` to `f8`, `c8`, `c16`, in either byte order | `S`, `U`, `V`, `M8`, `m8`, `O`, records |
//! | fill values of version 2 | numbers, also `1.0` for an integer and 0 or 1 for a truth value, pairs of numbers for complex types, `NaN`, `Infinity`, `-Infinity`, `null` for 0 | other texts, numbers of another type |
//! | storage transformers | | all |
//!
//! The error of a refused array names the codec or the field.
//!
//! ```
//! use std::sync::Arc;
//!
//! use gpufile::formats::zarr::zarrs::array::{ArrayBuilder, DataType};
//! use gpufile::formats::zarr::{Array, FileStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("gpufile-doc-{}.zarr", std::process::id()));
//! let store = Arc::new(FileStore::new(&folder));
//! let new = ArrayBuilder::new(vec![4, 6], vec![2, 3], DataType::UInt8, 0u8).build(store.clone(), "/pixels")?;
//! new.store_metadata()?;
//! let pixels: Vec<u8> = (0..24).collect();
//! Array::new(new)?.write_from(&pixels)?; // or a DeviceBuffer
//!
//! let array = Array::open(&store, "/pixels")?;
//! assert_eq!(array.shape(), [4, 6]);
//! assert_eq!(array.read_to_host()?, pixels); // or read_to_device
//! let mut corner = vec![0; 4];
//! array.read_region_into(&[2..4, 4..6], &mut corner)?;
//! assert_eq!(corner, [16, 17, 22, 23]);
//! # std::fs::remove_dir_all(folder)?;
//! # Ok(())
//! # }
//! ```

mod array;
#[cfg(feature = "remote")]
mod at_url;
mod chunk;
mod codecs;
mod coded;
mod decode;
mod error;
mod grid;
mod keys;
mod list;
mod longest;
mod metadata;
mod parallel;
mod raw;
mod runs;
mod shards;
mod store;
mod target;
mod transfer;
mod transpose;
mod unpack;
mod version_2;

pub use array::Array;
pub use error::ZarrError;
pub use store::FileStore;
pub use zarrs;
