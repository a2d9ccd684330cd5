//! The properties of a file on which cuFile's treatment depends.

use std::ffi::c_int;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, OpError, Result};
use crate::system::{self, AsFd};
use crate::version::Version;

/// The properties of a file and its open flags, as the kernel reported them at one time. The fields' docs say what
/// may change later.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FileProperties {
    /// Regular file, directory, …
    pub file_type: FileType,
    /// The flags of `open` from `F_GETFL`: `O_RDWR`, `O_DIRECT`, … `fcntl` may change some.
    ///
    /// Names elsewhere: `fd_open_flags` (KvikIO).
    #[doc(alias = "fd_open_flags")]
    pub open_flags: c_int,
    /// The alignment that `O_DIRECT` transfers need; `None` where the file system has no `O_DIRECT` or does not
    /// report it.
    ///
    /// Names elsewhere: `is_direct_io_supported` (KvikIO).
    #[doc(alias = "is_direct_io_supported")]
    pub direct_io: Option<DirectIoAlignment>,
    /// The file system's type as in `/proc/self/mountinfo`: `ext4`, `tmpfs`, `overlay`, …
    pub file_system: String,
    /// Major and minor number of the device; major 0 if the file system is on no block device.
    ///
    /// Names elsewhere: `BlockDeviceInfo`, `get_block_device_info` (KvikIO).
    #[doc(alias = "BlockDeviceInfo")]
    #[doc(alias = "get_block_device_info")]
    pub device: (u32, u32),
    /// True if udev describes the block device, which cuFile needs; `None` without a block device.
    pub udev_record: Option<bool>,
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum FileType {
    Regular,
    Directory,
    BlockDevice,
    CharDevice,
    Fifo,
    Socket,
    Other,
}

/// The alignment of addresses and offsets in `O_DIRECT` transfers.
///
/// Names elsewhere: `get_page_size` (KvikIO); `page_size`, `align_up`, `align_down`, `is_aligned`, `align_up_ptr`,
/// `align_down_ptr`, `is_aligned_ptr` (kvik-rs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DirectIoAlignment {
    /// The alignment of the address in memory, in bytes.
    pub memory_bytes: u32,
    /// The alignment of the offset in the file and of the length, in bytes.
    pub offset_bytes: u32,
}

impl FileProperties {
    /// Asks the kernel about an open file.
    ///
    /// # Errors
    /// [`Error::Io`] with the error of `statx` or `fcntl`; of the kind
    /// [`Unsupported`](std::io::ErrorKind::Unsupported) on other systems than Linux.
    pub fn of(file: impl AsFd) -> Result<Self> {
        let found = system::describe(system::raw(system::lend(&file)))
            .map_err(|(call, source)| Error::Io { operation: call.into(), source })?;
        let (device, direct_io) = (found.device, found.direct_io);
        Ok(Self {
            file_type: FileType::of(found.mode),
            open_flags: found.open_flags,
            direct_io: direct_io
                .map(|(memory_bytes, offset_bytes)| DirectIoAlignment { memory_bytes, offset_bytes }),
            file_system: found.file_system.unwrap_or_else(|| "unknown".to_owned()),
            device,
            udev_record: (device.0 != 0).then(|| has_udev_record(&udev_path(device))),
        })
    }

    /// Returns whether the file was opened with `O_DIRECT`.
    pub fn is_direct(&self) -> bool {
        self.open_flags & system::O_DIRECT != 0
    }

    /// Returns the path of udev's record of the block device, if the file is on one. The record need not
    /// exist.
    pub fn udev_path(&self) -> Option<PathBuf> {
        self.udev_record.map(|_| udev_path(self.device))
    }

