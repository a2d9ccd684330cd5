use std::ops::Range;
use std::path::Path;

use super::super::headers::header::{Header, TensorInfo};
use super::super::open::catalog::Id;
use super::super::open::files::ModelFiles;
use super::super::open::rule;
use super::super::open::warning::Warning;
use super::super::place::group::{Bounds, Group};
use super::super::place::placement::Share;
use super::super::place::plan::Plan;
use super::super::place::runs::Runs;
use super::super::save::convert::convert;
use super::super::save::models::Saved;
use super::super::save::packed::Form;
use super::loaded::Load;
use crate::formats::clip::clip;
use crate::formats::error::of_entry;
use crate::formats::head::malformed;
use crate::formats::memory::{addressable, check_len, zeroed};
use crate::formats::visible::Quoted;
use crate::formats::{Error, Result, SaveOptions};
use crate::{File, IoBufMut, IoRange, OpenOptions};

/// The tensors of one safetensors file, or of a model in several.
///
/// Opening reads and checks the headers only. The methods read tensors, from any thread.
///
/// ```
/// use gpufile::formats::{Dtype, SaveOptions};
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
/// safetensors::save(&path, &tensors, &SaveOptions::new())?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let weight = checkpoint.tensor("weight").unwrap();
/// assert_eq!((weight.dtype, weight.shape), (Dtype::F16, &[4, 8][..]));
///
/// let loaded = checkpoint.load().to_host()?; // or to_device(&device)
/// assert_eq!(loaded.bytes("scale"), Some(&scale[..]));
/// let names: Vec<_> = loaded.iter().map(|tensor| tensor.info.name).collect();
/// assert_eq!(names, ["scale", "weight"]);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    pub(super) model: ModelFiles,
}

