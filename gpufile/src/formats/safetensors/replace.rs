//! Replacing a model by a newer one. Each may be one file or several.
//!
//! A folder has a model in `model.safetensors`, or in shards that `model.safetensors.index.json` names. One rename or
//! one removal switches from the old model to the new one. At no moment do both names exist and belong to different
//! models:
//!
//! ```text
//! file to file        rename the file over the old one
//! shards to shards    rename the index over the old one
//! file to shards      link the old file as a shard · rename an index of it into place · remove the old file ·
//!                     rename the index of the new shards over the other
//! shards to file      link the new file as a shard · rename an index of it over the old one ·
//!                     rename the file into place · remove the index
//! ```
//!
//! A temporary index lists all shards that take part. By it, this process or a later one removes the shards that the
//! final index does not name.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::files::ModelFiles;
use super::index::{ShardIndex, is_plain};
use super::index_file::{index_path, read_index};
use super::shards::{Namer, ShardNames, remove_unnamed};
use crate::formats::SaveOptions;
use crate::formats::regular::is_same_file;
use crate::formats::save::{Folder, Temporary};
use crate::{Cause, OpenOptions};

/// The place of a model: a file, or an index with shards.
pub(super) struct Place<'a> {
    folder: &'a Folder,
    options: &'a SaveOptions,
    /// The path of the file that has the whole model, or would have it.
    path: &'a Path,
    index_path: PathBuf,
}

impl<'a> Place<'a> {
    pub fn new(folder: &'a Folder, path: &'a Path, options: &'a SaveOptions) -> Self {
        Self { folder, options, path, index_path: index_path(path) }
    }

    pub fn index_path(&self) -> &Path {
        &self.index_path
    }

    /// Replaces the model by a file. `names` are the names of its tensors.
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Open`].
    pub fn put_file<'n>(&self, file: Temporary, names: impl Iterator<Item = &'n str>) -> crate::Result<()> {
        let _lock = self.folder.lock()?;
        if fs::symlink_metadata(&self.index_path).is_err() {
            file.replace(self.path)?;
            return self.folder.sync();
        }
        // A folder at one of the paths must fail before the index is replaced.
        self.refuse_folders()?;
        let shards = self.new_name()?;
        let _journal = self.journal(self.old_shards().into_iter().chain(shards.clone()))?;
        if let Some(shard) = &shards
            && self.link(file.path(), shard)?
        {
            self.put_index(self.write_index(&index_of(names.map(|name| (name, shard.as_str()))))?)?;
        }
        file.replace(self.path)?;
        self.folder.sync()?;
        self.remove("remove the index", &self.index_path)
    }

    /// Replaces the model by shards, each with its name, and by the index of them.
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Open`].
    pub fn put_shards(&self, shards: Vec<(Temporary, String)>, index: String) -> crate::Result<()> {
        let _lock = self.folder.lock()?;
        self.refuse_folders()?;
        let old = self.old_shards();
        let is_in_file = fs::symlink_metadata(self.path).is_ok()
            && (fs::symlink_metadata(&self.index_path).is_err()
                || old.iter().any(|shard| is_same_file(&self.path.with_file_name(shard), self.path)));
        let old_file = if is_in_file { self.new_name()? } else { None };
        let new = shards.iter().map(|(_, name)| name.clone());
        let _journal = self.journal(old.into_iter().chain(new).chain(old_file.clone()))?;
        // Every write comes before the old file is removed, because a write may fail.
        let index = self.write_index(&index)?;
        for (shard, name) in shards {
            shard.replace(&self.path.with_file_name(name))?;
        }
        // A file that is no model is not kept.
        if let Some(old_file) = &old_file
            && let Ok(model) = ModelFiles::open([self.path], &OpenOptions::new())
            && self.link(self.path, old_file)?
        {
            let names = model.catalog.tensors().map(|tensor| (tensor.name, old_file.as_str()));
            self.put_index(self.write_index(&index_of(names))?)?;
            self.remove("remove", self.path)?;
        }
        self.put_index(index)?;
        self.remove("remove", self.path)
    }

    /// Returns the files that the present index names.
    fn old_shards(&self) -> Vec<String> {
        let json = read_index(&self.index_path).ok().flatten();
        let index = json.and_then(|json| ShardIndex::parse(&json).ok());
        index.map_or_else(Vec::new, |index| index.files().to_vec())
    }

    /// Returns the name of a shard with the whole model; `None` if no index can name it.
    fn new_name(&self) -> crate::Result<Option<String>> {
        let model = self.path.file_name().expect("the path names a file");
        match ShardNames::new(model) {
            Ok(names) => Ok(Some(names.name(1, 1)).filter(|name| is_plain(name))),
            Err(Cause::Invalid(_)) => Ok(None),
            Err(cause) => {
                Err(crate::Error::File { operation: "name shards of", path: self.path.to_owned(), cause })
            }
        }
    }

    fn refuse_folders(&self) -> crate::Result<()> {
        let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
        match [self.path, &self.index_path].into_iter().find(|path| is_folder(path)) {
            Some(folder) => Err(self.failed("replace", folder, ErrorKind::IsADirectory.into())),
            None => Ok(()),
        }
    }

    /// Gives a file a second name. Returns `false` on file systems without hard links.
    fn link(&self, path: &Path, name: &str) -> crate::Result<bool> {
        let link = self.path.with_file_name(name);
        match fs::hard_link(path, &link).map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => Ok(true),
            Err((Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK | libc::EXDEV), _)) => {
                Ok(false)
            }
            Err((_, error)) => Err(self.failed("link", &link, error)),
        }
    }

    /// Replaces the index, after the names of its shards have reached the storage.
    fn put_index(&self, index: Temporary) -> crate::Result<()> {
        self.folder.sync()?;
        index.replace(&self.index_path)?;
        self.folder.sync()
    }

    fn write_index(&self, json: &str) -> crate::Result<Temporary> {
        Temporary::written(self.folder, &self.index_path, self.options, |file| {
            file.write_all_at(json.as_bytes(), 0)
        })
    }

    fn remove(&self, operation: &'static str, path: &Path) -> crate::Result<()> {
        match fs::remove_file(path) {
            Ok(()) => self.folder.sync(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.failed(operation, path, error)),
        }
    }

    fn journal(&self, files: impl Iterator<Item = String>) -> crate::Result<Journal<'_>> {
        let files: Vec<_> = files.collect();
        let file = self.write_index(&index_of(files.iter().map(|file| (file.as_str(), file.as_str()))))?;
        Ok(Journal { place: self, files, file: Some(file) })
    }

    fn failed(&self, operation: &'static str, path: &Path, error: std::io::Error) -> crate::Error {
        crate::Error::File { operation, path: path.to_owned(), cause: error.into() }
    }
}

/// A temporary index of the shards that take part in a replacement.
struct Journal<'a> {
    place: &'a Place<'a>,
    files: Vec<String>,
    file: Option<Temporary>,
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        let Place { path, index_path, .. } = self.place;
        let model = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let files = self.files.iter().map(String::as_str);
        if remove_unnamed(index_path, model, files, &[Namer::Us, Namer::Other]).is_err()
            && let Some(file) = self.file.take()
        {
            // A later process reads it, when the index can be read again.
            file.leave();
        }
    }
}

/// Returns an index of tensors and their files.
fn index_of<'n>(entries: impl Iterator<Item = (&'n str, &'n str)>) -> String {
    let weight_map: BTreeMap<_, _> = entries.collect();
    serde_json::json!({ "weight_map": weight_map }).to_string()
}
