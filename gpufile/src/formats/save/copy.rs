use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::access::Access;
use super::{SaveOptions, save};
use crate::File;
use crate::formats::Result;

/// Writes a file under a temporary name, which `write` gets too, and renames it when it is complete. The new file has
/// the permissions of the copied file, except its owner. If it replaces a file, it allows no more than the mode of
/// that one. The copied file, which comes with its status, is never removed as a leftover. A copy of an object, which
/// is no file, gets the permissions of any new file.
///
/// On a full file system, `write` may be called once more, for a new file.
///
/// ```
/// use std::fs;
///
/// use gpufile::File;
/// use gpufile::formats::{SaveOptions, save_copy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let (from, to) = (folder.path().join("from"), folder.path().join("to"));
/// # fs::write(&from, "new")?;
/// # fs::write(&to, "old")?;
/// let source = File::open(&from)?;
/// let status = fs::metadata(&from)?;
/// save_copy(Some((&source, &status)), &to, &SaveOptions::new(), |copy, _temporary| {
///     let mut bytes = vec![0; source.len_bytes()? as usize];
///     source.read_exact_at(&mut bytes, 0)?;
///     copy.write_all_at(&bytes, 0)
/// })?;
/// assert_eq!(fs::read(&to)?, b"new");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Save`](crate::formats::Error::Save).
pub fn save_copy(
    source: Option<(&File, &Metadata)>,
    target: &Path,
    options: &SaveOptions,
    write: impl FnMut(&File, PathBuf) -> crate::Result<()>,
) -> Result<()> {
    let kept = source.map(|(_, status)| (status.dev(), status.ino()));
    // Without a file there, the copy is as open as the source.
    let most = fs::metadata(target).map_or(0o777, |there| there.mode());
    let access = source.map(|(file, status)| Access::of(file, status).without_owner().within(most));
    save(target, &SaveOptions { kept, access, ..options.clone() }, write)
}
