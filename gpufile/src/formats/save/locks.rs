//! The facts about other processes that follow from the locks of a file system.

use std::fs;
use std::mem;
use std::os::fd::AsRawFd;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Locks {
    /// All that see the files: the file system is local.
    ForAll,
    /// Those of this machine, and perhaps those of others.
    ForSome,
    /// Locks are mandatory, so that a locked file cannot be written by another descriptor.
    Mandatory,
}

impl Locks {
    pub fn of(folder: &fs::File) -> Self {
        const BCACHEFS: u32 = 0xca45_1a4e;
        const ZFS: u32 = 0x2fc1_2fc1;
        const LOCAL: [u32; 8] = [
            libc::TMPFS_MAGIC as u32,
            libc::EXT4_SUPER_MAGIC as u32,
            libc::XFS_SUPER_MAGIC as u32,
            libc::BTRFS_SUPER_MAGIC as u32,
            libc::F2FS_SUPER_MAGIC as u32,
            libc::OVERLAYFS_SUPER_MAGIC as u32,
            BCACHEFS,
            ZFS,
        ];
        const CIFS: u32 = 0xff53_4d42;
        const SMB2: u32 = 0xfe53_4d42;
        const MANDATORY: [u32; 3] = [libc::SMB_SUPER_MAGIC as u32, CIFS, SMB2];
        // SAFETY: zeros are valid, and the kernel fills them in.
        let mut stat: libc::statfs64 = unsafe { mem::zeroed() };
        // SAFETY: `stat` outlives the call.
        let asked = unsafe { libc::fstatfs64(folder.as_raw_fd(), &mut stat) };
        match stat.f_type as u32 {
            // A file that cannot be locked is not removed either.
            _ if asked != 0 => Locks::Mandatory,
            kind if LOCAL.contains(&kind) => Locks::ForAll,
            kind if MANDATORY.contains(&kind) => Locks::Mandatory,
            _ => Locks::ForSome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_file_systems_are_not_local() {
        assert_eq!(Locks::of(&fs::File::open("/proc").unwrap()), Locks::ForSome);
        if let Ok(memory) = fs::File::open("/dev/shm") {
            assert_eq!(Locks::of(&memory), Locks::ForAll);
        }
    }
}
