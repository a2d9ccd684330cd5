use std::fmt;
use std::iter;

use cufile::BufSliceMut;

use super::catalog::Id;
use super::files::ModelFiles;
use super::header::TensorInfo;
use super::layout::Layout;
use super::loaded::Loaded;
use crate::IoBufMut;
use crate::cuda::{Device, DeviceBuffer};
use crate::formats::clip::clip;
use crate::formats::memory::{allocate, check_len, check_room, out_of_memory, zeroed_aligned};
use crate::formats::progress::Progress;
use crate::formats::reads::{Read, Watcher, cut, read_all};
use crate::formats::visible::Quoted;
use crate::formats::{Error, Result};

/// A selection of tensors to load, with a callback for progress, from [`Model::load`](super::Model::load).
///
/// ```no_run
/// use gpufile::Engine;
/// use gpufile::formats::gguf::Model;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Engine::global().cuda()?.device(0)?;
/// let model = Model::open("model-00001-of-00003.gguf")?;
/// let loaded = model
///     .load()
///     .only(model.tensors().map(|tensor| tensor.name).filter(|name| name.starts_with("blk.0.")))?
///     .progress(|progress| eprintln!("{} of {} bytes", progress.done_bytes, progress.total_bytes))
///     .to_device(&device)?;
/// for tensor in loaded.iter() {
///     println!("{} {} {:?} {:?}", tensor.info.name, tensor.info.ggml_type, tensor.info.shape, tensor.bytes);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Load<'a> {
    model: &'a ModelFiles,
    /// The chosen tensors, in the order of the files, each once. `None` for all.
    only: Option<Vec<Id>>,
    progress: Option<Watcher<'a>>,
}

impl<'a> Load<'a> {
    pub(super) fn new(model: &'a ModelFiles) -> Self {
        Self { model, only: None, progress: None }
    }

    /// Loads only these tensors. A name that occurs twice is loaded once.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`].
    pub fn only(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let found = names.into_iter().map(|name| self.model.find(name.as_ref()));
        let mut chosen = found.collect::<Result<Vec<_>>>()?;
        chosen.sort();
        chosen.dedup();
        self.only = Some(chosen);
        Ok(self)
    }

    /// Reads in steps of a sixteenth of the bytes, or 256 MiB if that is more, and calls `watch` after each step. The
    /// thread that loads calls it. The pause between steps costs some speed. The bytes count the padding between tensors.
    pub fn progress(mut self, watch: impl FnMut(Progress) + 'a) -> Self {
        self.progress = Some(Box::new(watch));
        self
    }

    /// Returns the number of bytes that a buffer for [`to_buffer`](Self::to_buffer) needs: the tensors, and gaps
    /// between them for alignment.
    ///
    /// # Errors
    /// [`Error::Memory`] if a buffer cannot have that many bytes.
    pub fn len_bytes(&self) -> Result<usize> {
        Ok(self.layout()?.len_bytes)
    }

    /// Loads into one allocation on the GPU.
    ///
    /// Each tensor begins at a multiple of the file's alignment from the start of the allocation: of 16 bytes if the file
    /// has less, of 4096 if it has more, and of at least 256 for the first tensor of each file. CUDA aligns the allocation
    /// to 256 bytes, so only multiples of up to 256 are certain for addresses. Tensors that are adjacent in the file are read
    /// as one range with the padding between them.
    ///
    /// # Errors
    /// [`Error::Memory`] if the GPU has no room, [`Error::File`] if reading or copying fails.
    pub fn to_device(self, device: &Device) -> Result<Loaded<DeviceBuffer>> {
        let layout = self.layout()?;
        let buffer = allocate(&self.model.path, device, layout.len_bytes)?;
        self.load(layout, buffer, 0)
    }

    /// Loads into one allocation on the host. Tensors are aligned as in [`to_device`](Self::to_device), up to 64 bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] if the host has no room, [`Error::File`] if reading fails.
    pub fn to_host(self) -> Result<Loaded<Vec<u8>>> {
        let layout = self.layout()?;
        let (buffer, start) = zeroed_aligned(&self.model.path, layout.len_bytes)?;
        self.load(layout, buffer, start)
    }

