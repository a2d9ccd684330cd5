//! The kinds of file systems that the reads and writes of a file distinguish.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// File systems in memory: never slow to read, with no storage behind the page cache.
    Tmpfs,
    /// Local file systems on a block device, with one lock for all buffered writers of a file: ext2 to ext4
    /// and xfs.
    LocalDisk,
    /// All others. Also files on a disk whose writes each wait for the storage, as the descriptor or the mount
    /// requires, without holding the lock.
    Other,
}

impl FileSystem {
    /// Returns the kind for a file that is open with these flags. Device nodes are [`Other`](Self::Other), as are mounts that
    /// refuse `fstatfs`.
    pub fn of(file: &fs::File, metadata: &fs::Metadata, flags: libc::c_int) -> Self {
        let Ok(stat) = statistics_of(file) else { return FileSystem::Other };
        // `O_SYNC` includes `O_DSYNC`.
        Self::by(&stat, metadata.is_file(), flags & libc::O_DSYNC != 0)
    }

    fn by(stat: &libc::statfs64, is_file: bool, waits: bool) -> Self {
        let waits = waits || stat.f_flags as libc::c_ulong & libc::MS_SYNCHRONOUS != 0;
        match magic(stat) {
            _ if !is_file => FileSystem::Other,
            libc::TMPFS_MAGIC => FileSystem::Tmpfs,
            libc::EXT4_SUPER_MAGIC | libc::XFS_SUPER_MAGIC if !waits => FileSystem::LocalDisk,
            _ => FileSystem::Other,
        }
    }

    /// Returns whether a read that misses the page cache costs more than a copy.
    pub fn has_slow_misses(self) -> bool {
        self != FileSystem::Tmpfs
    }
}

/// Returns the magic number of a file system, whose type depends on the C library.
#[allow(clippy::unnecessary_cast, reason = "musl's is unsigned")]
fn magic(stat: &libc::statfs64) -> i64 {
    stat.f_type as i64
}

fn statistics_of(file: impl AsFd) -> io::Result<libc::statfs64> {
    // SAFETY: zeros are valid, and the kernel fills them in.
    let mut stat: libc::statfs64 = unsafe { mem::zeroed() };
    // SAFETY: `stat` outlives the call.
    match unsafe { libc::fstatfs64(file.as_fd().as_raw_fd(), &mut stat) } {
        0 => Ok(stat),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the length of a regular file in bytes. Returns `None` if the kernel does not report it, or the file system
/// does not know it, for example sysfs.
pub(super) fn known_len_bytes(file: impl AsFd) -> Option<u64> {
    const CONFIGFS_MAGIC: i64 = 0x6265_6570;
    // SAFETY: zeros are valid, and the kernel fills them in.
    let mut stat: libc::stat64 = unsafe { mem::zeroed() };
    // SAFETY: `stat` outlives the call.
    let is_known = unsafe { libc::fstat64(file.as_fd().as_raw_fd(), &mut stat) } == 0
        && stat.st_mode & libc::S_IFMT == libc::S_IFREG
        && statistics_of(file).is_ok_and(|system| {
            ![libc::SYSFS_MAGIC, libc::PROC_SUPER_MAGIC, CONFIGFS_MAGIC].contains(&magic(&system))
        });
    is_known.then_some(stat.st_size.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::super::direct::open_flags;
    use super::*;

    fn stat(f_type: i64, f_flags: i64) -> libc::statfs64 {
        // SAFETY: zeros are valid.
        libc::statfs64 { f_type: f_type as _, f_flags: f_flags as _, ..unsafe { mem::zeroed() } }
    }

    #[test]
    fn synchronous_files_do_not_count_as_local_disk() {
        for disk in [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC] {
            assert_eq!(FileSystem::by(&stat(disk, 0x20), true, false), FileSystem::LocalDisk);
            assert_eq!(FileSystem::by(&stat(disk, 0x30), true, false), FileSystem::Other);
            assert_eq!(FileSystem::by(&stat(disk, 0x20), true, true), FileSystem::Other);
        }
        for (f_flags, waits) in [(0, false), (0x10, false), (0, true)] {
            assert_eq!(FileSystem::by(&stat(libc::TMPFS_MAGIC, f_flags), true, waits), FileSystem::Tmpfs);
            assert_eq!(FileSystem::by(&stat(0, f_flags), true, waits), FileSystem::Other);
        }
    }

    #[test]
    fn only_real_files_have_a_known_length() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5000).unwrap();
        assert_eq!(known_len_bytes(&file), Some(5000));
        for unknown in ["/proc/self/maps", "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/zero", "/"] {
            if let Ok(file) = fs::File::open(unknown) {
                assert_eq!(known_len_bytes(&file), None, "{unknown}");
            }
        }
    }

    #[test]
    fn only_tmpfs_has_no_slow_cache_misses() {
        assert!(!FileSystem::Tmpfs.has_slow_misses());
        assert!(FileSystem::LocalDisk.has_slow_misses() && FileSystem::Other.has_slow_misses());
    }

    #[test]
    fn device_storage_ignores_the_file_system_of_its_name() {
        let device = fs::File::open("/dev/null").unwrap();
        assert_eq!(FileSystem::of(&device, &device.metadata().unwrap(), 0), FileSystem::Other);
        for magic in [libc::TMPFS_MAGIC, libc::EXT4_SUPER_MAGIC] {
            assert_eq!(FileSystem::by(&stat(magic, 0), false, false), FileSystem::Other);
        }
    }

    #[test]
    fn synchronous_descriptors_make_writes_wait() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let open = |flags| {
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).custom_flags(flags).open(folder.path().join("file")).unwrap()
        };
        let of = |flags| {
            let file = open(flags);
            FileSystem::of(&file, &file.metadata().unwrap(), open_flags(&file).unwrap())
        };
        if of(0) == FileSystem::LocalDisk {
            assert_eq!([libc::O_DSYNC, libc::O_SYNC].map(of), [FileSystem::Other; 2]);
        }
    }
}
