//! Code of the examples that load a model to several GPUs: placements, and the contents that they give.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpufile::formats::safetensors::{Cut, PartView, Placement, Share};

use super::Arguments;

pub fn placement(arguments: &Arguments) -> Placement {
    if arguments.has("--all") {
        return Placement::all();
    }
    if arguments.has("--balanced") {
        return Placement::balanced();
    }
    let matrices = AtomicUsize::new(0);
    Placement::by(move |tensor| match tensor.shape {
        [_, _] => {
            let axis = matrices.fetch_add(1, Ordering::Relaxed) % 2;
            Share::Slice { axis, cut: Cut::Even }
        }
        _ => Share::All,
    })
}

/// Returns the bytes of a part of a tensor. The elements of sliced tensors are whole bytes.
pub fn expected(part: &PartView<'_>, whole: &[u8]) -> Vec<u8> {
    let Some(slice) = part.slice else { return whole.to_vec() };
    let axis = part.info.shape[slice.axis] as usize;
    let outer: u64 = part.info.shape[..slice.axis].iter().product();
    let index_bytes = whole.len() / (outer as usize * axis).max(1);
    let indices = whole.chunks_exact(index_bytes.max(1)).enumerate();
    let chosen = indices.filter(|(number, _)| slice.range.contains(&((number % axis) as u64)));
    chosen.flat_map(|(_, bytes)| bytes).copied().collect()
}
