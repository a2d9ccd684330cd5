//! The engine: plans transfers, lets workers carry them out, and reports how they ended.
//!
//! A transfer is [planned](plan) into chunks, as its [cutting] says, and becomes a [job], one of the engine's [jobs]. The
//! workers of the [pool] take its chunks in turn. Each worker borrows a [lane] of two bounce buffers from [lanes], so that the GPU [copies] one while the
//! file's side works on the other. Very many ranges are planned in [windows], each of which is a job; jobs of one call are
//! [under_way].
//!
//! A transfer that a CUDA stream waits for is [staged] in parts, which pass through the slots of a [ring]; the [stager]
//! carries it on, with workers of its own.

mod bounce;
mod copies;
mod cutting;
mod devices;
mod job;
mod jobs;
mod lane;
mod lanes;
mod plan;
mod pool;
mod ring;
mod staged;
mod stager;
mod sync;
mod transfer;
mod under_way;
mod windows;

use std::fmt;
use std::mem;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cufile::cuda::Cuda;
use cufile::{Driver, IoBuf};

pub(crate) use bounce::Bounce;
pub(crate) use copies::{ends_soon, wait_by_looking};
pub(crate) use cutting::Cutting;
pub(crate) use job::{Job, Stop};
pub(crate) use plan::{Refused, Segment};
pub(crate) use ring::Ring;
pub(crate) use staged::{Direction, Staged};
pub use transfer::IoRange;
pub(crate) use transfer::{Entries, Entry, Side, Transfer};
pub(crate) use under_way::UnderWay;

use crate::memory::Memory;
use crate::open_file::{OpenFile, Outcome};
use crate::route::RoutePolicy;
use crate::settings::{DirectIo, LONGEST_BOUNCE_BUFFER, MOST_THREADS, Settings, SettingsError};
use devices::Devices;
use job::IdleJobs;
use lanes::Lanes;
use pool::Pool;
use stager::Stager;
use sync::on_worker;

/// The worker threads, bounce buffers, CUDA and cuFile driver that files share. Clones refer to the same
/// engine; several engines may exist.
///
/// Nothing is loaded, started or allocated before a transfer needs it: an engine costs nothing on a machine without
/// CUDA. The threads end and all memory is freed when the last file and clone are gone.
///
/// In a child process made by `fork`, an engine that the child makes is as good as any for host memory; CUDA that the
/// parent used does not outlast a fork. An engine that the child has from its parent has no workers there, so that the
/// calling thread does their work; a file that the parent's threads used while it forked should be opened again.
/// Transfers that the parent had begun never end in the child, which must not wait for them; dropping their futures
/// leaks the buffers there.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    // Before the lanes and devices, so that the workers end first.
    pools: Mutex<Vec<(u64, Arc<Pool>)>>,
    lanes: Arc<Lanes>,
    devices: Arc<Devices>,
    // The first attempt decides, for success and failure alike, so that all files see the same.
    driver: OnceLock<Result<Driver, String>>,
    /// None if the operating system gives no threads.
    stager: OnceLock<Option<Stager>>,
    idle_jobs: IdleJobs,
    settings: Settings,
    /// The process that made the engine.
    process: u32,
}

impl Inner {
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Lanes that no other threads share, as many as these want.
    fn lanes_apart(&self) -> Lanes {
        Lanes::new(self.devices.clone(), self.settings.bounce_buffer_bytes, usize::MAX)
    }
}

impl Drop for Inner {
    /// In a child of the process, there are no workers to be ended, nor is CUDA there to free its memory.
    fn drop(&mut self) {
        if self.is_forked() {
            let pools = self.pools.get_mut().unwrap_or_else(PoisonError::into_inner);
            mem::forget((mem::take(pools), self.stager.take(), self.lanes.clone(), self.devices.clone()));
        }
    }
}

/// The configuration of an engine to be made; see [`Engine::builder`].
#[derive(Debug, Default)]
#[must_use]
pub struct EngineBuilder {
    cuda: Option<Cuda>,
    driver: Option<Driver>,
    settings: Settings,
}

