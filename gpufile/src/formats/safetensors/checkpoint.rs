//! Checkpoints: opening a model by its file, its index or its folder, and reading single tensors.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::catalog::Id;
use super::files::ModelFiles;
use super::header::{Header, TensorInfo};
use super::index_file::{index_path, parse_index, read_index};
use super::load::{Load, Loaded};
use crate::cuda::{Device, DeviceBuffer};
use crate::formats::clip::clip;
use crate::formats::head::malformed;
use crate::formats::memory::{addressable, check_len, zeroed};
use crate::formats::regular::identity;
use crate::formats::{Error, Result};
use crate::{File, IoBufMut, OpenOptions};

/// The tensors of one safetensors file, or of a model in several.
///
/// Opening reads and checks the headers only. The methods read tensors, from any thread.
///
/// ```
/// use std::collections::BTreeMap;
/// use gpufile::formats::Dtype;
/// use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let folder = std::env::temp_dir();
/// # let path = folder.join(format!("gpufile-checkpoint-{}.safetensors", std::process::id()));
/// let (scale, weight) = (2_f32.to_le_bytes(), [0_u8; 64]);
/// let tensors = [
///     TensorData::new("scale", Dtype::F32, &[], scale.as_slice()),
///     TensorData::new("weight", Dtype::F16, &[4, 8], weight.as_slice()),
/// ];
/// safetensors::save(&path, &tensors, BTreeMap::new())?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let weight = checkpoint.tensor("weight").unwrap();
/// assert_eq!((weight.dtype, weight.shape), (Dtype::F16, &[4, 8][..]));
///
/// let loaded = checkpoint.load_to_host()?; // or load_to_device
/// assert_eq!(loaded.bytes("scale"), Some(&scale[..]));
/// let names: Vec<_> = loaded.iter().map(|tensor| tensor.info.name).collect();
/// assert_eq!(names, ["scale", "weight"]);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
pub struct Checkpoint {
    model: ModelFiles,
}

