//! File formats of arrays: models in safetensors and GGUF files, and numpy's arrays, loaded into GPU or host memory
//! and saved from it.
//!
//! [`safetensors::Checkpoint`] loads the tensors of one or several files into one allocation, as fast as one large
//! read. [`safetensors::save`] writes a file. [`gguf::Model`] and [`gguf::save`] do the same for the models of llama.cpp,
//! [`npy::NpyFile`] and [`npy::write()`] for one array. A save replaces an old file as a whole, or leaves it unchanged.
//! With the feature `zarr`, the module `zarr` reads and writes Zarr arrays, which have one file for each chunk.
//!
//! # Headers
//! The header types do no I/O. A parser takes the bytes of a header and the length of the file. It returns names,
//! types, shapes and byte ranges.
//!
//! Headers are untrusted input. The parser checks the header against itself and against the length of the file. Every
//! range is within the file, ranges do not overlap, and the length of each range matches its shape and type. The
//! memory that the parser allocates is proportional to the length of the header, whatever numbers it contains.
//!
//! ```
//! use gpufile::formats::safetensors::Header;
//!
//! let json = br#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,999]}}"#;
//! let file = [&(json.len() as u64).to_le_bytes(), &json[..], &[0; 16]].concat();
//! let error = Header::parse(&file, file.len() as u64).unwrap_err();
//! assert_eq!(error.tensor(), Some("w"));
//! assert_eq!(error.to_string(), r#"tensor "w": shape and type say 16 bytes, but its offsets are 0 to 999"#);
//! ```

mod catalog;
mod clip;
mod dtype;
mod error;
pub mod gguf;
mod head;
mod limit;
mod memory;
pub mod npy;
mod order;
mod packed;
mod progress;
mod random;
mod reads;
pub(crate) mod regular;
mod rows;
pub mod safetensors;
pub(crate) mod save;
pub(crate) mod visible;
#[cfg(feature = "zarr")]
pub mod zarr;

pub use dtype::Dtype;
pub use error::{Error, FormatError, Result};
pub use save::{InPlace, SaveOptions, save_copy};
pub use visible::visible;
