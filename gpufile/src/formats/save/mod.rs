//! Saving a file: it is written under a temporary name, and replaces the old file when it is complete.
//!
//! ```text
//! folder       opened once; every name is relative to it
//! lock         models of several files: a private file that other saves of the same user wait for
//! leftovers    of killed processes of the same user are removed
//! target       must be a regular file, or not exist; its permissions are kept
//! mount        a rename is tried before the first byte
//! temporary    written, given its permissions, synced, renamed
//! together     files of a split model: the old ones get other names until the new ones have theirs
//! outcome      which data is in place after a failure, and what was left
//! object       saves to objects instead of files
//! ```
//!
//! `docs/saves.md` has the table of steps and failures. `safetensors/save` has the steps for models of several files.

mod access;
mod copy;
mod distribute;
pub(super) mod folder;
mod leftovers;
mod lock;
mod locks;
mod mount;
pub(super) mod names;
pub(super) mod object;
mod options;
pub(super) mod outcome;
mod target;
mod temporary;
mod together;

use std::path::{Path, PathBuf};

pub(super) use access::Access;
pub use copy::save_copy;
pub(super) use distribute::distribute;
pub(super) use folder::{Folder, no_file_name};
pub use options::SaveOptions;
pub use outcome::InPlace;
pub(super) use temporary::{New, Temporary, begin_sync};
pub(super) use together::replace_together;

use super::{Error, Result};
use crate::formats::error::of_entry;
use crate::{File, local_path};

/// Writes a file under a temporary name, which `write` gets too, and renames it when it is complete.
///
/// On a full file system, `write` may be called once more, for a new file.
pub(crate) fn save(
    path: &Path,
    options: &SaveOptions,
    write: impl FnMut(&File, PathBuf) -> crate::Result<()>,
) -> Result<()> {
    within(path, options, |folder| {
        let replaced = folder.access_of(folder.name())?;
        let access = options.access.clone().or(replaced);
        let new = New { target: folder.name().to_owned(), access };
        Temporary::written(folder, new, options, write)?.replace()?;
        folder.set_in_place(InPlace::New(path.to_owned()), [folder.name()]);
        folder.sync()
    })
}

/// Opens the folder of a save, removes what killed processes left there, and calls `save`. Completes its error.
pub(super) fn within<T>(
    path: &Path,
    options: &SaveOptions,
    save: impl FnOnce(&Folder) -> crate::Result<T>,
) -> Result<T> {
    let folder = Folder::open(path, options.sync).map_err(|error| failed(path, error))?;
    leftovers::look_for(&folder, options.kept);
    save(&folder).map_err(|error| {
        let (in_place, left) = folder.outcome();
        Error::Save { path: path.to_owned(), error: Box::new(of_entry(error)), in_place, left }
    })
}

pub(super) fn failed(path: &Path, error: crate::Error) -> Error {
    let path = local_path::shown(path);
    Error::Save { path, error: Box::new(error), in_place: InPlace::Old, left: Vec::new() }
}
