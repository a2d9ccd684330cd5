//! Models in safetensors files: loading, saving, and the headers.
//!
//! A file has eight bytes with the length of a JSON object, the object, and the bytes of the tensors without gaps. The
//! tensors are in C order and little-endian.
//!
//! ```text
//! opening   path → index → files → headers → catalog of tensors
//! loading   catalog → layout of a buffer → reads, one for all adjacent tensors
//! placing   catalog, placement → plan → a layout for each GPU → reads, and copies between GPUs
//! ranks     catalog, placement → a buffer for this GPU → this rank's reads, and exchanges with the other ranks
//! saving    tensors → header → temporary files → rename
//! ```
//!
//! [`Checkpoint`] opens one or several files, and loads their tensors to a GPU or to the host. [`save`] and
//! [`save_shards`] write files, and `save_url` writes objects of stores such as S3. A [`Placement`] chooses which of several GPUs get a tensor, a slice of it or a copy.
//!
//! A [`Header`] needs no file. Two reads get its bytes, and it contains the range of each tensor:
//!
//! ```
//! use std::collections::BTreeMap;
//! use gpufile::formats::Dtype;
//! use gpufile::formats::safetensors::{self, Header, NewTensor};
//!
//! # fn main() -> Result<(), gpufile::formats::FormatError> {
//! let tensors = [NewTensor { name: "w", dtype: Dtype::F16, shape: &[4, 8] }];
//! let (header, mut file) = Header::build(&tensors, BTreeMap::new())?;
//! file.resize(header.file_len_bytes() as usize, 0);
//!
//! let len = file.len() as u64;
//! let head_len = safetensors::head_len(&file[..8], len)?;
//! let header = Header::parse(&file[..head_len as usize], len)?;
//! let w = header.get("w").unwrap();
//! assert_eq!((w.dtype, w.shape, w.offsets.clone()), (Dtype::F16, &[4, 8][..], 0..64));
//! let two_rows = header.in_file(w.slice_rows(1..3)?);
//! assert_eq!(two_rows, header.data_start() + 16..header.data_start() + 48);
//! # Ok(())
//! # }
//! ```

mod headers;
mod load;
mod open;
mod packed;
mod place;
pub(in crate::formats) mod save;

pub use super::progress::Progress;
pub use headers::header::{Header, MAX_HEADER_LEN, TensorInfo};
pub use headers::index::ShardIndex;
pub use headers::parse::head_len;
pub use headers::write::NewTensor;
pub use load::checkpoint::Checkpoint;
pub use load::loaded::{Load, Loaded, TensorView};
pub use open::verify::{Verification, Verify};
pub use open::warning::Warning;
pub use place::on_gpu::{PartView, PlacedTensors};
pub use place::placed::{PlacedGroups, PlacedLoad};
pub use place::placement::{Cut, Placement, Share};
pub use place::runs::TensorSlice;
pub use save::models::{Saved, save, save_shards};
pub use save::objects::save_to;
pub use save::plan::TensorData;
#[cfg(feature = "s3")]
pub use save::uploaded::{save_url, save_url_with};

pub mod planning {
    //! Planning for a caller that allocates the memory of a load or a save itself, as bindings of a framework do.
    //!
    //! ```
    //! use gpufile::formats::Dtype;
    //! use gpufile::formats::safetensors::{self, Checkpoint, Share, TensorData};
    //!
    //! # fn main() -> Result<(), Box<dyn std::error::Error>> {
    //! # let folder = tempfile::tempdir()?;
    //! # let path = folder.path().join("model.safetensors");
    //! # let tensors = [TensorData::new("w", Dtype::U8, &[4], &[1, 2, 3, 4][..])];
    //! # safetensors::save(&path, &tensors, &Default::default())?;
    //! let model = Checkpoint::open(&path)?;
    //! // Each group is for one allocation of the caller.
    //! for group in model.parts(vec![("w".to_owned(), Some(vec![1..3]))], 1 << 30)? {
    //!     let (file, _header) = model.files().nth(group.file()).unwrap();
    //!     let mut memory = vec![0; group.len_bytes()];
    //!     for stretch in group.within(0..group.len_bytes()) {
    //!         let part = &mut memory[stretch.buffer_offset..][..stretch.len_bytes];
    //!         file.read_exact_at(part, stretch.file_offset)?;
    //!     }
    //!     assert_eq!(memory, [2, 3]);
    //! }
    //! # Ok(())
    //! # }
    //! ```

    pub use super::place::group::{Bounds, Group};
    pub use super::place::layout::Stretch;
    pub use super::place::plan::Plan;
    pub use super::save::appended::{Appender, save_appended};
    #[cfg(feature = "s3")]
    pub use super::save::uploaded::save_url_unless;
}
