//! Loads models into [candle](https://docs.rs/candle-core), on the CPU and on CUDA, with the engine of
//! [gpufile](https://docs.rs/gpufile). No function needs `unsafe`. A file that another process shortens is an error, and
//! not a signal that ends the process.
//!
//! [`var_builder`] takes the place of candle's `VarBuilder::from_mmaped_safetensors`, [`sharded_var_builder`] that of
//! `ShardedSafeTensors::var_builder`. [`load`] reads all tensors in one call, and [`save`] writes them. [`Tensors`] is
//! what these work on: a model that is open. [`gguf`] reads the quantised tensors of GGUF files.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Module, linear};
//!
//! # fn main() -> candle_core::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! let device = Device::Cpu; // or Device::new_cuda(0)?
//! # let tensors = [("layer.weight", Tensor::ones((3, 2), DType::F32, &device)?),
//! #     ("layer.bias", Tensor::zeros(3, DType::F32, &device)?)].into();
//! # gpufile_candle::save::<&str, _>(&tensors, &path)?;
//! let tensors = gpufile_candle::var_builder(&[path], DType::F32, &device)?;
//! let layer = linear(2, 3, tensors.pp("layer"))?;
//! let output = layer.forward(&Tensor::new(&[[1_f32, 10.]], &device)?)?;
//! assert_eq!(output.to_vec2::<f32>()?, [[11., 11., 11.]]);
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod ahead;
mod dtype;
pub mod gguf;
mod groups;
mod memory;
mod save;
mod sharded;
mod tensors;

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

pub use save::save;
pub use sharded::{Sharded, ShardedVarBuilder, sharded_var_builder};
pub use tensors::Tensors;

/// Returns a builder whose tensors are read from a model when they are asked for, as candle's
/// `VarBuilder::from_mmaped_safetensors` does.
///
/// The paths are those of [`Tensors::open`]. The conversion to `dtype` happens on the device. A request reads ahead: see
/// [`Tensors`].
///
/// # Errors
/// As [`Tensors::open`].
pub fn var_builder<P: AsRef<Path>>(
    paths: &[P],
    dtype: DType,
    device: &Device,
) -> Result<VarBuilder<'static>> {
    Ok(VarBuilder::from_backend(Box::new(Tensors::open(paths)?), dtype, device.clone()))
}

/// Reads all tensors of a model, as candle's `safetensors::load` does, but from any number of files and to one type.
///
/// With `None`, tensors keep their types. The paths are those of [`Tensors::open`].
///
/// # Errors
/// As [`Tensors::open`] and [`Tensors::load`].
pub fn load<P: AsRef<Path>>(
    paths: &[P],
    dtype: impl Into<Option<DType>>,
    device: &Device,
) -> Result<HashMap<String, Tensor>> {
    Tensors::open(paths)?.load(dtype, device)
}
