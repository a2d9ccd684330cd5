use std::path::{Path, PathBuf};

use cufile::IoBuf;

use super::metadata::Metadata;
#[cfg(doc)]
use super::save::save;
use super::save::{Plan, TensorData};
use super::split::Split;
use crate::formats::clip::clip;
use crate::formats::save::{New, Temporary, distribute, no_file_name, replace_together, within};
use crate::formats::{Error, FormatError, InPlace, Result, SaveOptions, limit, save as saving};

/// The key that each file of a split model has, because each file has an alignment.
const ALIGNMENT: &str = "general.alignment";

/// The most files that are written at once. Each is open until all are in place.
const AT_ONCE: usize = 8;

/// A model that [`save_split`] saved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The path for [`Model::open`](super::Model::open): that of the only file, or of the first.
    pub path: PathBuf,
    /// The length of all files, in bytes.
    pub len_bytes: u64,
}

/// Saves a model as [`save`] does, or to several files if its tensors have more bytes than
/// [`SaveOptions::shard_bytes`].
///
/// For the path `model.gguf`, the files are `model-00001-of-00003.gguf` and so on, as those of llama.cpp's `gguf-split`. They take
/// the tensors in the order given. A tensor longer than the limit gets a separate file. The first file has all of the
/// metadata, and each file has `split.no`, `split.count` and `split.tensors.count`.
///
/// ```
/// use gpufile::formats::SaveOptions;
/// use gpufile::formats::gguf::{GgmlType, Metadata, Model, TensorData, save_split};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("gpufile-split-{}", std::process::id()));
/// # std::fs::create_dir(&folder).unwrap();
/// let (one, two) = ([1_u8; 64], [2_u8; 64]); // or DeviceBuffers
/// let tensors = [
///     TensorData::new("blk.0.w", GgmlType::F32, &[16], &one[..]),
///     TensorData::new("blk.1.w", GgmlType::F32, &[16], &two[..]),
/// ];
/// let options = SaveOptions::new().shard_bytes(100);
/// let saved = save_split(folder.join("model.gguf"), &Metadata::new(), &tensors, &options)?;
/// assert_eq!(saved.path, folder.join("model-00001-of-00002.gguf"));
/// assert_eq!(Model::open(&saved.path)?.read_tensor("blk.1.w")?, two);
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Older models
/// All files are written before one takes its name. Older files of the same names get other names first, such as
/// `.model-00001-of-00003.gguf.0123456789abcdef.gpufile-old`, and are removed when the new model is in place. The first file goes
/// first and comes last. So [`Model::open`](super::Model::open) of it finds the old model or the new one, or
/// fails because it is missing, for a moment or after a kill. The old files keep their other names in that
/// case, and no save removes them.
///
/// If the save fails, the older files get their names back. Files of an older model of another number of files stay.
///
/// # Errors
/// As [`save`]; [`Error::Format`] if the metadata has one of the three keys, two tensors have the same name, or there are more
/// than 65,535 files.
pub fn save_split(
    path: impl AsRef<Path>,
    metadata: &Metadata,
    tensors: &[TensorData<'_>],
    options: &SaveOptions,
) -> Result<Saved> {
    let path = path.as_ref();
    let malformed = |error| Error::Format { path: path.to_owned(), error };
    if let Some(key) = Split::KEYS.into_iter().find(|key| metadata.get(key).is_some()) {
        let problem = format!("the metadata has {key}, which a save of several files sets");
        return Err(malformed(FormatError::Split { problem }));
    }
    let len_bytes = |tensor: &TensorData<'_>| tensor.bytes.len_bytes() as u64;
    let parts = distribute(tensors, len_bytes, options.shard_bytes.unwrap_or(u64::MAX));
    if parts.len() < 2 {
        let len_bytes = super::save(path, metadata, tensors, options)?;
        return Ok(Saved { path: path.to_owned(), len_bytes });
    }
    check_names(tensors).map_err(malformed)?;
    let name = path.file_name().ok_or_else(|| saving::failed(path, no_file_name(path)))?;
    let alignment = metadata.iter().filter(|(key, _)| *key == ALIGNMENT);
    let alignment: Metadata = alignment.map(|(key, value)| (key, value.clone())).collect();
    let (mut plans, mut names) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    for (number, part) in (0..).zip(&parts) {
        let tensors = Some(tensors.len() as u64);
        let split = Split { number, count: parts.len() as u64, tensors };
        let mut metadata = if number == 0 { metadata.clone() } else { alignment.clone() };
        split.describe(&mut metadata).map_err(malformed)?;
        plans.push(Plan::of(path, metadata, part)?);
        names.push(split.name(name));
    }
    let first = path.with_file_name(&names[0]);
    limit::make_room(plans.len());
    within(&first, options, |folder| {
        folder.lock()?;
        let new = |target: &std::ffi::OsString| -> crate::Result<New> {
            let access = options.access.clone().or(folder.access_of(target)?);
            Ok(New { target: target.clone(), access })
        };
        let new = names.iter().map(new).collect::<crate::Result<Vec<_>>>()?;
        let mut written = Vec::with_capacity(plans.len());
        for (plans, new) in plans.chunks(AT_ONCE).zip(new.chunks(AT_ONCE)) {
            written.extend(Temporary::written_together(folder, new, options, |files, _| {
                let requests = plans.iter().zip(files).flat_map(|(plan, file)| plan.requests(file));
                files[0].engine().write_many(&requests.collect::<Vec<_>>())
            })?);
        }
        replace_together(folder, written, InPlace::New(first.clone()))
    })?;
    let len_bytes = plans.iter().map(Plan::len_bytes).fold(0, u64::saturating_add);
    Ok(Saved { path: first, len_bytes })
}

/// Checks that no two tensors have the same name. Each file is checked by itself later.
fn check_names(tensors: &[TensorData<'_>]) -> Result<(), FormatError> {
    let mut names: Vec<_> = tensors.iter().map(|tensor| tensor.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(FormatError::DuplicateTensor { tensor: clip(pair[0]) }),
        None => Ok(()),
    }
}
