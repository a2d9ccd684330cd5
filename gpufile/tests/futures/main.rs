//! Tests of transfers that a caller waits for later, and of those that are ordered with a stream.

mod lists;
mod one;
mod polling;
mod stream_io;
mod stream_lists;
