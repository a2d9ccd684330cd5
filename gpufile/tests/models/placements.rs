//! A placement with every kind of share, and the bytes and the alignment of a part.

use gpufile::IoBuf;
use gpufile::formats::Dtype;
use gpufile::formats::safetensors::{Cut, PartView, Placement, Share, TensorInfo};

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

/// Checks that the part can be loaded 16 bytes at once, or by its elements if it is shorter.
pub fn check_alignment(part: &PartView<'_>) {
    let element = part.info.dtype.size_bits().div_ceil(8) as usize;
    let alignment = if part.range.len() < 16 { element } else { 16 };
    assert_eq!(part.bytes.as_ptr().addr() % alignment, 0, "{}", part.info.name);
}

/// Returns the bytes of a part, taken from each row of the whole tensor.
pub fn expected(part: &PartView<'_>, whole: &[u8]) -> Vec<u8> {
    let Some(slice) = part.slice else { return whole.to_vec() };
    let inner: u64 = part.info.shape[slice.axis + 1..].iter().product();
    let index_bits = inner * u64::from(part.info.dtype.size_bits());
    let bytes = |indices: u64| (indices * index_bits / 8) as usize;
    let (row, start, end) =
        (bytes(part.info.shape[slice.axis]), bytes(slice.range.start), bytes(slice.range.end));
    let rows: Vec<_> = whole.chunks_exact(row.max(1)).map(|row| &row[start..end]).collect();
    rows.concat()
}
