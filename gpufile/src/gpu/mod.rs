//! The GPUs of the process, and what the engine needs at each: kernels, bounce buffers, and the processors near it.

pub(crate) mod bounce;
mod compiled;
pub(crate) mod gpus;
pub(crate) mod kernels;
pub(crate) mod nvtx;
#[cfg(feature = "formats")]
pub(crate) mod pack;
pub(crate) mod processors;
#[cfg(feature = "kv-blocks")]
pub(crate) mod sum;
pub(crate) mod unpack;
