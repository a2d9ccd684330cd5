//! Quantised tensors from GGUF files, the models of llama.cpp.
//!
//! [`VarBuilder`] takes the place of `candle_transformers::quantized_var_builder::VarBuilder`, with the same methods.
//! [`load`] returns the tensors by name. Both read all tensors by the engine: on the CPU into the vectors of
//! blocks that candle computes with, on CUDA into the memory of candle's own allocations. A split model, such as
//! `NAME-00001-of-00003.gguf`, is opened by its first file.
//!
//! [`Reader`] is for code that reads GGUF files itself, such as `from_gguf` of the quantised models in `candle_transformers`.
//!
//! candle's builder has private fields, so nothing else than candle can make one. Code that takes that type, such as
//! `candle_transformers::quantized_nn`, needs its `use` changed.
//!
//! ```
//! use candle_core::quantized::QMatMul;
//! use candle_core::{Device, Module, Tensor};
//! use gpufile_candle::gguf::VarBuilder; // instead of candle_transformers::quantized_var_builder::VarBuilder
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use gpufile::formats::{SaveOptions, gguf::{GgmlType, Metadata, TensorData, save}};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.gguf");
//! # let blocks: Vec<u8> = (0..2).flat_map(|_| [0, 0x3c].into_iter().chain([1; 32])).collect();
//! # let weight = TensorData::new("blk.0.ffn_up.weight", GgmlType::Q8_0, &[2, 32], &blocks);
//! # save(&path, &Metadata::new(), &[weight], &SaveOptions::new())?;
//! let device = Device::Cpu; // or Device::new_cuda(0)?
//! let tensors = VarBuilder::from_gguf(path, &device)?;
//! let up = QMatMul::from_arc(tensors.pp("blk.0").get((2, 32), "ffn_up.weight")?)?;
//! let output = up.forward(&Tensor::ones((1, 32), candle_core::DType::F32, &device)?)?;
//! assert_eq!(output.dims(), [1, 2]);
//! # Ok(())
//! # }
//! ```

mod content;
mod dtype;
mod memory;
mod reader;
mod var_builder;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use candle_core::quantized::QTensor;
use candle_core::{Device, Error, Result, Shape};
pub use gpufile::formats::gguf::Model;
use gpufile::formats::gguf::TensorInfo;

use crate::groups;
use crate::tensors::error;
use memory::{Memory, Wanted, allocate};
pub use reader::Reader;
pub use var_builder::VarBuilder;

/// Reads all tensors of a model in a GGUF file, or in the files of a split model.
///
/// # Errors
/// As [`Model::open`] and [`load_model`].
pub fn load<P: AsRef<Path>>(path: P, device: &Device) -> Result<HashMap<String, QTensor>> {
    load_model(&Model::open(path).map_err(error)?, device)
}

/// Reads all tensors of an open model, whose metadata the caller also needs.
///
/// ```
/// use candle_core::Device;
/// use gpufile_candle::gguf::{Model, load_model};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use gpufile::formats::{SaveOptions, gguf::{GgmlType, Metadata, TensorData, save}};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.gguf");
/// # let norm = TensorData::new("output_norm.weight", GgmlType::F32, &[1], &[0; 4][..]);
/// # save(&path, &Metadata::from_iter([("general.architecture", "llama")]), &[norm], &SaveOptions::new())?;
/// let model = Model::open(path)?;
/// let architecture = model.metadata().get("general.architecture").and_then(|value| value.as_str());
/// assert_eq!(architecture, Some("llama"));
/// let tensors = load_model(&model, &Device::Cpu)?;
/// assert_eq!(tensors["output_norm.weight"].shape().dims(), [1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// candle cannot dequantise the type of a tensor, which the error names; a tensor has no axis, which candle refuses;
/// reading fails, or the device has no room.
pub fn load_model(model: &Model, device: &Device) -> Result<HashMap<String, QTensor>> {
    let infos: Vec<_> = model.tensors().collect();
    let wanted = infos.iter().map(wanted).collect::<Result<Vec<_>>>()?;
    let lens: Vec<_> = infos.iter().map(TensorInfo::len_bytes).collect();
    let fill = |group: Range<usize>, memory: &mut [Box<dyn Memory>]| {
        let mut buffers = memory.iter_mut().map(|memory| memory.buffer());
        let next = |_: &TensorInfo<'_>| buffers.next().expect("one for each tensor");
        let load = model.load().only(infos[group].iter().map(|info| info.name));
        load.and_then(|load| load.to_each(next)).map(drop).map_err(error)
    };
    let allocate = |group: Range<usize>| allocate(&wanted[group], device);
    let memory = groups::read(&lens, groups::limits(device), allocate, fill)?;
    let tensor = |(info, memory): (&TensorInfo<'_>, Box<dyn Memory>)| {
        let shape = Shape::from(shape_of(info));
        let tensor = memory.into_qtensor(shape, device);
        let failed = |error: Error| error.context(format!("tensor {}", info.name));
        Ok((info.name.to_owned(), tensor.map_err(failed)?))
    };
    std::iter::zip(&infos, memory).map(tensor).collect()
}

fn wanted<'a>(info: &TensorInfo<'a>) -> Result<Wanted<'a>> {
    let Some(dtype) = dtype::to_candle(info.ggml_type) else {
        let (name, ggml_type) = (info.name, info.ggml_type);
        return Err(Error::msg(format!(
            "tensor {name} has the type {ggml_type}, which candle cannot dequantise"
        )));
    };
    let (elements, len_bytes) = (info.elements() as usize, info.len_bytes() as usize);
    Ok(Wanted { name: info.name, dtype, elements, len_bytes })
}

fn shape_of(info: &TensorInfo<'_>) -> Vec<usize> {
    info.shape.iter().map(|&axis| axis as usize).collect()
}
