//! Folders: the files of models in them, the model to choose, and what is there if there is none.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::names::{Name, Role, USUAL};
use super::sets::several;
use crate::formats::visible::{Listed, Quoted};
use crate::formats::{Error, Result};

/// Returns the files in a folder that are part of a model by their names.
pub(super) fn list(folder: &Path) -> Result<Vec<(String, Name)>> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut names = Vec::new();
    for entry in entries(here)? {
        let file = entry.file_name();
        if let Some(name) = Name::of(&file)
            && entry.file_type().is_ok_and(|kind| !kind.is_dir())
        {
            names.push((file.into_string().expect("names of models are UTF-8"), name));
        }
    }
    // The order of a folder decides nothing.
    names.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(names)
}

fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    entries.map_err(|error| crate::Error::Open { path: folder.to_owned(), cause: error.into() }.into())
}

/// Chooses one of the models in a folder: that with the most usual name, or the only one. Returns `None` if there are none.
///
/// A model that is only an index, or without its number, counts as one too.
pub(super) fn choose_model(folder: &Path, names: &[(String, Name)]) -> Result<Option<String>> {
    for usual in USUAL {
        if names.iter().any(|(_, name)| name.model == usual) {
            return Ok(Some(usual.to_owned()));
        }
        let variants: Vec<_> = names.iter().filter(|(_, name)| name.base() == usual).collect();
        if !variants.is_empty() {
            return only(folder, &variants);
        }
    }
    only(folder, &names.iter().collect::<Vec<_>>())
}

fn only(folder: &Path, names: &[&(String, Name)]) -> Result<Option<String>> {
    let mut models = BTreeMap::<String, PathBuf>::new();
    let mut keys = BTreeMap::<String, usize>::new();
    for (_, name) in names.iter().filter(|(_, name)| name.role == Role::Whole) {
        *keys.entry(name.without_number().unwrap_or_default().0).or_default() += 1;
    }
    for (file, name) in names {
        let key = name.without_number().map(|(key, _)| key);
        let key = key.filter(|key| name.role == Role::Whole && keys[key] > 1);
        models.entry(key.unwrap_or_else(|| name.model.clone())).or_insert_with(|| folder.join(file));
    }
    match models.len() {
        0 | 1 => Ok(models.into_keys().next()),
        _ => Err(several(folder, models.into_values().collect())),
    }
}

/// Returns the snapshot of a model in a cache of downloads (`models--owner--name`): the one of the branch `main`, or the
/// only one. Returns `None` if the folder is no such cache.
pub(super) fn snapshot(folder: &Path) -> Result<Option<PathBuf>> {
    let snapshots = folder.join("snapshots");
    if !snapshots.is_dir() {
        return Ok(None);
    }
    if let Ok(main) = fs::read_to_string(folder.join("refs/main")) {
        let commit = main.trim();
        let path = snapshots.join(commit);
        if !commit.is_empty() && !commit.contains(['/', '.']) && path.is_dir() {
            return Ok(Some(path));
        }
    }
    let mut folders = folders_of(&snapshots)?;
    match &folders[..] {
        [_] => Ok(folders.pop()),
        _ => Err(no_model(&snapshots)),
    }
}

pub(super) fn no_model(folder: &Path) -> Error {
    Error::NoModel { path: folder.to_owned(), found: found_in(folder).unwrap_or_default() }
}

pub(super) fn not_found(path: &Path) -> Error {
    let error = io::Error::from_raw_os_error(libc::ENOENT);
    crate::Error::Open { path: path.to_owned(), cause: error.into() }.into()
}

fn folders_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let paths = entries(folder)?.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir());
    let mut folders: Vec<_> = paths.collect();
    folders.sort();
    Ok(folders)
}

/// Returns the end of a sentence about a folder without safetensors files.
fn found_in(folder: &Path) -> Result<String> {
    const NAMED: usize = 5;
    let show = |names: &[String]| {
        let others = names.len().saturating_sub(NAMED) as u64;
        Listed { items: names.iter().take(NAMED).map(|name| Quoted(name)), others }.to_string()
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let has_model =
        |path: &PathBuf| path.join("snapshots").is_dir() || list(path).is_ok_and(|names| !names.is_empty());
    let folders: Vec<_> =
        folders_of(folder)?.iter().filter(|path| has_model(path)).map(|path| name(path)).collect();
    if !folders.is_empty() {
        return Ok(format!("; its folders {} have some: open one of these", show(&folders)));
    }
    let mut files: Vec<_> = entries(folder)?.iter().map(|entry| name(&entry.path())).collect();
    files.sort();
    for (ends, what) in OTHERS {
        let others: Vec<_> =
            files.iter().filter(|file| ends.iter().any(|end| file.ends_with(end))).cloned().collect();
        if !others.is_empty() {
            return Ok(format!(", but {}: {what}", show(&others)));
        }
    }
    Ok(String::new())
}

/// The ends of file names that tell why there is no model, and the explanation.
const OTHERS: [(&[&str], &str); 5] = [
    (&[".incomplete", ".part", ".aria2", ".crdownload"], "an incomplete download; download the model again"),
    (
        &[".gguf", ".ggml"],
        "GGUF of llama.cpp; open the file itself as GGUF, or get the model as safetensors files",
    ),
    (
        &[".bin", ".pt", ".pth", ".ckpt", ".bin.index.json"],
        "PyTorch files; load them with torch.load and save them as safetensors",
    ),
    (
        &[".h5", ".msgpack", ".onnx", ".tflite", ".npz"],
        "a model in another format; get it as safetensors files",
    ),
    (&[".safetensors"], "none has a name that a model can have"),
];