impl EngineBuilder {
    /// Uses this CUDA instead of the process's default.
    pub fn cuda(mut self, cuda: Cuda) -> Self {
        self.cuda = Some(cuda);
        self
    }

    /// Uses this open driver, and its CUDA, instead of opening one when it is first needed.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    /// Starts from these settings, for example [`Settings::from_env`], instead of the defaults.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the number of workers that share a transfer, from 1 to 1024. The calling thread waits for them.
    /// It works too if the memory is on the host, and works alone if the number is 1.
    ///
    /// The engine uses fewer workers where more would not help. One worker at a time writes a file on a local
    /// disk through the page cache. By `O_DIRECT`, a disk gets four requests at a time for each of its
    /// hardware queues, unless [`chunk_bytes`](Self::chunk_bytes) sets their length.
    pub fn threads(mut self, threads: usize) -> Self {
        self.settings.threads = threads.clamp(1, MOST_THREADS);
        self
    }

    /// Sets the size in bytes of the parts that a transfer is cut into. For device memory, a part is no
    /// larger than a bounce buffer. Without this setting, the engine chooses by the size of the transfer.
    pub fn chunk_bytes(mut self, chunk_bytes: usize) -> Self {
        self.settings.chunk_bytes = Some(chunk_bytes.max(1));
        self
    }

    /// Sets the size of a bounce buffer in bytes, without the room that alignment takes. The engine rounds it
    /// up to a multiple of 4096, and limits it to 1 GiB. Each worker uses two.
    pub fn bounce_buffer_bytes(mut self, bounce_buffer_bytes: usize) -> Self {
        self.settings.bounce_buffer_bytes = bounce_buffer_bytes;
        self
    }

    /// Sets the most memory in bytes that all bounce buffers take together. Two buffers are allowed even if
    /// they need more. The engine starts no more workers than can have two buffers each. Stream-ordered transfers with
    /// `O_DIRECT` have buffers of their own, which do not count.
    pub fn bounce_memory_bytes(mut self, bounce_memory_bytes: usize) -> Self {
        self.settings.bounce_memory_bytes = Some(bounce_memory_bytes);
        self
    }

    /// Sets the size in bytes below which transfers of device memory do not go by cuFile, unless the file
    /// [requires cuFile](RoutePolicy::RequireCufile).
    pub fn gds_threshold_bytes(mut self, gds_threshold_bytes: usize) -> Self {
        self.settings.gds_threshold_bytes = gds_threshold_bytes;
        self
    }

