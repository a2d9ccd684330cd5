//! Memory of a GPU, which candle allocates and gpufile reads into.

use super::*;
use bytemuck::AnyBitPattern as Any;
use candle_core::cuda_backend::{
    CudaDType, CudaStorage, cudarc::driver::CudaSlice, cudarc::driver::DeviceRepr,
};
use candle_core::{CudaDevice, Storage, op::BackpropOp};
use gpufile::cudarc::Synced;

impl<T: Any + CudaDType> Memory for Synced<CudaSlice<T>> {
    fn into_tensor(self: Box<Self>, info: &TensorInfo<'_>, device: &Device) -> Result<Tensor> {
        let storage = CudaStorage::wrap_cuda_slice(self.into_inner(), device.as_cuda_device()?.clone());
        Ok(Tensor::from_storage(Storage::Cuda(storage), shape(info), BackpropOp::none(), false))
    }
}

pub fn allocate(info: &TensorInfo<'_>, device: &CudaDevice) -> Result<Box<dyn Memory>> {
    fn of<T: Any + CudaDType + DeviceRepr>(n: u64, device: &CudaDevice) -> Result<Box<dyn Memory>> {
        // SAFETY: a read fills the memory before it becomes a tensor.
        let slice = unsafe { device.alloc::<T>(n as usize)? };
        Ok(Box::new(Synced::new(slice).map_err(Error::wrap)?))
    }
    #[rustfmt::skip] // two types a line
    let of_type = match dtype(info.dtype)? {
        DType::U8 => of::<u8>, DType::U32 => of::<u32>,
        DType::I16 => of::<i16>, DType::I32 => of::<i32>, DType::I64 => of::<i64>,
        DType::BF16 => of::<half::bf16>, DType::F16 => of::<half::f16>,
        DType::F32 => of::<f32>, DType::F64 => of::<f64>, DType::F8E4M3 => of::<float8::F8E4M3>,
        other => return Err(Error::msg(format!("candle has no {} on GPUs", other.as_str()))),
    };
    of_type(info.elements(), device)
}
