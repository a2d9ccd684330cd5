//! Opening and verifying: from a path to the files of a model, and to the catalog of their tensors. No tensor is read
//! here, except to compare hashes.

pub(super) mod catalog;
#[cfg(feature = "hash")]
mod contents;
pub(super) mod files;
mod folder;
#[cfg_attr(not(feature = "hash"), path = "no_hashes.rs")]
mod hashes;
mod names;
#[cfg(feature = "remote")]
mod remote;
pub(super) mod rule;
mod sets;
pub(super) mod verify;
pub(super) mod warning;
