//! Packed tensors: their values without loss in fewer bytes, in groups that are decoded each by itself.
//!
//! ```text
//! layout   the head of a tensor and the index of its groups, parsed and checked
//! group    the code of a group of values: a block, and back
//! sum      the checksum of a block, and of a head with its index
//! vector   the steps in vector instructions
//! ```
//!
//! The page `docs/packed.md` of the repository specifies the format. Nothing is read or written here:
//! `safetensors/packed` has the files.

mod fault;
mod group;
mod layout;
mod sum;
#[cfg(test)]
mod tests;
mod vector;

use std::ops::Range;

pub(super) use fault::{Fault, VERSION};
pub(super) use group::{Coder, Histogram, Scratch, count, decode};
pub(super) use layout::{Entry, GROUP, Kind, Layout, UNIT, front_bytes};

/// Returns the groups that have these bytes of a tensor.
pub(super) fn groups_of(kind: Kind, bytes: &Range<u64>) -> Range<usize> {
    let group = (GROUP * kind.value_bytes()) as u64;
    (bytes.start / group) as usize..bytes.end.div_ceil(group) as usize
}
