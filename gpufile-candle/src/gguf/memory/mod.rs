//! New memory for the blocks of quantised tensors, into which gpufile reads.

#[cfg(feature = "cuda")]
mod cuda;
mod host;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Error, Result, Shape};
use gpufile::IoBufMut;

pub(super) trait Memory: Send {
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>>;

    fn into_qtensor(self: Box<Self>, shape: Shape, device: &Device) -> Result<QTensor>;
}

#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub name: &'a str,
    pub dtype: GgmlDType,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "candle allocates by elements on GPUs"))]
    pub elements: usize,
    pub len_bytes: usize,
}

impl Wanted<'_> {
    fn failed(&self, error: Error) -> Error {
        error.context(format!("tensor {} of {} bytes", self.name, self.len_bytes))
    }
}

/// Allocates zeros for tensors of a device.
pub(super) fn allocate(wanted: &[Wanted<'_>], device: &Device) -> Result<Vec<Box<dyn Memory>>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::allocate(wanted, device),
        _ => wanted.iter().map(|one| host::allocate(*one).map_err(|error| one.failed(error))).collect(),
    }
}
