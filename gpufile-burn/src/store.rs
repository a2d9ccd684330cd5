use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn_pack::Tensor;
use burn_store::{ApplyResult, IdentityAdapter, ModuleAdapter, ModuleSnapshot, ModuleStore, PathFilter};
use gpufile::cuda::Device;
use gpufile::formats::safetensors::Checkpoint;

use crate::model::{Model, Watch};
use crate::{Error, dtype, save};

/// The bytes of tensors that a store holds unless [`budget_bytes`](GpufileStore::budget_bytes) says otherwise.
const BUDGET_BYTES: usize = 256 << 20;

/// A model in safetensors files, for burn's `load_from` and `save_into`.
///
/// Tensors are read when burn asks for them. Each read also gets the tensors behind it in the file, in one call of the
/// engine, as far as the budget allows. burn asks for one tensor at a time and copies it to its backend, so the host holds
/// the budget and one tensor, but not the model.
pub struct GpufileStore {
    path: PathBuf,
    model: Option<Arc<Model>>,
    tensors: BTreeMap<String, Tensor>,
    filter: PathFilter,
    adapter: Box<dyn ModuleAdapter>,
    allow_partial: bool,
    skip_enum_variants: bool,
}

impl GpufileStore {
    /// Opens a model to load from: a safetensors file, an index (a name that ends in `.json`) with the files that it names,
    /// or a folder with a model. Reads and checks the headers only.
    ///
    /// # Errors
    /// The path cannot be opened, a header or an index is wrong, or burn lacks the type of a tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let mut store = Self::from_checkpoint(Checkpoint::open(path)?)?;
        store.path = path.to_owned();
        Ok(store)
    }

    /// Takes a model that gpufile opened, to load from: from an address, from files over a storage, or with other options. The
    /// tensors may be packed. Such a store saves to no path.
    ///
    /// ```no_run
    /// use gpufile::formats::safetensors::Checkpoint;
    /// use gpufile_burn::GpufileStore;
    ///
    /// # fn main() -> Result<(), gpufile_burn::Error> {
    /// // With the feature `s3`.
    /// let checkpoint = Checkpoint::open_url("s3://bucket/model.safetensors.index.json")?;
    /// let mut store = GpufileStore::from_checkpoint(checkpoint)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// burn lacks the type of a tensor.
    pub fn from_checkpoint(checkpoint: Checkpoint) -> Result<Self, Error> {
        let mut store = Self::create("");
        let model = Arc::new(Model::new(checkpoint, BUDGET_BYTES));
        for info in model.checkpoint.tensors() {
            let (model, name) = (model.clone(), info.name.to_owned());
            let dtype =
                dtype::to_burn(info.dtype).ok_or_else(|| format!("burn has no type for {}", info.dtype))?;
            let shape: Vec<_> = info.shape.iter().map(|&axis| axis as usize).collect();
            let read =
                move || model.bytes(&name).map_err(|error| burn_pack::Error::IoError(error.to_string()));
            let name = info.name.to_owned();
            let tensor = Tensor::deferred(name.clone(), dtype, shape, None, info.len_bytes() as usize, read);
            store.tensors.insert(name, tensor);
        }
        store.model = Some(model);
        Ok(store)
    }

    /// Returns a store to save to this file. It has no tensors to load, and creates nothing yet.
    ///
    /// Saving holds all tensors on the host. The file takes the place of an older one when it is complete and on the disk.
    pub fn create(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            model: None,
            tensors: BTreeMap::new(),
            filter: PathFilter::new(),
            adapter: Box::new(IdentityAdapter),
            allow_partial: false,
            skip_enum_variants: false,
        }
    }

    /// Loads or saves only the tensors that the filter matches. No others are read.
    pub fn filter(mut self, filter: PathFilter) -> Self {
        self.filter = filter.clone();
        self.configured(|reads| reads.filter = filter)
    }

    /// Limits the bytes that are held of tensors that burn has not asked for yet. A longer tensor is read alone. The
    /// default is 256 MiB; 0 reads each tensor alone.
    pub fn budget_bytes(self, budget_bytes: usize) -> Self {
        self.configured(|reads| reads.budget_bytes = budget_bytes)
    }

    /// Reads into pinned memory, for a backend on this GPU. cubecl copies from it without a buffer between.
    pub fn pinned(self, device: &Device) -> Self {
        self.configured(|reads| reads.pinned = Some(device.clone()))
    }

    /// Calls `watch` after each read with the bytes read so far, and with those of all tensors that the filter
    /// matches. If it breaks, the load fails, and so does each later read. A small [budget](Self::budget_bytes) makes
    /// more calls.
    pub fn watch(self, watch: impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'static) -> Self {
        let watch = Watch { call: Box::new(watch), read_bytes: 0, is_cancelled: false };
        self.configured(|reads| reads.watch = Some(watch))
    }

    /// Converts tensors while they are loaded or saved, for example with burn's `PyTorchToBurnAdapter`.
    pub fn adapter(mut self, adapter: impl ModuleAdapter + 'static) -> Self {
        self.adapter = Box::new(adapter);
        self
    }

    /// Accepts a model that lacks tensors of the module, which keep their values. Otherwise, this is an error.
    pub fn allow_partial(mut self, allow: bool) -> Self {
        self.allow_partial = allow;
        self
    }

    /// Leaves out the names of enum variants in the names of tensors.
    pub fn skip_enum_variants(mut self, skip: bool) -> Self {
        self.skip_enum_variants = skip;
        self
    }

    fn configured(self, change: impl FnOnce(&mut crate::model::Reads)) -> Self {
        if let Some(model) = &self.model {
            model.configure(change);
        }
        self
    }

    fn some_filter(&self) -> Option<PathFilter> {
        (!self.filter.is_empty()).then(|| self.filter.clone())
    }
}

impl ModuleStore for GpufileStore {
    type Error = Error;

    fn collect_from<M: ModuleSnapshot>(&mut self, module: &M) -> Result<(), Error> {
        let adapter = self.adapter.clone();
        save::save(&self.path, module.collect(self.some_filter(), Some(adapter), self.skip_enum_variants))
    }

    fn apply_to<M: ModuleSnapshot>(&mut self, module: &mut M) -> Result<ApplyResult, Error> {
        let (tensors, adapter) = (self.tensors.values().cloned().collect(), self.adapter.clone());
        let result = module.apply(tensors, self.some_filter(), Some(adapter), self.skip_enum_variants);
        let lacks = !self.allow_partial && !result.missing.is_empty();
        if lacks || !result.errors.is_empty() { Err(result.to_string().into()) } else { Ok(result) }
    }

    fn get_tensor(&mut self, name: &str) -> Result<Option<&Tensor>, Error> {
        Ok(self.tensors.get(name))
    }

    fn get_all_tensors(&mut self) -> Result<&BTreeMap<String, Tensor>, Error> {
        Ok(&self.tensors)
    }

    fn keys(&mut self) -> Result<Vec<String>, Error> {
        Ok(self.tensors.keys().cloned().collect())
    }
}