    /// Returns an empty string if no property of the file explains the refusal.
    pub(crate) fn explain(&self, code: OpError, version: Version) -> String {
        let (major, minor) = self.device;
        if self.file_type != FileType::Regular {
            return format!("it is a {}; cuFile registers regular files", self.file_type);
        }
        let refused: Vec<&str> = system::REFUSED_FLAGS
            .iter()
            .filter(|(flag, _)| self.open_flags & flag != 0)
            .map(|(_, name)| *name)
            .collect();
        if code == OpError::INVALID_FILE_OPEN_FLAG && !refused.is_empty() {
            return format!("open it without {}", refused.join(" and "));
        }
        // The codes of 1.15 and newer, and of older versions, for a file system that they do not accept.
        if ![OpError::HANDLE_NOT_REGISTERED, OpError::INTERNAL_ERROR].contains(&code) {
            return String::new();
        }
        match (self.file_system.as_str(), self.udev_record) {
            ("tmpfs", _) if version < (Version { major: 1, minor: 16 }) => {
                "tmpfs needs cuFile 1.16 or newer".to_owned()
            }
            (file_system, Some(false)) => format!(
                "{file_system} on block device {major}:{minor}, which has no udev record of a file system in {}: run \
                 udevd, or mount /run/udev into the container",
                udev_path(self.device).display()
            ),
            (file_system, _) => format!("file system {file_system}; see libcufile's log file"),
        }
    }
}

impl FileType {
    fn of(mode: u16) -> Self {
        // Linux's numbers. The libc of other systems lacks some of their names.
        match mode & 0o170_000 {
            0o100_000 => FileType::Regular,
            0o040_000 => FileType::Directory,
            0o060_000 => FileType::BlockDevice,
            0o020_000 => FileType::CharDevice,
            0o010_000 => FileType::Fifo,
            0o140_000 => FileType::Socket,
            _ => FileType::Other,
        }
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileType::Regular => "regular file",
            FileType::Directory => "directory",
            FileType::BlockDevice => "block device",
            FileType::CharDevice => "character device",
            FileType::Fifo => "pipe",
            FileType::Socket => "socket",
            FileType::Other => "file of unknown type",
        })
    }
}

fn udev_path((major, minor): (u32, u32)) -> PathBuf {
    PathBuf::from(format!("/run/udev/data/b{major}:{minor}"))
}

