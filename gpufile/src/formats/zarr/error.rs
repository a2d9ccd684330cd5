use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::formats::clip::clip;

/// The problem of an array or a chunk, or of a request for a region.
///
/// ```
/// use std::sync::Arc;
///
/// use gpufile::formats::Error;
/// use gpufile::formats::zarr::{Array, FileStore, ZarrError};
///
/// let error = Array::open(&Arc::new(FileStore::new("missing.zarr")), "/a").unwrap_err();
/// assert!(matches!(error, Error::Zarr { error: ZarrError::Open { .. }, .. }));
/// let text = r#""missing.zarr/a": cannot open the array: there is neither zarr.json nor .zarray"#;
/// assert_eq!(error.to_string(), text);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZarrError {
    /// There is no array, its metadata are wrong, or it has something that is [not supported](super#supported-arrays).
    #[error("cannot open the array: {message}")]
    #[non_exhaustive]
    Open {
        /// The text of the error, with the field or the codec, escaped, and cut if it is long.
        message: String,
    },
    /// The array does not fit one buffer of bytes.
    #[error("{what} are not supported")]
    #[non_exhaustive]
    Unsupported {
        /// The features that are not supported.
        what: &'static str,
    },
    /// The array or a chunk is larger than this crate reads or writes: 2^63 - 1 bytes for an array, 2^48 for a chunk.
    #[error("shape times element size of {what} is more than {limit_bytes} bytes")]
    #[non_exhaustive]
    SizeOverflow {
        /// `the array` or `a chunk`.
        what: &'static str,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The caller asked for a region that the array does not have.
    #[error("the region {} is not within shape {shape:?}", Ranges(.region))]
    #[non_exhaustive]
    NoSuchRegion {
        /// The requested region: a range of indices for each axis.
        region: Vec<Range<u64>>,
        /// The length of each axis.
        shape: Vec<u64>,
    },
    /// The file of a raw chunk has another length than the chunk.
    #[error("the file of chunk {key:?} has {found_bytes} bytes instead of {needed_bytes}")]
    #[non_exhaustive]
    ChunkLength {
        /// The chunk's key in the store.
        key: String,
        /// The length of the chunk, in bytes.
        needed_bytes: u64,
        /// The length of the file, in bytes.
        found_bytes: u64,
    },
    /// A chunk could not be read and decoded, or encoded and written.
    #[error("chunk {key:?}: {message}")]
    #[non_exhaustive]
    Chunk {
        /// The chunk's key in the store, cut if it is long.
        key: String,
        /// The text of the error, escaped, and cut if it is long.
        message: String,
    },
}

impl ZarrError {
    /// Returns the error for a chunk whose key would lead out of the store.
    pub(super) fn no_chunk_key(key: &str) -> Self {
        Self::Chunk {
            key: clip(key),
            message: "the key does not name a file in the folder of the store".to_owned(),
        }
    }
}

/// Calls zarrs, and returns its result, or the text of its error or panic. zarrs panics on some damaged metadata.
pub(super) fn guarded<T, E: fmt::Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    // `work` only reads its captures, or the caller drops them after a failure.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(plain_text),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(plain_text(format_args!("zarrs panicked: {}", text.unwrap_or("no message"))))
        }
    }
}

pub(super) fn refused(message: impl fmt::Display) -> ZarrError {
    ZarrError::Open { message: plain_text(message) }
}

/// Returns the text of zarrs' error, escaped and cut: zarrs quotes metadata as it is.
pub(super) fn plain_text(error: impl fmt::Display) -> String {
    let text = error.to_string();
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    clip(&text.chars().map(shown).collect::<String>())
}

struct Ranges<'a>(&'a [Range<u64>]);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0).finish()
    }
}
