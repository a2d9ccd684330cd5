//! Saving models to one file or to several.

use std::collections::BTreeMap;
use std::iter;
use std::path::{Path, PathBuf};

use cufile::BufSlice;

use super::header::Header;
use super::index::is_plain;
use super::load::TensorView;
use super::replace::Place;
use super::shards::ShardNames;
use super::write::NewTensor;
use crate::WriteRequest;
use crate::formats::clip::clip;
use crate::formats::error::of_entry;
use crate::formats::memory::check_len;
use crate::formats::save::{Folder, Temporary, no_file_name, open_clean};
use crate::formats::{Dtype, Error, FormatError, Result, SaveOptions};

/// A tensor to save, in the memory of the host or a GPU.
///
/// ```
/// use gpufile::formats::Dtype;
/// use gpufile::formats::safetensors::TensorData;
///
/// let ones: Vec<u8> = [1_f32; 6].iter().flat_map(|one| one.to_le_bytes()).collect();
/// let tensor = TensorData::new("ones", Dtype::F32, &[2, 3], &ones); // or a DeviceBuffer
/// assert_eq!((tensor.name, tensor.shape), ("ones", &[2, 3][..]));
/// ```
#[derive(Debug, Clone)]
pub struct TensorData<'a> {
    /// The name.
    pub name: &'a str,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The length of each axis, in elements, the slowest first. Empty for a scalar.
    pub shape: &'a [u64],
    /// The elements, in C order and little-endian.
    pub bytes: BufSlice<'a>,
}

impl<'a> TensorData<'a> {
    /// Returns a tensor to save.
    pub fn new(name: &'a str, dtype: Dtype, shape: &'a [u64], bytes: impl Into<BufSlice<'a>>) -> Self {
        Self { name, dtype, shape, bytes: bytes.into() }
    }
}

impl<'a> From<TensorView<'a>> for TensorData<'a> {
    /// Returns a loaded tensor, to save it again.
    fn from(view: TensorView<'a>) -> Self {
        Self { name: view.info.name, dtype: view.info.dtype, shape: view.info.shape, bytes: view.bytes }
    }
}

