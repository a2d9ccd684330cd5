//! The tensors of a load, and the slices of them.

use std::collections::{HashMap, HashSet};

use gpufile::cli_support::visible;
use gpufile::formats::safetensors::{Checkpoint, Cut, TensorInfo, TensorSlice};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

use super::layout::{self, Chosen};
use super::safetensor_error;

/// Returns the tensors with these names: for each file, in the order of the file.
pub fn choose(
    checkpoint: &Checkpoint,
    names: &[String],
    slices: Option<&Slices>,
) -> Result<Vec<Vec<Chosen>>, Refusal> {
    let mut wanted: HashSet<_> = names.iter().map(String::as_str).collect();
    let mut chosen = Vec::new();
    for (_, header) in checkpoint.files() {
        let of_file = (0..).zip(header.tensors()).filter(|(_, info)| wanted.remove(info.name));
        let of_file = of_file.map(|(number, info)| {
            let slice = slices.map_or(Ok(None), |slices| slices.of(&info))?;
            Ok(Chosen { number, slice })
        });
        chosen.push(of_file.collect::<Result<_, _>>()?);
    }
    match wanted.into_iter().min() {
        Some(missing) => Err(Refusal::Missing(missing.to_owned())),
        None => Ok(chosen),
    }
}

/// The cuts of tensors into slices.
pub struct Slices {
    /// For the names of the tensors, the axis and the cut.
    pub slices: HashMap<String, (usize, String)>,
    /// The slice to take of each tensor, and the number of slices.
    pub place: (usize, usize),
}

impl Slices {
    /// Returns the slice to take of a tensor. `None` for the whole tensor.
    fn of(&self, info: &TensorInfo<'_>) -> Result<Option<TensorSlice>, Refusal> {
        let refused = |text| Err(Refusal::Slice(format!("tensor \"{}\": {text}", visible(info.name))));
        let Some((axis, cut)) = self.slices.get(info.name) else { return Ok(None) };
        let cut = match &cut[..] {
            "chunks" => Cut::Chunks,
            "even" => Cut::Even,
            other => return refused(format!("cannot cut {other:?}; the cuts are \"chunks\" and \"even\"")),
        };
        let (place, places) = self.place;
        let (Some(len), true) = (info.shape.get(*axis), place < places) else {
            let axes = info.shape.len();
            return refused(format!("there is no slice {place} of {places} along axis {axis} of {axes}"));
        };
        let slice = TensorSlice { axis: *axis, range: cut.range(*len, place, places) };
        if layout::bounds_of(info, &slice).is_none() {
            let TensorSlice { axis, range } = slice;
            let text =
                format!("the {} elements from {} to {} of axis {axis}", info.dtype, range.start, range.end);
            return refused(
                text + " do not fill whole bytes; slice another axis, or place the tensor on one device or on all",
            );
        }
        Ok(Some(slice))
    }
}

/// The reason why no group can be planned.
pub enum Refusal {
    /// There is no such tensor.
    Missing(String),
    /// There is no such slice.
    Slice(String),
    /// The tensors have more bytes than memory can have.
    Size,
}

impl Refusal {
    pub fn exception(self, py: Python<'_>) -> PyErr {
        match self {
            Refusal::Missing(name) => {
                safetensor_error(py, format!("File does not contain tensor {}", visible(&name)))
            }
            Refusal::Slice(text) => PyValueError::new_err(text),
            Refusal::Size => PyMemoryError::new_err("the tensors have more bytes than an address space has"),
        }
    }
}
