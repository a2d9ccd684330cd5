//! The options for opening files.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::Engine;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::local_path;
use crate::open_file::{OpenFile, Stored};
use crate::route::RoutePolicy;
use crate::settings::{DirectIo, Settings};
use crate::storage::Storage;

/// The options for opening a file. Options that are not set follow the engine's settings.
///
/// ```
/// use gpufile::{DirectIo, OpenOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log.bin");
/// let options = OpenOptions::new().read(true).write(true).create_new(true).direct_write(DirectIo::Never);
/// let file = options.open(&path)?;
/// file.write_all_at(b"entry".as_slice(), 0)?;
/// assert!(options.open(&path).is_err()); // `create_new` fails, because the file exists.
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct OpenOptions {
    options: fs::OpenOptions,
    write: bool,
    truncate: bool,
    appends: bool,
    engine: Option<Engine>,
    policy: Option<RoutePolicy>,
    direct_read: Option<DirectIo>,
    direct_write: Option<DirectIo>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().read(true).open(path)
    }

    /// Creates a file, or empties it if it exists, for writing and reading.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
    }

    /// Makes a file over a [storage], for reading, with a name for messages. Its bytes pass through host memory.
    ///
    /// It keeps the storage until the last clone of the file and the last transfer are gone. Calls that write,
    /// [`set_len`](Self::set_len) and [`map`](Self::map) fail, and its descriptor is that of `/dev/null`. An engine whose number
    /// of [threads](crate::EngineBuilder::threads) was not chosen reads it with 64.
    ///
    /// [storage]: crate::storage
    ///
    /// # Errors
    /// [`Error::Open`] if the process has too many descriptors.
    pub fn from_storage(name: impl Into<OsString>, storage: Arc<dyn Storage>) -> Result<Self> {
        OpenOptions::new().open_storage(name, storage)
    }

    pub(crate) fn over(name: &Path, storage: Arc<dyn Storage>, engine: Engine) -> Result<Self> {
        let (gpus, settings) = (engine.gpus().clone(), engine.settings().clone());
        match OpenFile::of_stored(name.to_owned(), Stored::new(storage), gpus, settings) {
            Ok(open) => Ok(Self::new(open, engine)),
            Err(error) => Err(Error::Open { path: name.to_owned(), cause: error.into() }),
        }
    }

    /// Returns the storage that the file was made over, also if it is an object of a server. Returns `None` if the bytes come from
    /// a descriptor.
    pub fn storage(&self) -> Option<&Arc<dyn Storage>> {
        self.open_file().stored().map(Stored::storage)
    }

    /// Returns options for opening a file with other access, another engine, or another policy.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Returns options with neither read nor write access, as [`std::fs::OpenOptions`].
    pub fn new() -> Self {
        Self {
            options: fs::OpenOptions::new(),
            write: false,
            truncate: false,
            appends: false,
            engine: None,
            policy: None,
            direct_read: None,
            direct_write: None,
        }
    }

    /// Sets whether the file is opened for reading.
    pub fn read(mut self, read: bool) -> Self {
        self.options.read(read);
        self
    }

    /// Sets whether the file is opened for writing.
    pub fn write(mut self, write: bool) -> Self {
        self.options.write(write);
        self.write = write;
        self
    }

    /// Creates the file if it does not exist.
    pub fn create(mut self, create: bool) -> Self {
        self.options.create(create);
        self
    }

    /// Creates the file, and fails if it exists.
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.options.create_new(create_new);
        self
    }

    /// Empties the file if it exists. If opening fails, the file keeps its contents.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.options.truncate(truncate);
        self.truncate = truncate;
        self
    }

    /// Sets the permissions of a file that is created. The kernel removes those in the process's umask. The default
    /// is 0o666.
    ///
    /// Names elsewhere: `m644` (KvikIO).
    #[doc(alias = "m644")]
    pub fn mode(mut self, mode: u32) -> Self {
        self.options.mode(mode);
        self
    }

    /// Passes flags of `open(2)`, for example `O_NOFOLLOW`. They replace flags that were passed before.
    /// `O_DIRECT` has no effect, because the engine decides for each transfer. With `O_APPEND`,
    /// [`open`](Self::open) fails.
    pub fn custom_flags(mut self, flags: i32) -> Self {
        self.options.custom_flags(flags & !libc::O_APPEND);
        self.appends = flags & libc::O_APPEND != 0;
        self
    }

    /// Uses this engine instead of the process's default.
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Chooses between cuFile and POSIX for device memory.
    ///
    /// Names elsewhere: `compat_mode_requested` (KvikIO).
    #[doc(alias = "compat_mode_requested")]
    pub fn policy(mut self, policy: RoutePolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Chooses when reads use `O_DIRECT`. Nothing need be aligned. By default, only reads of uncached ranges in files
    /// too long for memory use it: see [`DirectIo::Auto`].
    ///
    /// Names elsewhere: `fd_direct` (kvik-rs).
    #[doc(alias = "fd_direct")]
    pub fn direct_read(mut self, direct: DirectIo) -> Self {
        self.direct_read = Some(direct);
        self
    }

    /// Chooses when writes use `O_DIRECT`. Nothing need be aligned: unaligned ends go through the page cache.
    pub fn direct_write(mut self, direct: DirectIo) -> Self {
        self.direct_write = Some(direct);
        self
    }

    /// Opens a file over a storage, like [`File::from_storage`]. Ignores access and creation options, and those about
    /// cuFile and `O_DIRECT`.
    ///
    /// # Errors
    /// As [`File::from_storage`].
    pub fn open_storage(&self, name: impl Into<OsString>, storage: Arc<dyn Storage>) -> Result<File> {
        let name = PathBuf::from(name.into());
        match self.engine_or_global() {
            Ok(engine) => File::over(&name, storage, engine.for_objects(false)),
            Err(cause) => Err(Error::Open { path: name, cause }),
        }
    }

    /// Opens the file.
    ///
    /// Names elsewhere: `open_fd`, `open_fd_parse_flags` (KvikIO); `posix_open` (kvik-rs).
    ///
    /// # Errors
    /// [`Error::Open`] with the error of the operating system, or if the path is an address such as `s3://bucket/key`. Under [`RoutePolicy::RequireCufile`], also
    /// with the reason why cuFile does not work for the file. A file that this call created then stays,
    /// empty.
    #[doc(alias = "open_fd")]
    #[doc(alias = "open_fd_parse_flags")]
    #[doc(alias = "posix_open")]
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        local_path::check(path)?;
        let failed = |cause| Error::Open { path: path.to_owned(), cause };
        if self.appends {
            return Err(failed(appending()));
        }
        let engine = self.engine_or_global().map_err(failed)?;
        // The file is emptied later than the kernel would, so a file that cannot be opened keeps its
        // contents.
        let empties = self.write && self.truncate;
        let mut options = self.options.clone();
        if empties {
            options.truncate(false);
        }
        let file = options.open(path).map_err(|error| failed(error.into()))?;
        let file = self.open_file(path.to_owned(), file, engine)?;
        if empties {
            empty(&file.open_file().file).map_err(|error| failed(error.into()))?;
        }
        Ok(file)
    }

    /// Takes over a file that is already open, with its access. Ignores access and creation options. A file
    /// with `O_DIRECT` is opened again without it, because the engine decides for each transfer.
    ///
    /// # Errors
    /// [`Error::Open`]. A file with `O_APPEND` is refused, because the kernel appends its writes, whatever
    /// their offset.
    pub fn open_fd(&self, fd: impl Into<OwnedFd>) -> Result<File> {
        let file = fs::File::from(fd.into());
        let path = path_of(&file);
        match crate::open_file::open_flags(&file) {
            Err(error) => Err(Error::Open { path, cause: error.into() }),
            Ok(flags) if flags & libc::O_APPEND != 0 => Err(Error::Open { path, cause: appending() }),
            Ok(_) => self.take_over(path, file),
        }
    }

    /// Uses a file that is already open, like [`open_fd`](Self::open_fd), but duplicates the descriptor (`F_DUPFD_CLOEXEC`).
    /// Either of the two may be closed first, and the file stays open until the last transfer has ended.
    ///
    /// Both descriptors share the file's position, which transfers neither use nor change. As with any
    /// descriptor of a file, closing the duplicate releases the locks of `fcntl` that the process has on the
    /// file.
    ///
    /// ```
    /// use gpufile::File;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, "data")?;
    /// let lent = std::fs::File::open(&path)?; // or a `BorrowedFd` of another library
    /// let file = File::options().open_borrowed_fd(&lent)?;
    /// let mut buffer = vec![0; 4]; // or device memory
    /// file.read_exact_at(&mut buffer, 0)?;
    /// drop(file);
    /// assert_eq!(std::io::read_to_string(lent)?.as_bytes(), buffer);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open_fd`](Self::open_fd). [`Error::Open`] also if the process has too many descriptors.
    #[doc(alias = "dup")]
    pub fn open_borrowed_fd(&self, fd: impl AsFd) -> Result<File> {
        let fd = fd.as_fd();
        let duplicate = fd.try_clone_to_owned();
        self.open_fd(duplicate.map_err(|error| Error::Open { path: path_of(fd), cause: error.into() })?)
    }

    /// Takes over a file that was just opened under this path, for reading at least. Ignores access and
    /// creation options.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub(crate) fn take_over(&self, path: PathBuf, file: fs::File) -> Result<File> {
        match self.engine_or_global() {
            Ok(engine) => self.open_file(path, file, engine),
            Err(cause) => Err(Error::Open { path, cause }),
        }
    }

    pub(crate) fn engine_or_global(&self) -> std::result::Result<Engine, Cause> {
        match &self.engine {
            Some(engine) => Ok(engine.clone()),
            None => Engine::try_global().cloned().map_err(|error| Cause::Invalid(error.to_string())),
        }
    }

    fn open_file(&self, path: PathBuf, file: fs::File, engine: Engine) -> Result<File> {
        let settings = self.change(engine.settings().clone());
        let open = OpenFile::new(path.clone(), file, engine.gpus().clone(), settings)
            .map_err(|error| Error::Open { path, cause: error.into() })?;
        File::checked(open, engine)
    }

    fn change(&self, settings: Settings) -> Settings {
        Settings {
            policy: self.policy.unwrap_or(settings.policy),
            direct_read: self.direct_read.unwrap_or(settings.direct_read),
            direct_write: self.direct_write.unwrap_or(settings.direct_write),
            ..settings
        }
    }
}

/// Returns the path of an open file, if the kernel reports it.
fn path_of(file: impl AsFd) -> PathBuf {
    let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
    fs::read_link(&link).unwrap_or(link)
}

/// Returns the error cause for files with `O_APPEND`.
fn appending() -> Cause {
    Cause::Invalid("O_APPEND ignores the offsets of writes; open the file without it".to_owned())
}

/// Empties a regular file, and ignores other kinds, as `O_TRUNC` does. Leaves an empty file unchanged, because ext4 writes
/// truncated files out when they are closed.
fn empty(file: &fs::File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() > 0 { file.set_len(0) } else { Ok(()) }
}
