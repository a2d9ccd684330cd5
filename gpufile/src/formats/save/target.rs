//! The check of a target: a save replaces regular files only.

use std::fs;
use std::io;

use crate::Cause;
use crate::trusted;

/// Returns the file that a save would replace, from opening its name (`O_PATH`); `None` if there is none.
///
/// # Errors
/// The reason why it cannot be replaced.
pub(super) fn checked(opened: io::Result<fs::File>) -> Result<Option<(fs::File, fs::Metadata)>, Cause> {
    // A save replaces a link that leads nowhere. An index whose name would be too long does not exist.
    const NOWHERE: [i32; 5] = [libc::ENOENT, libc::ELOOP, libc::ENOTDIR, libc::EACCES, libc::ENAMETOOLONG];
    let file = match opened {
        Err(error) if error.raw_os_error().is_some_and(|errno| NOWHERE.contains(&errno)) => return Ok(None),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    match metadata.file_type() {
        kind if kind.is_file() => Ok(Some((file, metadata))),
        kind if kind.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR).into()),
        kind => Err(Cause::Invalid(format!("it is not a regular file but {}", trusted::kind(kind)))),
    }
}
