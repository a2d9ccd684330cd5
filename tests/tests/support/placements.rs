//! A placement with every kind of share.

use gpufile::formats::Dtype;
use gpufile::formats::safetensors::{Cut, Placement, Share, TensorInfo};

/// The name, the type and the shape of each tensor.
pub type Model = [(&'static str, Dtype, &'static [u64])];

/// Gives each tensor another kind of share.
pub fn mixed(model: &'static Model, gpus: usize, turn: usize) -> Placement {
    Placement::by(move |tensor: &TensorInfo<'_>| {
        let number = model.iter().position(|(name, ..)| *name == tensor.name).unwrap();
        let axes = tensor.shape.len();
        // Slices of the packed types are whole bytes only along the first axis.
        let most = if tensor.dtype == Dtype::F4 { 1 } else { axes };
        let cut = if number.is_multiple_of(2) { Cut::Even } else { Cut::Chunks };
        match (number + turn) % 5 {
            0 => Share::All,
            1 => Share::On(number % gpus),
            2 if axes > 0 => Share::Slice { axis: most - 1, cut },
            3 if axes > 0 => Share::Slice { axis: 0, cut },
            _ => Share::Balanced,
        }
    })
}
