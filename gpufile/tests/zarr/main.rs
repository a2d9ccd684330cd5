//! Tests of Zarr arrays, on the host and on GPUs.

mod arrays;
mod mutations;
mod on_gpus;
mod python;
