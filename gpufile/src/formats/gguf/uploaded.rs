use std::path::PathBuf;

use super::metadata::Metadata;
use super::save::{Plan, TensorData};
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::Result;
use crate::formats::save::object::AtUrl;
use crate::remote::RemoteOptions;
use crate::remote::location::without_secrets;

/// Saves tensors and metadata as an object of a store such as S3, with the bytes of the file that [`save`](super::save()) writes. Returns
/// its length in bytes.
///
/// The object is uploaded in parts, several at a time, and replaces an older one when all of them have arrived. An
/// [`Upload`](crate::remote::Upload) describes the memory that this takes. The tensors may be in host and device memory.
///
/// ```no_run
/// use gpufile::formats::gguf::{self, GgmlType, Metadata, TensorData};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// let metadata = Metadata::from_iter([("general.architecture", "llama")]);
/// let weight = vec![0; 24]; // or a DeviceBuffer
/// let tensors = [TensorData::new("weight", GgmlType::F32, &[2, 3], &weight)];
/// gguf::save_url("s3://bucket/model.gguf", &metadata, &tensors)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`save`](super::save()). [`Error::Save`] names the address, without its query.
pub fn save_url(url: &str, metadata: &Metadata, tensors: &[TensorData<'_>]) -> Result<u64> {
    save_url_with(url, metadata, tensors, &RemoteOptions::new())
}

/// Does what [`save_url`] does, with options for the requests.
///
/// # Errors
/// As [`save_url`].
pub fn save_url_with(
    url: &str,
    metadata: &Metadata,
    tensors: &[TensorData<'_>],
    remote: &RemoteOptions,
) -> Result<u64> {
    let path = PathBuf::from(without_secrets(url));
    let plan = Plan::of(&path, metadata.clone(), tensors)?;
    let mut objects = AtUrl { url, location: None, remote, is_cancelled: &mut || false };
    plan.save_object(&mut objects, "", &path)
}
