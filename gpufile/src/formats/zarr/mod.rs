//! Zarr arrays in folders: chunks to and from GPU memory, on the `zarrs` crate.
//!
//! A [`FileStore`] is a folder with arrays and groups of Zarr version 3 or 2, for zarrs and this crate. An [`Array`] on
//! it is read whole or in part into one buffer of the host or a GPU, and written from one buffer. The engine transfers
//! [raw chunks](Array#raw-chunks) directly. The codecs of zarrs handle the others on the host.
//!
//! Use [`zarrs`] itself, which this module re-exports, for everything else: creating, resizing, attributes, groups.
//! The codecs `blosc`, `crc32c`, `gzip`, `sharding`, `transpose` and `zstd` are compiled in.
//! Others are features of zarrs 0.22: enable them in your own dependency on zarrs.
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
mod coded;
mod error;
mod grid;
mod keys;
mod list;
mod metadata;
mod parallel;
mod raw;
mod runs;
mod store;
mod target;
mod transfer;

pub use array::Array;
pub use error::ZarrError;
pub use store::FileStore;
pub use zarrs;
