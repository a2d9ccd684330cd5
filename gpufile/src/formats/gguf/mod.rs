//! Models in GGUF files, the format of llama.cpp: loading, saving, and the headers.
//!
//! A file has metadata (keys with values of thirteen types), the descriptions of the tensors, and the bytes of the tensors,
//! each aligned. Most tensors are quantised: [`GgmlType`] has their types, by ggml's names and numbers. Their bytes stay
//! as they are in the file.
//!
//! ```text
//! opening   path → header → other files of a split model → catalog of tensors
//! loading   catalog → layout of a buffer → reads, one for all adjacent tensors
//! saving    metadata and tensors → header of each file → temporary files → rename
//! ```
//!
//! [`Model`] opens a file, or all files of a split model, and loads the tensors to a GPU or to the host. [`save`] writes a
//! file, and [`save_split`] several. The module reads versions 2 and 3 of the format, little-endian, and writes version 3.
//!
//! A [`Header`] needs no file. The descriptions of the tensors follow the metadata, which has no length, so a caller reads
//! more when the parser says so:
//!
//! ```
//! use gpufile::formats::FormatError;
//! use gpufile::formats::gguf::{GgmlType, Header, Metadata, NewTensor};
//!
//! # fn main() -> Result<(), FormatError> {
//! let tensors = [NewTensor { name: "w", ggml_type: GgmlType::F16, shape: &[4, 8] }];
//! let metadata = Metadata::from_iter([("general.architecture", "llama")]);
//! let (header, mut file) = Header::build(metadata, &tensors)?;
//! file.resize(header.file_len_bytes() as usize, 0);
//!
//! let len = file.len() as u64;
//! let error = Header::parse(&file[..40], len).unwrap_err();
//! assert!(matches!(error, FormatError::Truncated { needed_bytes, .. } if needed_bytes > 40));
//! let header = Header::parse(&file, len)?;
//! let w = header.get("w").unwrap();
//! assert_eq!((w.ggml_type, w.shape, w.len_bytes()), (GgmlType::F16, &[4, 8][..], 64));
//! # Ok(())
//! # }
//! ```
//!
//! # Axes
//! A GGUF file has the fastest axis first. This module has the slowest first, as safetensors and numpy do: the shape of a
//! matrix is `[rows, columns]`. Blocks of quantised elements lie within a row.

#[cfg(feature = "remote")]
mod at_url;
mod block_type;
mod catalog;
mod cursor;
mod files;
mod header;
mod layout;
mod load;
mod loaded;
mod metadata;
mod model;
mod parse;
mod save;
mod save_split;
mod split;
mod strings;
#[cfg(feature = "s3")]
mod uploaded;
mod value;
mod values;
mod write;

pub use super::progress::Progress;
pub use block_type::GgmlType;
pub use cursor::MAX_HEADER_LEN;
pub use header::{Header, TensorInfo};
pub use load::Load;
pub use loaded::{Loaded, TensorView};
pub use metadata::Metadata;
pub use model::Model;
pub use save::{TensorData, save, save_to};
pub use save_split::{Saved, save_split};
pub use strings::Strings;
#[cfg(feature = "s3")]
pub use uploaded::{save_url, save_url_with};
pub use value::{Array, Value};
pub use write::NewTensor;
