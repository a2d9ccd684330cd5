use std::fmt;
use std::iter;
use std::ops::{ControlFlow, Deref, Range};
use std::sync::Arc;

use cufile::{BufSlice, BufSliceMut};

use super::super::headers::header::TensorInfo;
use super::super::open::catalog::{Catalog, Id};
use super::super::open::files::ModelFiles;
use super::super::place::layout::{Fill, Layout, Place};
use super::super::place::placed::PlacedLoad;
use super::super::place::placement::Placement;
use super::super::save::plan::TensorData;
use crate::cuda::{Device, DeviceBuffer};
use crate::formats::clip::clip;
use crate::formats::memory::{allocate, check_len, check_room, out_of_memory, zeroed_aligned};
use crate::formats::progress::{self, Progress};
use crate::formats::reads::{Read, Watcher, cut, read_all};
use crate::formats::visible::Quoted;
use crate::formats::{Error, Result};
use crate::{IoBuf, IoBufMut};

/// A selection of tensors to load, with a callback for progress, from [`Checkpoint::load`].
///
/// ```no_run
/// use gpufile::Engine;
/// use gpufile::formats::safetensors::Checkpoint;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Engine::global().cuda()?.device(0)?;
/// let checkpoint = Checkpoint::open("model.safetensors.index.json")?;
/// let loaded = checkpoint
///     .load()
///     .only(checkpoint.tensors().map(|tensor| tensor.name).filter(|name| name.starts_with("model.layers.0.")))?
///     .progress(|progress| eprintln!("{} of {} bytes", progress.done_bytes, progress.total_bytes))
///     .to_device(&device)?;
/// for tensor in loaded.iter() {
///     println!("{} {} {:?} {:?}", tensor.info.name, tensor.info.dtype, tensor.info.shape, tensor.bytes);
/// }
/// # Ok(())
/// # }
/// ```
///
/// [`Checkpoint::load`]: super::super::Checkpoint::load
#[must_use]
pub struct Load<'a> {
    model: &'a ModelFiles,
    /// The chosen tensors, in the order of the files, each once. `None` for all.
    only: Option<Vec<Id>>,
    progress: Option<Watcher<'a>>,
}

/// Loaded tensors in one buffer.
///
/// Views of tensors are created when they are looked up, not when they are loaded.
///
/// ```
/// # use gpufile::formats::SaveOptions;
/// use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
/// # use gpufile::formats::{Dtype, Result};
///
/// # fn main() -> Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-loaded-{}.safetensors", std::process::id()));
/// # let bytes = [1_u8, 2, 3];
/// # let a = TensorData::new("a", Dtype::U8, &[2], &bytes[..2]);
/// # let tensors = [a, TensorData::new("b", Dtype::U8, &[1], &bytes[2..])];
/// # safetensors::save(&path, &tensors, &SaveOptions::new())?;
/// let loaded = Checkpoint::open(&path)?.load().only(["b"])?.to_host()?;
/// assert_eq!((loaded.iter().len(), loaded.bytes("b")), (1, Some(&[3][..])));
/// assert!(loaded.tensor("a").is_none());
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Loaded<B> {
    catalog: Arc<Catalog>,
    layout: Layout,
    /// The start of the layout in the buffer, in bytes.
    start: usize,
    buffer: B,
}

