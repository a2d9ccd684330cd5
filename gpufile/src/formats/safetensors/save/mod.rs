//! Saving: from tensors in memory to one file, or to shards with an index.
//!
//! A file is written under a temporary name and renamed. Shards have new names for each save, so they meet no other file, and
//! the rename of the index switches from the old model to the new one. Both leave all other files as they are, except if
//! [`SaveOptions::remove_old_model`](crate::formats::SaveOptions::remove_old_model) asks for the removal of [`older`] ones.

pub(super) mod appended;
pub(super) mod convert;
pub(super) mod models;
pub(super) mod objects;
mod older;
mod on_gpu;
pub(super) mod packed;
pub(super) mod plan;
mod shards;
#[cfg(feature = "s3")]
pub(super) mod uploaded;
