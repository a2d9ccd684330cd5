//! File formats of arrays: what their headers say, checked, and the headers of new files.
//!
//! Nothing here opens a file or touches a GPU. A header goes in as bytes, with the length of the file that it was read
//! from, and comes out as names, types, shapes and byte ranges; whoever moves the data asks for those ranges.
//!
//! Headers are input from strangers. What a parser returns has been checked against itself and against the length of
//! the file: every range lies in the file, ranges do not overlap, shapes and types multiply out to the ranges. Memory
//! is allocated in proportion to the bytes of the header that were handed in, never to a number that they hold.
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

mod dtype;
mod error;
pub mod npy;
pub mod safetensors;

pub use dtype::Dtype;
pub use error::FormatError;

/// How many bits an array has: the product of `shape`, times `element_bits`. `None` if that is not a `u64` of bytes.
///
/// A zero does not hide the other axes: they must multiply to a `u64` of bytes without it too, as numpy wants it.
fn array_bits(shape: &[u64], element_bits: u128) -> Option<u128> {
    let mut axes = shape.iter().filter(|&&axis| axis != 0);
    let bits = axes.try_fold(element_bits, |bits, &axis| bits.checked_mul(axis.into()))?;
    u64::try_from(bits.div_ceil(8)).ok()?;
    Some(if shape.contains(&0) { 0 } else { bits })
}