impl Checkpoint {
    /// Opens a model: a safetensors file, an index (a name that ends in `.json`) with the files that it names, or a
    /// folder with a model. Follows symbolic links.
    ///
    /// `docs/models.md` of the repository has the rule that chooses the files of a model.
    /// [`warnings`](Self::warnings) lists what is not loaded.
    ///
    /// Opens the new files if another process replaces the model during the call. Raises the soft limit of open files
    /// of this process if a model of many files needs it.
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be opened or read, or is not a regular file; [`Error::Format`] if a header or
    /// the index is wrong; [`Error::Incomplete`] if files are missing; [`Error::DuplicateTensor`] if two files have
    /// tensors of the same name, and no index chooses one; [`Error::NotInShard`] if the file that the index names for a
    /// tensor lacks it; [`Error::NoModel`] or [`Error::SeveralModels`] if a folder has no model, or several.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with([path], &OpenOptions::new())
    }

    /// Opens files as one model. An index in their folder decides which tensors of the files that it names are
    /// loaded. A list of one path is opened as [`open`](Self::open) does. The files get the engine, the
    /// policy and the use of `O_DIRECT` of `options`, but not its access and creation options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let paths: Vec<_> = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
        Ok(Self { model: ModelFiles::open_model(|| rule::choose_many(&paths), options)? })
    }

    /// Makes a model of open files, such as those over a [storage](crate::storage). Each has all of its tensors: no index is
    /// looked for. Files have different [paths](File::path).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_files(files: impl IntoIterator<Item = File>) -> Result<Self> {
        let files: Vec<_> = files.into_iter().collect();
        let choice = rule::of_files(files.iter().map(File::path));
        let open =
            |path: &Path| Ok(files.iter().find(|file| file.path() == path).expect("a file's path").clone());
        Ok(Self { model: ModelFiles::of_choice(&choice, &open)? })
    }

    /// Returns warnings about parts of the model that are not loaded, for example tensors that the index does not
    /// name.
    pub fn warnings(&self) -> &[Warning] {
        &self.model.warnings
    }

    /// Returns the number of bytes of all tensors.
    pub fn len_bytes(&self) -> u64 {
        self.model.catalog.len_bytes()
    }

    /// Returns the tensors, file by file, in the order of their bytes.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
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

    /// Returns the files and their headers, in the order of the caller or of the index. Each header has
    /// only the tensors that the index, if there is one, assigns to the file.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&File, &Header)> {
        self.model.files.iter().zip(self.model.catalog.headers())
    }

    /// Returns a [`Load`], which loads all or some of the tensors.
    pub fn load(&self) -> Load<'_> {
        Load::new(&self.model)
    }

    /// Returns the length in the file of a tensor that is packed, in bytes. Returns `None` for other tensors. Its offsets and
    /// its length elsewhere are those of the tensor itself.
    pub fn packed_len_bytes(&self, name: &str) -> Option<u64> {
        let id = self.model.catalog.find(name)?;
        self.model.views[id.file as usize].as_ref()?.packed_bytes(name)
    }

    /// Saves the model with packed tensors: in fewer bytes, from which each value comes back with all its bits. Packs those of
    /// `BF16`, `F16`, `F32`, `F8_E4M3` and `F8_E5M2` that become at least 3 % shorter. `docs/packed.md` of the repository
    /// specifies the format.
    ///
    /// This crate, its program and its Python package open such files as they open others. Other loaders find
    /// bytes of the type `U8` and one axis under the name of a packed tensor, and fail.
    ///
    /// A model of one file becomes a file, in `path` if that is a folder. A model of several becomes files of the same names in
    /// the folder `path`, which is created if need be, and an index of them. Each file replaces an older one as a whole,
    /// and the index comes last. Other files beside the model, such as its configuration, are not copied.
    ///
    /// ```
    /// use gpufile::formats::{Dtype, SaveOptions};
    /// use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
    ///
    /// # fn main() -> gpufile::formats::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let (plain, packed) = (folder.path().join("plain.safetensors"), folder.path().join("packed.safetensors"));
    /// let weight: Vec<u8> = (0..32_768).flat_map(|value| (value as f32).sin().to_le_bytes()).collect();
    /// let tensors = [TensorData::new("weight", Dtype::F32, &[128, 256], &weight)];
    /// safetensors::save(&plain, &tensors, &SaveOptions::new())?;
    ///
    /// let saved = Checkpoint::open(&plain)?.compress(&packed, &SaveOptions::new())?;
    /// assert!(saved.len_bytes < weight.len() as u64 * 9 / 10);
    ///
    /// let checkpoint = Checkpoint::open(&packed)?;
    /// assert_eq!(checkpoint.tensor("weight").unwrap().dtype, Dtype::F32);
    /// assert_eq!(checkpoint.read_tensor("weight")?, weight);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Save`], also if a tensor cannot be read; [`Error::Format`] for metadata with an entry that begins with
    /// `gpufile.packed`.
    pub fn compress(&self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<Saved> {
        convert(&self.model, path.as_ref(), Form::Packed, options)
    }

    /// Saves the model without packed tensors, as [`compress`](Self::compress) saves it with them.
    ///
    /// # Errors
    /// As [`compress`](Self::compress).
    pub fn decompress(&self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<Saved> {
        convert(&self.model, path.as_ref(), Form::Plain, options)
    }

    /// Plans a load of these tensors, or of all, to this number of devices, for a caller that allocates the memory
    /// itself. `rule` gives each tensor its share.
    ///
    /// # Errors
    /// Those of the rule, [`Error::NoSuchTensor`], [`Error::Format`].
    pub fn plan<E: From<Error>>(
        &self,
        names: Option<&[String]>,
        devices: usize,
        rule: impl FnMut(&TensorInfo<'_>) -> Result<Share, E>,
    ) -> Result<Plan, E> {
        let load = match names {
            Some(names) => self.load().only(names)?,
            None => self.load(),
        };
        Plan::new(&self.model, load.ids().into_iter(), devices, rule)
    }

    /// Plans a read of the elements of a tensor within these indices along each axis.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::Memory`]; [`Error::Format`] if there are no such elements or they do not fill
    /// whole bytes.
    pub fn part(&self, name: &str, bounds: &[Range<u64>]) -> Result<Group> {
        Group::of_part(&self.model, self.model.find(name)?, bounds)
    }

    /// Plans a read of these tensors, or of the elements within these indices along each axis, to memory that the caller
    /// allocates. The groups are in the order of the files. A group has at most `limit_bytes` bytes, or one part.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub fn parts(&self, parts: Vec<(String, Option<Bounds>)>, limit_bytes: usize) -> Result<Vec<Group>> {
        let parts = parts.into_iter().map(|(name, bounds)| Ok((self.model.find(&name)?, bounds)));
        Group::of_parts(&self.model, parts.collect::<Result<_>>()?, limit_bytes)
    }

    /// Reads one tensor into host memory.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::Memory`], [`Error::Tensor`].
    pub fn read_tensor(&self, name: &str) -> Result<Vec<u8>> {
        let id = self.model.find(name)?;
        let (path, tensor) = (self.model.file(id).path(), self.model.catalog.info(id));
        let mut bytes = zeroed(path, addressable(path, tensor.len_bytes())?)?;
        self.read_tensor_into(name, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads one tensor into a buffer of the same length, of the host or a GPU.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::BufferSize`], [`Error::Tensor`].
    pub fn read_tensor_into<B: IoBufMut + ?Sized>(&self, name: &str, buffer: &mut B) -> Result<()> {
        let id = self.model.find(name)?;
        let runs = Runs::whole(&self.model.catalog.info(id));
        self.read_runs(id, || format!("tensor {}", Quoted(name)), runs, buffer)
    }

    /// Reads a slice of one tensor, the indices `range` along one axis, into a buffer of the host or a GPU.
    /// The buffer must have the length of the slice, and gets its elements in C order. Axes count from 0. A
    /// slice along axis 0 has whole rows.
    ///
    /// ```no_run
    /// # use gpufile::formats::safetensors::Checkpoint;
    /// # fn main() -> gpufile::formats::Result<()> {
    /// let checkpoint = Checkpoint::open("model.safetensors")?;
    /// // The columns 0 to 512 of a matrix of 4096 rows, in F16.
    /// let mut columns = vec![0; 4096 * 512 * 2];
    /// checkpoint.read_slice_into("o_proj.weight", 1, 0..512, &mut columns)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::BufferSize`], [`Error::Tensor`]; [`Error::Format`] if the tensor lacks
    /// the axis or some of the indices, or if its elements are smaller than a byte and the slice does not start and end
    /// at whole bytes.
    pub fn read_slice_into<B: IoBufMut + ?Sized>(
        &self,
        name: &str,
        axis: usize,
        range: Range<u64>,
        buffer: &mut B,
    ) -> Result<()> {
        let id = self.model.find(name)?;
        let runs = Runs::of_slice(&self.model.catalog.info(id), axis, &range);
        let runs = runs.map_err(|error| malformed(self.model.file(id), error))?;
        let what = || format!("{} to {} of axis {axis} of tensor {}", range.start, range.end, Quoted(name));
        self.read_runs(id, what, runs, buffer)
    }

    /// Reads parts of a tensor, one behind the other in the buffer.
    fn read_runs<B: IoBufMut + ?Sized>(
        &self,
        id: Id,
        what: impl FnOnce() -> String,
        runs: Runs,
        buffer: &mut B,
    ) -> Result<()> {
        /// The most ranges of one list, which takes memory.
        const MOST_RANGES: usize = 1 << 18;
        let (file, info) = (self.model.file(id), self.model.catalog.info(id));
        check_len(file.path(), what, runs.len_bytes(), buffer.len_bytes())?;
        let failed = |error| Error::Tensor { tensor: clip(info.name), error: Box::new(of_entry(error)) };
        let runs = runs.behind(self.model.catalog.header(id.file).in_file(info.offsets).start);
        if runs.count() <= 1 {
            return file.read_exact_at(buffer, runs.start).map_err(failed);
        }
        let len_bytes = runs.run_bytes as usize;
        let mut ranges = (0..runs.count()).map(|run| IoRange {
            file_offset: runs.nth(run),
            buffer_offset: run as usize * len_bytes,
            len_bytes,
        });
        loop {
            let list: Vec<_> = ranges.by_ref().take(MOST_RANGES).collect();
            if list.is_empty() {
                return Ok(());
            }
            file.read_many(buffer, &list).map_err(failed)?;
        }
    }
}
