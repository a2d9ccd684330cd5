//! Arrays in numpy's .npy files: loading, saving, and the headers.
//!
//! A file is a magic string, a version, the length of a Python dictionary, the dictionary, and the bytes of one array.
//! Elements of fixed size are supported, in either byte order and either order of the axes, both of which are reported:
//! the bytes are the file's. Records and Python objects are not. [`NpyFile`] reads an array to a GPU or to the host,
//! and [`write()`] writes one.
//!
//! numpy's `tofile` and `fromfile` know no header: their files are the bytes of an array and nothing else, for
//! [`File::write_all_at`](crate::File::write_all_at) and [`File::read_exact_at`](crate::File::read_exact_at).
//!
//! An [`NpyHeader`] does without files:
//!
//! ```
//! use gpufile::formats::npy::{self, ByteOrder, NpyHeader};
//!
//! # fn main() -> Result<(), gpufile::formats::FormatError> {
//! let (header, mut file) = NpyHeader::build("<f4", false, &[4, 8])?;
//! file.resize(header.file_len() as usize, 0);
//!
//! let len = file.len() as u64;
//! let head_len = npy::head_len(&file[..npy::PREFIX_LEN], len)?;
//! let header = NpyHeader::parse(&file[..head_len as usize], len)?;
//! assert_eq!(header.descr().byte_order(), ByteOrder::Little);
//! assert_eq!((header.shape(), header.data_start(), header.data_len()), (&[4, 8][..], 128, 128));
//! # Ok(())
//! # }
//! ```

mod descr;
mod file;
mod header;
mod literal;

pub use descr::{ByteOrder, Descr};
pub use file::{NpyFile, write, write_with};
pub use header::{MAX_HEADER_LEN, NpyHeader, PREFIX_LEN, head_len};
