//! Parts of tensors for several devices, as candle's `ShardedSafeTensors` has them.

use std::path::Path;

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::{Backend, Shard, SimpleBackend, VarBuilderArgs};

use crate::tensors::{Tensors, shape_of};

/// The backend of [`sharded_var_builder`].
pub struct Sharded(Tensors);

/// A builder whose hint is the part of a tensor to read: candle's [`Shard`].
pub type ShardedVarBuilder<'a> = VarBuilderArgs<'a, Sharded>;

/// Returns a builder that reads the part of each tensor that a [`Shard`] names, along any axis, as candle's
/// `ShardedSafeTensors::var_builder` does along the first two. Only the bytes of the part are read. The paths are those
/// of [`Tensors::open`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::var_builder::Shard;
///
/// # fn main() -> candle_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// # let weight = Tensor::arange(0_u32, 8, &Device::Cpu)?.reshape((2, 4))?;
/// # gpufile_candle::save(&[("up.weight", weight)].into(), &path)?;
/// let tensors = gpufile_candle::sharded_var_builder(&[path], DType::U32, &Device::Cpu)?;
/// let second = Shard { dim: 1, rank: 1, world_size: 2 };
/// let part = tensors.pp("up").get_with_hints((2, 2), "weight", second)?;
/// assert_eq!(part.to_vec2::<u32>()?, [[2, 3], [6, 7]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`Tensors::open`].
pub fn sharded_var_builder<P: AsRef<Path>>(
    paths: &[P],
    dtype: DType,
    device: &Device,
) -> Result<ShardedVarBuilder<'static>> {
    Ok(VarBuilderArgs::new_with_args(Sharded(Tensors::open(paths)?), dtype, device))
}

impl Backend for Sharded {
    type Hints = Shard;

    /// Reads a part of a tensor. As candle's backend, this checks the shape of whole tensors only.
    fn get(&self, shape: Shape, name: &str, shard: Shard, dtype: DType, device: &Device) -> Result<Tensor> {
        let Shard { dim, rank, world_size } = shard;
        if world_size == 1 {
            return SimpleBackend::get(&self.0, shape, name, Default::default(), dtype, device);
        }
        let whole = shape_of(&self.0.find(name)?.1);
        let size = whole.get(dim).copied().unwrap_or(0);
        if dim >= whole.len() || size.checked_rem(world_size) != Some(0) {
            return Err(Error::ShapeMismatchSplit { shape: whole.into(), dim, n_parts: world_size }.bt());
        }
        let part = size / world_size;
        self.0.slice(name, dim, rank * part..(rank + 1) * part, device)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.0.get_unchecked(name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        SimpleBackend::contains_tensor(&self.0, name)
    }
}
