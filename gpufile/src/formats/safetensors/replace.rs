//! A model in the place of an older one, when either may be one file or several.
//!
//! A folder has a model in `model.safetensors`, or in shards that `model.safetensors.index.json` names. One rename or
//! one removal makes the new model take the place of the old one, whatever the two have. To keep the two apart, there
//! is no moment at which both names are there and are of different models:
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
//! Beside them lies a temporary index of all shards that take part, so that those which the final index does not name
//! can be removed: at the end, after a failure, or by a later process.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::files::ModelFiles;
use super::index::{ShardIndex, is_plain};
use super::index_file::{index_path, read_index};
use super::shards::{Namer, ShardNames, remove_unnamed};
use crate::OpenOptions;
use crate::formats::SaveOptions;
use crate::formats::regular::is_same_file;
use crate::formats::save::{Folder, Temporary};

/// The place where a model is to be.
pub(super) struct Place<'a> {
    folder: &'a Folder,
    options: &'a SaveOptions,
    /// The file that has all of the model, or would have.
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

    /// Puts a file into the place of the model, given the names of its tensors.
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Open`].
    pub fn put_file<'n>(&self, file: Temporary, names: impl Iterator<Item = &'n str>) -> crate::Result<()> {
        let _lock = self.folder.lock()?;
        if fs::symlink_metadata(&self.index_path).is_err() {
            file.replace(self.path)?;
            return self.folder.sync();
        }
        // Found out before the index is replaced.
        self.refuse_folders()?;
        let shards = self.new_name()?;
        let _journal = self.journal(self.old_shards().into_iter().chain(shards.clone()))?;
        if let Some(shard) = &shards
            && self.link(file.path(), shard)?
        {
            self.put_index(index_of(names.map(|name| (name, shard.as_str()))))?;
        }
        file.replace(self.path)?;
        self.folder.sync()?;
        self.remove("remove the index", &self.index_path)
    }

    /// Puts files into the place of the model, given their names as shards, and their index.
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
        for (shard, name) in shards {
            shard.replace(&self.path.with_file_name(name))?;
        }
        // A file that cannot be read as a model is no model to be kept.
        if let Some(old_file) = &old_file
            && let Ok(model) = ModelFiles::open([self.path], &OpenOptions::new())
            && self.link(self.path, old_file)?
        {
            self.put_index(index_of(model.catalog.tensors().map(|tensor| (tensor.name, old_file.as_str()))))?;
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

    /// Returns a name for all of the model as a shard; `None` if no index could name it.
    fn new_name(&self) -> crate::Result<Option<String>> {
        let Some(model) = self.path.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
        let names =
            ShardNames::new(model).map_err(|error| self.failed("name shards of", self.path, error))?;
        Ok(Some(names.name(1, 1)).filter(|name| is_plain(name)))
    }

    fn refuse_folders(&self) -> crate::Result<()> {
        let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
        match [self.path, &self.index_path].into_iter().find(|path| is_folder(path)) {
            Some(folder) => Err(self.failed("replace", folder, ErrorKind::IsADirectory.into())),
            None => Ok(()),
        }
    }

    /// Gives a file a second name; says whether it has it. Not every file system can.
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

    /// Puts an index into its place, when what it names has reached the storage.
    fn put_index(&self, json: String) -> crate::Result<()> {
        let index = self.write_index(&json)?;
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

/// The shards that take part while one model takes the place of another, in a temporary index.
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
            // The next process may find out which ones the index names.
            file.leave();
        }
    }
}

/// Returns an index of tensors and their files.
fn index_of<'n>(entries: impl Iterator<Item = (&'n str, &'n str)>) -> String {
    let weight_map: BTreeMap<_, _> = entries.collect();
    serde_json::json!({ "weight_map": weight_map }).to_string()
}
