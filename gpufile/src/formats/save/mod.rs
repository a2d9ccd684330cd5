//! Saving a file: it is written under a temporary name, and replaces the old file when it is complete.

mod folder;
mod leftovers;
mod lock;
mod names;
mod options;
mod temporary;

use std::path::Path;

#[cfg(feature = "zarr")]
pub(super) use folder::sync_folder;
pub(super) use folder::{Folder, no_file_name};
pub(super) use leftovers::open_clean;
pub(super) use names::MOST_BYTES;
#[cfg(feature = "zarr")]
pub(super) use names::target_of;
pub use options::SaveOptions;
pub(super) use temporary::Temporary;

use super::{Error, Result};
use crate::File;
use crate::formats::error::of_entry;

/// Writes a file under a temporary name, and renames it when it is complete.
pub(crate) fn save(
    path: &Path,
    options: &SaveOptions,
    write: impl FnOnce(&File) -> crate::Result<()>,
) -> Result<()> {
    let save = || {
        let folder = open_clean(path, options)?;
        Temporary::written(&folder, path, options, write)?.replace(path)?;
        folder.sync()
    };
    save().map_err(|error| Error::Save { path: path.to_owned(), error: of_entry(error) })
}
