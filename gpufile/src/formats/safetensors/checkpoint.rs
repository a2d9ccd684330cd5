//! Models in files: which tensors they have, without reading any.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::load::{Load, Loaded};
use super::replace::index_path;
use super::shards::is_same_file;
use super::{Header, LENGTH_BYTES, MAX_HEADER_LEN, ShardIndex, TensorInfo, head_len};
use crate::cuda::{Device, DeviceBuffer};
use crate::formats::error::clip;
use crate::formats::head::{self, malformed};
use crate::formats::memory::{addressable, check_len, zeroed};
use crate::formats::{Error, Result, regular};
use crate::{File, IoBufMut, OpenOptions};

/// The tensors of one safetensors file, or of a model in several.
///
/// Opening reads the headers and checks them; the data is read by what is called then, from any thread.
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
    /// The path that was opened: a file, an index, or the first of several files.
    path: PathBuf,
    files: Vec<File>,
    catalog: Arc<Catalog>,
}

/// The tensors of several headers.
pub(super) struct Catalog {
    headers: Vec<Header>,
    by_name: Vec<Id>,
}

/// A tensor: the number of its file, and its own in the order of that file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub file: u32,
    pub tensor: u32,
}

impl Checkpoint {
    /// Opens a model: a safetensors file, or if the name ends in `.json`, an index (`model.safetensors.index.json`)
    /// with the files that it names beside it. Of a folder, opens `model.safetensors.index.json` or else
    /// `model.safetensors` in it. Symbolic links are followed.
    ///
    /// If the index is replaced by another while the files are opened, opens those of the other.
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be opened or read, or is not a regular file; [`Error::Format`] if one is not as
    /// the format wants it; [`Error::DuplicateTensor`]; [`Error::NotInShard`] if the index names a tensor that is not
    /// where it says; [`Error::TwoModels`] if a folder has an index and a `model.safetensors` that the index does not
    /// name. Tensors that an index does not name are not an error.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::new())
    }

    /// As [`open`](Self::open), opening files in this way: with this engine, policy and use of `O_DIRECT`. Ignores
    /// access and creation options.
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

    /// As [`open_many`](Self::open_many), opening files in this way: with this engine, policy and use of
    /// `O_DIRECT`. Ignores access and creation options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_many_with(
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let (mut files, mut headers) = (Vec::<File>::new(), Vec::new());
        for path in paths {
            let file = regular::open(path.as_ref(), options)?;
            let (head, file_len) = head::read(&file, LENGTH_BYTES as usize, head_len)?;
            headers.push(Header::parse(&head, file_len).map_err(|error| malformed(&file, error))?);
            files.push(file);
        }
        let catalog = Catalog::new(headers).map_err(|(tensor, [one, other])| Error::DuplicateTensor {
            tensor,
            files: [files[one].path().to_owned(), files[other].path().to_owned()],
        })?;
        let path = files.first().map(|file| file.path().to_owned()).unwrap_or_default();
        Ok(Self { path, files, catalog: Arc::new(catalog) })
    }

    fn open_index(path: &Path, json: &[u8], options: &OpenOptions) -> Result<Self> {
        let index =
            ShardIndex::parse(json).map_err(|error| Error::Format { path: path.to_owned(), error })?;
        let paths: Vec<PathBuf> = index.files().iter().map(|file| path.with_file_name(file)).collect();
        let mut checkpoint = Self::open_many_with(&paths, options)?;
        checkpoint.path = path.to_owned();
        for (tensor, file) in index.tensors() {
            let found = checkpoint.catalog.find(tensor);
            if found.is_none_or(|id| index.files()[id.file as usize] != file) {
                let (tensor, file) = (clip(tensor), path.with_file_name(file));
                return Err(Error::NotInShard { tensor, file, index: path.to_owned() });
            }
        }
        Ok(checkpoint)
    }

    /// This, that an index was opened for, except if there is a file of another model in the folder.
    fn unless_beside(self, other: &Path) -> Result<Self> {
        if !other.is_file() || self.files.iter().any(|file| is_same_file(file.path(), other)) {
            return Ok(self);
        }
        Err(Error::TwoModels { index: self.path, file: other.to_owned() })
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.catalog.by_name.len()
    }

    /// Returns whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.catalog.by_name.is_empty()
    }

    /// Returns the number of bytes that all tensors have.
    pub fn len_bytes(&self) -> u64 {
        // Headers fit their files, which have fewer than 2^63 bytes each.
        self.catalog.headers.iter().map(Header::data_len).fold(0, u64::saturating_add)
    }

    /// Returns the names of the tensors, file by file, in the order of their places in the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors().map(|tensor| tensor.name)
    }

    /// Returns the tensors, file by file, in the order of their places in the file.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.catalog.headers.iter().flat_map(Header::tensors)
    }

    /// Returns the tensor of that name. Its offsets are those in its [file](Self::file_of).
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.catalog.find(name).map(|id| self.catalog.info(id))
    }

    /// Returns the file that a tensor is in, and its header.
    pub fn file_of(&self, name: &str) -> Option<(&File, &Header)> {
        let file = self.catalog.find(name)?.file as usize;
        Some((&self.files[file], &self.catalog.headers[file]))
    }

    /// Returns the files and their headers, in the order that they were given, or that the index names them.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&File, &Header)> {
        self.files.iter().zip(&self.catalog.headers)
    }

    /// Returns a [`Load`], which loads all or some of the tensors.
    pub fn load(&self) -> Load<'_> {
        Load::new(self, &self.files, &self.catalog)
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
        let (file, tensor) = self.find(name)?;
        let path = self.files[file].path();
        let mut bytes = zeroed(path, addressable(path, tensor.len_bytes())?)?;
        self.read_tensor_into(name, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads one tensor into a buffer of the host or a GPU, which must have as many bytes as the tensor.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::BufferSize`], [`Error::File`].
    pub fn read_tensor_into<B: IoBufMut + ?Sized>(&self, name: &str, buffer: &mut B) -> Result<()> {
        let (file, tensor) = self.find(name)?;
        let offsets = tensor.offsets.clone();
        self.read_offsets(file, || format!("tensor {name:?}"), offsets, buffer)
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
        let (file, tensor) = self.find(name)?;
        let offsets = tensor.slice_rows(rows.clone()).map_err(|error| malformed(&self.files[file], error))?;
        let what = || format!("rows {} to {} of tensor {name:?}", rows.start, rows.end);
        self.read_offsets(file, what, offsets, buffer)
    }

    fn read_offsets<B: IoBufMut + ?Sized>(
        &self,
        file: usize,
        what: impl FnOnce() -> String,
        offsets: Range<u64>,
        buffer: &mut B,
    ) -> Result<()> {
        let start = self.catalog.headers[file].in_file(offsets.clone()).start;
        let file = &self.files[file];
        check_len(file.path(), what, offsets.end - offsets.start, buffer.len_bytes())?;
        Ok(file.read_exact_at(buffer, start)?)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn no_tensor(&self, name: &str) -> Error {
        let is_first = self.files.first().is_some_and(|file| file.path() == self.path);
        let others = if is_first { self.files.len() - 1 } else { 0 };
        Error::NoSuchTensor { tensor: clip(name), path: self.path.clone(), others }
    }

    /// Returns a tensor and the number of its file.
    fn find(&self, name: &str) -> Result<(usize, TensorInfo<'_>)> {
        let id = self.catalog.find(name).ok_or_else(|| self.no_tensor(name))?;
        Ok((id.file as usize, self.catalog.info(id)))
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").field("files", &self.files).field("tensors", &self.len()).finish()
    }
}

/// Opens what the index says, or what is to be opened without one. Opens again if that fails and the index has
/// changed.
fn unless_replaced(index: &Path, open: impl Fn(Option<&[u8]>) -> Result<Checkpoint>) -> Result<Checkpoint> {
    /// Nobody saves models faster than they are opened, except to keep others busy.
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

/// Reads an index, unless it is too long to be one; `None` if there is none.
pub(super) fn read_index(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match regular::open_plain(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        file => file?,
    };
    let mut json = Vec::new();
    // One byte more than is allowed makes the parser refuse it.
    file.take(MAX_HEADER_LEN + 1).read_to_end(&mut json).map_err(|error| crate::Error::File {
        operation: "read",
        path: path.to_owned(),
        cause: error.into(),
    })?;
    Ok(Some(json))
}

fn missing(path: &Path) -> crate::Error {
    let error = io::Error::from_raw_os_error(libc::ENOENT);
    crate::Error::Open { path: path.to_owned(), cause: error.into() }
}

impl Catalog {
    /// # Errors
    /// A name that two of the headers have, and which two.
    fn new(headers: Vec<Header>) -> Result<Self, (String, [usize; 2])> {
        let mut by_name = Vec::with_capacity(headers.iter().map(Header::len).sum());
        for (file, header) in (0..).zip(&headers) {
            by_name.extend(header.by_name().iter().map(|&tensor| Id { file, tensor }));
        }
        let mut catalog = Self { headers, by_name: Vec::new() };
        let name = |id: &Id| catalog.info(*id).name;
        // The names of one file are in order already, which the stable sort makes use of.
        by_name.sort_by(|a, b| name(a).cmp(name(b)));
        if let Some(pair) = by_name.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err((clip(name(&pair[0])), [pair[0].file as usize, pair[1].file as usize]));
        }
        catalog.by_name = by_name;
        Ok(catalog)
    }

    pub fn header(&self, file: u32) -> &Header {
        &self.headers[file as usize]
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn info(&self, id: Id) -> TensorInfo<'_> {
        self.header(id.file).nth(id.tensor)
    }

    pub fn find(&self, name: &str) -> Option<Id> {
        let found = self.by_name.binary_search_by(|&id| self.info(id).name.cmp(name)).ok()?;
        Some(self.by_name[found])
    }

    /// Returns all tensors, file by file.
    pub fn ids(&self) -> impl Iterator<Item = Id> {
        (0..)
            .zip(&self.headers)
            .flat_map(|(file, header)| (0..header.len() as u32).map(move |tensor| Id { file, tensor }))
    }
}
