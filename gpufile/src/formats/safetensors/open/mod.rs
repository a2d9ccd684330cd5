//! Opening and verifying: from a path to the files of a model, and to the catalog of their tensors. No tensor is read
//! here, except to compare hashes.

pub(super) mod catalog;
pub(super) mod files;
mod folder;
#[cfg(feature = "hash")]
mod hashes;
mod names;
#[cfg(feature = "remote")]
mod remote;
pub(super) mod rule;
mod sets;
pub(super) mod verify;
pub(super) mod warning;
