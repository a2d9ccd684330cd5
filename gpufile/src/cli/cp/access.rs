//! The permissions of a copy: the mode, and the access control list (POSIX ACL).

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;

use crate::{File, Result};

/// The attribute that has a file's ACL.
const ACL: &CStr = c"system.posix_acl_access";

/// Gives a file the permissions of another, whose mode is known. The bits that let a program run as its owner are left
/// out. If the ACL cannot be kept, only the owner gets permissions.
///
/// # Errors
/// The permissions cannot be read or set.
pub fn copy(source: &File, target: &File, mode: u32) -> Result<()> {
    let acl = acl(source).map_err(|error| source.failed("read the ACL of", error))?;
    let is_kept = match &acl {
        Some(acl) => set_acl(target, acl),
        None => remove_acl(target),
    };
    // With an ACL, the bits of the group are the limit of its entries. They would mean more without it.
    let mode = mode & if is_kept { 0o777 } else { 0o700 };
    fs::set_permissions(target.path(), Permissions::from_mode(mode))
        .map_err(|error| target.failed("set the permissions of", error))
}

/// Returns the ACL of a file, as the kernel writes it; `None` if the file has only a mode.
fn acl(file: &File) -> io::Result<Option<Vec<u8>>> {
    /// The kernel allows no longer attribute.
    const MOST_BYTES: usize = 64 << 10;
    let mut acl = vec![0_u8; MOST_BYTES];
    // SAFETY: `file` has the descriptor open. The name ends with a zero byte, and `acl` has as many bytes as the call gets.
    let len = unsafe {
        libc::fgetxattr(file.as_fd().as_raw_fd(), ACL.as_ptr(), acl.as_mut_ptr().cast(), acl.len())
    };
    match usize::try_from(len) {
        Ok(len) => {
            acl.truncate(len);
            Ok(Some(acl))
        }
        Err(_) => match io::Error::last_os_error() {
            error if is_none(&error) => Ok(None),
            error => Err(error),
        },
    }
}

/// Sets the ACL of a file, and returns whether that succeeded.
fn set_acl(file: &File, acl: &[u8]) -> bool {
    // SAFETY: `file` has the descriptor open. The name ends with a zero byte, and `acl` outlives the call.
    unsafe { libc::fsetxattr(file.as_fd().as_raw_fd(), ACL.as_ptr(), acl.as_ptr().cast(), acl.len(), 0) == 0 }
}

/// Removes the ACL that a new file gets from its folder. Returns whether the file has none now.
fn remove_acl(file: &File) -> bool {
    // SAFETY: `file` has the descriptor open, and the name ends with a zero byte.
    let removed = unsafe { libc::fremovexattr(file.as_fd().as_raw_fd(), ACL.as_ptr()) };
    removed == 0 || is_none(&io::Error::last_os_error())
}

/// Returns whether an error means that a file has no ACL, or can have none.
fn is_none(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP))
}
