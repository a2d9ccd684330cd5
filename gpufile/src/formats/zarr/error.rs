//! The errors of Zarr arrays, and of requests to them.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::formats::clip::clip;

/// An array that cannot be opened, read or written as asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZarrError {
    /// There is no array, or its metadata is not such as zarrs takes.
    #[error("it cannot be opened: {message}")]
    Open {
        /// The text of zarrs' error, escaped, and cut if it is long.
        message: String,
    },
    /// The array is of a kind that has no place in one buffer of bytes.
    #[error("{what} are not supported")]
    Unsupported {
        /// The features that are not supported.
        what: &'static str,
    },
    /// The array or a chunk is larger than this crate reads or writes: 2^63 - 1 bytes for an array, 2^48 for a chunk.
    #[error("shape times element size of {what} is more than {limit_bytes} bytes")]
    SizeOverflow {
        /// `the array` or `a chunk`.
        what: &'static str,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A region was asked for that the array does not have.
    #[error("there is no region {} in shape {shape:?}", Ranges(.region))]
    NoSuchRegion {
        /// The region that was asked for: a range of indices for each axis.
        region: Vec<Range<u64>>,
        /// The length of each axis.
        shape: Vec<u64>,
    },
    /// The file of an uncompressed chunk is not as long as the chunk.
    #[error("chunk {key:?} has {found_bytes} bytes in its file instead of {needed_bytes}")]
    ChunkLength {
        /// The chunk's key in the store.
        key: String,
        /// The length that it should have, in bytes.
        needed_bytes: u64,
        /// The length that it has, in bytes.
        found_bytes: u64,
    },
    /// A chunk could not be read and decoded, or encoded and written.
    #[error("chunk {key:?}: {message}")]
    Chunk {
        /// The chunk's key in the store, cut if it is long.
        key: String,
        /// The text of the error, usually zarrs' own, escaped, and cut if it is long.
        message: String,
    },
    /// Chunks could not be read and decoded, or encoded and written, and it is not known which.
    #[error("{message}")]
    Codec {
        /// The text of the error, usually zarrs' own, escaped, and cut if it is long.
        message: String,
    },
}

impl ZarrError {
    /// Returns the error for a chunk whose key would lead out of the store.
    pub(super) fn no_chunk_key(key: &str) -> Self {
        Self::Chunk { key: clip(key), message: "the key is not one of a file in the store".to_owned() }
    }
}

/// Returns the result of zarrs, or the text of its error or panic; it panics over some damaged metadata and chunks.
pub(super) fn guarded<T, E: fmt::Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    // What it works on is read only, or given up if it fails.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(said),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(said(format_args!("zarrs panicked: {}", text.unwrap_or("without a word"))))
        }
    }
}

/// Returns the text of zarrs' error, escaped and cut: zarrs quotes metadata as it is.
pub(super) fn said(error: impl fmt::Display) -> String {
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
