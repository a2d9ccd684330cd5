//! Open files: reads and writes of device and host memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{fs, io};

use cufile::{FileHandle, IoBuf, IoBufMut};

use crate::engine::{Engine, Lane, Outcome, Stop, read_full, write_full};
use crate::error::{Cause, Error, Result};
use crate::path::{PathPolicy, Route, TransferPath};

/// An open file. Reads and writes are positional and take `&self`, so a file can be shared by threads.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    file: fs::File,
    engine: Engine,
    policy: PathPolicy,
    // Decided when device memory first asks, because opening the cuFile driver takes a tenth of a second.
    way: OnceLock<Way>,
}

#[derive(Debug)]
struct Way {
    route: Route,
    handle: Option<FileHandle>,
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

    /// For opening in other ways.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Reads into the whole buffer from `offset` in bytes. Returns how many bytes were read: fewer than the buffer has
    /// only if the file ends there.
    ///
    /// # Errors
    /// [`Error::Transfer`].
    pub fn read_at<B: IoBufMut + ?Sized>(&self, buffer: &mut B, offset: u64) -> Result<usize> {
        let len = buffer.len_bytes();
        let (done, stop) = self.read_parts(buffer, offset);
        self.finish("read", offset, len, done, stop)
    }

    /// Reads into the whole buffer from `offset` in bytes.
    ///
    /// # Errors
    /// [`Error::Transfer`], with [`Cause::EndOfFile`] if the file ends before the buffer is full.
    pub fn read_exact_at<B: IoBufMut + ?Sized>(&self, buffer: &mut B, offset: u64) -> Result<()> {
        let len = buffer.len_bytes();
        let done = self.read_at(buffer, offset)?;
        let stop = (done < len).then_some(Cause::EndOfFile);
        self.finish("read", offset, len, done, stop).map(drop)
    }

    /// Writes the whole buffer to `offset` in bytes.
    ///
    /// # Errors
    /// [`Error::Transfer`].
    pub fn write_all_at<B: IoBuf + ?Sized>(&self, buffer: &B, offset: u64) -> Result<()> {
        let (done, stop) = self.write_parts(buffer, offset);
        self.finish("write", offset, buffer.len_bytes(), done, stop).map(drop)
    }

    /// Which way device memory goes to and from this file, and why no better one. Opens the cuFile driver if nothing
    /// has yet.
    pub fn route(&self) -> &Route {
        &self.way().route
    }

