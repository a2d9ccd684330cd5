//! One open file: facts about it, and the calls that move bytes between it and memory. Policy lives
//! elsewhere.

mod alignment;
mod blocks;
mod device_route;
mod direct;
mod file_system;
mod fill;
mod mapping;
mod method;
pub(crate) mod outcome;
mod packed;
pub mod page_cache;
mod posix;
mod read;
mod repeat;
mod stored;
mod write;

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::{fmt, fs, io};

pub(crate) use device_route::best_route;
pub(crate) use direct::{Direct, open_flags};
pub(crate) use file_system::FileSystem;
pub(crate) use fill::Fill;
pub(crate) use mapping::Mapping;
pub(crate) use method::Method;
#[cfg(feature = "formats")]
pub(crate) use packed::PackedContents;
pub(crate) use packed::{PackedRead, Plain};
pub(crate) use read::BounceRead;
pub(crate) use stored::Stored;

use crate::direction::Direction;
use crate::error::{Cause, Error};
use crate::gpu::gpus::Gpus;
use crate::memory::{Memory, Place};
use crate::route::trace::{Facts, Request};
use crate::route::{Counters, Route, RoutePolicy, Way};
use crate::settings::Settings;
use blocks::Blocks;
use cufile::FileHandle;
use cufile::fork::{Mutex, OnceCell};
use device_route::DeviceRoute;
use outcome::{Outcome, Stop, done_bytes};

pub(crate) struct OpenFile {
    pub path: PathBuf,
    /// The descriptor for buffered transfers, without `O_DIRECT`. That of `/dev/null` for [stored](Self::stored) contents.
    pub file: fs::File,
    /// The contents that reads get, if they come from no descriptor.
    stored: Option<Stored>,
    gpus: Arc<Gpus>,
    /// The engine's settings, changed by the file's options.
    pub settings: Settings,
    pub file_system: FileSystem,
    device_and_inode: (u64, u64),
    /// Chosen for the first transfer of device memory, because opening the cuFile driver takes a tenth of a
    /// second.
    device_route: OnceCell<DeviceRoute>,
    /// The same file with `O_DIRECT`, opened when first needed.
    direct: OnceCell<Option<Direct>>,
    /// The length in bytes of the longest file whose reads may fill the page cache, by the memory available at the first
    /// read; 0 before.
    most_cached_bytes: AtomicU64,
    /// True if the kernel refused a read that does not wait for the storage.
    waits_for_misses: AtomicBool,
    /// A mapping of a whole tmpfs file for overwriting, made anew after the file has grown.
    mapping: Mutex<Option<Arc<Mapping>>>,
    /// The mapping for reads, if the file was mapped.
    pub mapped: Option<Arc<Mapping>>,
    /// The blocks that are being written, also through other descriptors.
    blocks: OnceCell<Arc<Blocks>>,
}

