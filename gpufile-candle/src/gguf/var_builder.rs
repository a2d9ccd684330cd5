use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::QTensor;
use candle_core::{Device, Error, Result, Shape};

use super::{Model, load, load_model};

/// The quantised tensors of a model, by name and prefix, with the methods of candle's
/// `quantized_var_builder::VarBuilder`. Clones share the tensors.
#[derive(Clone)]
pub struct VarBuilder {
    tensors: Arc<HashMap<String, Arc<QTensor>>>,
    /// The prefixes, joined by points, with a point at the end; empty without prefixes.
    prefix: String,
    device: Device,
}

impl VarBuilder {
    /// Reads all tensors of a GGUF file, or of the files of a split model.
    ///
    /// # Errors
    /// As [`load`].
    pub fn from_gguf<P: AsRef<Path>>(path: P, device: &Device) -> Result<Self> {
        Ok(Self::new(load(path, device)?, device))
    }

    /// Reads all tensors of an open model.
    ///
    /// # Errors
    /// As [`load_model`].
    pub fn from_model(model: &Model, device: &Device) -> Result<Self> {
        Ok(Self::new(load_model(model, device)?, device))
    }

    fn new(tensors: HashMap<String, QTensor>, device: &Device) -> Self {
        let tensors = tensors.into_iter().map(|(name, tensor)| (name, Arc::new(tensor))).collect();
        Self { tensors: Arc::new(tensors), prefix: String::new(), device: device.clone() }
    }

    /// Returns a builder whose names begin with one more prefix.
    pub fn pp<S: ToString>(&self, prefix: S) -> Self {
        let prefix = format!("{}{}.", self.prefix, prefix.to_string());
        Self { tensors: self.tensors.clone(), prefix, device: self.device.clone() }
    }

    /// Returns the tensor of that name behind the prefixes, which must have this shape.
    ///
    /// # Errors
    /// There is no such tensor, or it has another shape.
    pub fn get<S: Into<Shape>>(&self, shape: S, name: &str) -> Result<Arc<QTensor>> {
        let (tensor, expected) = (self.get_no_shape(name)?, shape.into());
        let got = tensor.shape().clone();
        if got != expected {
            let msg = format!("shape mismatch for {}{name}", self.prefix);
            return Err(Error::UnexpectedShape { msg, expected, got }.bt());
        }
        Ok(tensor)
    }

    /// Returns the tensor of that name behind the prefixes, of any shape.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn get_no_shape(&self, name: &str) -> Result<Arc<QTensor>> {
        let path = format!("{}{name}", self.prefix);
        self.tensors.get(&path).cloned().ok_or_else(|| Error::CannotFindTensor { path }.bt())
    }

    /// Returns the device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns whether the model has a tensor of that name. As in candle's builder, the prefixes do not count.
    pub fn contains_key(&self, key: &str) -> bool {
        self.tensors.contains_key(key)
    }
}
