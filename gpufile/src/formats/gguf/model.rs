use std::ops::Range;
use std::path::Path;

use super::catalog::Id;
use super::files::ModelFiles;
use super::header::{Header, TensorInfo};
use super::load::Load;
use super::metadata::Metadata;
use crate::formats::clip::clip;
use crate::formats::error::of_entry;
use crate::formats::head::malformed;
use crate::formats::memory::{addressable, check_len, zeroed};
use crate::formats::visible::Quoted;
use crate::formats::{Error, Result};
use crate::{File, IoBufMut, OpenOptions};

/// A model in a GGUF file, or in several.
///
/// Opening reads and checks the headers only. The methods read tensors, from any thread.
///
/// ```
/// use gpufile::formats::SaveOptions;
/// use gpufile::formats::gguf::{self, GgmlType, Metadata, Model, TensorData, Value};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-model-{}.gguf", std::process::id()));
/// let metadata = Metadata::from_iter([("general.architecture", "llama")]);
/// let blocks = [7_u8; 2 * 18];
/// let tensors = [TensorData::new("output.weight", GgmlType::Q4_0, &[1, 64], &blocks[..])];
/// gguf::save(&path, &metadata, &tensors, &SaveOptions::new())?;
///
/// let model = Model::open(&path)?;
/// assert_eq!(model.metadata().get("general.architecture").and_then(Value::as_str), Some("llama"));
/// assert_eq!(model.tensor("output.weight").unwrap().shape, [1, 64]);
/// let loaded = model.load().to_host()?; // or to_device(&device)
/// assert_eq!(loaded.bytes("output.weight"), Some(&blocks[..]));
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Model {
    pub(super) model: ModelFiles,
}

impl Model {
    /// Opens a model. If the file is one of a split model, such as `NAME-00001-of-00003.gguf`, opens the others in its
    /// folder too. Raises the soft limit of open files of this process if a model of many files needs it. Follows symbolic
    /// links.
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be opened or read, or is not a regular file; [`Error::Format`] if a header is
    /// wrong, or the files of a split model do not belong together; [`Error::Incomplete`] if files of it are missing;
    /// [`Error::DuplicateTensor`] if two files have tensors of the same name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::new())
    }

    /// Opens a model as [`open`](Self::open) does, with the engine, the policy and the use of `O_DIRECT` of
    /// `options`. Ignores access and creation options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Ok(Self { model: ModelFiles::open(path.as_ref(), options)? })
    }

    /// Returns the metadata: that of the first file, which has everything about a split model.
    pub fn metadata(&self) -> &Metadata {
        self.model.catalog.header(0).metadata()
    }

    /// Returns the number of bytes of all tensors.
    pub fn len_bytes(&self) -> u64 {
        self.model.catalog.len_bytes()
    }

    /// Returns the tensors, file by file, in the order of their bytes.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        self.model.catalog.tensors()
    }

    /// Returns the tensor of that name. Its range is in bytes from the start of its [file](Self::file_of).
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.model.catalog.find(name).map(|id| self.info(id))
    }

    /// Returns the file that a tensor is in, and its header.
    pub fn file_of(&self, name: &str) -> Option<(&File, &Header)> {
        let id = self.model.catalog.find(name)?;
        Some((self.model.file(id.file), self.model.catalog.header(id.file)))
    }

    /// Returns the files and their headers, in the order of the split.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&File, &Header)> {
        self.model.files.iter().zip(self.model.catalog.headers())
    }

    /// Returns a [`Load`], which loads all or some of the tensors.
    pub fn load(&self) -> Load<'_> {
        Load::new(&self.model)
    }

    /// Reads one tensor into host memory.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::Memory`], [`Error::Tensor`].
    pub fn read_tensor(&self, name: &str) -> Result<Vec<u8>> {
        let id = self.model.find(name)?;
        let path = self.model.file(id.file).path();
        let mut bytes = zeroed(path, addressable(path, self.info(id).len_bytes())?)?;
        self.read_tensor_into(name, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads one tensor into a buffer of the same length, of the host or a GPU.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::BufferSize`], [`Error::Tensor`].
    pub fn read_tensor_into<B: IoBufMut + ?Sized>(&self, name: &str, buffer: &mut B) -> Result<()> {
        let id = self.model.find(name)?;
        let what = || format!("tensor {}", Quoted(name));
        self.read_range(id, self.info(id).range, what, buffer)
    }

    /// Reads rows of one tensor, indices along its first axis, into a buffer of the same length, of the host
    /// or a GPU.
    ///
    /// ```no_run
    /// # use gpufile::formats::gguf::Model;
    /// # fn main() -> gpufile::formats::Result<()> {
    /// let model = Model::open("model.gguf")?;
    /// let embeddings = model.tensor("token_embd.weight").unwrap();
    /// let rows = embeddings.slice_rows(1000..1008).unwrap();
    /// let mut eight = vec![0; (rows.end - rows.start) as usize];
    /// model.read_rows_into("token_embd.weight", 1000..1008, &mut eight)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::BufferSize`], [`Error::Tensor`]; [`Error::Format`] as
    /// [`TensorInfo::slice_rows`].
    pub fn read_rows_into<B: IoBufMut + ?Sized>(
        &self,
        name: &str,
        rows: Range<u64>,
        buffer: &mut B,
    ) -> Result<()> {
        let id = self.model.find(name)?;
        let range = self
            .info(id)
            .slice_rows(rows.clone())
            .map_err(|error| malformed(self.model.file(id.file), error))?;
        let what = || format!("rows {} to {} of tensor {}", rows.start, rows.end, Quoted(name));
        self.read_range(id, range, what, buffer)
    }

    fn read_range<B: IoBufMut + ?Sized>(
        &self,
        id: Id,
        range: Range<u64>,
        what: impl FnOnce() -> String,
        buffer: &mut B,
    ) -> Result<()> {
        let (file, name) = (self.model.file(id.file), self.info(id).name);
        check_len(file.path(), what, range.end - range.start, buffer.len_bytes())?;
        let failed = |error| Error::Tensor { tensor: clip(name), error: Box::new(of_entry(error)) };
        file.read_exact_at(buffer, range.start).map_err(failed)
    }

    fn info(&self, id: Id) -> TensorInfo<'_> {
        self.model.catalog.info(id)
    }
}