    /// Sets whether device memory may or must go through cuFile, for files that do not set it.
    pub fn policy(mut self, policy: RoutePolicy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// Sets whether reads use `O_DIRECT`, for files that do not set it.
    pub fn direct_read(mut self, direct: DirectIo) -> Self {
        self.settings.direct_read = direct;
        self
    }

    /// Sets whether writes use `O_DIRECT`, for files that do not set it.
    pub fn direct_write(mut self, direct: DirectIo) -> Self {
        self.settings.direct_write = direct;
        self
    }

    /// Sets whether reads by `O_DIRECT` may read more than was asked for, up to the next multiples of the
    /// file system's alignment. If not, unaligned ranges go through the page cache.
    pub fn overread(mut self, overread: bool) -> Self {
        self.settings.overread = overread;
        self
    }

    /// Sets whether each block device has its own workers, so that a slow device does not keep others
    /// waiting.
    pub fn pool_per_block_device(mut self, pool_per_block_device: bool) -> Self {
        self.settings.pool_per_block_device = pool_per_block_device;
        self
    }

    /// Makes the engine.
    pub fn build(self) -> Engine {
        let cuda = self.cuda.or_else(|| self.driver.as_ref().map(|driver| driver.cuda().clone()));
        let devices = Arc::new(Devices::new(cuda));
        let mut settings = self.settings;
        let bounce_bytes =
            settings.bounce_buffer_bytes.clamp(1, LONGEST_BOUNCE_BUFFER).next_multiple_of(Bounce::ALIGNMENT);
        settings.bounce_buffer_bytes = bounce_bytes;
        let lanes = Lanes::new(devices.clone(), bounce_bytes, settings.bounce_memory_bytes());
        Engine(Arc::new(Inner {
            pools: Mutex::default(),
            lanes: Arc::new(lanes),
            devices,
            driver: self.driver.map_or_else(OnceLock::new, |driver| OnceLock::from(Ok(driver))),
            idle_jobs: IdleJobs::default(),
            stager: OnceLock::new(),
            settings,
            process: std::process::id(),
        }))
    }
}

/// The process's default engine.
static GLOBAL: OnceLock<Result<Engine, SettingsError>> = OnceLock::new();

impl Engine {
    /// Returns the process's default engine: that of [`set_global`](Self::set_global), or else one that is set by
    /// [environment variables](Settings::from_env).
    ///
    /// # Panics
    /// If environment variables cannot be followed; [`try_global`](Self::try_global) returns the error
    /// instead.
    pub fn global() -> &'static Engine {
        Self::try_global().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the same engine as [`global`](Self::global).
    ///
    /// # Errors
    /// [`SettingsError`] if an environment variable has a value that is not valid, or if two variables for
    /// one setting differ.
    pub fn try_global() -> Result<&'static Engine, &'static SettingsError> {
        GLOBAL.get_or_init(|| Ok(Engine::builder().settings(Settings::from_env()?).build())).as_ref()
    }

    /// Makes this the process's default engine, before that is first used.
    ///
    /// ```
    /// use gpufile::Engine;
    ///
    /// let engine = Engine::builder().threads(8).build();
    /// Engine::set_global(engine).expect("nothing has used the default engine");
    /// assert_eq!(Engine::global().settings().threads(), 8);
    /// assert!(Engine::set_global(Engine::builder().build()).is_err());
    /// ```
    ///
    /// # Errors
    /// The engine, if the process has a default engine.
    pub fn set_global(engine: Engine) -> Result<(), Engine> {
        GLOBAL.set(Ok(engine)).map_err(|engine| engine.expect("it was handed over just now"))
    }

    /// Returns a builder of a new engine.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Returns the configuration of the engine.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Returns the CUDA that device memory is copied with, loaded when first needed.
    ///
    /// # Errors
    /// The reason why there is no CUDA. The next call tries again.
    pub fn cuda(&self) -> cufile::Result<&Cuda> {
        self.0.devices.cuda()
    }

    /// Frees the bounce buffers and the plans that no transfer uses at the moment, and returns the number of bytes. Later
    /// transfers allocate new ones. Buffers for stream-ordered transfers with `O_DIRECT` stay until the engine goes.
    pub fn release_buffers(&self) -> usize {
        let plans_bytes = self.0.idle_jobs.clear();
        let rings_bytes =
            self.0.stager.get().and_then(Option::as_ref).map_or(0, |stager| stager.rings.free_idle());
        self.0.lanes.release() + rings_bytes + plans_bytes
    }

    /// The cuFile driver, opened when first needed; or why it did not open.
    pub(crate) fn driver(&self) -> Result<&Driver, &str> {
        let open = || -> cufile::Result<Driver> { Driver::builder().cuda(self.cuda()?.clone()).open() };
        self.0
            .driver
            .get_or_init(|| open().map_err(|error| error.to_string()))
            .as_ref()
            .map_err(String::as_str)
    }

    /// Returns whether a driver was given or opened already.
    pub(crate) fn has_opened_driver(&self) -> bool {
        self.0.driver.get().is_some_and(Result::is_ok)
    }

    /// The ordinal of the GPU that a buffer of device memory is on.
    pub(crate) fn device_of<B: IoBuf + ?Sized>(&self, buffer: &B) -> cufile::Result<u32> {
        self.0.devices.of(buffer)
    }

