//! New memory for the blocks of tensors, which gpufile reads into and which then are quantised tensors.

#[cfg(feature = "cuda")]
mod cuda;
mod host;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Result, Shape};
use gpufile::IoBufMut;

/// Memory of one tensor.
pub(super) trait Memory: Send {
    /// Returns the bytes to read into.
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>>;

    /// Returns the tensor that the memory holds.
    fn into_qtensor(self: Box<Self>, shape: Shape, device: &Device) -> Result<QTensor>;
}

/// A block type, a number of elements and their bytes, to allocate.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub dtype: GgmlDType,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "candle allocates by elements on GPUs"))]
    pub elements: usize,
    pub len_bytes: usize,
}

/// Allocates zeros for tensors of a device.
///
/// # Errors
/// The device has no room.
pub(super) fn allocate(wanted: &[Wanted], device: &Device) -> Result<Vec<Box<dyn Memory>>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::allocate(wanted, device),
        _ => wanted.iter().map(|wanted| host::allocate(*wanted)).collect(),
    }
}
