//! The permissions of a file: its mode, its access control list (POSIX ACL), and its owner.

use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

use crate::trusted::SHARED_WRITE;

/// The attribute that has a file's ACL.
const ACL: &CStr = c"system.posix_acl_access";

/// The permissions of a file, to be given to another.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    mode: u32,
    owner: Option<(u32, u32)>,
    acl: Acl,
}

#[derive(Debug, Clone)]
enum Acl {
    /// There is none, or the file system has none.
    None,
    /// The list as the kernel writes it.
    List(Vec<u8>),
    Unknown,
}

impl Access {
    /// Returns the permissions of a file, without the bits that let a program run as its owner.
    pub fn of(file: impl AsFd, metadata: &fs::Metadata) -> Self {
        let acl = acl(file.as_fd());
        Self { mode: metadata.mode() & 0o777, owner: Some((metadata.uid(), metadata.gid())), acl }
    }

    pub fn without_owner(self) -> Self {
        Self { owner: None, ..self }
    }

    /// Takes out what a mode does not allow. The bits of the group limit the ACL, too.
    pub fn within(self, mode: u32) -> Self {
        Self { mode: self.mode & mode, ..self }
    }

    /// Gives a file these permissions, except that others may not write to it. Returns the mode that the file gets
    /// when it is complete.
    ///
    /// # Errors
    /// The file would stay more open than these permissions allow.
    pub(super) fn give(&self, file: &fs::File) -> io::Result<u32> {
        let has_group = self.owner.is_none_or(|owner| give_owner(file, owner));
        let has_acl = match &self.acl {
            Acl::List(acl) => set_acl(file, acl),
            Acl::None => remove_acl(file),
            Acl::Unknown => false,
        };
        let mut mode = self.mode;
        if !has_group {
            // Another group gets no more than everybody.
            mode &= 0o707 | (mode & 0o007) << 3;
        }
        if !has_acl {
            // With an ACL, the bits of the group are the limit of its entries. They would mean more without it.
            mode &= 0o700;
        }
        set_mode(file, mode & !SHARED_WRITE, mode)?;
        Ok(mode)
    }
}

/// Sets the mode of a file. Some file systems have one mode for all files, and refuse.
///
/// # Errors
/// The file would stay more open than the mode `most`.
fn set_mode(file: &fs::File, mode: u32, most: u32) -> io::Result<()> {
    let before = file.metadata()?.mode() & 0o777;
    if before == mode {
        return Ok(());
    }
    match file.set_permissions(Permissions::from_mode(mode)) {
        Err(error) if before & !most != 0 => Err(error),
        _ => Ok(()),
    }
}

/// Gives a file its owner and its group, as far as this process may. Returns whether it has the group.
fn give_owner(file: &fs::File, (user, group): (u32, u32)) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let has_group = metadata.gid() == group || fchown(file, None, Some(group)).is_ok();
    if metadata.uid() != user {
        // Only root can give files away.
        let _ = fchown(file, Some(user), None);
    }
    has_group
}

/// Returns the ACL of an open file. Finds it by its path in /proc, as it may be open as a place only (`O_PATH`).
fn acl(file: BorrowedFd<'_>) -> Acl {
    /// The kernel allows no longer attribute.
    const MOST_BYTES: usize = 64 << 10;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero byte");
    let get = |list: &mut [u8]| {
        // SAFETY: both names end with a zero byte, and `list` has as many bytes as the call gets.
        unsafe { libc::getxattr(path.as_ptr(), ACL.as_ptr(), list.as_mut_ptr().cast(), list.len()) }
    };
    // Most files have none, and need no memory.
    if get(&mut []) < 0 && is_none(&io::Error::last_os_error()) {
        return Acl::None;
    }
    let mut list = vec![0_u8; MOST_BYTES];
    match usize::try_from(get(&mut list)) {
        Ok(len) => {
            list.truncate(len);
            Acl::List(list)
        }
        Err(_) => Acl::Unknown,
    }
}

fn set_acl(file: &fs::File, acl: &[u8]) -> bool {
    // SAFETY: `file` has the descriptor open. The name ends with a zero byte, and `acl` outlives the call.
    unsafe { libc::fsetxattr(file.as_raw_fd(), ACL.as_ptr(), acl.as_ptr().cast(), acl.len(), 0) == 0 }
}

/// Removes the ACL that a new file gets from its folder. Returns whether the file has none now.
fn remove_acl(file: &fs::File) -> bool {
    // SAFETY: `file` has the descriptor open, and the name ends with a zero byte.
    let removed = unsafe { libc::fremovexattr(file.as_raw_fd(), ACL.as_ptr()) };
    removed == 0 || is_none(&io::Error::last_os_error())
}

/// Returns whether an error means that a file has no ACL, or can have none.
fn is_none(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP | libc::ENOSYS))
}
