//! The options for opening files.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::engine::Engine;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::open_file::OpenFile;
use crate::route::RoutePolicy;
use crate::settings::DirectIo;

/// The options for opening a file. The engine's settings decide those that are not set.
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

impl OpenOptions {
    /// Returns options for neither reading nor writing, as [`std::fs::OpenOptions`].
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

    /// Creates the file if there is none.
    pub fn create(mut self, create: bool) -> Self {
        self.options.create(create);
        self
    }

    /// Creates the file, and fails if there is one.
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.options.create_new(create_new);
        self
    }

    /// Empties the file if there is one, and if nothing else refuses to open it.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.options.truncate(truncate);
        self.truncate = truncate;
        self
    }

    /// Sets the permissions that a created file gets, less the process's umask; 0o666 by default.
    pub fn mode(mut self, mode: u32) -> Self {
        self.options.mode(mode);
        self
    }

    /// Passes flags of `open(2)`, such as `O_NOFOLLOW`, in place of those passed before. `O_DIRECT` has no effect: the
    /// engine decides for each transfer. `O_APPEND` is refused when the file is opened.
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

    /// Sets whether device memory may or must go through cuFile.
    pub fn policy(mut self, policy: RoutePolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets whether reads use `O_DIRECT`. Nothing need be aligned. By default only reads of what is not cached do,
    /// from files too long to be kept in memory: see [`DirectIo::Auto`].
    pub fn direct_read(mut self, direct: DirectIo) -> Self {
        self.direct_read = Some(direct);
        self
    }

    /// Sets whether writes use `O_DIRECT`. Nothing need be aligned: the ends that are not go through the page cache.
    pub fn direct_write(mut self, direct: DirectIo) -> Self {
        self.direct_write = Some(direct);
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// [`Error::Open`] with what the operating system said, or, under [`RoutePolicy::RequireCufile`], why cuFile does
    /// not work for the file. A file that was created before that was known stays, empty.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        let failed = |cause| Error::Open { path: path.to_owned(), cause };
        if self.appends {
            return Err(failed(appending()));
        }
        let engine = self.engine_or_global().map_err(failed)?;
        // Later than the system would, so that a file that cannot be opened keeps what it has.
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

    /// Takes over a file that is already open, with the access that it was opened for; of these options, only those
    /// count that are not about how to open. If it has `O_DIRECT`, it is opened again without, and each transfer
    /// decides.
    ///
    /// # Errors
    /// [`Error::Open`]; a file with `O_APPEND` is refused, because its writes would go elsewhere.
    pub fn open_fd(&self, fd: impl Into<OwnedFd>) -> Result<File> {
        let file = fs::File::from(fd.into());
        let path = crate::file::path_of(&file);
        match crate::open_file::open_flags(&file) {
            Err(error) => Err(Error::Open { path, cause: error.into() }),
            Ok(flags) if flags & libc::O_APPEND != 0 => Err(Error::Open { path, cause: appending() }),
            Ok(_) => self.take_over(path, file),
        }
    }

    /// Takes over a file that was just opened under this path, for reading at least. Ignores access and creation options.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub(crate) fn take_over(&self, path: PathBuf, file: fs::File) -> Result<File> {
        match self.engine_or_global() {
            Ok(engine) => self.open_file(path, file, engine),
            Err(cause) => Err(Error::Open { path, cause }),
        }
    }

    /// Returns the engine that files are opened with, or why there is none.
    pub(crate) fn engine_or_global(&self) -> std::result::Result<Engine, Cause> {
        match &self.engine {
            Some(engine) => Ok(engine.clone()),
            None => Engine::try_global().cloned().map_err(|error| Cause::Invalid(error.to_string())),
        }
    }

    fn open_file(&self, path: PathBuf, file: fs::File, engine: Engine) -> Result<File> {
        let settings = engine.settings();
        let policy = self.policy.unwrap_or(settings.policy());
        let direct = (
            self.direct_read.unwrap_or(settings.direct_read()),
            self.direct_write.unwrap_or(settings.direct_write()),
        );
        let file = OpenFile::new(path.clone(), file, engine, policy, direct)
            .map_err(|error| Error::Open { path: path.clone(), cause: error.into() })?;
        if policy == RoutePolicy::RequireCufile {
            file.require_cufile().map_err(|reason| Error::Open { path, cause: Cause::NoCufile(reason) })?;
        }
        Ok(File::new(file))
    }
}

/// Returns the reason why files with `O_APPEND` are refused.
fn appending() -> Cause {
    Cause::Invalid("it has O_APPEND, and all writes here say where they go".to_owned())
}

/// Does what `O_TRUNC` does, which other kinds of files do not mind. A file that is empty is left alone: ext4 takes a
/// truncation for the first half of a replacement, and writes the file out when it is closed.
fn empty(file: &fs::File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() > 0 { file.set_len(0) } else { Ok(()) }
}
