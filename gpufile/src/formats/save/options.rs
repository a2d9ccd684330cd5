//! The options of a save.

use crate::OpenOptions;

/// The options of a save.
///
/// A save writes a temporary file beside the one that it replaces, and renames it when it is complete. A program that
/// opens the path during the save finds the old contents or the new ones. A failed save leaves the old file untouched,
/// and removes the temporary file. The new file has the usual permissions of a new file. If the path is a symbolic
/// link, the file replaces the link.
///
/// ```
/// use gpufile::formats::{SaveOptions, npy};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-options-{}.npy", std::process::id()));
/// let without_fsync = SaveOptions::new().sync(false);
/// npy::write_with(&path, "|u1", false, &[3], &[1_u8, 2, 3][..], &without_fsync)?;
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Killed processes
/// A process that is killed during a save leaves the old file or the new one, and perhaps temporary files named
/// `.NAME.RANDOM.gpufile-tmp`. The first save of another process into that folder removes them. On local file systems a
/// saving process locks its temporary files (`flock`), and files without a lock are removed. On other file systems,
/// files are removed a day after the last write to them.
///
/// A write beyond the process's limit of file sizes (`RLIMIT_FSIZE`) kills it by `SIGXFSZ`. If it ignores this signal, as
/// Python does, the save fails instead.
#[derive(Debug, Clone)]
#[must_use]
pub struct SaveOptions {
    pub(super) files: OpenOptions,
    pub(in crate::formats) sync: bool,
    /// The device and the inode number of a file that is not removed, even if a killed process left it.
    pub(crate) kept: Option<(u64, u64)>,
    /// The permissions that a file is created with, less the umask.
    pub(crate) mode: u32,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SaveOptions {
    /// Returns the default options: the global engine, and waiting for the storage.
    pub fn new() -> Self {
        Self { files: OpenOptions::new(), sync: true, kept: None, mode: 0o666 }
    }

    /// Sets the engine, the policy and the use of `O_DIRECT` of the file. Ignores access and creation options.
    pub fn files(mut self, files: &OpenOptions) -> Self {
        self.files = files.clone();
        self
    }

    /// Sets whether a save waits for the storage (`fsync`): for the file before the rename, and for the folder after
    /// it. Without this, a crash of the machine may leave an incomplete file in the place of the old one.
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }
}
