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
//! If a step fails, the old file gets its name back, or the error tells which model is in place, and by which path it
//! opens. A [`Journal`] lists all shards that take part. `docs/saves.md` has the table of steps and failures.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;

use super::super::headers::header::{Header, LENGTH_BYTES};
use super::super::headers::index::{ShardIndex, is_plain};
use super::super::headers::index_file::{index_path, read_in};
use super::super::headers::parse::head_len;
use super::journal::Journal;
use super::shards::ShardNames;
use crate::formats::save::{Access, Folder, InPlace, New, Temporary};
use crate::formats::{SaveOptions, head};
use crate::{Cause, OpenOptions};

/// The place of a model: a file, or an index with shards.
pub(super) struct Place<'a> {
    folder: &'a Folder,
    options: &'a SaveOptions,
    /// The name of the index, if there is one or will be.
    index: OsString,
    /// The permissions of new files with tensors, and of a new index.
    access: [Option<Access>; 2],
}

impl<'a> Place<'a> {
    /// Looks at the model that is to be replaced.
    ///
    /// # Errors
    /// [`crate::Error::File`] if its file or its index is anything but a regular file.
    pub fn new(folder: &'a Folder, options: &'a SaveOptions) -> crate::Result<Self> {
        let index = index_path(folder.target()).file_name().expect("a name with an end").to_owned();
        let of_file = folder.access_of(folder.name())?;
        let of_index = folder.access_of(&index)?;
        let mut place = Self { folder, options, index, access: [None, None] };
        let of_shards = || {
            let shards = place.old_shards();
            shards.iter().find_map(|shard| folder.access_of(OsStr::new(shard)).ok().flatten())
        };
        let of_data = of_file.or_else(of_shards).or_else(|| of_index.clone());
        place.access = [of_data.clone(), of_index.or(of_data)];
        Ok(place)
    }

    /// Returns a new file with tensors.
    pub fn new_file(&self, name: impl Into<OsString>) -> New {
        New { target: name.into(), access: self.access[0].clone() }
    }

