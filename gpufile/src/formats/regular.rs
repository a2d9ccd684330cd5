//! Opening regular files in folders that other users may write to, and telling files apart.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::trusted::open_unblocked;
use crate::{Cause, File, OpenOptions, local_path};

/// Opens a regular file for reading, and ignores the options about access. Follows symbolic links.
///
/// # Errors
/// [`crate::Error::Open`], also if the path is an address or not a regular file. A pipe would wait for a writer.
pub(super) fn open(path: &Path, options: &OpenOptions) -> crate::Result<File> {
    let file = open_plain(path)?;
    options.take_over(path.to_owned(), file)
}

/// Opens a regular file for reading.
pub(super) fn open_plain(path: &Path) -> crate::Result<fs::File> {
    local_path::check(path)?;
    let failed = |cause| crate::Error::Open { path: path.to_owned(), cause };
    let file = open_unblocked(path).map_err(|error| failed(error.into()))?;
    let metadata = file.metadata().map_err(|error| failed(error.into()))?;
    match metadata.is_file() {
        true => Ok(file),
        false => Err(failed(Cause::Invalid("it is not a regular file".to_owned()))),
    }
}

/// Returns the device and the inode of the regular file that a path leads to, if there is one.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn opened_files_block_again() {
        let file = open_plain(tempfile::NamedTempFile::new().unwrap().path()).unwrap();
        // SAFETY: takes integers.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0);
    }
}
