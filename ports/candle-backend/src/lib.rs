//! A backend of candle's `VarBuilder` on gpufile, for the CPU, and with the feature `cuda` for GPUs.

#[cfg(feature = "cuda")]
mod gpu;

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};
use gpufile::formats::safetensors::{Checkpoint, Load, TensorInfo};
use gpufile::{IoBufMut, formats};
use std::{collections::HashMap, path::Path};

/// Returns a builder whose tensors are read from a model when they are asked for.
pub fn var_builder(path: impl AsRef<Path>, dtype: DType, device: &Device) -> Result<VarBuilder<'static>> {
    let backend = Backend(Checkpoint::open(path).map_err(error)?);
    Ok(VarBuilder::from_backend(Box::new(backend), dtype, device.clone()))
}

/// Reads all tensors of a model.
pub fn load_all(path: impl AsRef<Path>, device: &Device) -> Result<HashMap<String, Tensor>> {
    read(Checkpoint::open(path).map_err(error)?.load(), device)
}

/// Reads tensors into new memory of the device, by one call of the engine.
fn read<C: FromIterator<(String, Tensor)>>(load: Load<'_>, device: &Device) -> Result<C> {
    let tensors = load.to_each(|info| allocate(info, device)).map_err(error)?.into_iter();
    tensors.map(|(info, memory)| Ok((info.name.to_owned(), memory.into_tensor(&info, device)?))).collect()
}

/// Memory that is a tensor when it has its bytes.
trait Memory: IoBufMut {
    fn into_tensor(self: Box<Self>, info: &TensorInfo<'_>, device: &Device) -> Result<Tensor>;
}

impl Memory for Vec<u8> {
    fn into_tensor(self: Box<Self>, info: &TensorInfo<'_>, device: &Device) -> Result<Tensor> {
        Tensor::from_raw_buffer(&self, dtype(info.dtype)?, &shape(info), device)
    }
}

fn allocate(info: &TensorInfo<'_>, device: &Device) -> Result<Box<dyn Memory>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => gpu::allocate(info, device),
        _ => Ok(Box::new(vec![0; info.len_bytes() as usize])),
    }
}

fn shape(info: &TensorInfo<'_>) -> Vec<usize> {
    info.shape.iter().map(|&axis| axis as usize).collect()
}

fn dtype(dtype: formats::Dtype) -> Result<DType> {
    let name = dtype.name().to_lowercase().replace('_', "");
    name.parse().map_err(|_| Error::msg(format!("candle has no type for {dtype}")))
}

fn error(error: formats::Error) -> Error {
    match error {
        formats::Error::NoSuchTensor { tensor, .. } => Error::CannotFindTensor { path: tensor }.bt(),
        other => Error::wrap(other),
    }
}

struct Backend(Checkpoint);

impl SimpleBackend for Backend {
    fn get(&self, expected: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        let (msg, got) = (format!("tensor {name} has another shape"), tensor.shape().clone());
        if got == expected { Ok(tensor) } else { Err(Error::UnexpectedShape { msg, expected, got }.bt()) }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let one: Vec<_> = read(self.0.load().only([name]).map_err(error)?, device)?;
        one[0].1.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.tensor(name).is_some()
    }
}