impl OpenFile {
    /// Takes over a descriptor, or with `O_DIRECT`, replaces it by one without.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn new(path: PathBuf, file: fs::File, gpus: Arc<Gpus>, settings: Settings) -> io::Result<Self> {
        let flags = open_flags(&file)?;
        let file = if flags & libc::O_DIRECT != 0 { direct::reopen(&file, 0)? } else { file };
        let metadata = file.metadata()?;
        let file_system = FileSystem::of(&file, &metadata, flags);
        Ok(Self {
            path,
            file,
            stored: None,
            gpus,
            settings,
            file_system,
            device_and_inode: (metadata.dev(), metadata.ino()),
            device_route: OnceCell::new(),
            direct: OnceCell::new(),
            most_cached_bytes: AtomicU64::new(0),
            waits_for_misses: AtomicBool::new(false),
            mapping: Mutex::default(),
            mapped: None,
            blocks: OnceCell::new(),
        })
    }

    /// Opens stored contents under this name. Their bytes pass through host memory.
    ///
    /// # Errors
    /// The error of opening `/dev/null`, whose descriptor refuses what needs one: writes, changes of the length, mappings.
    pub fn of_stored(name: PathBuf, stored: Stored, gpus: Arc<Gpus>, settings: Settings) -> io::Result<Self> {
        let open = Self::new(name, fs::File::open("/dev/null")?, gpus, settings)?;
        Ok(Self { stored: Some(stored), ..open })
    }

    /// Returns the same file, with this mapping for reads.
    ///
    /// # Errors
    /// The error of duplicating the descriptor.
    pub fn with_mapping(&self, mapping: Mapping) -> io::Result<Self> {
        let open = self.with_gpus(self.gpus.clone(), self.settings.clone())?;
        Ok(Self { mapped: Some(Arc::new(mapping)), ..open })
    }

    pub fn with_gpus(&self, gpus: Arc<Gpus>, settings: Settings) -> io::Result<Self> {
        let open = Self::new(self.path.clone(), self.file.try_clone()?, gpus, settings)?;
        Ok(Self { stored: self.stored.clone(), mapped: self.mapped.clone(), ..open })
    }

    pub fn stored(&self) -> Option<&Stored> {
        self.stored.as_ref()
    }

    pub fn read_method(&self) -> Method {
        self.mapped.clone().map_or(Method::Calls, Method::Mapping)
    }

    pub fn len_bytes(&self) -> io::Result<u64> {
        match &self.stored {
            Some(stored) => Ok(stored.len_bytes()),
            None => Ok(self.file.metadata()?.len()),
        }
    }

    /// Returns the error of a transfer of a range that stopped.
    #[cold]
    pub fn error(
        &self,
        direction: Direction,
        offset: u64,
        len_bytes: usize,
        Stop { done_bytes: bytes_done, cause }: Stop,
    ) -> Error {
        let cause = cause.unwrap_or_else(|| self.no_more(direction, offset, bytes_done));
        let (operation, path) = (direction.verb(), self.path.clone());
        Error::Transfer { operation, path, offset, len_bytes, bytes_done, cause }
    }

    /// Returns why a transfer stopped without an error.
    fn no_more(&self, direction: Direction, offset: u64, done: usize) -> Cause {
        if direction == Direction::Write {
            return io::Error::from(io::ErrorKind::WriteZero).into();
        }
        // A read that began behind the end did not see the end. Since then, the file may have become longer.
        let seen = offset.saturating_add(done as u64);
        Cause::EndOfFile { at: self.len_bytes().map_or(seen, |len| len.min(seen)) }
    }

    /// Returns the route of device memory. Opens the cuFile driver if the route depends on it.
    pub fn route(&self) -> &Route {
        &self.device_route().route
    }

    /// Returns the word for the route between the file and memory at a place.
    pub fn route_word(&self, place: Place) -> &'static str {
        match place {
            Place::Host => Request::HOST,
            Place::Device(_) => self.route().kind().as_str(),
        }
    }

    /// Begins the span of a read of one range.
    pub fn request_to_read(&self, memory: &Memory) -> Request {
        let (direction, bytes) = (Direction::Read, memory.len_bytes as u64);
        Request::begin(|| Facts { direction, bytes, ranges: 1, route: self.route_word(memory.place) })
    }

    /// Registers the file with cuFile now.
    ///
    /// # Errors
    /// The reason why registering fails.
    pub fn require_cufile(&self) -> Result<(), String> {
        let found = DeviceRoute::register(&self.file, &self.gpus, self.settings.policy)?;
        if found.handle.is_none() {
            return Err(found.route.to_string());
        }
        let _ = self.device_route.set(found.counted_in(&self.gpus));
        Ok(())
    }

    /// Returns the way of device memory through a handle.
    pub fn cufile_way(&self) -> Way {
        Way::Device(self.route().kind())
    }

    pub fn count_read(&self, way: Way, len_bytes: usize, outcome: &Outcome) {
        self.counters().read(way, done_bytes(outcome, len_bytes));
    }

    pub fn count_write(&self, way: Way, len_bytes: usize, outcome: &Outcome) {
        self.counters().write(way, done_bytes(outcome, len_bytes));
    }

    fn counters(&self) -> &Counters {
        &self.gpus.counters
    }

    /// Returns the handle for a transfer of device memory that should use cuFile.
    #[inline]
    pub fn cufile(&self, len_bytes: usize) -> Option<&FileHandle> {
        let is_large_enough = || {
            self.settings.policy == RoutePolicy::RequireCufile
                || len_bytes >= self.settings.gds_threshold_bytes
        };
        self.device_route().handle.as_ref().filter(|_| is_large_enough())
    }

    fn device_route(&self) -> &DeviceRoute {
        let choose = || {
            let route = match self.stored {
                Some(_) => DeviceRoute::of_stored(&self.gpus),
                None => DeviceRoute::of(&self.file, &self.gpus, self.settings.policy),
            };
            route.counted_in(&self.gpus)
        };
        self.device_route.get_or_init(choose)
    }

    /// Returns the same file with `O_DIRECT`, if the file system offers that.
    fn direct(&self) -> Option<&Direct> {
        let direct = self.direct.get_or_init(|| Direct::of(&self.file));
        direct.as_ref().filter(|direct| direct.works())
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
impl OpenFile {
    /// Returns a file without cuFile.
    pub fn for_test(file: fs::File, settings: Settings) -> Self {
        let settings = Settings { policy: RoutePolicy::PosixOnly, ..settings };
        Self::new(PathBuf::new(), file, Arc::default(), settings).unwrap()
    }
}

#[cfg(test)]
mod tests;
