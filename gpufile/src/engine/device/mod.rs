//! The side of one GPU: the streams that its lanes share, and the copies between bounce buffers and device memory.
//!
//! Nothing here knows files or chunks.

pub(super) mod buffers;
pub(super) mod copies;
mod staging;
mod staging_memory;
pub(super) mod streams;
pub(super) mod submitter;
pub(super) mod unpacker;

// These tests lie outside the module that they test, because the models of interleavings compile that module again.
#[cfg(test)]
mod copies_tests;
