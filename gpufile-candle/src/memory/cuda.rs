//! Memory of a GPU, allocated by candle.

use bytemuck::AnyBitPattern;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DeviceRepr};
use candle_core::cuda_backend::{CudaDType, CudaStorage, CudaStorageSlice};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, DType, Device, Error, Result, Shape, Storage, Tensor};
use gpufile::IoBufMut;
use gpufile::cudarc::Synced;
use gpufile::formats::Dtype;

use super::{Memory, Wanted, host};
use crate::dtype;

pub(super) fn allocate(wanted: &[Wanted<'_>], device: &CudaDevice) -> Result<Vec<Box<dyn Memory>>> {
    let memory =
        wanted.iter().map(|wanted| one(*wanted, device).map_err(|error| wanted.failed(error))).collect();
    // `synced` relies on this. Reads of other groups go on.
    device.cuda_stream().synchronize().map_err(Error::wrap)?;
    memory
}

fn one(wanted: Wanted<'_>, device: &CudaDevice) -> Result<Box<dyn Memory>> {
    fn of<T: AnyBitPattern + CudaDType + DeviceRepr>(
        bytes: usize,
        device: &CudaDevice,
    ) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Elements(slice::<T>(bytes, device)?)))
    }
    if wanted.dtype == Dtype::U16 {
        return host::allocate(wanted); // candle widens the elements on the host, too
    }
    let of_type = match dtype::to_candle(wanted.dtype)? {
        DType::U8 => of::<u8>,
        DType::U32 => of::<u32>,
        DType::I16 => of::<i16>,
        DType::I32 => of::<i32>,
        DType::I64 => of::<i64>,
        DType::BF16 => of::<half::bf16>,
        DType::F16 => of::<half::f16>,
        DType::F32 => of::<f32>,
        DType::F64 => of::<f64>,
        DType::F8E4M3 => of::<float8::F8E4M3>,
        raw => return Ok(Box::new(Raw(slice(wanted.len_bytes, device)?, raw))),
    };
    of_type(wanted.len_bytes, device)
}

fn slice<T: AnyBitPattern + DeviceRepr>(len_bytes: usize, device: &CudaDevice) -> Result<CudaSlice<T>> {
    // SAFETY: a file is read into all of the memory before it becomes a tensor.
    unsafe { device.alloc::<T>(len_bytes / size_of::<T>()) }
}

fn synced<T: AnyBitPattern>(slice: &mut CudaSlice<T>) -> Result<Box<dyn IoBufMut + '_>> {
    // SAFETY: no work uses the memory but its allocation, for which `allocate` waited.
    Ok(Box::new(unsafe { Synced::in_its_stream(slice) }.map_err(Error::wrap)?))
}

/// Elements of a type that candle computes with.
struct Elements<T>(CudaSlice<T>);

impl<T: AnyBitPattern + CudaDType> Memory for Elements<T> {
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>> {
        synced(&mut self.0)
    }

    fn into_tensor(self: Box<Self>, shape: Shape, device: &Device) -> Result<Tensor> {
        let storage = CudaStorage::wrap_cuda_slice(self.0, device.as_cuda_device()?.clone());
        Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
    }
}

/// Elements that candle keeps as bytes.
struct Raw(CudaSlice<u8>, DType);

impl Memory for Raw {
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>> {
        synced(&mut self.0)
    }

    fn into_tensor(self: Box<Self>, shape: Shape, device: &Device) -> Result<Tensor> {
        let Self(bytes, dtype) = *self;
        let slice = match dtype {
            DType::F4 => CudaStorageSlice::F4(bytes),
            DType::F6E2M3 => CudaStorageSlice::F6E2M3(bytes),
            DType::F6E3M2 => CudaStorageSlice::F6E3M2(bytes),
            DType::F8E8M0 => CudaStorageSlice::F8E8M0(bytes),
            other => return Err(Error::msg(format!("candle has no {} on GPUs", other.as_str()))),
        };
        let storage = CudaStorage { slice, device: device.as_cuda_device()?.clone() };
        Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
    }
}
