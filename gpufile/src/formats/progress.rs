use std::ops::ControlFlow;

/// The progress of a load, as [`Load::progress`](super::safetensors::Load::progress) reports it.
///
/// ```
/// # use gpufile::formats::SaveOptions;
/// use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
/// # use gpufile::formats::{Dtype, Result};
///
/// # fn main() -> Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-progress-{}.safetensors", std::process::id()));
/// # safetensors::save(&path, &[TensorData::new("w", Dtype::U8, &[4], &[1_u8, 2, 3, 4][..])], &SaveOptions::new())?;
/// let mut last = None;
/// Checkpoint::open(&path)?.load().progress(|progress| last = Some(progress)).to_host()?;
/// let last = last.unwrap();
/// assert_eq!((last.done_bytes, last.total_bytes), (4, 4));
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of bytes read so far.
    pub done_bytes: u64,
    /// The number of bytes to read.
    pub total_bytes: u64,
}

/// The callback of a load over several GPUs, which gets the progress and decides whether the load continues.
pub(in crate::formats) type Controller<'a> = Box<dyn FnMut(Progress) -> ControlFlow<()> + 'a>;
