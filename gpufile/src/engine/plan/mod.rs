//! Plans of transfers: what a call asks for, the chunks that it is cut into, and the order of handing them out.
//!
//! A plan starts no thread and copies no byte. Only a write plan changes a file: it allocates blocks, or maps the file.

pub(super) mod chunks;
pub(super) mod overlap;
pub(super) mod refusals;
pub(super) mod schedule;
pub(super) mod transfer;
pub(super) mod write_plan;