    /// Loads into a buffer, from its start on: pinned or registered memory, or a part of other memory. Tensors are
    /// aligned as in [`to_device`](Self::to_device) if the start of the buffer is aligned.
    ///
    /// # Errors
    /// [`Error::BufferSize`] if the buffer has fewer bytes than [`len_bytes`](Self::len_bytes), [`Error::Memory`] if
    /// a buffer cannot have that many, [`Error::File`] if reading or copying fails.
    pub fn to_buffer<B: IoBufMut>(self, buffer: B) -> Result<Loaded<B>> {
        let layout = self.layout()?;
        check_room(&self.model.path, layout.len_bytes, buffer.len_bytes())?;
        self.load(layout, buffer, 0)
    }

    /// Loads each tensor into a separate buffer, of the host or of any GPU, which `make` returns. Each buffer
    /// must have the length of its tensor. Returns them file by file, in the order of their bytes.
    ///
    /// `make` is called for all tensors before the first byte is read. The engine then reads all tensors in one call, over
    /// the links of all GPUs at once.
    ///
    /// ```no_run
    /// # use gpufile::Engine;
    /// # use gpufile::formats::gguf::Model;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let cuda = Engine::global().cuda()?;
    /// let devices = [cuda.device(0)?, cuda.device(1)?];
    /// let model = Model::open("model.gguf")?;
    /// // Every other layer on the second GPU.
    /// let gpu = |name: &str| match name.split('.').nth(1).and_then(|layer| layer.parse::<usize>().ok()) {
    ///     Some(layer) => layer % 2,
    ///     None => 0,
    /// };
    /// for (info, buffer) in model.load().to_each(|info| devices[gpu(info.name)].alloc(info.len_bytes() as usize))? {
    ///     println!("{} {:?} {:?}", info.name, info.shape, buffer);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Buffer`] with the error of `make`, [`Error::BufferSize`] if a buffer has another length than its
    /// tensor, [`Error::Tensor`] if reading or copying fails.
    pub fn to_each<B, E>(
        mut self,
        mut make: impl FnMut(&TensorInfo<'a>) -> Result<B, E>,
    ) -> Result<Vec<(TensorInfo<'a>, B)>>
    where
        B: IoBufMut,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let progress = self.progress.take();
        let (model, catalog) = (self.model, &self.model.catalog);
        let ids = self.ids();
        let mut tensors = Vec::with_capacity(ids.len());
        for id in &ids {
            let info = catalog.info(*id);
            let failed = |error: E| Error::Buffer { tensor: clip(info.name), error: error.into() };
            let buffer = make(&info).map_err(failed)?;
            let what = || format!("tensor {}", Quoted(info.name));
            check_len(model.file(id.file).path(), what, info.len_bytes(), buffer.len_bytes())?;
            tensors.push((info, buffer));
        }
        let total_bytes = tensors.iter().map(|(info, _)| info.len_bytes()).sum();
        let reads = iter::zip(ids, &mut tensors).map(|(id, (info, buffer))| Read {
            file: model.file(id.file),
            offset: info.range.start,
            memory: buffer.into(),
            tensor: Some(info.name),
        });
        read_all(reads, total_bytes, progress)?;
        Ok(tensors)
    }

    fn ids(&self) -> Vec<Id> {
        self.only.clone().unwrap_or_else(|| self.model.catalog.ids().collect())
    }

    fn layout(&self) -> Result<Layout> {
        let layout = Layout::of(&self.model.catalog, self.ids());
        layout.ok_or_else(|| out_of_memory(&self.model.path, u64::MAX))
    }

    fn load<B: IoBufMut>(self, layout: Layout, mut buffer: B, start: usize) -> Result<Loaded<B>> {
        let memory = BufSliceMut::new(&mut buffer, start..);
        let reads = cut(&layout.fills, |fill| fill.in_buffer.clone(), memory).map(|(fill, memory)| Read {
            file: self.model.file(fill.file),
            offset: fill.start,
            memory,
            tensor: None,
        });
        read_all(reads, layout.read_bytes(), self.progress)?;
        Ok(Loaded::new(self.model.catalog.clone(), layout, start, buffer))
    }
}

impl fmt::Debug for Load<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = self.only.as_ref().map_or(self.model.catalog.len(), Vec::len);
        f.debug_struct("Load").field("tensors", &tensors).finish_non_exhaustive()
    }
}
