//! The transfers that own their buffers, and those that a stream waits for.

#[path = "../../src/future/io_future.rs"]
pub mod io_future;
#[path = "../../src/future/owned.rs"]
pub mod owned;
#[path = "../../src/future/stream_io.rs"]
pub mod stream_io;