    /// How many bytes the file has. Stale as soon as anyone writes.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn len_bytes(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|error| self.failed("stat", error))?.len())
    }

    /// Waits until contents and size have reached the storage (`fsync`).
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn sync_all(&self) -> Result<()> {
        self.file.sync_all().map_err(|error| self.failed("sync", error))
    }

    /// The path that the file was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read_parts<B: IoBufMut + ?Sized>(&self, buffer: &mut B, offset: u64) -> (usize, Option<Cause>) {
        let len = buffer.len_bytes();
        if buffer.is_host_accessible() {
            // SAFETY: the buffer is `len` bytes of memory that the host may write and only we use.
            return match unsafe { read_full(self.as_fd(), buffer.as_mut_ptr(), len, offset) } {
                Ok(done) => (done, None),
                Err((done, error)) => (done, Some(error.into())),
            };
        }
        match &self.way().handle {
            Some(handle) => through_cufile(len, |done| {
                let at = offset.saturating_add(done as u64);
                handle.read_range_at(buffer, done, len - done, at)
            }),
            None => {
                let target = buffer.as_mut_ptr();
                // SAFETY: the buffer is `len` bytes of device memory that only we use.
                self.staged(buffer, |lane| unsafe { lane.read(self.as_fd(), target, len, offset) })
            }
        }
    }

    fn write_parts<B: IoBuf + ?Sized>(&self, buffer: &B, offset: u64) -> (usize, Option<Cause>) {
        let len = buffer.len_bytes();
        if buffer.is_host_accessible() {
            // SAFETY: the buffer is `len` bytes of memory that the host may read.
            return match unsafe { write_full(self.as_fd(), buffer.as_ptr(), len, offset) } {
                Ok(()) => (len, None),
                Err((done, error)) => (done, Some(error.into())),
            };
        }
        match &self.way().handle {
            Some(handle) => {
                let (done, stop) = through_cufile(len, |done| {
                    let at = offset.saturating_add(done as u64);
                    handle.write_range_at(buffer, done, len - done, at)
                });
                let stop =
                    stop.or_else(|| (done < len).then(|| io::Error::from(io::ErrorKind::WriteZero).into()));
                (done, stop)
            }
            None => {
                // SAFETY: the buffer is `len` bytes of device memory that nothing writes while it is borrowed.
                self.staged(buffer, |lane| unsafe { lane.write(self.as_fd(), buffer.as_ptr(), len, offset) })
            }
        }
    }

    /// Lends a lane on the buffer's device to `work`.
    fn staged<B: IoBuf + ?Sized>(
        &self,
        buffer: &B,
        work: impl FnOnce(&mut Lane) -> Outcome,
    ) -> (usize, Option<Cause>) {
        let lent = self.engine.cuda().and_then(|cuda| {
            let device = cuda.device_of(buffer)?;
            self.engine.with_lane(&device, |lane| Ok(work(lane)))
        });
        match lent {
            Ok((done, None)) => (done, None),
            Ok((done, Some(Stop::File(error)))) => (done, Some(error.into())),
            Ok((done, Some(Stop::Device(error)))) => (done, Some(error.into())),
            Err(error) => (0, Some(error.into())),
        }
    }

    fn way(&self) -> &Way {
        self.way.get_or_init(|| match self.register() {
            Ok((route, handle)) => Way { route, handle: Some(handle) },
            Err(reason) => Way { route: Route::posix(&reason), handle: None },
        })
    }

    /// Registers the file with cuFile; or says why not.
    fn register(&self) -> Result<(Route, FileHandle), String> {
        if self.policy == PathPolicy::PosixOnly {
            return Err("the file was opened for POSIX only".to_owned());
        }
        let driver = self.engine.driver()?;
        let text = |error: cufile::Error| error.to_string();
        let route = Route::cufile(driver, &self.file).map_err(text)?;
        let direct = matches!(route.path(), TransferPath::Gds | TransferPath::P2pDma);
        let fd = self.duplicate(direct).map_err(|error| error.to_string())?;
        Ok((route, FileHandle::register(driver, fd).map_err(text)?))
    }

    /// A descriptor of the same file for cuFile; the direct paths want `O_DIRECT`.
    fn duplicate(&self, direct: bool) -> io::Result<OwnedFd> {
        use std::os::fd::AsRawFd;
        if !direct {
            return self.file.as_fd().try_clone_to_owned();
        }
        // SAFETY: takes integers.
        let flags = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETFL) };
        let access = flags & libc::O_ACCMODE;
        // Through /proc, so that a file that was renamed or removed meanwhile is still the same one.
        let file = fs::OpenOptions::new()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .custom_flags(libc::O_DIRECT)
            .open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        Ok(file.into())
    }

    fn finish(
        &self,
        operation: &'static str,
        offset: u64,
        len_bytes: usize,
        bytes_done: usize,
        stop: Option<impl Into<Cause>>,
    ) -> Result<usize> {
        match stop {
            None => Ok(bytes_done),
            Some(cause) => Err(Error::Transfer {
                operation,
                path: self.path.clone(),
                offset,
                len_bytes,
                bytes_done,
                cause: cause.into(),
            }),
        }
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        Error::File { operation, path: self.path.clone(), cause: error.into() }
    }
}

/// Repeats a cuFile call until `len` bytes are done or it moves nothing, which is the end of the file.
fn through_cufile(
    len: usize,
    mut call: impl FnMut(usize) -> cufile::Result<usize>,
) -> (usize, Option<Cause>) {
    let mut done = 0;
    while done < len {
        match call(done) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(cufile::Error::Io { source, .. }) if source.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (done, Some(error.into())),
        }
    }
    (done, None)
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// How a file is opened.
#[derive(Debug, Clone)]
#[must_use]
pub struct OpenOptions {
    options: fs::OpenOptions,
    engine: Option<Engine>,
    policy: PathPolicy,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Neither reading nor writing, as [`std::fs::OpenOptions`].
    pub fn new() -> Self {
        Self { options: fs::OpenOptions::new(), engine: None, policy: PathPolicy::default() }
    }

    /// For reading.
    pub fn read(mut self, read: bool) -> Self {
        self.options.read(read);
        self
    }

    /// For writing.
    pub fn write(mut self, write: bool) -> Self {
        self.options.write(write);
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

    /// Empties the file if there is one.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.options.truncate(truncate);
        self
    }

    /// Uses this engine instead of the process's default.
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Whether device memory may or must go through cuFile.
    pub fn policy(mut self, policy: PathPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// [`Error::Open`] with what the operating system said, or, under [`PathPolicy::RequireCufile`], why cuFile does
    /// not work for the file.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref().to_owned();
        let file = match self.options.open(&path) {
            Ok(file) => file,
            Err(error) => return Err(Error::Open { path, cause: error.into() }),
        };
        let engine = self.engine.as_ref().unwrap_or_else(|| Engine::global()).clone();
        let file = File { path, file, engine, policy: self.policy, way: OnceLock::new() };
        if self.policy == PathPolicy::RequireCufile {
            match file.register() {
                Ok((route, handle)) => {
                    let _ = file.way.set(Way { route, handle: Some(handle) });
                }
                Err(reason) => return Err(Error::Open { path: file.path, cause: Cause::NoCufile(reason) }),
            }
        }
        Ok(file)
    }
}
