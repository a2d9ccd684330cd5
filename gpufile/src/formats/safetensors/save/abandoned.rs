//! Removing the shards of a replacement that the final index does not name: at its end, or after its process was killed.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;

use super::super::headers::index::{ShardIndex, is_plain};
use super::super::headers::index_file::{INDEX_SUFFIX, parse_index, read_in};
use super::shards::{Namer, namer};
use crate::formats::Result;
use crate::formats::save::folder::Folder;

/// Returns the name of the model of an index; `None` if the name is not that of an index.
pub(in crate::formats) fn model_of(index: &OsStr) -> Option<&str> {
    index.to_str()?.strip_suffix(INDEX_SUFFIX)
}

/// Removes the files that are shards of the model by their names, and that its index does not name. Returns whether all
/// of them are gone.
///
/// # Errors
/// The error of reading the index. No file is removed then.
pub(super) fn remove_unnamed<'a>(
    folder: &Folder,
    index: &OsStr,
    model: &str,
    files: impl IntoIterator<Item = &'a str>,
    namers: &[Namer],
    remove: impl Fn(&OsStr) -> bool,
) -> Result<bool> {
    let path = folder.path_of(index);
    let index = match folder.open_file(index) {
        Ok(file) => Some(parse_index(&path, &read_in(file, &path)?)?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(crate::Error::Open { path, cause: error.into() }.into()),
    };
    let is_named =
        |file: &str| index.as_ref().is_some_and(|index| index.files().iter().any(|named| named == file));
    let mut are_gone = true;
    for file in files {
        let is_shard = namer(model, file).is_some_and(|namer| namers.contains(&namer));
        if is_plain(file) && is_shard && !is_named(file) {
            are_gone &= remove(OsStr::new(file));
        }
    }
    Ok(are_gone)
}

/// Removes the shards that a killed save left: those of its temporary index that the present index does not name.
/// Returns whether the temporary index can be removed too.
///
/// Keeps shards whose names are not from [`ShardNames`](super::shards::ShardNames), because another program may have
/// written them since. Keeps all if it must keep one.
pub(in crate::formats) fn remove_abandoned(
    folder: &Folder,
    left: fs::File,
    index: &OsStr,
    is_kept: impl Fn(&fs::Metadata) -> bool,
) -> bool {
    // A temporary file for another target has no shards.
    let Some(model) = model_of(index) else { return true };
    let Ok(json) = read_in(left, &folder.path_of(index)) else { return false };
    // A save names no shard before its index is complete.
    let Ok(left) = ShardIndex::parse(&json) else { return true };
    let is_kept = |file: &String| folder.metadata(OsStr::new(file)).is_ok_and(|file| is_kept(&file));
    let files = left.files().iter().map(String::as_str);
    let remove = |file: &OsStr| folder.remove_old(file);
    !left.files().iter().any(is_kept)
        && matches!(remove_unnamed(folder, index, model, files, &[Namer::Us], remove), Ok(true))
}