impl Checkpoint {
    /// Opens a model: a safetensors file, or if the name ends in `.json`, an index (`model.safetensors.index.json`)
    /// with the files that it names. In a folder, opens `model.safetensors.index.json`, or `model.safetensors` if there
    /// is no index. Follows symbolic links.
    ///
    /// Opens the files of the new index if another process replaces the index during the call.
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be opened or read, or is not a regular file; [`Error::Format`] if a header or
    /// the index is wrong; [`Error::DuplicateTensor`] if two files have tensors of the same name; [`Error::NotInShard`]
    /// if the file that the index names for a tensor lacks it; [`Error::TwoModels`] if a folder has an index and a
    /// `model.safetensors` that the index does not name. Tensors that the index does not name are no error.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::new())
    }

    /// Opens a model as [`open`](Self::open) does, with the engine, the policy and the use of `O_DIRECT` of `options`.
    /// Ignores access and creation options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        if path.is_dir() {
            let file = path.join("model.safetensors");
            let index = index_path(&file);
            unless_replaced(&index, |json| match json {
                Some(json) => Self::open_index(&index, json, options)?.unless_beside(&file),
                None => Self::open_many_with([&file], options),
            })
        } else if path.extension().is_some_and(|extension| extension == "json") {
            unless_replaced(path, |json| match json {
                Some(json) => Self::open_index(path, json, options),
                None => Err(missing(path).into()),
            })
        } else {
            Self::open_many_with([path], options)
        }
    }

    /// Opens the files of a model that has no index.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_many(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        Self::open_many_with(paths, &OpenOptions::new())
    }

    /// Opens files as [`open_many`](Self::open_many) does, with the engine, the policy and the use of `O_DIRECT` of
    /// `options`. Ignores access and creation options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_many_with(
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        options: &OpenOptions,
    ) -> Result<Self> {
        Ok(Self { model: ModelFiles::open(paths, options)? })
    }

    fn open_index(path: &Path, json: &[u8], options: &OpenOptions) -> Result<Self> {
        let index = parse_index(path, json)?;
        let paths: Vec<PathBuf> = index.files().iter().map(|file| path.with_file_name(file)).collect();
        let mut model = ModelFiles::open(&paths, options)?;
        model.path = path.to_owned();
        for (tensor, file) in index.tensors() {
            let found = model.catalog.find(tensor);
            if found.is_none_or(|id| index.files()[id.file as usize] != file) {
                let (tensor, file) = (clip(tensor), path.with_file_name(file));
                return Err(Error::NotInShard { tensor, file, index: path.to_owned() });
            }
        }
        Ok(Self { model })
    }

    /// Returns this model of an index, unless the folder has a file of another model.
    ///
    /// # Errors
    /// [`Error::TwoModels`].
    fn unless_beside(self, other: &Path) -> Result<Self> {
        // Looks at the file once, because a save may remove it at any time.
        let beside = identity(other);
        match beside.is_none() || self.model.files.iter().any(|file| identity(file.path()) == beside) {
            true => Ok(self),
            false => Err(Error::TwoModels { index: self.model.path, file: other.to_owned() }),
        }
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.model.catalog.len()
    }

    /// Returns whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.model.catalog.len() == 0
    }

    /// Returns the number of bytes of all tensors.
    pub fn len_bytes(&self) -> u64 {
        self.model.catalog.len_bytes()
    }

    /// Returns the names of the tensors, file by file, in the order of their places in the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors().map(|tensor| tensor.name)
    }

    /// Returns the tensors, file by file, in the order of their places in the file.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.model.catalog.tensors()
    }

    /// Returns the tensor of that name. Its offsets are in bytes from the start of the data of its
    /// [file](Self::file_of).
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.model.catalog.find(name).map(|id| self.model.catalog.info(id))
    }

    /// Returns the file that a tensor is in, and its header.
    pub fn file_of(&self, name: &str) -> Option<(&File, &Header)> {
        let id = self.model.catalog.find(name)?;
        Some((self.model.file(id), self.model.catalog.header(id.file)))
    }

    /// Returns the files and their headers, in the order of the caller or of the index.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&File, &Header)> {
        self.model.files.iter().zip(self.model.catalog.headers())
    }

    /// Returns a [`Load`], which loads all or some of the tensors.
    pub fn load(&self) -> Load<'_> {
        Load::new(&self.model)
    }

    /// Loads all tensors into one allocation on the GPU.
    ///
    /// # Errors
    /// As [`Load::to_device`].
    pub fn load_to_device(&self, device: &Device) -> Result<Loaded<DeviceBuffer>> {
        self.load().to_device(device)
    }

    /// Loads all tensors into one allocation on the host.
    ///
    /// # Errors
    /// As [`Load::to_host`].
    pub fn load_to_host(&self) -> Result<Loaded<Vec<u8>>> {
        self.load().to_host()
    }

    /// Reads one tensor into host memory.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::Memory`], [`Error::File`].
    pub fn read_tensor(&self, name: &str) -> Result<Vec<u8>> {
        let id = self.model.find(name)?;
        let (path, tensor) = (self.model.file(id).path(), self.model.catalog.info(id));
        let mut bytes = zeroed(path, addressable(path, tensor.len_bytes())?)?;
        self.read_tensor_into(name, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads one tensor into a buffer of the host or a GPU, which must have as many bytes as the tensor.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::BufferSize`], [`Error::File`].
    pub fn read_tensor_into<B: IoBufMut + ?Sized>(&self, name: &str, buffer: &mut B) -> Result<()> {
        let id = self.model.find(name)?;
        let offsets = self.model.catalog.info(id).offsets;
        self.read_offsets(id, || format!("tensor {name:?}"), offsets, buffer)
    }

    /// Reads rows of one tensor into a buffer of the host or a GPU, which must have as many bytes as the rows. Rows are
    /// indices along the first axis, from 0.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::BufferSize`], [`Error::File`]; [`Error::Format`] if the tensor has fewer rows
    /// or no first axis, or if elements are smaller than a byte and the rows do not start and end at whole ones.
    pub fn read_rows_into<B: IoBufMut + ?Sized>(
        &self,
        name: &str,
        rows: Range<u64>,
        buffer: &mut B,
    ) -> Result<()> {
        let id = self.model.find(name)?;
        let offsets = self.model.catalog.info(id).slice_rows(rows.clone());
        let offsets = offsets.map_err(|error| malformed(self.model.file(id), error))?;
        let what = || format!("rows {} to {} of tensor {name:?}", rows.start, rows.end);
        self.read_offsets(id, what, offsets, buffer)
    }

    fn read_offsets<B: IoBufMut + ?Sized>(
        &self,
        id: Id,
        what: impl FnOnce() -> String,
        offsets: Range<u64>,
        buffer: &mut B,
    ) -> Result<()> {
        let file = self.model.file(id);
        check_len(file.path(), what, offsets.end - offsets.start, buffer.len_bytes())?;
        let start = self.model.catalog.header(id.file).in_file(offsets).start;
        Ok(file.read_exact_at(buffer, start)?)
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").field("files", &self.model.files).field("tensors", &self.len()).finish()
    }
}

/// Calls `open` with the bytes of the index, or without them if there is no index. Calls it again if it fails and the
/// index has changed.
fn unless_replaced(index: &Path, open: impl Fn(Option<&[u8]>) -> Result<Checkpoint>) -> Result<Checkpoint> {
    /// The most calls. A process may replace the index again and again.
    const TRIES: usize = 100;
    let mut json = read_index(index)?;
    let mut opened = open(json.as_deref());
    for _ in 1..TRIES {
        if opened.is_ok() {
            break;
        }
        let now = read_index(index)?;
        if now == json {
            break;
        }
        json = now;
        opened = open(json.as_deref());
    }
    opened
}

fn missing(path: &Path) -> crate::Error {
    let error = io::Error::from_raw_os_error(libc::ENOENT);
    crate::Error::Open { path: path.to_owned(), cause: error.into() }
}
