//! Saving: from tensors in memory to one file or to shards with an index, and replacing the older model.

pub(in crate::formats) mod abandoned;
pub(super) mod appended;
mod journal;
pub(super) mod models;
pub(super) mod plan;
mod replace;
mod shards;
#[cfg(feature = "s3")]
pub(super) mod uploaded;
