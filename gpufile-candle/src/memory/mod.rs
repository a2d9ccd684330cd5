//! New memory of a device, which gpufile reads into and which then is a tensor.

#[cfg(feature = "cuda")]
mod cuda;
mod host;
pub(crate) mod huge_pages;

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use gpufile::IoBufMut;
use gpufile::formats::Dtype;

use crate::dtype;

pub(crate) trait Memory: Send {
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>>;

    fn into_tensor(self: Box<Self>, shape: Shape, device: &Device) -> Result<Tensor>;
}

#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    pub len_bytes: usize,
}

impl Wanted<'_> {
    fn failed(&self, error: Error) -> Error {
        error.context(format!("tensor {} of {} bytes", self.name, self.len_bytes))
    }
}

/// Allocates memory for tensors of a device. The contents of memory of a GPU are undefined.
pub(crate) fn allocate(wanted: &[Wanted<'_>], device: &Device) -> Result<Vec<Box<dyn Memory>>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::allocate(wanted, device),
        _ => wanted.iter().map(|one| host::allocate(*one).map_err(|error| one.failed(error))).collect(),
    }
}

/// Returns the type that the elements have in memory. candle has no 16-bit unsigned numbers, so they become `U32`.
///
/// # Errors
/// candle lacks the type.
pub(crate) fn dtype_in_memory(from: Dtype) -> Result<DType> {
    if from == Dtype::U16 { Ok(DType::U32) } else { dtype::to_candle(from) }
}
