//! The options of a save.

use crate::OpenOptions;

/// The way in which files are saved.
///
/// A save writes a temporary file beside the one that it replaces, and renames it when it is complete. A program that
/// opens the path during the save finds the old contents or the new ones. If a save fails, the old file is untouched
/// and the temporary file is removed. A new file has the permissions that any new file gets. If the path is a symbolic
/// link, the file replaces the link.
///
/// # Killed processes
/// A process that is killed during a save leaves the old file or the new one, and perhaps temporary files, called
/// `.NAME.RANDOM.gpufile-tmp`. The first save of another process into that folder removes them. On local file systems
/// a saving process locks its temporary files (`flock`), and a file is removed if nobody holds its lock. On other file
/// systems a file is removed a day after it was last written to.
#[derive(Debug, Clone)]
#[must_use]
pub struct SaveOptions {
    pub(super) files: OpenOptions,
    pub(in crate::formats) sync: bool,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SaveOptions {
    /// Saves by the process's default engine, and waits for the storage.
    pub fn new() -> Self {
        Self { files: OpenOptions::new(), sync: true }
    }

    /// Opens the file in this way: with this engine, policy and use of `O_DIRECT`. Ignores access and creation
    /// options.
    pub fn files(mut self, files: &OpenOptions) -> Self {
        self.files = files.clone();
        self
    }

    /// Sets whether a save waits until the file has reached the storage before it is renamed, and then for the folder
    /// (`fsync`). Without, a crash of the machine may leave an incomplete file in the place of the old one.
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }
}
