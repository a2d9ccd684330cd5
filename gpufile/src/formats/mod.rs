//! File formats of arrays: models in safetensors files, and numpy's arrays, loaded into GPU or host memory and saved
//! from it.
//!
//! [`safetensors::Checkpoint`] loads the tensors of one file or of many into one allocation, as fast as one large read;
//! [`safetensors::save`] writes a file. [`npy::NpyFile`] and [`npy::write()`] do the same for one array. New files
//! replace old ones at once, or not at all. With the feature `zarr`, the module of that name has Zarr arrays, whose chunks
//! are files of their own.
//!
//! Below that, and without any input or output, are the headers: bytes go in, with the length of the file that they
//! were read from, and names, types, shapes and byte ranges come out. Headers are input from strangers. What a parser
//! returns has been checked against itself and against the length of the file: every range lies in the file, ranges do
//! not overlap, shapes and types multiply out to the ranges. Memory is allocated in proportion to the bytes of the
//! header that were handed in, never to a number that they hold.
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

mod clip;
mod dtype;
mod error;
mod head;
mod memory;
pub mod npy;
mod random;
mod regular;
pub mod safetensors;
mod save;
#[cfg(feature = "zarr")]
pub mod zarr;

pub use dtype::Dtype;
pub use error::{Error, FormatError, Result};
pub use save::SaveOptions;
