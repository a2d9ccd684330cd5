//! Bytes between files and GPU or host memory, by the fastest path this machine has.
//!
//! A [`File`] reads into and writes from device and host memory alike. Device memory goes through cuFile where that
//! works, and through pinned host memory where it does not: without GPUDirect Storage, without libcufile, on a file
//! system that cuFile refuses. Host memory needs neither CUDA nor a GPU. [`File::route`] tells which way device memory
//! takes and why no better one, or why it takes none.
//!
//! ```
//! use gpufile::File;
//!
//! # fn main() -> gpufile::Result<()> {
//! # let path = std::env::temp_dir().join(format!("gpufile-doc-{}", std::process::id()));
//! let file = File::create(&path)?;
//! file.write_all_at(b"weights".as_slice(), 0)?;
//! let mut bytes = vec![0; 7];
//! file.read_exact_at(&mut bytes, 0)?;
//! assert_eq!(bytes, b"weights");
//! println!("the way to device memory: {}", file.route());
//! # std::fs::remove_file(path).ok();
//! # Ok(())
//! # }
//! ```
//!
//! One contract holds on every path: a read is short only at the end of the file, interrupted and partial transfers go
//! on, and an error says what failed and how many bytes had been transferred before.
//!
//! [`formats`] loads and saves models and arrays: safetensors, `.npy` and, with the feature `zarr`, Zarr.
//!
//! The feature `cudarc` adds the module of that name: slices, views and streams of the crate cudarc, which candle uses too.

#![warn(missing_debug_implementations)]

mod bytes;
mod engine;
mod error;
mod file;
pub mod formats;
mod future;
mod many;
mod mapped;
mod memory;
mod open_file;
mod options;
mod owned;
pub mod page_cache;
mod registration;
mod route;
mod settings;
mod stream_io;
mod write_plan;

pub use bytes::{ParseBytesError, parse_bytes};
pub use cufile::cuda;
#[cfg(feature = "cudarc")]
pub use cufile::cudarc;
pub use cufile::{
    BufSlice, BufSliceMut, Failed, FileProperties, IoBuf, IoBufMut, OwnedPart, RegisteredBuffer,
};
pub use engine::{Engine, EngineBuilder, IoRange};
pub use error::{Cause, Error, Result};
pub use file::File;
pub use future::IoFuture;
pub use many::{ReadRequest, WriteRequest};
pub use mapped::MappedFile;
pub use options::OpenOptions;
pub use route::{Route, RouteKind, RoutePolicy};
pub use settings::{DirectIo, Settings, SettingsError};
pub use stream_io::StreamIo;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
