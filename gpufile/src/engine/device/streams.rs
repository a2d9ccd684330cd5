//! The streams by which chunks of files go to a GPU.

use cufile::cuda::{Device, Stream};

/// The streams in which the lanes of a GPU submit what they have read.
///
/// In a stream with copies and kernels, copies wait for kernels. Streams share a few hardware queues, where a copy
/// that waits keeps others waiting, of other streams too. So the copies of all lanes are in one stream, where none
/// waits for a kernel, and the kernels are in another.
pub(crate) struct Streams {
    pub copies: Stream,
    pub kernels: Stream,
}

impl Streams {
    /// Returns new streams of a GPU.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn new(device: &Device) -> cufile::Result<Self> {
        Ok(Self { copies: device.stream()?, kernels: device.stream()? })
    }

    /// Waits for all work in these streams, which may be that of other lanes.
    ///
    /// # Errors
    /// The error that CUDA returned, which may be that of the work.
    pub fn synchronize(&self) -> cufile::Result<()> {
        self.copies.synchronize().and(self.kernels.synchronize())
    }
}
