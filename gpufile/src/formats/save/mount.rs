//! The calls that a mount lacks, such as a bucket that is mounted by FUSE: those that a save does without, and those that it
//! tries before it writes.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};

use cufile::fork::Mutex;

use crate::Cause;

/// The devices on which a file was renamed.
static RENAMES: Mutex<BTreeSet<u64>> = Mutex::of_static(BTreeSet::new());

/// Returns whether an error means that the file system lacks the call, or the call for such a file.
pub fn lacks_call(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL))
}

/// Tries to rename a file by `rename`, unless a file was renamed on this device before.
///
/// # Errors
/// The error of `rename`, with advice if the mount has no renames.
pub(super) fn try_rename(device: u64, rename: impl FnOnce() -> io::Result<()>) -> Result<(), Cause> {
    if RENAMES.lock().contains(&device) {
        return Ok(());
    }
    match rename() {
        Ok(()) => {
            RENAMES.lock().insert(device);
            Ok(())
        }
        Err(error) if lacks_call(&error) || error.raw_os_error() == Some(libc::EPERM) => {
            let advice = "this mount renames no files, and a save needs that to replace a file as a whole: save to a local \
                          folder, or to the address of the store, such as s3://bucket/key";
            Err(io::Error::new(ErrorKind::Unsupported, format!("{advice} ({error})")).into())
        }
        Err(error) => Err(error.into()),
    }
}
