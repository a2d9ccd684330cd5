use std::path::PathBuf;

use super::models::Saved;
use super::objects::save_objects;
use super::plan::TensorData;
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::save::object::{AtUrl, Failed};
use crate::formats::{Result, SaveOptions};
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
    let location = location_of(url).map_err(|cause| {
        let (path, cause) = (PathBuf::from(without_secrets(url)), cause.into());
        let error = crate::Error::File { operation: "begin to write", path: path.clone(), cause };
        Failed::from(error).of(&path)
    })?;
    let mut objects = AtUrl { url, location: Some(&location), remote, is_cancelled };
    save_objects(&mut objects, &location.last(), &str::to_owned, tensors, options)
}

fn location_of(url: &str) -> std::result::Result<Location, RemoteError> {
    let location = Location::parse(url)?;
    if location.last().is_empty() {
        return Err(invalid("the name of the model is empty; it comes after the last slash"));
    }
    Ok(location)
}
