//! Warnings about parts of a model that are not loaded.

use std::fmt;
use std::path::PathBuf;

use crate::formats::visible::{Listed, Quoted, Shown};

/// A part of a model that is not loaded, and why. The model is complete without it.
///
/// [`Checkpoint::warnings`](super::super::Checkpoint::warnings) returns them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A shard has tensors that the index does not name, or names for another shard.
    SkippedTensors {
        /// The shard.
        file: PathBuf,
        /// The index.
        index: PathBuf,
        /// The names of the first of these tensors, cut if they are long.
        tensors: Vec<String>,
        /// The number of all of them.
        count: usize,
    },
    /// A file has the name of a shard, and the index does not name it.
    UnnamedShard {
        /// The file.
        file: PathBuf,
        /// The index.
        index: PathBuf,
    },
    /// The files of an index are missing, but a file in the same folder has the whole model.
    StaleIndex {
        /// The index.
        index: PathBuf,
        /// The file that is loaded.
        file: PathBuf,
    },
    /// The contents of a file were to be compared, and no hash of it is known.
    NoHash {
        /// The file.
        file: PathBuf,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::SkippedTensors { file, index, tensors, count } => {
                let (file, index) = (Shown(file), Shown(index));
                let noun = if *count == 1 { "tensor" } else { "tensors" };
                write!(f, "skipped {count} {noun} of {file} that {index} does not name for this file: ")?;
                let others = (count - tensors.len()) as u64;
                write!(f, "{}", Listed { items: tensors.iter().map(|tensor| Quoted(tensor)), others })
            }
            Warning::UnnamedShard { file, index } => {
                write!(f, "skipped {}, which {} does not name", Shown(file), Shown(index))
            }
            Warning::NoHash { file } => write!(f, "cannot compare {}: no hash of it is known", Shown(file)),
            Warning::StaleIndex { index, file } => {
                write!(
                    f,
                    "skipped {}, because none of its files exists; loading {}",
                    Shown(index),
                    Shown(file)
                )
            }
        }
    }
}
