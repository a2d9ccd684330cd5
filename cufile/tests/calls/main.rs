//! Tests of each part of the crate on the emulator, and on a GPU where there is one.

mod batch;
mod buffer;
mod copy_batch;
mod cuda;
mod driver;
mod handle;
mod mapped;
mod params;
mod scope;
mod stats;
mod stream_ordered;
mod userspace_fs;
