//! Loading: checkpoints, and their tensors in one buffer or in one buffer each.

pub(super) mod checkpoint;
pub(super) mod loaded;
