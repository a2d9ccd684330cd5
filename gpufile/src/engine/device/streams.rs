//! The streams by which chunks of files go to a GPU.

use cufile::cuda::{Device, Stream};
use cufile::fork::OnceCell;

use super::unpacker::Unpacker;

/// The streams in which the lanes of a GPU submit what they have read.
///
/// In one stream, copies wait for kernels. Streams share a few hardware queues, where a waiting copy also delays other
/// streams. So the copies of all lanes are in one stream, and the kernels in another.
pub(crate) struct Streams {
    pub copies: Stream,
    pub kernels: Stream,
    /// Made when the first packed tensor is read. `None` if the GPU lacks memory for it, or does not load its kernel.
    unpacker: OnceCell<Option<Unpacker>>,
}

impl Streams {
    /// Returns new streams of a GPU.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn new(device: &Device) -> cufile::Result<Self> {
        Ok(Self { copies: device.stream()?, kernels: device.stream()?, unpacker: OnceCell::new() })
    }

    /// Returns the decoder of packed tensors, for bounce buffers of this length, the same in all calls.
    pub fn unpacker(&self, buffer_bytes: usize) -> Option<&Unpacker> {
        let make = || Unpacker::new(self.copies.device(), buffer_bytes).ok();
        self.unpacker.get_or_init(make).as_ref()
    }

    pub fn unpacker_bytes(&self) -> usize {
        self.unpacker.get().and_then(Option::as_ref).map_or(0, Unpacker::len_bytes)
    }

    /// Waits for all work in these streams, which may be that of other lanes.
    ///
    /// # Errors
    /// The error that CUDA returned, which may be that of the work.
    pub fn synchronize(&self) -> cufile::Result<()> {
        self.copies.synchronize().and(self.kernels.synchronize())
    }
}
