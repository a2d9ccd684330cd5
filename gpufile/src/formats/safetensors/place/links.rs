use std::path::Path;

use super::arrange::groups;
use crate::cuda::{Device, Stream};
use crate::formats::{Error, Result};

/// The GPUs of a load, the groups of those that use each other's memory, and a stream on each for copies to others.
///
/// Dropping it waits for the copies.
pub(super) struct Links {
    /// Created when first needed.
    streams: Vec<Option<Stream>>,
    pub devices: Vec<Device>,
    pub groups: Vec<Vec<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    ByCopies,
    /// Kernels of either GPU scatter ranges into the memory of the other.
    ByKernels,
}

impl Links {
    /// Finds the groups if there is something to share. Lets the GPUs of a group use each other's memory.
    ///
    /// For copies, one direction between two GPUs is enough: copies in both take that way. Each direction makes
    /// allocations slower.
    pub fn new(devices: &[Device], shared: Option<Use>) -> Self {
        let may_use = |one: &Device, other: &Device| {
            one.can_access_peer(other).is_ok_and(|can| can) && one.enable_peer_access(other).is_ok()
        };
        // If CUDA refuses, or a GPU has failed, each GPU reads for itself and reports its own errors.
        let are_peers = |one: usize, other: usize| {
            shared.is_some_and(|how| {
                may_use(&devices[one], &devices[other])
                    && (how == Use::ByCopies || may_use(&devices[other], &devices[one]))
            })
        };
        Self {
            streams: devices.iter().map(|_| None).collect(),
            devices: devices.to_vec(),
            groups: groups(devices.len(), are_peers),
        }
    }

    /// Starts a copy between the memory of two GPUs, after the copies from the first one so far.
    ///
    /// # Safety
    /// `source` must be `len_bytes` of memory of the first GPU, and `target` the same number of bytes of the second.
    /// Until [`wait`](Self::wait) returns or the value is dropped, nothing may write `source`, and nothing else may
    /// use `target`.
    pub unsafe fn copy(
        &mut self,
        path: &Path,
        (from, source): (usize, *const u8),
        (to, target): (usize, *mut u8),
        len_bytes: usize,
    ) -> Result<()> {
        let device = &self.devices[from];
        let stream = &mut self.streams[from];
        let mut copy = || {
            let stream = match stream {
                Some(stream) => stream,
                None => stream.insert(device.stream()?),
            };
            // SAFETY: the caller's promise.
            unsafe { stream.copy_to_peer(&self.devices[to], target, source, len_bytes) }
        };
        copy().map_err(|error| failed(path, device, error))
    }

    /// Waits for all copies. After an error, copies of other GPUs may be in flight.
    pub fn wait(&self, path: &Path) -> Result<()> {
        for (stream, device) in self.streams.iter().zip(&self.devices) {
            if let Some(stream) = stream {
                stream.synchronize().map_err(|error| failed(path, device, error))?;
            }
        }
        Ok(())
    }
}

fn failed(path: &Path, device: &Device, error: cufile::Error) -> Error {
    Error::PeerCopy { path: path.to_owned(), gpu: device.ordinal(), cause: error.into() }
}
