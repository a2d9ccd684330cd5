//! Memory of several GPUs as the target of one read.

use cufile::{IoBuf, IoBufMut, Location, OwnedPart};

use crate::cuda::{Device, DeviceBuffer};

/// Parts of the buffers of several GPUs, which one of them reads to. It has access to the memory of the others.
///
/// As a buffer, it spans all of the parts and whatever lies between them, so the ranges of a read must lie in the parts. A
/// read through cuFile must have a single part.
pub(super) struct Target {
    /// Keeps the buffers.
    _parts: Vec<OwnedPart<DeviceBuffer>>,
    start: *mut u8,
    len_bytes: usize,
    location: Location,
}

// SAFETY: the address is used only by CUDA, which any thread may call.
unsafe impl Send for Target {}
// SAFETY: as above; nothing is written through a shared reference.
unsafe impl Sync for Target {}

impl Target {
    pub fn new(parts: Vec<OwnedPart<DeviceBuffer>>, device: &Device) -> Self {
        let mut parts = parts;
        let mut ranges: Vec<_> = parts.iter_mut().map(|part| (part.as_mut_ptr(), part.len_bytes())).collect();
        ranges.sort_unstable();
        let start = ranges[0].0;
        let end = ranges.iter().map(|(part, len_bytes)| part.addr() + len_bytes).max();
        let len_bytes = end.expect("there is a part") - start.addr();
        let location = match &parts[..] {
            [part] => part.location(),
            _ => Location::device(device.context()),
        };
        Self { _parts: parts, start, len_bytes, location }
    }
}

// SAFETY: the parts stay at their addresses until dropped. All are device memory that CUDA allocated, and the context of the
// location has access to it. Bytes between the parts are never used.
unsafe impl IoBuf for Target {
    fn as_ptr(&self) -> *const u8 {
        self.start
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        self.location
    }
}

// SAFETY: the parts are owned.
unsafe impl IoBufMut for Target {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }
}
