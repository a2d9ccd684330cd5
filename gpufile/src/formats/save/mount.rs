//! The calls that a save tries before it writes, because a mount may refuse them.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};

use cufile::fork::Mutex;

use crate::Cause;
use crate::trusted::at::lacks_call;

/// The devices on which the calls of a save were tried, and whether syncs were among them.
static TRIED: Mutex<BTreeSet<(u64, bool)>> = Mutex::of_static(BTreeSet::new());

/// Tries calls, unless they succeeded on this device before.
pub(super) fn once(device: u64, syncs: bool, calls: impl FnOnce() -> crate::Result<()>) -> crate::Result<()> {
    if !TRIED.lock().contains(&(device, syncs)) {
        calls()?;
        TRIED.lock().insert((device, syncs));
    }
    Ok(())
}

/// Returns the cause that an error of a rename is, with advice if the mount has no renames.
pub(super) fn of_rename(error: io::Error) -> Cause {
    if !lacks_call(&error) && error.raw_os_error() != Some(libc::EPERM) {
        return error.into();
    }
    let advice = "this mount renames no files, and a save needs that to replace a file as a whole: save to a local folder, \
                  or to the address of the store, such as s3://bucket/key";
    io::Error::new(ErrorKind::Unsupported, format!("{advice} ({error})")).into()
}
