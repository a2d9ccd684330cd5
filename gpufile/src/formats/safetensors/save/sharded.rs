//! Saving models to several files, and the index of them.

use std::collections::BTreeMap;
use std::iter;
use std::path::{Path, PathBuf};

use super::super::headers::index::is_plain;
use super::super::headers::index_file::index_path;
use super::one_file::{Plan, TensorData, malformed};
use super::replace::Place;
use super::shards::ShardNames;
use crate::formats::clip::clip;
use crate::formats::save::{Folder, Temporary, failed, no_file_name, within};
use crate::formats::{FormatError, Result, SaveOptions};

/// The most files that are written at once. Each is open until the index is in place.
const AT_ONCE: usize = 8;

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
/// then removes the shards of the old index whose names are those of shards of this model, and whose owner is that of the
/// index.
///
/// On file systems without hard links, [`Checkpoint::open`] can fail for a moment during the save: it finds a single
/// file beside an index of another model.
///
/// # Errors
/// As [`save`](super::super::save). If more than one file is needed, [`Error::Save`](crate::formats::Error::Save) if the name of the file at `path` is not
/// UTF-8 or has more than 214 bytes.
///
/// [`Checkpoint::open`]: super::super::Checkpoint::open
pub fn save_sharded(
    path: impl AsRef<Path>,
    tensors: &[TensorData<'_>],
    metadata: BTreeMap<String, String>,
    shard_bytes: u64,
    options: &SaveOptions,
) -> Result<PathBuf> {
    save_shards(path, &distribute(tensors, shard_bytes), metadata, options)
}

/// Saves each list of tensors to a separate file, and an index beside them, as [`save_sharded`] does. Lists without
/// tensors get no file. Returns the path for [`Checkpoint::open`].
///
/// The files are written at once, up to eight at a time. So several GPUs save their parts of a model over all of their
/// links. The index is written last: the model is replaced as a whole, or not at all.
///
/// ```no_run
/// use std::collections::BTreeMap;
/// use gpufile::Engine;
/// use gpufile::formats::SaveOptions;
/// use gpufile::formats::safetensors::{self, Checkpoint, PartView, Placement};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cuda = Engine::global().cuda()?;
/// let devices = [cuda.device(0)?, cuda.device(1)?];
/// let checkpoint = Checkpoint::open("model.safetensors")?;
/// let loaded = checkpoint.load().placed(&Placement::balanced()).to_devices(&devices)?;
/// // Train, and then:
/// let of_gpus: Vec<Vec<_>> =
///     loaded.iter().map(|on_gpu| on_gpu.iter().filter_map(|part| part.to_save()).collect()).collect();
/// let shards: Vec<&[_]> = of_gpus.iter().map(Vec::as_slice).collect();
/// safetensors::save_shards("trained.safetensors", &shards, BTreeMap::new(), &SaveOptions::new())?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`save_sharded`]. Two tensors of one name are an error, also in different lists.
///
/// [`Checkpoint::open`]: super::super::Checkpoint::open
pub fn save_shards(
    path: impl AsRef<Path>,
    shards: &[&[TensorData<'_>]],
    metadata: BTreeMap<String, String>,
    options: &SaveOptions,
) -> Result<PathBuf> {
    let path = path.as_ref();
    let mut shards: Vec<_> = shards.iter().copied().filter(|shard| !shard.is_empty()).collect();
    if shards.is_empty() {
        shards.push(&[]);
    }
    if let [only] = shards[..] {
        Plan::of(path, only.iter(), metadata)?.save(path, options)?;
        return Ok(path.to_owned());
    }

    // Every check comes before the first write.
    let model = path.file_name().ok_or_else(|| failed(path, no_file_name(path)))?;
    let names = ShardNames::new(model).map_err(|cause| {
        failed(path, crate::Error::File { operation: "name shards of", path: path.to_owned(), cause })
    })?;
    let mut plans = Vec::with_capacity(shards.len());
    let mut weight_map = serde_json::Map::new();
    for (number, shard) in (1..).zip(&shards) {
        let file = names.name(number, shards.len());
        for TensorData { name, .. } in shard.iter() {
            if !is_plain(&file) {
                let error = FormatError::FileName { tensor: clip(name), file: clip(&file) };
                return Err(malformed(path, error));
            }
            if weight_map.insert((*name).to_owned(), file.as_str().into()).is_some() {
                return Err(malformed(path, FormatError::DuplicateTensor { tensor: clip(name) }));
            }
        }
        plans.push((Plan::of(path, shard.iter(), metadata.clone())?, file));
    }
    let bytes = shards.iter().copied().flatten().map(|tensor| tensor.bytes.len_bytes() as u64);
    let total_size = bytes.fold(0, u64::saturating_add);
    let index = serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });

    within(path, options, |folder| {
        folder.lock()?;
        let place = Place::new(folder, options)?;
        let mut written = Vec::with_capacity(plans.len());
        for plans in plans.chunks(AT_ONCE) {
            written.extend(write_together(plans, folder, &place, options)?);
        }
        place.put_shards(written, format!("{index:#}\n"))
    })?;
    Ok(index_path(path))
}

/// Writes the files of these plans in one call.
fn write_together<'f>(
    plans: &[(Plan<'_>, String)],
    folder: &'f Folder,
    place: &Place<'_>,
    options: &SaveOptions,
) -> crate::Result<Vec<Temporary<'f>>> {
    let new: Vec<_> = plans.iter().map(|(_, file)| place.new_file(file)).collect();
    Temporary::written_together(folder, &new, options, |files, _| {
        let mut requests = Vec::new();
        for ((plan, _), file) in iter::zip(plans, files) {
            requests.extend(plan.requests(file)?);
        }
        files[0].engine().write_many(&requests)
    })
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
