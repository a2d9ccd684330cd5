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
    /// The kind, and whether it is mounted so that each write waits for the storage (`-o sync`). Of a device, the file
    /// system has only the name.
    ///
    /// # Errors
    /// What `fstatfs` said.
    pub fn of(file: &fs::File, metadata: &fs::Metadata) -> io::Result<(Self, bool)> {
        // SAFETY: zeros are valid, and the kernel fills them in.
        let mut stat: libc::statfs64 = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` outlives the call.
        if unsafe { libc::fstatfs64(file.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self::by(&stat, metadata.is_file()))
    }

    fn by(stat: &libc::statfs64, is_file: bool) -> (Self, bool) {
        let storage = match stat.f_type {
            _ if !is_file => Storage::Other,
            libc::TMPFS_MAGIC => Storage::Tmpfs,
            libc::EXT4_SUPER_MAGIC | libc::XFS_SUPER_MAGIC => Storage::LocalDisk,
            _ => Storage::Other,
        };
        (storage, stat.f_flags as libc::c_ulong & libc::MS_SYNCHRONOUS != 0)
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

/// Whether each write to a file waits for the storage because of an attribute of the file (`chattr +S`).
pub(super) fn has_sync_attribute(file: &fs::File) -> bool {
    const FS_SYNC_FL: libc::c_int = 8;
    let mut attributes: libc::c_int = 0;
    // SAFETY: the kernel writes an `int`, whatever the request's number says, and `attributes` outlives the call.
    let asked = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &mut attributes) };
    // File systems without attributes say so.
    asked == 0 && attributes & FS_SYNC_FL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_waits_for_the_storage_is_known_by_its_flags() {
        for (f_type, storage) in [(libc::EXT4_SUPER_MAGIC, Storage::LocalDisk), (0, Storage::Other)] {
            for (f_flags, is_sync) in [(0x20, false), (0x30, true)] {
                // SAFETY: zeros are valid.
                let mut stat: libc::statfs64 = unsafe { std::mem::zeroed() };
                (stat.f_type, stat.f_flags) = (f_type, f_flags);
                assert_eq!(Storage::by(&stat, true), (storage, is_sync));
            }
        }
    }

    #[test]
    fn a_device_is_not_kept_where_its_name_is() {
        let device = fs::File::open("/dev/null").unwrap();
        let (storage, _) = Storage::of(&device, &device.metadata().unwrap()).unwrap();
        assert_eq!(storage, Storage::Other);
        // SAFETY: zeros are valid.
        let mut stat: libc::statfs64 = unsafe { std::mem::zeroed() };
        stat.f_type = libc::TMPFS_MAGIC;
        assert_eq!(
            [false, true].map(|is_file| Storage::by(&stat, is_file).0),
            [Storage::Other, Storage::Tmpfs]
        );
    }
}
