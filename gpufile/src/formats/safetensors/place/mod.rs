//! Placing: from a placement to a buffer for each GPU, and the reads, copies and exchanges that fill the buffers.

pub(super) mod arrange;
#[cfg(feature = "nccl")]
mod by_rank;
mod flow;
pub(super) mod group;
pub(super) mod layout;
mod links;
pub(super) mod on_gpu;
pub(super) mod placed;
pub(super) mod placement;
pub(super) mod plan;
pub(super) mod runs;
mod target;
