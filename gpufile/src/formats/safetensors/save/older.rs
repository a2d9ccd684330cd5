//! The older model of a name, which a save removes if it is asked to: its file, its index, and the shards that the index names.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use super::super::headers::index::ShardIndex;
use super::super::headers::index_file::{index_path, read_in};
use super::shards::is_shard_of;
use crate::formats::save::{Access, Folder};

/// The files of the model that a folder has before the save.
pub(super) struct Older {
    /// The name of the index, whether there is one or not.
    pub index: OsString,
    /// The files with their identities, the index last.
    files: Vec<(OsString, (u64, u64))>,
    /// The permissions of the shards.
    shards: Option<Access>,
}

impl Older {
    /// Looks at the files of a model in the folder of a save.
    ///
    /// # Errors
    /// [`crate::Error::File`] if the file or the index is anything but a regular file, which a save must not replace.
    pub fn of(folder: &Folder) -> crate::Result<Self> {
        let index = index_path(folder.target()).file_name().expect("a name with an end").to_owned();
        folder.check(folder.name())?;
        folder.check(&index)?;
        let shards = shards_of(folder, &index);
        let access = shards.iter().find_map(|shard| folder.access_of(shard).ok().flatten());
        let names = [folder.name().to_owned()].into_iter().chain(shards).chain([index.clone()]);
        let files = names.filter_map(|name| Some((identity(&folder.metadata(&name).ok()?), name)));
        Ok(Self { files: files.map(|(identity, name)| (name, identity)).collect(), index, shards: access })
    }

    /// Returns the permissions of its files with tensors.
    pub fn access_of_data(&self, folder: &Folder) -> crate::Result<Option<Access>> {
        Ok(folder.access_of(folder.name())?.or_else(|| self.shards.clone()))
    }

    /// Removes the files, except one, and those that another program has replaced since.
    ///
    /// # Errors
    /// The first error. The rest of the files stays then.
    pub fn remove(&self, folder: &Folder, kept: &OsStr) -> crate::Result<()> {
        let is_still = |name: &OsStr, seen| folder.metadata(name).is_ok_and(|found| identity(&found) == seen);
        let old = self.files.iter().filter(|(name, seen)| name != kept && is_still(name, *seen));
        for (name, _) in old.rev() {
            folder.remove(name)?;
            if *name == self.index {
                // The storage must forget the index before the shards that it names.
                folder.sync()?;
            }
        }
        folder.sync()
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Returns the shards of the model that the index names. Leaves out files whose owner is not that of the index: the writer of
/// the index had no right to them.
fn shards_of(folder: &Folder, index: &OsStr) -> Vec<OsString> {
    let Ok(file) = folder.open_file(index) else { return Vec::new() };
    let Ok(owner) = file.metadata().map(|metadata| metadata.uid()) else { return Vec::new() };
    let json = read_in(file, &folder.path_of(index)).ok();
    let index = json.and_then(|json| ShardIndex::parse(&json).ok());
    let model = folder.name().to_str().unwrap_or_default();
    let is_of_owner = |file: &OsStr| folder.metadata(file).is_ok_and(|metadata| metadata.uid() == owner);
    let files = index.as_ref().map_or(&[][..], |index| index.files()).iter();
    let shards = files.filter(|file| is_shard_of(model, file)).map(OsString::from);
    shards.filter(|file| is_of_owner(file)).collect()
}