    /// Replaces the model by a file. `names` are the names of its tensors.
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Open`].
    pub fn put_file<'n>(
        &self,
        file: Temporary<'_>,
        names: impl Iterator<Item = &'n str>,
    ) -> crate::Result<()> {
        let name = self.folder.name();
        let in_file = || InPlace::New(self.folder.target().to_owned());
        if self.folder.metadata(&self.index).is_err() {
            file.replace()?;
            self.folder.set_in_place(in_file(), [name]);
            return self.folder.sync();
        }
        // Anything but a file at one of the names must fail before the index is replaced.
        self.folder.check(name)?;
        let had_file = self.folder.metadata(name).is_ok();
        let shard = self.new_name()?;
        let _journal = self.journal(self.old_shards().into_iter().chain(shard.clone()))?;
        let mut is_linked = false;
        if let Some(shard) = &shard
            && self.folder.link(file.name(), OsStr::new(shard))?
        {
            is_linked = true;
            let index = self.write_index(&index_of(names.map(|name| (name, shard.as_str()))))?;
            self.put_index(index, [OsStr::new(shard)])?;
        }
        file.replace()?;
        self.folder.set_in_place(in_file(), [name]);
        let removed = self.folder.sync().and_then(|()| self.folder.remove(&self.index));
        // Without a link, the index names the old shards, and they are complete.
        if removed.is_err() && !is_linked {
            match !had_file && self.folder.remove(name).is_ok() {
                true => self.folder.set_in_place(InPlace::Old, [&*self.index]),
                false => self.folder.leave(&self.index),
            }
        }
        let synced = self.folder.sync();
        removed.and(synced)
    }

    /// Replaces the model by shards, and by the index of them.
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Open`].
    pub fn put_shards(&self, shards: Vec<Temporary<'_>>, index: String) -> crate::Result<()> {
        let name = self.folder.name();
        let [in_file, in_index] = [name, &self.index].map(|name| self.folder.metadata(name).is_ok());
        let old = self.old_shards();
        let is_in_file = in_file && (!in_index || old.iter().any(|shard| self.is_the_file(shard)));
        let old_file = if is_in_file { self.new_name()? } else { None };
        let new: Vec<_> = shards.iter().map(|shard| shard.target().to_owned()).collect();
        let named = new.iter().map(|name| name.to_string_lossy().into_owned());
        let _journal = self.journal(old.into_iter().chain(named).chain(old_file.clone()))?;
        // Every write comes before the old file is removed, because a write may fail.
        let index = self.write_index(&index)?;
        shards.into_iter().try_for_each(Temporary::replace)?;
        if is_in_file {
            self.folder.set_in_place(InPlace::Old, [name]);
        }
        let switch = || {
            if let Some(old_file) = &old_file {
                self.move_old_file(OsStr::new(old_file))?;
            }
            self.put_index(index, new.iter().map(OsString::as_os_str))?;
            self.folder.remove(name)?;
            self.folder.sync()
        };
        let switched = switch();
        if switched.is_err() && is_in_file {
            self.move_old_file_back(old_file.as_deref().map(OsStr::new), in_index);
        }
        switched
    }

    /// Makes the old file the only shard of an index. A file that is no model stays, and so does any on file systems
    /// without hard links.
    fn move_old_file(&self, shard: &OsStr) -> crate::Result<()> {
        let name = self.folder.name();
        let Some(names) = self.tensors_of_file() else { return Ok(()) };
        if !self.folder.link(name, shard)? {
            return Ok(());
        }
        let shown = shard.to_string_lossy();
        let index = self.write_index(&index_of(names.iter().map(|name| (name.as_str(), &*shown))))?;
        self.folder.sync()?;
        index.replace()?;
        self.folder.sync()?;
        self.folder.remove(name)?;
        let at = self.folder.path_of(&self.index);
        self.folder.set_in_place(InPlace::OldAt(at), [&*self.index, shard]);
        self.folder.sync()
    }

    /// Gives the old file its name back after a failure, as far as that is possible. `had_index` tells that there was an
    /// index of the file.
    fn move_old_file_back(&self, shard: Option<&OsStr>, had_index: bool) {
        let name = self.folder.name();
        let put_back = |shard| matches!(self.folder.link(shard, name), Ok(true));
        let is_back = match self.folder.metadata(name) {
            Ok(_) => true,
            // The new model is complete, and no file contradicts it.
            Err(_) if self.folder.is_new() => false,
            Err(_) => shard.is_some_and(put_back),
        };
        if is_back && self.folder.made(&self.index) && self.folder.remove(&self.index).is_ok() {
            let at = self.folder.target().to_owned();
            self.folder.set_in_place(if had_index { InPlace::OldAt(at) } else { InPlace::Old }, [name]);
            // The caller gets the first error.
            let _ = self.folder.sync();
        } else if is_back && self.folder.is_new() {
            self.folder.leave(name);
        }
    }

    /// Returns the files that the present index names. Leaves those out that belong to another user than the index: who
    /// wrote it had no right to them.
    fn old_shards(&self) -> Vec<String> {
        let Ok(file) = self.folder.open_file(&self.index) else { return Vec::new() };
        let Ok(owner) = file.metadata().map(|metadata| metadata.uid()) else { return Vec::new() };
        let json = read_in(file, &self.folder.path_of(&self.index)).ok();
        let index = json.and_then(|json| ShardIndex::parse(&json).ok());
        let files = index.map_or_else(Vec::new, |index| index.files().to_vec());
        let is_of_owner = |file: &String| {
            self.folder.metadata(OsStr::new(file)).is_ok_and(|metadata| metadata.uid() == owner)
        };
        files.into_iter().filter(is_of_owner).collect()
    }

    /// Returns whether a name leads to the file of the model.
    fn is_the_file(&self, shard: &str) -> bool {
        let identity = |name: &OsStr| {
            let (_, metadata) = self.folder.check(name).ok().flatten()?;
            Some((metadata.dev(), metadata.ino()))
        };
        let shard = identity(OsStr::new(shard));
        shard.is_some() && shard == identity(self.folder.name())
    }

    /// Returns the names of the tensors in the file of the model; `None` if it is no such file.
    fn tensors_of_file(&self) -> Option<Vec<String>> {
        let file = self.folder.open_file(self.folder.name()).ok()?;
        let file = OpenOptions::new().take_over(self.folder.target().to_owned(), file).ok()?;
        let (head, file_len) = head::read(&file, LENGTH_BYTES as usize, head_len).ok()?;
        let header = Header::parse(&head, file_len).ok()?;
        Some(header.tensors().map(|tensor| tensor.name.to_owned()).collect())
    }

    /// Returns the name of a shard with the whole model; `None` if no index can name it.
    fn new_name(&self) -> crate::Result<Option<String>> {
        match ShardNames::new(self.folder.name()) {
            Ok(names) => Ok(Some(names.name(1, 1)).filter(|name| is_plain(name))),
            Err(Cause::Invalid(_)) => Ok(None),
            Err(cause) => {
                let path = self.folder.target().to_owned();
                Err(crate::Error::File { operation: "name shards of", path, cause })
            }
        }
    }

    /// Replaces the index by that of the new shards, after their names have reached the storage.
    fn put_index<'n>(
        &'n self,
        index: Temporary<'_>,
        shards: impl IntoIterator<Item = &'n OsStr>,
    ) -> crate::Result<()> {
        self.folder.sync()?;
        index.replace()?;
        let at = self.folder.path_of(&self.index);
        let parts: Vec<&OsStr> = shards.into_iter().chain([self.index.as_os_str()]).collect();
        self.folder.set_in_place(InPlace::New(at), parts);
        self.folder.sync()
    }

    fn write_index(&self, json: &str) -> crate::Result<Temporary<'a>> {
        let new = New { target: self.index.clone(), access: self.access[1].clone() };
        Temporary::written(self.folder, new, self.options, |file, _| file.write_all_at(json.as_bytes(), 0))
    }

    /// Writes the journal. Its name reaches the storage before any shard has its own.
    fn journal(&self, files: impl Iterator<Item = String>) -> crate::Result<Journal<'a>> {
        let files: Vec<_> = files.collect();
        let json = index_of(files.iter().map(|file| (file.as_str(), file.as_str())));
        let new = New { target: self.index.clone(), access: None };
        let file = Temporary::written(self.folder, new, self.options, |file, _| {
            file.write_all_at(json.as_bytes(), 0)
        })?;
        self.folder.sync()?;
        Ok(Journal::new(self.folder, self.index.clone(), files, file))
    }
}

/// Returns an index of tensors and their files.
fn index_of<'n>(entries: impl Iterator<Item = (&'n str, &'n str)>) -> String {
    let weight_map: BTreeMap<_, _> = entries.collect();
    serde_json::json!({ "weight_map": weight_map }).to_string()
}
