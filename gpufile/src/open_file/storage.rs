//! What kind of file system a file is on, as far as it decides how to write and read it.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

/// Kinds of file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Memory: never slow to read, and the page cache is all there is.
    Tmpfs,
    /// Local, on a block device, with one lock for all buffered writers of a file: ext2 to ext4 and xfs.
    LocalDisk,
    /// Anything else, local or not.
    Other,
}

impl Storage {
    /// # Errors
    /// What `fstatfs` said.
    pub fn of(file: &fs::File) -> io::Result<Self> {
        // SAFETY: zeros are valid, and the kernel fills them in.
        let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` outlives the call.
        if unsafe { libc::fstatfs(file.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(match stat.f_type {
            libc::TMPFS_MAGIC => Storage::Tmpfs,
            libc::EXT4_SUPER_MAGIC | libc::XFS_SUPER_MAGIC => Storage::LocalDisk,
            _ => Storage::Other,
        })
    }

    /// Whether reading what is not in the page cache costs more than a copy.
    pub fn has_slow_misses(self) -> bool {
        self != Storage::Tmpfs
    }

    /// Whether a shared mapping writes what a write call would, with the same visibility to others.
    pub fn can_write_by_mapping(self) -> bool {
        matches!(self, Storage::Tmpfs | Storage::LocalDisk)
    }
}
