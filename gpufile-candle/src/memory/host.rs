//! Memory of the host. A vector of elements becomes a tensor without a copy.

use bytemuck::Pod;
use bytemuck::allocation::try_zeroed_vec;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Error, Result, Shape, Storage, Tensor, WithDType};
use gpufile::IoBufMut;
use gpufile::formats::Dtype;

use super::{Memory, Wanted, huge_pages};
use crate::dtype;

pub(super) fn allocate(wanted: Wanted<'_>) -> Result<Box<dyn Memory>> {
    if wanted.dtype == Dtype::U16 {
        return Ok(Box::new(Short(zeros(wanted.len_bytes)?)));
    }
    fn of<T: Pod + WithDType>(len_bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Elements::<T>(zeros(len_bytes)?)))
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
        raw => return Ok(Box::new(Raw(zeros(wanted.len_bytes)?, raw))),
    };
    of_type(wanted.len_bytes)
}

/// Returns zeros, most of which the kernel provides when they are first written.
fn zeros<T: Pod>(len_bytes: usize) -> Result<Vec<T>> {
    let failed = |()| Error::msg("the host has no room");
    let mut zeros = try_zeroed_vec::<T>(len_bytes / size_of::<T>()).map_err(failed)?;
    huge_pages::prefer(bytemuck::cast_slice_mut(&mut zeros));
    Ok(zeros)
}

/// Elements of a type that candle computes with.
struct Elements<T>(Vec<T>);

impl<T: Pod + WithDType> Memory for Elements<T> {
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>> {
        Ok(Box::new(bytemuck::cast_slice_mut::<T, u8>(&mut self.0)))
    }

    fn into_tensor(self: Box<Self>, shape: Shape, device: &Device) -> Result<Tensor> {
        Tensor::from_vec(self.0, shape, device)
    }
}

/// Elements of 16 bits without a sign, which candle lacks.
struct Short(Vec<u16>);

impl Memory for Short {
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>> {
        Ok(Box::new(bytemuck::cast_slice_mut::<u16, u8>(&mut self.0)))
    }

    fn into_tensor(self: Box<Self>, shape: Shape, device: &Device) -> Result<Tensor> {
        Tensor::from_vec(self.0.into_iter().map(u32::from).collect::<Vec<_>>(), shape, device)
    }
}

/// Elements that candle keeps as bytes.
struct Raw(Vec<u8>, DType);

impl Memory for Raw {
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>> {
        Ok(Box::new(&mut self.0[..]))
    }

    fn into_tensor(self: Box<Self>, shape: Shape, device: &Device) -> Result<Tensor> {
        let Self(bytes, dtype) = *self;
        let storage = match (dtype, device) {
            (DType::F4, Device::Cpu) => CpuStorage::F4(bytes),
            (DType::F6E2M3, Device::Cpu) => CpuStorage::F6E2M3(bytes),
            (DType::F6E3M2, Device::Cpu) => CpuStorage::F6E3M2(bytes),
            (DType::F8E8M0, Device::Cpu) => CpuStorage::F8E8M0(bytes),
            _ => return Tensor::from_raw_buffer(&bytes, dtype, shape.dims(), device),
        };
        Ok(Tensor::from_storage(Storage::Cpu(storage), shape, BackpropOp::none(), false))
    }
}
