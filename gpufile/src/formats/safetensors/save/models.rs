use cufile::IoBuf;
use std::path::{Path, PathBuf};

use super::super::headers::index::is_plain;
use super::super::headers::index_file::index_path;
use super::older::Older;
use super::plan::{Plan, TensorData, malformed};
use super::shards::ShardNames;
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::clip::clip;
use crate::formats::save::{Access, Folder, New, Temporary, distribute, failed, no_file_name, within};
use crate::formats::{FormatError, InPlace, Result, SaveOptions};

/// The most files that are written at once. Each is open until the index is in place.
const AT_ONCE: usize = 8;

/// A saved model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The path for [`Checkpoint::open`](super::super::Checkpoint::open): that of the only file, or of the index.
    pub path: PathBuf,
    /// The length of all files with tensors, in bytes.
    pub len_bytes: u64,
}

/// Saves tensors to a file, or to several with an index. The new file replaces an older one as a whole, as
/// [`SaveOptions`] describes.
///
/// Each file is equal to the one that the `safetensors` library writes: the types with the largest elements first, then
/// by name. [`SaveOptions::metadata`] sets entries that describe it.
///
/// ```
/// use gpufile::formats::{Dtype, SaveOptions};
/// use gpufile::formats::safetensors::{self, TensorData};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-save-{}.safetensors", std::process::id()));
/// let weight = vec![0; 24]; // or a DeviceBuffer
/// let tensors = [TensorData::new("weight", Dtype::F32, &[2, 3], &weight)];
/// let saved = safetensors::save(&path, &tensors, &SaveOptions::new().metadata([("format", "pt")]))?;
/// # assert_eq!(std::fs::metadata(&path).unwrap().len(), saved.len_bytes);
/// # assert_eq!(saved.path, path);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Several files
/// [`SaveOptions::shard_bytes`] limits the data of a file. If one file is not enough, the files take the tensors in the
/// order given, and an index is written last. A tensor longer than the limit gets a separate file. Each file has all of the
/// metadata.
///
/// For the path `model.safetensors` the index is `model.safetensors.index.json`, as in the models of Hugging Face. The
/// shards are `model-RANDOM-00001-of-00002.safetensors` and so on, with other digits for each save.
///
/// # Older models
/// The save replaces the file at the path, or, with several files, the index. No other file changes: a save of one file keeps
/// an index with its shards, and a save of several keeps the shards of an older index and a single file. A program that opens
/// the path or the index during the save, or after the process was killed, finds the old model or the new one.
///
/// A folder with a file and an index of another model has two models, and [`Checkpoint::open`] of the folder fails.
/// [`SaveOptions::remove_old_model`] removes the older one, after the new one is in place.
///
/// # Errors
/// [`Error::Format`] as [`Header::build`]; [`Error::BufferSize`] if a tensor has more or fewer bytes than its shape and
/// type say; [`Error::Save`] if a file cannot be written or replaced, with what is in place then. If more than one file is
/// needed, [`Error::Save`] if the name of the file at `path` is not UTF-8 or has more than 214 bytes.
///
/// [`Checkpoint::open`]: super::super::Checkpoint::open
/// [`Header::build`]: super::super::Header::build
pub fn save(path: impl AsRef<Path>, tensors: &[TensorData<'_>], options: &SaveOptions) -> Result<Saved> {
    save_shards(path, &[tensors], options)
}

/// Saves each list of tensors to a separate file, with an index in the same folder, as [`save`] does with several
/// files. Lists without tensors get no file.
///
/// Up to eight files are written in parallel, so several GPUs save their parts of a model over all of their
/// links. The index is written last, and puts the new model in place.
///
/// ```no_run
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
/// safetensors::save_shards("trained.safetensors", &shards, &SaveOptions::new())?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`save`]. Two tensors of one name are an error, also in different lists.
pub fn save_shards(
    path: impl AsRef<Path>,
    shards: &[&[TensorData<'_>]],
    options: &SaveOptions,
) -> Result<Saved> {
    let path = path.as_ref();
    match Layout::of(path, shards, options)? {
        Layout::One(plan) => {
            let len_bytes = plan.save(path, options)?;
            Ok(Saved { path: path.to_owned(), len_bytes })
        }
        Layout::Several { plans, index } => {
            let mut len_bytes = 0_u64;
            within(path, options, |folder| {
                folder.lock()?;
                let older = Older::of(folder)?;
                let of_index = folder.access_of(&older.index)?;
                let of_data = older.access_of_data(folder)?.or_else(|| of_index.clone());
                let mut written = Vec::with_capacity(plans.len());
                for plans in plans.chunks(AT_ONCE) {
                    let (files, bytes) = write_together(plans, folder, of_data.as_ref(), options)?;
                    written.extend(files);
                    len_bytes = len_bytes.saturating_add(bytes);
                }
                let new = New { target: older.index.clone(), access: of_index.or(of_data) };
                let index = Temporary::written(folder, new, options, |file, _| {
                    file.write_all_at(index.as_bytes(), 0)
                })?;
                put(folder, written, index)?;
                if options.remove_old_model { older.remove(folder, &older.index) } else { Ok(()) }
            })?;
            Ok(Saved { path: index_path(path), len_bytes })
        }
    }
}

/// The files of a new model, checked and laid out.
pub(super) enum Layout<'a> {
    One(Plan<'a>),
    /// Each plan with the name of its file, and the index of these names.
    Several {
        plans: Vec<(Plan<'a>, String)>,
        index: String,
    },
}

impl<'a> Layout<'a> {
    /// Cuts lists of tensors into files, as the options say.
    pub fn of(path: &Path, shards: &[&[TensorData<'a>]], options: &SaveOptions) -> Result<Self> {
        let shard_bytes = options.shard_bytes.unwrap_or(u64::MAX);
        let len_bytes = |tensor: &TensorData<'_>| tensor.bytes.len_bytes() as u64;
        let shards = shards.iter().flat_map(|tensors| distribute(tensors, len_bytes, shard_bytes));
        let mut shards: Vec<_> = shards.filter(|shard| !shard.is_empty()).collect();
        if shards.is_empty() {
            shards.push(&[]);
        }
        if let [only] = shards[..] {
            return Ok(Self::One(Plan::of(path, only.iter(), options)?));
        }
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
            plans.push((Plan::of(path, shard.iter(), options)?, file));
        }
        let bytes = shards.iter().copied().flatten().map(len_bytes);
        let total_size = bytes.fold(0, u64::saturating_add);
        let index = serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
        Ok(Self::Several { plans, index: format!("{index:#}\n") })
    }
}

pub(super) fn len_of(plans: &[(Plan<'_>, String)]) -> u64 {
    plans.iter().map(|(plan, _)| plan.len_bytes()).fold(0, u64::saturating_add)
}

/// Writes the files of these plans in one call. Returns their length in bytes too.
fn write_together<'f>(
    plans: &[(Plan<'_>, String)],
    folder: &'f Folder,
    access: Option<&Access>,
    options: &SaveOptions,
) -> crate::Result<(Vec<Temporary<'f>>, u64)> {
    let new = |file: &String| New { target: file.into(), access: access.cloned() };
    let new: Vec<_> = plans.iter().map(|(_, file)| new(file)).collect();
    let plans: Vec<_> = plans.iter().map(|(plan, _)| plan).collect();
    let mut len_bytes = 0;
    let written = Temporary::written_together(folder, &new, options, |files, _| {
        len_bytes = Plan::write_together(&plans, files)?;
        Ok(())
    })?;
    Ok((written, len_bytes))
}

/// Gives complete shards their names, and then the index its own, which puts the new model in place. After a failure before
/// that, none of them stays.
fn put(folder: &Folder, shards: Vec<Temporary<'_>>, index: Temporary<'_>) -> crate::Result<()> {
    let names: Vec<_> = shards.iter().chain([&index]).map(|file| file.target().to_owned()).collect();
    let at = folder.path_of(index.target());
    let rename = || {
        shards.into_iter().try_for_each(Temporary::replace)?;
        // The storage must have the names before the index has them.
        folder.sync()?;
        index.replace()
    };
    if let Err(error) = rename() {
        // The caller gets this error, and the names of the files that stay.
        names.iter().filter(|name| folder.made(name)).for_each(|name| drop(folder.remove(name)));
        return Err(error);
    }
    folder.set_in_place(InPlace::New(at), names.iter().map(|name| &**name));
    folder.sync()
}
