//! Opening what `load` and `ls` name: models in safetensors or GGUF files.

use std::path::Path;

use gpufile::formats::gguf;
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

/// A model of either format.
pub enum Model {
    Safetensors(Checkpoint),
    Gguf(gguf::Model),
}

/// A file of a model.
pub struct ModelFile<'a> {
    pub file: &'a File,
    /// In the order of their places in the file.
    pub tensors: Vec<Tensor<'a>>,
}

/// A tensor of a model.
pub struct Tensor<'a> {
    pub name: &'a str,
    pub dtype: &'static str,
    pub shape: &'a [u64],
    pub len_bytes: u64,
}

impl Model {
    /// Opens a GGUF model if the name ends in `.gguf`, and otherwise a model as [`Checkpoint::open`] does. Prints its
    /// warnings.
    ///
    /// # Errors
    /// Those of [`gguf::Model::open`] and [`Checkpoint::open`].
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, Failure> {
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
            return Ok(Self::Gguf(gguf::Model::open_with(path, options)?));
        }
        let checkpoint = Checkpoint::open_with([path], options)?;
        checkpoint.warnings().iter().for_each(|warning| complain(&format!("warning: {warning}")));
        Ok(Self::Safetensors(checkpoint))
    }

    /// Returns the number of bytes of all tensors.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Safetensors(model) => model.len_bytes(),
            Self::Gguf(model) => model.len_bytes(),
        }
    }

    /// Returns the files with their tensors.
    pub fn files(&self) -> Vec<ModelFile<'_>> {
        match self {
            Self::Safetensors(model) => {
                let files = model.files().map(|(file, header)| {
                    let tensors = header.tensors().map(|tensor| Tensor {
                        name: tensor.name,
                        dtype: tensor.dtype.name(),
                        shape: tensor.shape,
                        len_bytes: tensor.len_bytes(),
                    });
                    ModelFile { file, tensors: tensors.collect() }
                });
                files.collect()
            }
            Self::Gguf(model) => {
                let files = model.files().map(|(file, header)| {
                    let tensors = header.tensors().map(|tensor| Tensor {
                        name: tensor.name,
                        dtype: tensor.ggml_type.name(),
                        shape: tensor.shape,
                        len_bytes: tensor.len_bytes(),
                    });
                    ModelFile { file, tensors: tensors.collect() }
                });
                files.collect()
            }
        }
    }
}

impl ModelFile<'_> {
    /// Returns the number of bytes of the tensors.
    pub fn len_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len_bytes).sum()
    }
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

    /// Saves a GGUF file with two tensors.
    pub fn save_gguf(path: &Path) {
        use gpufile::formats::gguf::{GgmlType, Metadata, TensorData};

        let tensors = [
            TensorData::new("output.weight", GgmlType::Q4K, &[2, 256], &[1_u8; 288][..]),
            TensorData::new("norm", GgmlType::F32, &[7], &[2_u8; 28][..]),
        ];
        gguf::save(path, &Metadata::new(), &tensors, &SaveOptions::new()).unwrap();
    }
}
