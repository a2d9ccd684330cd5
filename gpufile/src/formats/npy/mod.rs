//! Arrays in numpy's .npy files: loading, saving, and the headers.
//!
//! A file has a magic string, a version, the length of a Python dictionary, the dictionary, and the bytes of one array.
//! [`NpyFile`] reads an array to a GPU or to the host, and [`write()`] writes one.
//!
//! Elements of fixed size are supported, and records and Python objects are not.
//!
//! The parser accepts the spellings that numpy writes: types such as `<f4` and `|S7`, `True` and `False`, decimal
//! numbers, and strings without escapes. numpy also loads other Python, which this crate refuses: names of types such
//! as `float32`, `<g` or `i`, numbers such as `0x3` or `1_2`, comments, and strings in several parts.
//!
//! Files written with numpy's `tofile` have no header. Read them with
//! [`File::read_exact_at`](crate::File::read_exact_at), and write files for `fromfile` with
//! [`File::write_all_at`](crate::File::write_all_at).
//!
//! An [`NpyHeader`] needs no file:
//!
//! ```
//! use gpufile::formats::npy::{self, ByteOrder, NpyHeader, Order};
//!
//! # fn main() -> Result<(), gpufile::formats::FormatError> {
//! let (header, mut file) = NpyHeader::build("<f4", Order::C, &[4, 8])?;
//! file.resize(header.file_len_bytes() as usize, 0);
//!
//! let len = file.len() as u64;
//! let head_len = npy::head_len(&file[..npy::PREFIX_LEN], len)?;
//! let header = NpyHeader::parse(&file[..head_len as usize], len)?;
//! assert_eq!(header.descr().byte_order(), ByteOrder::Little);
//! assert_eq!((header.shape(), header.data_start(), header.data_len_bytes()), (&[4, 8][..], 128, 128));
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "remote")]
mod at_url;
mod descr;
mod file;
mod header;
mod literal;

pub use descr::{ByteOrder, Descr};
pub use file::{NpyFile, write};
pub use header::{MAX_HEADER_LEN, NpyHeader, PREFIX_LEN, head_len};

pub use super::order::Order;
