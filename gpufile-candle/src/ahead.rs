//! Tensors that were read with another one, until they are asked for.

use std::collections::HashMap;

use candle_core::{Device, Tensor};

/// Tensors by their place in the model.
#[derive(Default)]
pub(crate) struct Ahead {
    pub(crate) waiting: HashMap<usize, Tensor>,
    /// For each tensor of the model, true if it was read before.
    read: Vec<bool>,
}

impl Ahead {
    pub(crate) fn new(len: usize) -> Self {
        Self { waiting: HashMap::new(), read: vec![false; len] }
    }

    /// Returns a tensor that is on this device. Keeps it for other names if it has any.
    pub(crate) fn take(&mut self, place: usize, device: &Device, has_names: bool) -> Option<Tensor> {
        let tensor = self.waiting.remove(&place).filter(|tensor| tensor.device().same_device(device))?;
        if has_names {
            self.waiting.insert(place, tensor.clone());
        }
        Some(tensor)
    }

    pub(crate) fn put(&mut self, place: usize, tensor: Tensor) {
        self.read[place] = true;
        self.waiting.insert(place, tensor);
    }

    pub(crate) fn was_read(&self, place: usize) -> bool {
        self.read[place]
    }
}
