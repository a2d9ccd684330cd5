//! A chunk: its bytes as they are stored, its place in the array, and the memory that its elements go to.

use std::borrow::Cow;
use std::ops::Range;

use super::array::Array;
use super::error::{ZarrError, plain_text};
use super::grid::chunk_bytes;
use super::runs::Runs;
use super::target::Target;
use crate::File;
use crate::formats::clip::clip;
use crate::formats::memory::{addressable, zeroed};
use crate::formats::{Error, Result};

/// The chunk that is read, for errors, and the memory that it is read into.
#[derive(Clone, Copy)]
pub(super) struct Decoder<'a> {
    pub array: &'a Array,
    pub key: &'a str,
    /// The part of the array that the target has.
    pub region: &'a [Range<u64>],
    pub target: &'a Target,
}

#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// A range of a file, in bytes.
    File {
        file: &'a File,
        start: u64,
        len_bytes: u64,
    },
    Held(&'a [u8]),
}

/// The place of a chunk in the array, in elements.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub origin: &'a [u64],
    pub shape: &'a [u64],
}

impl Decoder<'_> {
    /// Fills the part of a chunk that lies in the region with the fill value.
    pub fn fill(&self, place: Place<'_>) -> Result<()> {
        let fill = self.array.as_zarrs().fill_value().as_ne_bytes();
        // SAFETY: the runs lie in the region. Chunks are disjoint, and each is read once.
        let filled = unsafe { self.target.fill(&self.runs(place), fill) };
        filled.map_err(|error| self.array.copy_error(error))
    }

    pub fn put(&self, start: usize, bytes: &[u8]) -> Result<()> {
        // SAFETY: a run lies in the region. Chunks are disjoint, and each is read once.
        unsafe { self.target.put(start, bytes) }.map_err(|error| self.array.copy_error(error))
    }

    pub fn runs(&self, place: Place<'_>) -> Runs {
        Runs::new(place.origin, place.shape, self.region, self.array.element_bytes())
    }

    pub fn chunk_bytes(&self, shape: &[u64]) -> Result<u64> {
        self.array.checked(chunk_bytes(shape, self.array.element()))
    }

    pub fn zeroed(&self, len_bytes: u64) -> Result<Vec<u8>> {
        let folder = self.array.folder();
        zeroed(&folder, addressable(&folder, len_bytes)?)
    }

    pub fn error(&self, text: impl std::fmt::Display) -> Error {
        self.array.error(ZarrError::Chunk { key: clip(self.key), message: plain_text(text) })
    }
}

impl<'a> Source<'a> {
    pub fn len_bytes(&self) -> u64 {
        match self {
            Source::File { len_bytes, .. } => *len_bytes,
            Source::Held(bytes) => bytes.len() as u64,
        }
    }

    /// Returns a part; `None` if the source is too short.
    pub fn part(self, start: u64, len_bytes: u64) -> Option<Self> {
        let end = start.checked_add(len_bytes).filter(|&end| end <= self.len_bytes())?;
        Some(match self {
            Source::File { file, start: file_start, .. } => {
                Source::File { file, start: file_start + start, len_bytes }
            }
            Source::Held(bytes) => Source::Held(&bytes[start as usize..end as usize]),
        })
    }

    /// Reads bytes from `start` on, which the source has.
    pub fn read(self, start: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Source::File { file, start: file_start, .. } => Ok(file.read_exact_at(into, file_start + start)?),
            Source::Held(bytes) => {
                into.copy_from_slice(&bytes[start as usize..][..into.len()]);
                Ok(())
            }
        }
    }

    pub fn whole(self, decoder: &Decoder<'_>) -> Result<Cow<'a, [u8]>> {
        match self {
            Source::Held(bytes) => Ok(Cow::Borrowed(bytes)),
            Source::File { len_bytes, .. } => {
                let mut bytes = decoder.zeroed(len_bytes)?;
                self.read(0, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}
