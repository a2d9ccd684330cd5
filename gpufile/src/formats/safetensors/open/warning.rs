use std::fmt;
use std::path::PathBuf;

use crate::formats::Error;
use crate::formats::visible::{Listed, Quoted, Shown};

#[derive(Default)]
pub(super) struct Compared {
    pub hashed: usize,
    pub warnings: Vec<Warning>,
    pub problems: Vec<Error>,
}

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
    /// The files of an index are missing, but a file in the same folder has the whole model, or other shards do.
    StaleIndex {
        /// The index.
        index: PathBuf,
        /// The file that is loaded, or the first of several.
        file: PathBuf,
    },
    /// A file has the whole model, and a complete set of shards has its name, too.
    SkippedShards {
        /// The file that is loaded.
        file: PathBuf,
        /// The first of the shards.
        shard: PathBuf,
    },
    /// The names of the files differ in a number, and nothing says how many they should be. The last ones may be missing.
    Uncounted {
        /// The first file.
        file: PathBuf,
        /// The number of files that are loaded.
        count: usize,
        /// The number in the name of the first file.
        first: u64,
        /// The number in the name of the last file.
        last: u64,
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
            Warning::SkippedShards { file, shard } => {
                write!(
                    f,
                    "skipped {} and the shards that belong to it; loading {}",
                    Shown(shard),
                    Shown(file)
                )
            }
            Warning::Uncounted { file, count, first, last } => {
                write!(
                    f,
                    "nothing says how many files {} has: loading {count}, numbered from {first} to {last}",
                    Shown(file)
                )?;
                match (last - first).saturating_add(1).saturating_sub(*count as u64) {
                    0 => Ok(()),
                    missing => write!(f, ", of which {missing} are missing"),
                }
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
