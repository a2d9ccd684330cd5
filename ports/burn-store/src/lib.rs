//! A store that loads burn modules from safetensors models by gpufile. Each tensor is read when burn needs it.

#![forbid(unsafe_code)]
use burn_core::tensor::{BoolStore, Bytes, DType};
use burn_pack::Tensor;
use burn_store::{ApplyResult, ModuleSnapshot, ModuleStore};
use gpufile::formats::{Dtype, safetensors::Checkpoint};
use std::{collections::BTreeMap, error::Error, path::Path, sync::Arc};

/// The tensors of a model, by name.
pub struct GpufileStore(BTreeMap<String, Tensor>);

impl GpufileStore {
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Box<dyn Error>> {
        let model = Arc::new(Checkpoint::open(path)?);
        let mut tensors = BTreeMap::new();
        for info in model.tensors() {
            let (model, name, len) = (Arc::clone(&model), info.name.to_owned(), info.len_bytes() as usize);
            let shape: Vec<_> = info.shape.iter().map(|&axis| axis as usize).collect();
            let dtype = dtype(info.dtype).ok_or_else(|| format!("burn has no type for {}", info.dtype))?;
            let failed = |error: gpufile::formats::Error| burn_pack::Error::IoError(error.to_string());
            let read = move || model.read_tensor(&name).map(Bytes::from_bytes_vec).map_err(failed);
            let name = info.name.to_owned();
            tensors.insert(name.clone(), Tensor::deferred(name, dtype, shape, None, len, read));
        }
        Ok(Self(tensors))
    }
}

fn dtype(dtype: Dtype) -> Option<DType> {
    use DType::*;
    let all = [F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, Bool(BoolStore::Native)];
    all.into_iter().find(|burns| burns.name() == dtype.name().to_lowercase())
}

impl ModuleStore for GpufileStore {
    type Error = Box<dyn Error>;

    fn collect_from<M: ModuleSnapshot>(&mut self, _: &M) -> Result<(), Self::Error> {
        Err("this store only loads".into())
    }

    fn apply_to<M: ModuleSnapshot>(&mut self, module: &mut M) -> Result<ApplyResult, Self::Error> {
        let result = module.apply(self.0.values().cloned().collect(), None, None, false);
        let is_whole = result.missing.is_empty() && result.errors.is_empty();
        if is_whole { Ok(result) } else { Err(result.to_string().into()) }
    }

    fn get_tensor(&mut self, name: &str) -> Result<Option<&Tensor>, Self::Error> {
        Ok(self.0.get(name))
    }

    fn get_all_tensors(&mut self) -> Result<&BTreeMap<String, Tensor>, Self::Error> {
        Ok(&self.0)
    }

    fn keys(&mut self) -> Result<Vec<String>, Self::Error> {
        Ok(self.0.keys().cloned().collect())
    }
}
