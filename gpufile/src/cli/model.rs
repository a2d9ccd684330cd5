//! Opening what `load` and `ls` name.

use std::fs;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::formats::safetensors::Checkpoint;
use crate::{Engine, File, OpenOptions, Settings};

/// Returns options for files, with an engine that follows the environment.
///
/// # Errors
/// An environment variable is wrong.
pub fn options() -> Result<OpenOptions, Failure> {
    let settings = Settings::from_env().map_err(|error| Failure::Other(error.to_string()))?;
    Ok(File::options().read(true).engine(&Engine::builder().settings(settings).build()))
}

/// Opens a model as [`Checkpoint::open`] does. A folder with neither an index nor `model.safetensors` is a model of all
/// its safetensors files.
///
/// # Errors
/// Those of [`Checkpoint::open`].
pub fn checkpoint(path: &Path, options: &OpenOptions) -> Result<Checkpoint, Failure> {
    let has_usual_name =
        ["model.safetensors.index.json", "model.safetensors"].iter().any(|name| path.join(name).exists());
    if !path.is_dir() || has_usual_name {
        return Ok(Checkpoint::open_with(path, options)?);
    }
    let failed = |error| Failure::Other(format!("cannot list {path:?}: {error}"));
    let entries = fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(failed)?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "safetensors"));
    files.sort();
    if files.is_empty() {
        return Err(Failure::Other(format!("{path:?} has no safetensors files")));
    }
    Ok(Checkpoint::open_many_with(&files, options)?)
}

/// Returns the end of a path, for tables.
pub fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::formats::Dtype;
    use crate::formats::safetensors::{TensorData, save};

    /// Saves a file with two tensors, whose names begin with `prefix`.
    pub fn save_two(path: &Path, prefix: &str) {
        let (one, two) = (format!("{prefix}.one"), format!("{prefix}.two"));
        let tensors = [
            TensorData::new(&one, Dtype::F16, &[3, 5], &[1_u8; 30][..]),
            TensorData::new(&two, Dtype::F32, &[7], &[2_u8; 28][..]),
        ];
        save(path, &tensors, BTreeMap::new()).unwrap();
    }

    #[test]
    fn folders_without_index_have_all_files() {
        let folder = tempfile::tempdir().unwrap();
        let open = || checkpoint(folder.path(), &File::options().read(true));
        assert!(open().unwrap_err().to_string().contains("has no safetensors files"));
        save_two(&folder.path().join("b.safetensors"), "b");
        save_two(&folder.path().join("a.safetensors"), "a");
        fs::write(folder.path().join("notes.txt"), "x").unwrap();
        let model = open().unwrap();
        let names: Vec<_> = model.names().collect();
        assert_eq!(names, ["a.two", "a.one", "b.two", "b.one"]);
        // A file with the usual name is the model alone.
        save_two(&folder.path().join("model.safetensors"), "m");
        assert_eq!(open().unwrap().len(), 2);
    }
}
