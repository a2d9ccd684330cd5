//! Replacing several files that have fixed names, such as those of a split model.
//!
//! No call renames several files at once. So the old files get other names first, and the new ones take theirs after that. The
//! first file, by which programs open the others, is the first to go and the last to come. At each moment it leads to files of
//! one model, or is missing.

use std::ffi::OsString;

use super::folder::Folder;
use super::outcome::InPlace;
use super::temporary::Temporary;
use crate::Result;

/// An old file: its name, and the one that it has while new files take their names.
struct Aside {
    name: OsString,
    at: OsString,
}

/// Gives complete files their names, of which the first puts all in place as `in_place`. Then removes the old files.
///
/// # Errors
/// [`crate::Error::File`]. The old files are then in place, or the new ones, or neither, which the folder records.
pub(in crate::formats) fn replace_together(
    folder: &Folder,
    files: Vec<Temporary<'_>>,
    in_place: InPlace,
) -> Result<()> {
    let names: Vec<_> = files.iter().map(|file| file.target().to_owned()).collect();
    let mut old = Vec::new();
    if let Err(error) = take_names(folder, files, &mut old) {
        if undo(folder, &names, &old).is_err() && !old.is_empty() {
            folder.set_in_place(InPlace::Neither, []);
        }
        return Err(error);
    }
    folder.set_in_place(in_place, names.iter().map(|name| &**name));
    folder.sync()?;
    if old.is_empty() {
        return Ok(());
    }
    old.iter().try_for_each(|old| folder.remove(&old.at))?;
    folder.sync()
}

fn take_names(folder: &Folder, files: Vec<Temporary<'_>>, old: &mut Vec<Aside>) -> Result<()> {
    for file in &files {
        let name = file.target().to_owned();
        old.extend(folder.set_aside(&name)?.map(|at| Aside { name, at }));
    }
    if !old.is_empty() {
        // The storage must have the old files aside before it has new ones.
        folder.sync()?;
    }
    let mut files = files.into_iter();
    let first = files.next();
    files.rev().try_for_each(Temporary::replace)?;
    // The storage must have the others before it has the first.
    folder.sync()?;
    first.map_or(Ok(()), Temporary::replace)
}

/// Gives the old files their names again, the first file last, and removes new files that replaced none. Stops at the first
/// failure, so that the first file never leads to files of both.
fn undo(folder: &Folder, names: &[OsString], old: &[Aside]) -> Result<()> {
    for (number, name) in names.iter().enumerate().rev() {
        if number == 0 && !old.is_empty() {
            folder.sync()?;
        }
        match old.iter().find(|old| old.name == *name) {
            Some(old) => folder.put_back(&old.at, name)?,
            None if folder.made(name) => folder.remove(name)?,
            None => {}
        }
    }
    Ok(())
}
