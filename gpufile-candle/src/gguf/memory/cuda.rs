//! Memory of a GPU, allocated by candle.

use candle_core::backend::BackendDevice;
use candle_core::quantized::cuda::QCudaStorage;
use candle_core::quantized::{QStorage, QTensor};
use candle_core::{CudaDevice, Device, DeviceLocation, Error, Result, Shape};
use gpufile::{BufSliceMut, Engine, IoBufMut, cuda};

use super::{Memory, Wanted};

pub(super) fn allocate(wanted: &[Wanted<'_>], candles: &CudaDevice) -> Result<Vec<Box<dyn Memory>>> {
    let DeviceLocation::Cuda { gpu_id } = candles.location() else {
        return Err(Error::msg("candle's CUDA device is on no GPU"));
    };
    let device =
        Engine::global().cuda().and_then(|cuda| Ok(cuda.device(gpu_id as u32)?)).map_err(Error::wrap)?;
    let of = |&Wanted { dtype, elements, len_bytes, .. }: &Wanted<'_>| -> Result<Box<dyn Memory>> {
        // candle's kernels read beyond the last row, and `zeros` allocates for that.
        let storage = QCudaStorage::zeros(candles, elements, dtype)?;
        let address = storage.device_ptr()?.cast_mut();
        Ok(Box::new(Blocks { device: device.clone(), storage, address, len_bytes }))
    };
    let memory = wanted.iter().map(|wanted| of(wanted).map_err(|error| wanted.failed(error))).collect();
    // `buffer` relies on this.
    candles.cuda_stream().synchronize().map_err(Error::wrap)?;
    memory
}

/// Blocks in candle's memory, of which nothing else has the address.
struct Blocks {
    device: cuda::Device,
    storage: QCudaStorage,
    address: *mut u8,
    len_bytes: usize,
}

// SAFETY: an owning pointer to memory of a GPU, which any thread may pass to CUDA.
unsafe impl Send for Blocks {}

impl Memory for Blocks {
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>> {
        // SAFETY: memory of the storage, which has at least these bytes and lives as long as the borrow. `allocate` waited for
        // the zeros, and no other work uses it.
        Ok(Box::new(unsafe { BufSliceMut::from_device(&self.device, self.address, self.len_bytes) }))
    }

    fn into_qtensor(self: Box<Self>, shape: Shape, _: &Device) -> Result<QTensor> {
        QTensor::new(QStorage::Cuda(self.storage), shape)
    }
}
