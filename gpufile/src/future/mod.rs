//! Transfers that do not wait: the caller gets the buffer back when they are done.

pub(crate) mod io_future;
pub(crate) mod owned;
mod owned_lists;
mod stream_io;
mod stream_lists;

pub use io_future::IoFuture;