    /// Reads a small range to device memory, by the calling thread.
    ///
    /// # Safety
    /// The memory must be as an [`IoBufMut`](cufile::IoBufMut) promises, and no larger than a bounce buffer.
    pub(crate) unsafe fn read_small(&self, file: &OpenFile, memory: &Memory, offset: u64) -> Outcome {
        match self.0.lanes.take(memory.place) {
            Ok(mut lane) => {
                // SAFETY: the caller's promise.
                let outcome = unsafe { lane.read_small(file, memory.ptr, memory.len_bytes, offset) };
                self.0.lanes.put(lane);
                outcome
            }
            Err(error) => (0, Some(error.into())),
        }
    }

    /// Returns the stager, which carries on transfers that streams wait for; `None` if the operating system
    /// gives no threads, and in a forked child.
    pub(crate) fn stager(&self) -> Option<&Stager> {
        if self.0.is_forked() {
            return None;
        }
        let new = || Stager::new(self.0.settings.threads, self.0.lanes_apart()).ok();
        self.0.stager.get_or_init(new).as_ref()
    }
}

// A panic leaves nothing half done that a later call would find: locks protect what is whole at any time.
impl UnwindSafe for Engine {}
impl RefUnwindSafe for Engine {}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("settings", &self.0.settings)
            .field("cuda", &self.0.devices.loaded_cuda())
            .finish_non_exhaustive()
    }
}

// Not in the modules that they are about, which the models of interleavings compile again.
#[cfg(test)]
#[path = "job/tests.rs"]
mod job_tests;
#[cfg(test)]
#[path = "lanes/tests.rs"]
mod lanes_tests;
#[cfg(test)]
#[path = "ring/tests.rs"]
mod ring_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builders_set_what_they_are_told() {
        let built = |change: fn(EngineBuilder) -> EngineBuilder| change(Engine::builder()).build();
        let default = Engine::builder().build();
        assert_eq!(built(|builder| builder.threads(0)).settings().threads(), 1);
        assert_eq!(built(|builder| builder.threads(7)).settings().threads(), 7);
        assert_eq!(built(|builder| builder.threads(usize::MAX)).settings().threads(), MOST_THREADS);
        assert_eq!(built(|builder| builder.chunk_bytes(0)).settings().chunk_bytes(), Some(1));
        assert_eq!(built(|builder| builder.chunk_bytes(9)).settings().chunk_bytes(), Some(9));
        assert_eq!(built(|builder| builder.gds_threshold_bytes(9)).settings().gds_threshold_bytes(), 9);
        let policy = built(|builder| builder.policy(RoutePolicy::PosixOnly)).settings().policy();
        assert_eq!(policy, RoutePolicy::PosixOnly);
        for direct in [DirectIo::Always, DirectIo::Never, DirectIo::Auto] {
            let both = Engine::builder().direct_read(direct).direct_write(DirectIo::Never).build();
            assert_eq!(both.settings().direct_read(), direct);
            let both = Engine::builder().direct_write(direct).direct_read(DirectIo::Never).build();
            assert_eq!(both.settings().direct_write(), direct);
        }
        for value in [true, false] {
            let engine = Engine::builder().overread(value).pool_per_block_device(!value).build();
            assert_eq!(engine.settings().overread(), value);
            assert_eq!(engine.settings().pool_per_block_device(), !value);
        }
        // What was set before stays.
        let all =
            built(|builder| builder.threads(3).chunk_bytes(5).overread(false).direct_read(DirectIo::Always));
        assert_eq!((all.settings().threads(), all.settings().chunk_bytes()), (3, Some(5)));
        let changed = Settings::clone(all.settings());
        assert_eq!(Engine::builder().settings(changed).build().settings().threads(), 3);
        assert_eq!(default.settings().chunk_bytes(), None);
    }

    #[test]
    fn bounce_buffers_are_whole_pages_of_a_gib_at_most() {
        for (asked, bytes) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (usize::MAX, 1 << 30)] {
            let engine = Engine::builder().bounce_buffer_bytes(asked).build();
            assert_eq!(engine.settings().bounce_buffer_bytes(), bytes, "{asked}");
        }
    }
}