/// Saves tensors to a file. The complete file replaces an older one, as [`SaveOptions`] describes. Returns the length
/// of the file in bytes.
///
/// The file is equal to the one that the `safetensors` library writes: the types with the largest elements first, then
/// by name. If there is an index beside the path, the file replaces that model too, as [`save_sharded`] describes: the
/// index and its shards are removed.
///
/// ```
/// use std::collections::BTreeMap;
/// use gpufile::formats::Dtype;
/// use gpufile::formats::safetensors::{self, TensorData};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-save-{}.safetensors", std::process::id()));
/// let weight = vec![0; 24]; // or a DeviceBuffer
/// let tensors = [TensorData::new("weight", Dtype::F32, &[2, 3], &weight)];
/// let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
/// let len_bytes = safetensors::save(&path, &tensors, metadata)?;
/// # assert_eq!(std::fs::metadata(&path).unwrap().len(), len_bytes);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Format`] as [`Header::build`]; [`Error::BufferSize`] if a tensor has more or fewer bytes than its shape and
/// type say; [`Error::Save`] if the file cannot be written. The old file stays then, unless the folder cannot be
/// synced: in this case the new file has replaced it.
pub fn save(
    path: impl AsRef<Path>,
    tensors: &[TensorData<'_>],
    metadata: BTreeMap<String, String>,
) -> Result<u64> {
    save_with(path, tensors, metadata, &SaveOptions::new())
}

/// Saves tensors as [`save`] does, with these options.
///
/// # Errors
/// As [`save`].
pub fn save_with(
    path: impl AsRef<Path>,
    tensors: &[TensorData<'_>],
    metadata: BTreeMap<String, String>,
    options: &SaveOptions,
) -> Result<u64> {
    let path = path.as_ref();
    let plan = Plan::of(path, tensors.iter(), metadata)?;
    let len_bytes = plan.header.file_len();
    plan.save(path, options)?;
    Ok(len_bytes)
}

/// A new file, checked and laid out.
struct Plan<'a> {
    header: Header,
    head: Vec<u8>,
    /// The offset of each tensor in the file, and its bytes. Sorted by offset.
    parts: Vec<(u64, BufSlice<'a>)>,
}

impl<'a> Plan<'a> {
    fn of<'t>(
        path: &Path,
        tensors: impl Iterator<Item = &'t TensorData<'a>> + Clone,
        metadata: BTreeMap<String, String>,
    ) -> Result<Self>
    where
        'a: 't,
    {
        let new: Vec<_> = tensors
            .clone()
            .map(|tensor| NewTensor { name: tensor.name, dtype: tensor.dtype, shape: tensor.shape })
            .collect();
        let (header, head) = Header::build(&new, metadata).map_err(|error| malformed(path, error))?;
        let mut parts = Vec::with_capacity(new.len());
        for TensorData { name, bytes, .. } in tensors {
            let place = header.get(name).expect("a header has what it was built from");
            check_len(path, || format!("tensor {name:?}"), place.len_bytes(), bytes.len_bytes())?;
            parts.push((header.in_file(place.offsets).start, *bytes));
        }
        parts.sort_by_key(|(start, _)| *start);
        Ok(Self { header, head, parts })
    }

    fn save(self, path: &Path, options: &SaveOptions) -> Result<()> {
        let header = self.header.clone();
        let save = || {
            let folder = open_clean(path, options.sync)?;
            let file = self.write(&folder, path, options)?;
            Place::new(&folder, path, options).put_file(file, header.tensors().map(|tensor| tensor.name))
        };
        save().map_err(|error| Error::Save { path: path.to_owned(), error: of_entry(error) })
    }

    fn write(self, folder: &Folder, path: &Path, options: &SaveOptions) -> crate::Result<Temporary> {
        Temporary::written(folder, path, options, |file| {
            let head = WriteRequest::new(file, 0, self.head.as_slice());
            let parts = self.parts.into_iter().map(|(start, bytes)| WriteRequest::new(file, start, bytes));
            let requests = iter::once(head).chain(parts).collect::<crate::Result<Vec<_>>>()?;
            file.engine().write_many(&requests)
        })
    }
}

/// Saves tensors to several files of at most `shard_bytes` bytes of data each, and an index beside them. Returns the
/// path for [`Checkpoint::open`]: the index, or `path` itself if one file is enough.
///
/// For the path `model.safetensors` the index is `model.safetensors.index.json`, as in the models of Hugging Face. The
/// shards are `model-RANDOM-00001-of-00002.safetensors` and so on, with other digits for each save. The shards
/// take the tensors in the order given. A tensor longer than `shard_bytes` gets a separate file. Each file has all of
/// the metadata.
///
/// # Older models
/// The new model replaces an older one as a whole, even if one of them is a single file. A program that opens the
/// folder or the index during the save, or after the process was killed, finds the old model or the new one. The save
/// then removes the shards of the old index whose names are those of shards of this model.
///
/// On file systems without hard links, [`Checkpoint::open`] can fail for a moment during the save: it finds a single
/// file beside an index of another model.
///
/// # Errors
/// As [`save`].
///
/// [`Checkpoint::open`]: super::Checkpoint::open
pub fn save_sharded(
    path: impl AsRef<Path>,
    tensors: &[TensorData<'_>],
    metadata: BTreeMap<String, String>,
    shard_bytes: u64,
    options: &SaveOptions,
) -> Result<PathBuf> {
    let path = path.as_ref();
    let shards = distribute(tensors, shard_bytes);
    if let [only] = shards[..] {
        Plan::of(path, only.iter(), metadata)?.save(path, options)?;
        return Ok(path.to_owned());
    }

    // Every check comes before the first write.
    let failed = |error| Error::Save { path: path.to_owned(), error: of_entry(error) };
    let folder_name = path.file_name().ok_or_else(|| failed(no_file_name(path)))?;
    let model = folder_name.to_string_lossy();
    let names = ShardNames::new(&model).map_err(|error| {
        failed(crate::Error::File { operation: "name shards of", path: path.to_owned(), cause: error.into() })
    })?;
    let mut plans = Vec::with_capacity(shards.len());
    let mut weight_map = serde_json::Map::new();
    for (number, shard) in (1..).zip(&shards) {
        let file = names.name(number, shards.len());
        for TensorData { name, .. } in *shard {
            if !is_plain(&file) || folder_name.to_str().is_none() {
                let error = FormatError::FileName { tensor: clip(name), file: clip(&file) };
                return Err(malformed(path, error));
            }
            if weight_map.insert((*name).to_owned(), file.as_str().into()).is_some() {
                return Err(malformed(path, FormatError::DuplicateTensor { tensor: clip(name) }));
            }
        }
        plans.push((Plan::of(path, shard.iter(), metadata.clone())?, file));
    }
    let bytes = tensors.iter().map(|tensor| tensor.bytes.len_bytes() as u64);
    let total_size = bytes.fold(0, u64::saturating_add);
    let index = serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });

    let save = || {
        let folder = open_clean(path, options.sync)?;
        let place = Place::new(&folder, path, options);
        let mut written = Vec::with_capacity(plans.len());
        for (plan, file) in plans {
            written.push((plan.write(&folder, &path.with_file_name(&file), options)?, file));
        }
        place.put_shards(written, format!("{index:#}\n"))?;
        Ok(place.index_path().to_owned())
    };
    save().map_err(failed)
}

/// Cuts the tensors, in their order, into slices of at most `shard_bytes` bytes, or of one longer tensor.
fn distribute<'t, 'a>(tensors: &'t [TensorData<'a>], shard_bytes: u64) -> Vec<&'t [TensorData<'a>]> {
    let mut shards = Vec::new();
    let (mut start, mut room) = (0, shard_bytes);
    for (at, tensor) in tensors.iter().enumerate() {
        let len_bytes = tensor.bytes.len_bytes() as u64;
        if len_bytes > room && start < at {
            shards.push(&tensors[start..at]);
            (start, room) = (at, shard_bytes);
        }
        room = room.saturating_sub(len_bytes);
    }
    shards.push(&tensors[start..]);
    shards
}

fn malformed(path: &Path, error: FormatError) -> Error {
    Error::Format { path: path.to_owned(), error }
}
