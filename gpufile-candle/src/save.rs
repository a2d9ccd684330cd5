use std::collections::HashMap;
use std::path::Path;

use candle_core::{CpuStorage, Error, Result, Storage, Tensor};
use gpufile::IoBuf;
use gpufile::formats::SaveOptions;
use gpufile::formats::safetensors::{self, TensorData};

use crate::dtype;
use crate::tensors::error;

/// Writes tensors to a safetensors file, as candle's `safetensors::save` does, straight from the memory of their device.
///
/// The file takes the place of an older one when it is complete and on the disk. A tensor that is a view with gaps is
/// copied on its device first.
///
/// # Errors
/// Writing fails, or a tensor is of one of candle's types without elements, such as `F4`.
pub fn save<K: AsRef<str>, P: AsRef<Path>>(tensors: &HashMap<K, Tensor>, path: P) -> Result<()> {
    let dense: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| Ok((name.as_ref(), tensor.contiguous()?)))
        .collect::<Result<_>>()?;
    let shapes: Vec<Vec<_>> =
        dense.iter().map(|(_, tensor)| tensor.dims().iter().map(|&axis| axis as u64).collect()).collect();
    let storages: Vec<_> = dense.iter().map(|(_, tensor)| tensor.storage_and_layout()).collect();
    let mut bytes = Vec::with_capacity(dense.len());
    for ((storage, layout), (_, tensor)) in storages.iter().zip(&dense) {
        bytes.push(bytes_of(storage, layout.start_offset(), tensor.elem_count())?);
    }
    let data: Vec<_> = dense
        .iter()
        .zip(&shapes)
        .zip(&bytes)
        .map(|(((name, tensor), shape), bytes)| {
            Ok(TensorData::new(name, dtype::to_file(tensor.dtype())?, shape, &**bytes))
        })
        .collect::<Result<_>>()?;
    safetensors::save(path, &data, &SaveOptions::new()).map_err(error)?;
    Ok(())
}

fn bytes_of(storage: &Storage, start: usize, len: usize) -> Result<Box<dyn IoBuf + '_>> {
    match storage {
        Storage::Cpu(storage) => Ok(Box::new(on_host(storage, start, len)?)),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => on_gpu(storage, start, len),
        _ => Err(Error::msg("tensors of this device cannot be saved; move them to the CPU first")),
    }
}

fn on_host(storage: &CpuStorage, start: usize, len: usize) -> Result<&[u8]> {
    use bytemuck::cast_slice;
    let range = start..start + len;
    Ok(match storage {
        CpuStorage::U8(all) => &all[range],
        CpuStorage::U32(all) => cast_slice(&all[range]),
        CpuStorage::I16(all) => cast_slice(&all[range]),
        CpuStorage::I32(all) => cast_slice(&all[range]),
        CpuStorage::I64(all) => cast_slice(&all[range]),
        CpuStorage::BF16(all) => cast_slice(&all[range]),
        CpuStorage::F16(all) => cast_slice(&all[range]),
        CpuStorage::F32(all) => cast_slice(&all[range]),
        CpuStorage::F64(all) => cast_slice(&all[range]),
        CpuStorage::F8E4M3(all) => cast_slice(&all[range]),
        // Each is the whole of its tensor: candle cannot slice them.
        CpuStorage::F6E2M3(all) | CpuStorage::F6E3M2(all) | CpuStorage::F4(all) | CpuStorage::F8E8M0(all) => {
            all
        }
    })
}

#[cfg(feature = "cuda")]
fn on_gpu(storage: &candle_core::CudaStorage, start: usize, len: usize) -> Result<Box<dyn IoBuf + '_>> {
    use candle_core::cuda_backend::CudaStorageSlice as Slice;
    use candle_core::cuda_backend::cudarc::driver::CudaSlice;
    use gpufile::cudarc::Synced;

    fn part<T>(all: &CudaSlice<T>, start: usize, len: usize) -> Result<Box<dyn IoBuf + '_>> {
        Ok(Box::new(Synced::new(all.slice(start..start + len)).map_err(Error::wrap)?))
    }
    match &storage.slice {
        Slice::U8(all) => part(all, start, len),
        Slice::U32(all) => part(all, start, len),
        Slice::I16(all) => part(all, start, len),
        Slice::I32(all) => part(all, start, len),
        Slice::I64(all) => part(all, start, len),
        Slice::BF16(all) => part(all, start, len),
        Slice::F16(all) => part(all, start, len),
        Slice::F32(all) => part(all, start, len),
        Slice::F64(all) => part(all, start, len),
        Slice::F8E4M3(all) => part(all, start, len),
        Slice::F6E2M3(all) | Slice::F6E3M2(all) | Slice::F4(all) | Slice::F8E8M0(all) => {
            part(all, 0, all.len())
        }
    }
}