fn has_udev_record(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|record| record.contains("E:ID_FS_TYPE="))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    fn properties(file: &fs::File) -> FileProperties {
        FileProperties::of(file).unwrap()
    }

    #[test]
    fn properties_have_type_flags_and_file_system() {
        let file = tempfile::tempfile().unwrap();
        let found = properties(&file);
        assert_eq!(found.file_type, FileType::Regular);
        assert_eq!(found.open_flags & libc::O_ACCMODE, libc::O_RDWR);
        assert!(!found.is_direct());
        assert_ne!(found.file_system, "unknown");
        assert_eq!(properties(&fs::File::open("/proc/self/stat").unwrap()).file_system, "proc");
        // Empty flags are not a failure.
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = FileProperties::of(&reader).unwrap();
        assert_eq!((pipe.file_type, pipe.open_flags), (FileType::Fifo, libc::O_RDONLY));
        assert_eq!((pipe.device.0, pipe.udev_path()), (0, None));
    }

    #[test]
    fn explanations_depend_on_type_and_flags() {
        let latest = Version { major: 1, minor: 20 };
        let directory = properties(&fs::File::open("/").unwrap());
        assert!(directory.explain(OpError::INVALID_FILE_TYPE, latest).starts_with("it is a directory"));

        let path = tempfile::NamedTempFile::new().unwrap();
        let mut options = fs::OpenOptions::new();
        let append = options.write(true).custom_flags(libc::O_APPEND).open(path.path()).unwrap();
        let text = properties(&append).explain(OpError::INVALID_FILE_OPEN_FLAG, latest);
        assert_eq!(text, "open it without O_APPEND");
    }

    #[test]
    fn explanations_name_missing_udev_records_and_old_tmpfs() {
        let mut file = properties(&tempfile::tempfile().unwrap());
        (file.file_system, file.device, file.udev_record) = ("ext4".to_owned(), (254, 0), Some(false));
        let text = file.explain(OpError::HANDLE_NOT_REGISTERED, Version { major: 1, minor: 20 });
        assert!(text.contains("/run/udev/data/b254:0"), "{text}");
        (file.file_system, file.udev_record) = ("tmpfs".to_owned(), None);
        let text = file.explain(OpError::INTERNAL_ERROR, Version { major: 1, minor: 14 });
        assert_eq!(text, "tmpfs needs cuFile 1.16 or newer");
    }

    #[test]
    fn statx_requests_every_field_that_is_used() {
        // In the folder of the build, which is often on a disk.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        // SAFETY: all-zero is a valid value of this struct of integers.
        let mut all: libc::statx = unsafe { std::mem::zeroed() };
        let (fd, every_bit) = (file.as_fd().as_raw_fd(), 0x7fff_ffff);
        // SAFETY: as in `statx`.
        assert_eq!(unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, every_bit, &mut all) }, 0);
        let found = properties(&file);
        let has_alignment = all.stx_mask & libc::STATX_DIOALIGN != 0 && all.stx_dio_offset_align != 0;
        let expected = has_alignment.then_some(DirectIoAlignment {
            memory_bytes: all.stx_dio_mem_align,
            offset_bytes: all.stx_dio_offset_align,
        });
        assert_eq!(found.direct_io, expected);
        assert_eq!(found.file_type, FileType::of(all.stx_mode));
        assert_eq!(found.device, (all.stx_dev_major, all.stx_dev_minor));
        assert_eq!(found.udev_record.is_some(), all.stx_dev_major != 0);
        let path = format!("/run/udev/data/b{}:{}", all.stx_dev_major, all.stx_dev_minor);
        assert_eq!(found.udev_path(), (all.stx_dev_major != 0).then(|| path.into()));
    }

    #[test]
    fn udev_records_need_a_file_system_type() {
        let record = tempfile::NamedTempFile::new().unwrap();
        assert!(!has_udev_record(record.path()));
        fs::write(record.path(), "S:disk/by-id/1\nE:ID_FS_TYPE=ext4\n").unwrap();
        assert!(has_udev_record(record.path()));
        fs::write(record.path(), "S:disk/by-id/1\nE:ID_SERIAL=1\n").unwrap();
        assert!(!has_udev_record(record.path()));
        assert!(!has_udev_record(&record.path().with_extension("absent")));
    }

    #[test]
    fn file_types_follow_from_the_mode() {
        for (mode, file_type, text) in [
            (libc::S_IFREG, FileType::Regular, "regular file"),
            (libc::S_IFDIR, FileType::Directory, "directory"),
            (libc::S_IFBLK, FileType::BlockDevice, "block device"),
            (libc::S_IFCHR, FileType::CharDevice, "character device"),
            (libc::S_IFIFO, FileType::Fifo, "pipe"),
            (libc::S_IFSOCK, FileType::Socket, "socket"),
            (libc::S_IFLNK, FileType::Other, "file of unknown type"),
        ] {
            assert_eq!(FileType::of((mode | 0o640) as u16), file_type);
            assert_eq!(file_type.to_string(), text);
        }
    }

    #[test]
    fn explanations_fit_the_error_code() {
        let mut file = properties(&tempfile::tempfile().unwrap());
        let latest = Version { major: 1, minor: 20 };
        (file.file_system, file.device, file.udev_record) = ("tmpfs".to_owned(), (0, 25), None);
        assert_eq!(file.udev_path(), None);
        assert!(!file.is_direct());
        file.open_flags = libc::O_RDWR | libc::O_DIRECT | libc::O_APPEND | libc::O_NONBLOCK;
        assert!(file.is_direct());
        let text = file.explain(OpError::INVALID_FILE_OPEN_FLAG, latest);
        assert_eq!(text, "open it without O_APPEND and O_NONBLOCK");
        assert_eq!(file.explain(OpError::PERMISSION_DENIED, latest), "");
        for code in [OpError::HANDLE_NOT_REGISTERED, OpError::INTERNAL_ERROR] {
            assert_eq!(file.explain(code, latest), "file system tmpfs; see libcufile's log file");
            let first = file.explain(code, Version { major: 1, minor: 16 });
            assert_eq!(first, "file system tmpfs; see libcufile's log file");
            let older = file.explain(code, Version { major: 1, minor: 15 });
            assert_eq!(older, "tmpfs needs cuFile 1.16 or newer");
        }
        file.open_flags = libc::O_RDWR;
        assert_eq!(file.explain(OpError::INVALID_FILE_OPEN_FLAG, latest), "");
    }
}
