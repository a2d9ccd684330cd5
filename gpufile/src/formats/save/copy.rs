//! The save of a file's copy.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::access::Access;
use super::{SaveOptions, save};
use crate::File;
use crate::formats::Result;

/// Writes a file under a temporary name, which `write` gets too, and renames it when it is complete. The new file has the
/// permissions of `source`, except its owner. `status` is the state of `source`, which is never removed as a leftover.
///
/// On a full file system, `write` may be called once more, for a new file.
///
/// # Errors
/// [`Error::Save`](crate::formats::Error::Save).
pub fn save_copy(
    source: &File,
    status: &Metadata,
    target: &Path,
    options: &SaveOptions,
    write: impl FnMut(&File, PathBuf) -> crate::Result<()>,
) -> Result<()> {
    let kept = Some((status.dev(), status.ino()));
    let access = Some(Access::of(source, status).without_owner());
    save(target, &SaveOptions { kept, access, ..options.clone() }, write)
}
