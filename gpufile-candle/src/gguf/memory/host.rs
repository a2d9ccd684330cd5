//! Memory of the host. A vector of blocks becomes a tensor without a copy.

use std::alloc::{Layout, alloc_zeroed};
use std::slice;

use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::k_quants::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0,
    BlockQ8_1, BlockQ8K, GgmlType,
};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Error, Result, Shape};
use gpufile::IoBufMut;

use super::{Memory, Wanted};
use crate::memory::huge_pages;

pub(super) fn allocate(wanted: Wanted<'_>) -> Result<Box<dyn Memory>> {
    fn of<T: Blocks>(len_bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Vector(zeros::<T>(len_bytes)?)))
    }
    let of_type = match wanted.dtype {
        GgmlDType::F32 => of::<f32>,
        GgmlDType::F16 => of::<half::f16>,
        GgmlDType::BF16 => of::<half::bf16>,
        GgmlDType::Q4_0 => of::<BlockQ4_0>,
        GgmlDType::Q4_1 => of::<BlockQ4_1>,
        GgmlDType::Q5_0 => of::<BlockQ5_0>,
        GgmlDType::Q5_1 => of::<BlockQ5_1>,
        GgmlDType::Q8_0 => of::<BlockQ8_0>,
        GgmlDType::Q8_1 => of::<BlockQ8_1>,
        GgmlDType::Q2K => of::<BlockQ2K>,
        GgmlDType::Q3K => of::<BlockQ3K>,
        GgmlDType::Q4K => of::<BlockQ4K>,
        GgmlDType::Q5K => of::<BlockQ5K>,
        GgmlDType::Q6K => of::<BlockQ6K>,
        GgmlDType::Q8K => of::<BlockQ8K>,
    };
    of_type(wanted.len_bytes)
}

/// Blocks that are integers and floats without padding: any bytes are a valid block.
///
/// # Safety
/// Any bytes must be a valid value, and a value must have no padding.
unsafe trait Blocks: GgmlType + 'static {}

macro_rules! blocks {
    ($($block:ty),+ $(,)?) => {$(
        // SAFETY: numbers and arrays of numbers, whose sizes add up to that of the whole; candle asserts it.
        unsafe impl Blocks for $block {}
    )+};
}

blocks! {
    f32, half::f16, half::bf16, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, BlockQ8_1, BlockQ2K, BlockQ3K,
    BlockQ4K, BlockQ5K, BlockQ6K, BlockQ8K,
}

/// Returns zeros, most of which the kernel provides when they are first written.
fn zeros<T: Blocks>(len_bytes: usize) -> Result<Vec<T>> {
    let none = || Error::msg("the host has no room");
    let len = len_bytes / size_of::<T>();
    if len == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<T>(len).map_err(|_| none())?;
    // SAFETY: the layout has bytes.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if start.is_null() {
        return Err(none());
    }
    // SAFETY: allocated with the layout of so many blocks, and zeros are blocks.
    let mut blocks = unsafe { Vec::from_raw_parts(start, len, len) };
    huge_pages::prefer(bytes_of(&mut blocks));
    Ok(blocks)
}

fn bytes_of<T: Blocks>(blocks: &mut [T]) -> &mut [u8] {
    // SAFETY: the memory of the blocks, which have no padding and which any bytes may overwrite.
    unsafe { slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), size_of_val(blocks)) }
}

struct Vector<T>(Vec<T>);

impl<T: Blocks> Memory for Vector<T> {
    fn buffer(&mut self) -> Result<Box<dyn IoBufMut + '_>> {
        Ok(Box::new(bytes_of(&mut self.0)))
    }

    fn into_qtensor(mut self: Box<Self>, shape: Shape, device: &Device) -> Result<QTensor> {
        match device {
            Device::Cpu => QTensor::new(QStorage::Cpu(Box::new(self.0)), shape),
            other => qtensor_from_ggml(T::DTYPE, bytes_of(&mut self.0), shape.into_dims(), other),
        }
    }
}
