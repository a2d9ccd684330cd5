//! Loading: checkpoints, and their tensors in one buffer or in one buffer each.

#[cfg(feature = "remote")]
mod at_url;
pub(super) mod checkpoint;
pub(super) mod loaded;
