use std::path::Path;

use burn_pack::Tensor;
use gpufile::formats::SaveOptions;
use gpufile::formats::safetensors::{self, TensorData};

use crate::{Error, dtype};

pub(crate) fn save(path: &Path, tensors: Vec<Tensor>) -> Result<(), Error> {
    let mut parts = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let (name, burns, shape, _, bytes) = tensor.into_parts()?;
        let dtype =
            dtype::to_file(burns).ok_or_else(|| format!("safetensors has no type for {}", burns.name()))?;
        let shape: Vec<_> = shape.iter().map(|&axis| axis as u64).collect();
        parts.push((name, dtype, shape, bytes));
    }
    let data =
        parts.iter().map(|(name, dtype, shape, bytes)| TensorData::new(name, *dtype, shape, &bytes[..]));
    safetensors::save(path, &data.collect::<Vec<_>>(), &SaveOptions::new())?;
    Ok(())
}
