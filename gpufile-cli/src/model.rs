//! Opening what `load` and `ls` name.

use std::path::Path;

use gpufile::formats::safetensors::Checkpoint;
use gpufile::{Engine, File, OpenOptions, Settings};

use super::failure::Failure;
use super::stderr::complain;

/// Returns options for files, with an engine that follows the environment.
///
/// # Errors
/// An environment variable is wrong.
pub fn options() -> Result<OpenOptions, Failure> {
    let settings = Settings::from_env().map_err(|error| Failure::Other(error.to_string()))?;
    Ok(File::options().read(true).engine(&Engine::builder().settings(settings).build()))
}

/// Opens a model as [`Checkpoint::open`] does. Prints its warnings.
///
/// # Errors
/// Those of [`Checkpoint::open`].
pub fn checkpoint(path: &Path, options: &OpenOptions) -> Result<Checkpoint, Failure> {
    let checkpoint = Checkpoint::open_with([path], options)?;
    checkpoint.warnings().iter().for_each(|warning| complain(&format!("warning: {warning}")));
    Ok(checkpoint)
}

/// Returns the end of a path, for tables.
pub fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
pub mod tests {
    use gpufile::formats::safetensors::{TensorData, save};
    use gpufile::formats::{Dtype, SaveOptions};

    use super::*;

    /// Saves a file with two tensors, whose names begin with `prefix`.
    pub fn save_two(path: &Path, prefix: &str) {
        let (one, two) = (format!("{prefix}.one"), format!("{prefix}.two"));
        let tensors = [
            TensorData::new(&one, Dtype::F16, &[3, 5], &[1_u8; 30][..]),
            TensorData::new(&two, Dtype::F32, &[7], &[2_u8; 28][..]),
        ];
        save(path, &tensors, &SaveOptions::new()).unwrap();
    }
}
