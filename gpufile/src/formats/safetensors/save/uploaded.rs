use std::path::{Path, PathBuf};

use super::super::headers::index_file::index_path;
use super::models::{Layout, Saved, len_of};
use super::plan::TensorData;
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::save::object::{Failed, save_object};
use crate::formats::{InPlace, Result, SaveOptions};
use crate::remote::location::{Location, invalid, without_secrets};
use crate::remote::{RemoteError, RemoteOptions};

/// Saves tensors as an object of a store such as S3, or as several with an index, as [`save`](super::models::save) does with files. The
/// new model replaces an older one of the same address as a whole.
///
/// Each object is uploaded in parts, several at a time, and appears when all of them have arrived. An
/// [`Upload`](crate::remote::Upload) describes the memory that this takes. The tensors may be in host and device memory.
///
/// ```no_run
/// use gpufile::formats::{Dtype, SaveOptions};
/// use gpufile::formats::safetensors::{self, TensorData};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// let weight = vec![0; 24]; // or a DeviceBuffer
/// let tensors = [TensorData::new("weight", Dtype::F32, &[2, 3], &weight)];
/// safetensors::save_url("s3://bucket/model.safetensors", &tensors, &SaveOptions::new())?;
/// # Ok(())
/// # }
/// ```
///
/// # Several objects
/// The index is uploaded last. [`Checkpoint::open_url`] opens it. The objects of an older index and a single object of an older
/// model stay, because other programs may be loading them.
///
/// # Errors
/// As [`save`](super::models::save). [`Error::Save`] names the address, without its query, and the objects that the save left.
///
/// [`Checkpoint::open_url`]: super::super::Checkpoint::open_url
pub fn save_url(url: &str, tensors: &[TensorData<'_>], options: &SaveOptions) -> Result<Saved> {
    save_url_with(url, tensors, options, &RemoteOptions::new())
}

/// Does what [`save_url`] does, with options for the requests. Their engine takes the place of the one of the
/// [files](SaveOptions::files).
///
/// # Errors
/// As [`save_url`].
pub fn save_url_with(
    url: &str,
    tensors: &[TensorData<'_>],
    options: &SaveOptions,
    remote: &RemoteOptions,
) -> Result<Saved> {
    save_url_unless(url, tensors, options, remote, &mut || false)
}

/// Does what [`save_url_with`] does, until the caller no longer waits.
///
/// # Errors
/// As [`save_url`]. [`Error::Save`] with the errno `ECANCELED` if the caller no longer waits. Nothing is replaced then.
pub fn save_url_unless(
    url: &str,
    tensors: &[TensorData<'_>],
    options: &SaveOptions,
    remote: &RemoteOptions,
    is_cancelled: &mut dyn FnMut() -> bool,
) -> Result<Saved> {
    let path = PathBuf::from(without_secrets(url));
    if options.compress {
        let cause = crate::Cause::Invalid("objects of a store cannot have packed tensors".to_owned());
        return Err(
            Failed::from(crate::Error::File { operation: "pack", path: path.clone(), cause }).of(&path)
        );
    }
    let location = location_of(url).map_err(|cause| {
        let cause = cause.into();
        Failed::from(crate::Error::File { operation: "begin to write", path: path.clone(), cause }).of(&path)
    })?;
    // Shards are named after the last part, as it is without escapes.
    match Layout::of(&path.with_file_name(&*location.last()), &[tensors], options)? {
        Layout::One(plan) => {
            let len_bytes = plan.len_bytes();
            save_object(url, len_bytes, plan.pieces(), remote, is_cancelled)
                .map_err(|failed| failed.of(&path))?;
            Ok(Saved { path, len_bytes })
        }
        Layout::Several { plans, index } => {
            let index_name = index_path(Path::new(&*location.last()));
            let index_url = location.beside(&index_name.to_string_lossy()).text();
            let mut uploaded = Vec::new();
            // The shard whose answer was lost. It may still be the older one, which is not removed.
            let mut unknown = None;
            let mut upload_all = || {
                for (plan, file) in &plans {
                    let url = location.beside(file).text();
                    let saved = save_object(&url, plan.len_bytes(), plan.pieces(), remote, is_cancelled);
                    match saved {
                        Ok(()) => uploaded.push(url),
                        Err(failed) => {
                            unknown = (failed.in_place == InPlace::Unknown).then_some(url);
                            return Err(failed);
                        }
                    }
                }
                let len_bytes = index.len() as u64;
                save_object(&index_url, len_bytes, [index.as_bytes().into()], remote, is_cancelled)
            };
            match upload_all() {
                Ok(()) => Ok(Saved { path: without_secrets(&index_url).into(), len_bytes: len_of(&plans) }),
                Err(Failed { error, in_place }) => {
                    // The index is the last object. It may be in place, and then needs the others.
                    let is_old = uploaded.len() < plans.len() || in_place == InPlace::Old;
                    uploaded.retain(|url| !is_old || remote.remove(url).is_err());
                    let left =
                        uploaded.iter().chain(&unknown).map(|url| without_secrets(url).into()).collect();
                    Err(crate::formats::Error::Save {
                        path,
                        error,
                        in_place: if is_old { InPlace::Old } else { InPlace::Unknown },
                        left,
                    })
                }
            }
        }
    }
}

fn location_of(url: &str) -> std::result::Result<Location, RemoteError> {
    let location = Location::parse(url)?;
    if location.last().is_empty() {
        return Err(invalid("the name of the model is empty; it comes after the last slash"));
    }
    Ok(location)
}