/// A tensor of a [`Loaded`].
///
/// ```
/// # use gpufile::formats::SaveOptions;
/// use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
/// # use gpufile::formats::{Dtype, Result};
///
/// # fn main() -> Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-view-{}.safetensors", std::process::id()));
/// # safetensors::save(&path, &[TensorData::new("w", Dtype::F32, &[2], &[0_u8; 8][..])], &SaveOptions::new())?;
/// let loaded = Checkpoint::open(&path)?.load().to_host()?;
/// let view = loaded.tensor("w").unwrap();
/// assert_eq!((view.info.dtype, view.info.shape), (Dtype::F32, &[2][..]));
/// assert_eq!(loaded.buffer()[view.range], [0; 8]);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TensorView<'a> {
    /// The name, the type, the shape, and the range in the data of the file.
    pub info: TensorInfo<'a>,
    /// The bytes, in C order and little-endian.
    pub bytes: BufSlice<'a>,
    /// The range of these bytes in the buffer.
    pub range: Range<usize>,
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
    /// thread that loads calls it. The pause between steps costs some speed.
    pub fn progress(mut self, watch: impl FnMut(Progress) + 'a) -> Self {
        self.progress = Some(Box::new(watch));
        self
    }

    /// Loads to several GPUs, with a placement. A later call of [`PlacedLoad::watch`] replaces the callback of
    /// [`progress`](Self::progress).
    pub fn placed(self, placement: &'a Placement) -> PlacedLoad<'a> {
        let ids = self.ids();
        let watch = self.progress.map(|mut watch| -> progress::Controller<'a> {
            Box::new(move |progress| {
                watch(progress);
                ControlFlow::Continue(())
            })
        });
        PlacedLoad::new(self.model, ids, placement, watch)
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
    /// Each tensor of at least 16 bytes is aligned to 16 bytes, because kernels load as many at once. Shorter tensors are
    /// aligned to their elements, and the first tensor of each file to 256 bytes. Adjacent tensors of a file are read
    /// as one range if the alignment leaves no gap between them.
    ///
    /// # Errors
    /// [`Error::Memory`] if the GPU has no room, [`Error::File`] if reading or copying fails.
    pub fn to_device(self, device: &Device) -> Result<Loaded<DeviceBuffer>> {
        let layout = self.layout()?;
        let buffer = allocate(&self.model.path, device, layout.len_bytes)?;
        self.load(layout, buffer, 0)
    }

    /// Loads into one allocation on the host. Tensors are aligned as in [`to_device`](Self::to_device), except the
    /// first of each file: to 64 bytes.
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

    /// Loads each tensor into a separate buffer, of the host or a GPU, which `make` returns: memory of a framework,
    /// for example. Each buffer must have the length of its tensor. Returns them file by file, in the order
    /// of their bytes.
    ///
    /// `make` is called for all tensors before the first byte is read. The engine then reads all tensors in one call.
    ///
    /// ```no_run
    /// # use gpufile::Engine;
    /// # use gpufile::formats::safetensors::Checkpoint;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = Engine::global().cuda()?.device(0)?;
    /// let checkpoint = Checkpoint::open("model.safetensors")?;
    /// for (info, buffer) in checkpoint.load().to_each(|info| device.alloc(info.len_bytes() as usize))? {
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
        let (model, catalog) = (self.model, &*self.model.catalog);
        let ids = self.ids();
        let mut tensors = Vec::with_capacity(ids.len());
        for id in &ids {
            let info = catalog.info(*id);
            let failed = |error: E| Error::Buffer { tensor: clip(info.name), error: error.into() };
            let buffer = make(&info).map_err(failed)?;
            let what = || format!("tensor {}", Quoted(info.name));
            check_len(model.file(*id).path(), what, info.len_bytes(), buffer.len_bytes())?;
            tensors.push((info, buffer));
        }
        let total_bytes = tensors.iter().map(|(info, _)| info.len_bytes()).sum();
        let reads = iter::zip(ids, &mut tensors).map(|(id, (info, buffer))| Read {
            file: model.file(id),
            offset: catalog.header(id.file).in_file(info.offsets.clone()).start,
            memory: buffer.into(),
            tensor: Some(info.name),
        });
        read_all(reads, total_bytes, progress)?;
        Ok(tensors)
    }

    pub(super) fn ids(&self) -> Vec<Id> {
        self.only.clone().unwrap_or_else(|| self.model.catalog.ids().collect())
    }

    fn layout(&self) -> Result<Layout> {
        let catalog = &self.model.catalog;
        let mut layout = Layout::default();
        for id in self.ids() {
            let place = layout.next(&catalog.info(id), id, None).expect("whole tensors have whole bytes");
            layout.push(place.ok_or_else(|| out_of_memory(&self.model.path, u64::MAX))?);
        }
        Ok(layout)
    }

    fn load<B: IoBufMut>(self, layout: Layout, mut buffer: B, start: usize) -> Result<Loaded<B>> {
        let memory = BufSliceMut::new(&mut buffer, start..);
        let fills = layout.fills(&self.model.catalog);
        let reads = cut(&fills, Fill::in_buffer, memory).map(|(fill, memory)| Read {
            file: &self.model.files[fill.file as usize],
            offset: fill.runs.start,
            memory,
            tensor: None,
        });
        let total_bytes = fills.iter().map(|fill| fill.runs.len_bytes()).sum();
        read_all(reads, total_bytes, self.progress)?;
        Ok(Loaded { catalog: self.model.catalog.clone(), layout, start, buffer })
    }
}

impl<'a> From<TensorView<'a>> for TensorData<'a> {
    /// Returns a loaded tensor, to save it again.
    fn from(view: TensorView<'a>) -> Self {
        Self { name: view.info.name, dtype: view.info.dtype, shape: view.info.shape, bytes: view.bytes }
    }
}

impl<B: IoBuf> Loaded<B> {
    /// Returns the tensor of that name, if it was loaded.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.find(name).map(|place| self.view(place))
    }

    /// Returns the tensors, file by file, in the order of their bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.layout.places.iter().map(|place| self.view(place))
    }

    /// Returns the buffer that holds all tensors.
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// Returns the buffer. [`TensorView::range`] has the range of a tensor in it.
    pub fn into_buffer(self) -> B {
        self.buffer
    }

    fn find(&self, name: &str) -> Option<&Place> {
        self.layout.find(self.catalog.find(name)?)
    }

    fn range(&self, place: &Place) -> Range<usize> {
        self.start + place.range.start..self.start + place.range.end
    }

    fn view(&self, place: &Place) -> TensorView<'_> {
        let range = self.range(place);
        let bytes = BufSlice::new(&self.buffer, range.clone());
        TensorView { info: self.catalog.info(place.id), bytes, range }
    }
}

impl<B: IoBuf + Deref<Target = [u8]>> Loaded<B> {
    /// Returns the bytes of the tensor of that name, in host memory, if it was loaded.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.find(name).map(|place| &self.buffer[self.range(place)])
    }
}

impl fmt::Debug for Load<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = self.only.as_ref().map_or(self.model.catalog.len(), Vec::len);
        f.debug_struct("Load").field("tensors", &tensors).finish_non_exhaustive()
    }
}
