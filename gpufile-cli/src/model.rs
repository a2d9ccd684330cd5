//! Opening what `load`, `ls` and `verify` name: models in safetensors or GGUF files.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use gpufile::formats::gguf;
use gpufile::formats::safetensors::Checkpoint;
use gpufile::{Engine, File, OpenOptions, Settings};

use super::failure::Failure;
use super::location::Location;
use super::remote::RemoteArgs;
use super::stderr::complain;

/// Returns an engine that follows the environment.
///
/// # Errors
/// An environment variable is wrong.
pub fn engine() -> Result<Engine, Failure> {
    let settings = Settings::from_env().map_err(|error| Failure::Other(error.to_string()))?;
    Ok(Engine::builder().settings(settings).build())
}

pub fn options(engine: &Engine) -> OpenOptions {
    File::options().read(true).engine(engine)
}

pub enum Model {
    Safetensors(Checkpoint),
    Gguf(gguf::Model),
}

pub struct ModelFile<'a> {
    pub file: &'a File,
    /// Tensors in the order of their places.
    pub tensors: Vec<Tensor<'a>>,
}

pub struct Tensor<'a> {
    pub name: &'a str,
    pub dtype: &'static str,
    pub shape: &'a [u64],
    pub len_bytes: u64,
    /// The length in the file, if packed.
    pub packed_bytes: Option<u64>,
}

impl Model {
    /// Opens a GGUF model if the path [is one](is_gguf), or the URL ends in `.gguf`, and otherwise a model as [`Checkpoint::open`] does. Prints its
    /// warnings.
    pub fn open(location: &Location, remote: &RemoteArgs, engine: &Engine) -> Result<Self, Failure> {
        remote.check(location)?;
        let checkpoint = match location {
            Location::Path(path) if is_gguf(path) => {
                return Ok(Self::Gguf(gguf::Model::open_with(path, &options(engine))?));
            }
            Location::Path(path) => Checkpoint::open_with([path], &options(engine))?,
            Location::Url(url) if is_named_gguf(location.name()) => {
                let options = remote.options()?.engine(engine);
                return Ok(Self::Gguf(gguf::Model::open_url_with(url, &options)?));
            }
            Location::Url(url) => Checkpoint::open_url_with(url, &remote.options()?.engine(engine))?,
        };
        checkpoint.warnings().iter().for_each(|warning| complain(&format!("warning: {warning}")));
        Ok(Self::Safetensors(checkpoint))
    }

    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Safetensors(model) => model.len_bytes(),
            Self::Gguf(model) => model.len_bytes(),
        }
    }

    pub fn files(&self) -> Vec<ModelFile<'_>> {
        match self {
            Self::Safetensors(model) => {
                let files = model.files().map(|(file, header)| {
                    let tensors = header.tensors().map(|tensor| Tensor {
                        name: tensor.name,
                        dtype: tensor.dtype.name(),
                        shape: tensor.shape,
                        len_bytes: tensor.len_bytes(),
                        packed_bytes: model.packed_len_bytes(tensor.name),
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
                        packed_bytes: None,
                    });
                    ModelFile { file, tensors: tensors.collect() }
                });
                files.collect()
            }
        }
    }
}

impl ModelFile<'_> {
    pub fn len_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len_bytes).sum()
    }
}

/// Returns whether the name ends in `.gguf`, or the file begins as such a file does.
pub fn is_gguf(path: &Path) -> bool {
    is_named_gguf(path) || begins_as_gguf(path)
}

fn is_named_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Returns false for a file that cannot be read; opening it tells why.
fn begins_as_gguf(path: &Path) -> bool {
    // A FIFO must not be waited for.
    let file = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let Some(mut file) = file.ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file())) else {
        return false;
    };
    let mut magic = [0; 4];
    file.read_exact(&mut magic).is_ok() && &magic == b"GGUF"
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

    pub fn save_two(path: &Path, prefix: &str) {
        let (one, two) = (format!("{prefix}.one"), format!("{prefix}.two"));
        let tensors = [
            TensorData::new(&one, Dtype::F16, &[3, 5], &[1_u8; 30][..]),
            TensorData::new(&two, Dtype::F32, &[7], &[2_u8; 28][..]),
        ];
        save(path, &tensors, &SaveOptions::new()).unwrap();
    }

    #[test]
    fn gguf_files_are_known_by_name_or_magic() {
        let folder = tempfile::tempdir().unwrap();
        let is_gguf = |name: &str| is_gguf(&folder.path().join(name));
        save_gguf(&folder.path().join("blob"));
        std::fs::write(folder.path().join("short"), "GGU").unwrap();
        save_two(&folder.path().join("a.safetensors"), "a");
        assert!(is_gguf("blob") && is_gguf("none.GGUF"));
        assert!(!is_gguf("") && !is_gguf("short") && !is_gguf("none") && !is_gguf("a.safetensors"));
    }

    pub fn save_gguf(path: &Path) {
        use gpufile::formats::gguf::{GgmlType, Metadata, TensorData};

        let tensors = [
            TensorData::new("output.weight", GgmlType::Q4K, &[2, 256], &[1_u8; 288][..]),
            TensorData::new("norm", GgmlType::F32, &[7], &[2_u8; 28][..]),
        ];
        gguf::save(path, &Metadata::new(), &tensors, &SaveOptions::new()).unwrap();
    }
}
