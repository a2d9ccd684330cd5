//! Memory that transfers may use, found by address.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use gpufile::kv_blocks::{Piece, Region};
use gpufile::{IoBuf, IoBufMut};

use crate::layout::Descriptor;

type Buffer = Box<dyn IoBufMut + Send>;

/// Registered memory. CUDA gives each byte of a process an address of its own, so one map has GPUs and the host.
///
/// Memory of a framework becomes a buffer by [`DeviceMemory::from_raw`](gpufile::cuda::DeviceMemory::from_raw), with the
/// value that keeps it allocated.
#[derive(Debug, Default)]
pub struct Memory(RwLock<Registered>);

pub(crate) type Registered = BTreeMap<usize, Region<Buffer>>;

/// The reason why memory was not registered.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len_bytes} bytes at address {address:#x} overlap memory that is registered")]
pub struct RegisterError {
    pub address: usize,
    pub len_bytes: usize,
}

impl Memory {
    /// Takes over a buffer. Returns its address, with which layouts are made.
    ///
    /// # Errors
    /// If some of it is registered. The buffer is dropped.
    pub fn register(&self, buffer: impl IoBufMut + Send + 'static) -> Result<usize, RegisterError> {
        let buffer: Buffer = Box::new(buffer);
        let (address, len_bytes) = (buffer.as_ptr().addr(), buffer.len_bytes());
        let mut regions = self.write();
        let before = regions.range(..address.saturating_add(len_bytes.max(1))).next_back();
        if before.is_some_and(|(start, region)| start + region.len_bytes().max(1) > address) {
            return Err(RegisterError { address, len_bytes });
        }
        regions.insert(address, Region::new(buffer));
        Ok(address)
    }

    /// Gives up the memory that was registered with this address. Returns false if there is none. Transfers in flight keep the
    /// buffer until they have ended.
    pub fn deregister(&self, address: usize) -> bool {
        self.write().remove(&address).is_some()
    }

    /// Calls `access` with the buffer that was registered with this address. Returns `None` without a call if there is none,
    /// or while a transfer uses some of it.
    pub fn access<R>(
        &self,
        address: usize,
        access: impl FnOnce(&mut (dyn IoBufMut + Send)) -> R,
    ) -> Option<R> {
        let region = self.read().get(&address).cloned()?;
        region.access(|buffer| access(&mut **buffer))
    }

    /// Returns the number of bytes that transfers use, also those that were cancelled and have not ended.
    pub fn bytes_in_use(&self) -> usize {
        self.read().values().map(Region::bytes_in_use).sum()
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Registered> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Registered> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the piece of a registered region that a descriptor names.
pub(crate) fn piece<'a>(regions: &'a Registered, descriptor: &Descriptor) -> Option<Piece<'a>> {
    let Descriptor { address, len_bytes, offset } = *descriptor;
    let (start, region) = regions.range(..=address).next_back()?;
    let at = address - start;
    let fits = at.checked_add(len_bytes).is_some_and(|end| end <= region.len_bytes());
    fits.then(|| region.piece(at, len_bytes, offset))
}
