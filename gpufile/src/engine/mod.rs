//! The engine: plans transfers, lets workers carry them out, and reports their outcomes.
//!
//! ```text
//!  read_at, write_many, futures …                    read_at_on_stream …
//!        │ transfer                                        │
//!        ▼                                                 ▼
//!  workers ── job ── chunks ── schedule (reads)    relay ── ring (pinned slots) ◄──► the stream
//!        │ a job          └── write_plan                   │ a transfer for each slot
//!        │                                                 ▼
//!        │                                         workers of the relays' own
//!        ▼
//!  queue ── workers ── lanes ── lane ── file_side ── open_file: pread, O_DIRECT, mapping, cuFile
//!            claim                └──── copies: bounce buffer ◄──► GPU
//! ```
//!
//! # Words
//! - **transfer**: what one call asks for. It has a direction and one or more entries.
//! - **entry**: one range of one file and its memory, with the number that the caller gave it.
//! - **method**: the means by which the file's side moves the bytes: system calls or cuFile, or a mapping.
//! - **schedule**: the lengths of the chunks, and the order of handing them out.
//! - **plan**: the method and the schedule of a transfer.
//! - **chunk**: the bytes that one worker moves at a time: a part of a large entry, or many small entries.
//! - **segment**: the part of one entry that lies in one chunk.
//! - **run**: segments of a chunk that follow each other in one file.
//! - **job**: a transfer that workers share.
//! - **piece**: a chunk, or what is left of one behind an entry that stopped, if each entry has an outcome.
//! - **claim**: a piece that was handed out to one worker.
//! - **bounce buffer**: pinned host memory between a file and a GPU.
//! - **lane**: two bounce buffers. While the GPU copies one, the file's side works on the other.
//! - **staging buffer**: the device memory of a bounce buffer, through which scattered ranges on the GPU pass.
//! - **submitter**: the streams that lanes of a GPU share. One thread at a time submits the copies of all lanes there.
//! - **relay**: a transfer that a stream waits for. Its bytes pass through the slots of a **ring**.
//!
//! # Verbs and names
//! Each has one meaning in this crate's engine, files and futures:
//! - **plan** chooses; **cut** makes chunks of a transfer; **prepare** does beforehand what takes long.
//! - **submit** hands work to workers, or to a stream, and does not wait for it.
//! - **claim** gets a chunk for one worker, who **completes** it.
//! - **take** gets something for the caller alone. **put** or **release** gives it back, unless the caller keeps it.
//! - **finish** waits for the end, and returns the outcome. **cancel** does so early.
//! - **each**, in the name of a call: an outcome for each entry.
//! - `State`: what the lock of a module's main type protects.
//! - `Part`: of a relay, a use of a slot. Its **load** is the ranges whose bytes pass through the slot. A **share** of a
//!   job has the chunks of one place.
//!
//! # Drops
//! - A drop waits for no thread's end, and for no foreign code: a waker, the drop of a caller's buffer, a function of a
//!   stream. Foreign code runs on workers only while they hold no lock and no lane.
//! - What a transfer refers to is one unit: the files, the memory, the ring, the threads that serve it. Its owner frees
//!   the unit when the transfer has ended, or leaks it as a whole. A stream that comes to a leaked transfer later finds
//!   all of it, and threads that carry it out.
//! - The last reference to an engine closes the queues, and waits until the workers have put back their lanes. No job is left, so
//!   they run no foreign code. The dropping thread then frees all memory and closes the driver. The threads end soon afterwards.
//!   They have nothing of CUDA by then, so they may outlive CUDA at the process's exit.
//! - An engine that is never dropped, such as the global one, leaves its memory to the operating system.
//! - The thread of relays and CUDA's own threads free neither pinned memory nor anything else of CUDA.
//! - In a forked child, nothing waits for the parent's threads and locks ([`cufile::fork`]). Values note the
//!   [generation](cufile::fork::Generation) that they were made in. In a later one, waiting fails and dropping leaks.
//!   `docs/forks.md` lists what each public type does there.
//!
//! # Rooms
//! Each names only those after it:
//! - [`relay`]: transfers that a stream waits for, their rings, and the thread that carries them on.
//! - [`work`]: jobs, their queues, workers and lanes.
//! - [`device`]: the streams and copies of one GPU.
//! - [`plan`]: transfers, chunks, and schedules.
//! - [`sync`]: locks, threads and the clock, which the models of interleavings replace.

mod device;
mod plan;
mod relay;
mod sync;
mod work;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use cufile::Driver;
use cufile::cuda::{Cuda, Device};
use cufile::fork::OnceCell;

pub(crate) use device::copies::{ends_soon, wait_by_looking};
pub(crate) use plan::refusals::Refusals;
pub use plan::transfer::IoRange;
pub(crate) use plan::transfer::{Choices, Entries, Entry, FILE_LIMIT, Growth, Transfer, beyond_limit};
pub(crate) use plan::write_plan::groups;
pub(crate) use relay::OwnedRelay;
pub(crate) use work::in_flight::InFlight;
pub(crate) use work::job::Job;
pub(crate) use work::workers::Workers;

use crate::direction::Direction;
use crate::error::{self, Cause, Error};
use crate::gpu::bounce::Bounce;
use crate::gpu::gpus::Gpus;
use crate::memory::Place;
use crate::open_file::best_route;
use crate::open_file::outcome::EntryStop;
use crate::route::{Route, RoutePolicy, Stats};
use crate::settings::{DirectIo, Settings, SettingsError};
use plan::chunks::Chunks;
use relay::thread::RelayThread;
use work::lanes::Lanes;

/// The worker threads, bounce buffers, CUDA and cuFile driver that files share. Clones refer to the same
/// engine; several engines may exist.
///
/// An engine loads, starts and allocates nothing before a transfer needs it, so it costs nothing on a machine without CUDA. Its
/// memory is freed when the last file and the last clone are dropped. Dropping does not wait for the threads, which end soon
/// afterwards.
///
/// A child process made by `fork` may create an engine and use it for host memory. CUDA that the parent used does not work in the
/// child. An engine inherited from the parent has no workers in the child: the calling thread does their work. Transfers that the
/// parent began never end there: waiting for one returns an error and the buffer at once, and dropping one leaks the buffer.
///
/// ```
/// use gpufile::{Engine, File};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// let engine = Engine::builder().threads(2).build();
/// let options = File::options().read(true).write(true).create(true).engine(&engine);
/// let file = options.open(&path)?;
/// file.write_all_at(&vec![7; 1 << 20], 0)?;
/// let freed_bytes = engine.release_buffers(); // after a phase with many transfers
/// println!("{freed_bytes} bytes of bounce buffers are free");
/// # Ok(())
/// # }
/// ```
///
/// Names elsewhere: `ThreadPool`, `thread_pool` (KvikIO).
#[derive(Debug, Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    /// The thread of relays, started when first needed. `None` if the operating system starts no threads.
    relays: OnceCell<Option<Arc<RelayThread>>>,
    workers: Workers,
    gpus: Arc<Gpus>,
    settings: Settings,
    /// The engines for objects of far and of near servers. `None` if it is this one.
    objects: Option<[OnceCell<Engine>; 2]>,
}

/// A builder that configures a new engine; see [`Engine::builder`].
///
/// ```
/// use gpufile::{DirectIo, Engine, Settings};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The environment variables first, then what this program needs.
/// let engine = Engine::builder()
///     .settings(Settings::from_env()?)
///     .bounce_memory_bytes(128 << 20)
///     .direct_read(DirectIo::Never)
///     .build();
/// assert_eq!(engine.settings().direct_read, DirectIo::Never);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct EngineBuilder {
    cuda: Option<Cuda>,
    driver: Option<Driver>,
    settings: Settings,
    has_threads: bool,
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

    /// Builds the engine. A setting beyond its limits gets the nearest value within them.
    /// [`try_build`](Self::try_build) refuses it instead.
    pub fn build(self) -> Engine {
        let mut settings = self.settings.clamped();
        let bounce_bytes = settings.bounce_buffer_bytes.next_multiple_of(Bounce::ALIGNMENT);
        settings.bounce_buffer_bytes = bounce_bytes;
        let gpus = Arc::new(Gpus::new(self.cuda, self.driver));
        let has_others = !self.has_threads && settings.has_others_for_objects();
        Engine::new(gpus, settings, has_others.then(Default::default))
    }

    /// Builds the engine if each setting is within its limits, which the methods of this builder state.
    ///
    /// ```
    /// use gpufile::Engine;
    ///
    /// let error = Engine::builder().threads(0).try_build().unwrap_err();
    /// assert_eq!(error.to_string(), "threads is 0: expected 1 to 1024");
    /// ```
    ///
    /// # Errors
    /// [`SettingsError::OutOfRange`] names the setting.
    pub fn try_build(self) -> Result<Engine, SettingsError> {
        self.settings.check()?;
        Ok(self.build())
    }
}

/// Defines the method of each setting.
macro_rules! setters {
    ($({
        $(#[$field_doc:meta])* $vis:vis $name:ident: $type:ty = $default:expr, $stated:literal;
        $(#[$doc:meta])* set: $argument:ty;
        $($rest:tt)*
    })*) => {
        impl EngineBuilder {
            $($(#[$doc])*
            pub fn $name(mut self, $name: $argument) -> Self {
                self.settings.$name = $name.into();
                self.has_threads |= stringify!($name) == "threads";
                self
            })*
        }
    };
}

crate::with_settings!(setters);

static GLOBAL: OnceCell<Result<Engine, SettingsError>> = OnceCell::new();

impl Engine {
    /// Returns the process's default engine: the one passed to [`set_global`](Self::set_global), or else one
    /// configured by [environment variables](Settings::from_env).
    ///
    /// Names elsewhere: `BounceBufferPool::instance` (KvikIO).
    ///
    /// # Panics
    /// Panics if an environment variable is invalid, or if two variables for one setting differ.
    /// [`try_global`](Self::try_global) returns the error instead.
    #[doc(alias = "instance")]
    pub fn global() -> &'static Engine {
        Self::try_global().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the same engine as [`global`](Self::global).
    ///
    /// # Errors
    /// [`SettingsError`] if an environment variable has an invalid value, or if two variables for one setting
    /// differ.
    pub fn try_global() -> Result<&'static Engine, &'static SettingsError> {
        let make = || Ok(Engine::builder().settings(Settings::from_env()?).build());
        GLOBAL.get_or_init(make).as_ref()
    }

    /// Makes this engine the process's default. Call this before anything uses the default engine.
    ///
    /// ```
    /// use gpufile::Engine;
    ///
    /// let engine = Engine::builder().threads(8).build();
    /// Engine::set_global(engine).expect("nothing has used the default engine");
    /// assert_eq!(Engine::global().settings().threads, 8);
    /// assert!(Engine::set_global(Engine::builder().build()).is_err());
    /// ```
    ///
    /// Names elsewhere: `Config::set`, `Config::update` (kvik-rs).
    ///
    /// # Errors
    /// Returns the engine if the process already has a default engine.
    #[doc(alias = "set")]
    #[doc(alias = "update")]
    pub fn set_global(engine: Engine) -> Result<(), Engine> {
        GLOBAL.set(Ok(engine)).map_err(|engine| engine.expect("it was handed over just now"))
    }

    fn new(gpus: Arc<Gpus>, settings: Settings, objects: Option<[OnceCell<Engine>; 2]>) -> Self {
        let memory_bytes = settings.bounce_memory_bytes();
        let lanes = Lanes::new(gpus.clone(), settings.bounce_buffer_bytes, memory_bytes);
        let workers = Workers::new(settings.threads, Arc::new(lanes));
        Self(Arc::new(Inner { relays: OnceCell::new(), workers, gpus, settings, objects }))
    }

    /// Returns the engine for objects of far or near servers: this one, or one with other threads that shares its CUDA and
    /// counts.
    pub(crate) fn for_objects(&self, are_near: bool) -> Self {
        // The threads of a forked child would be new, but not those of its parent.
        let Some(objects) = self.0.objects.as_ref().filter(|_| !self.0.workers.is_forked()) else {
            return self.clone();
        };
        let make = || Self::new(self.0.gpus.clone(), self.0.settings.for_objects(are_near), None);
        objects[usize::from(are_near)].get_or_init(make).clone()
    }

    /// Returns a builder of a new engine.
    ///
    /// An engine for each block device replaces KvikIO's `thread_pool_per_block_device` and `set_thread_pool_per_block_device`.
    #[doc(alias = "thread_pool_per_block_device")]
    #[doc(alias = "set_thread_pool_per_block_device")]
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Returns the settings of the engine.
    ///
    /// Names elsewhere: `Config::get` (kvik-rs).
    #[doc(alias = "get")]
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Returns the CUDA with which the engine copies device memory, and loads it if necessary.
    ///
    /// # Errors
    /// [`Error::Cufile`] with the reason why CUDA could not be loaded. The next call tries again.
    pub fn cuda(&self) -> error::Result<&Cuda> {
        Ok(self.0.gpus.cuda()?)
    }

    /// Loads the kernels that put scattered ranges in place on a GPU. Transfers load them when needed. Without them, ranges are
    /// copied one by one, which is much slower for short ranges.
    ///
    /// ```no_run
    /// use gpufile::Engine;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::global();
    /// let device = engine.cuda()?.device(0)?;
    /// if let Err(reason) = engine.load_kernels(&device) {
    ///     println!("GPU 0 copies scattered ranges one by one: {reason}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Cause::NoKernels`]. The engine does not try again.
    pub fn load_kernels(&self, device: &Device) -> error::Result<()> {
        let no_kernels = |reason: Arc<str>| Error::Cufile { cause: Cause::NoKernels(reason.to_string()) };
        self.0.gpus.kernels(device).map(drop).map_err(no_kernels)
    }

    /// Prepares transfers of these GPUs' memory, so that the first are as fast as later ones: CUDA's contexts, kernels, the
    /// worker threads with their streams, and pinned memory up to [`bounce_memory_bytes`](EngineBuilder::bounce_memory_bytes).
    ///
    /// A server calls this before its first request. A program that loads one model and ends is faster without.
    /// [`release_buffers`](Self::release_buffers) frees the memory again.
    ///
    /// ```no_run
    /// use gpufile::Engine;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::global();
    /// engine.warm_up(&[engine.cuda()?.device(0)?])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Cufile`] with the reason why CUDA cannot use a GPU. Memory that CUDA does not pin is no error:
    /// [`stats`](Self::stats) has the reason.
    pub fn warm_up(&self, devices: &[Device]) -> error::Result<()> {
        for device in devices {
            // Without kernels, transfers copy range by range.
            let _ = self.0.gpus.kernels(device);
            self.0.workers.warm_up(Place::Device(device.ordinal()))?;
        }
        Ok(())
    }

    /// Frees the bounce buffers, the staging buffers on GPUs, and other memory that no transfer uses at the
    /// moment. Returns the number of bytes freed. Later transfers allocate new buffers.
    ///
    /// Names elsewhere: `BounceBufferPool::clear` (KvikIO, kvik-rs), `BounceBufferPool::put` (KvikIO).
    #[doc(alias = "BounceBufferPool")]
    #[doc(alias = "clear")]
    #[doc(alias = "put")]
    pub fn release_buffers(&self) -> usize {
        let relays = self.0.relays.get().and_then(Option::as_ref);
        let objects = self.0.objects.iter().flatten().filter_map(OnceCell::get);
        self.0.workers.release_buffers()
            + relays.map_or(0, |relays| relays.release_buffers())
            + objects.map(Self::release_buffers).sum::<usize>()
    }

    /// Returns the counts of all transfers of the engine so far. Counting costs a few nanoseconds for each request.
    ///
    /// Transfers in flight are counted in part. Counts of a forked child begin with those of its parent, except
    /// [`fallbacks`](Stats::fallbacks), which begin empty.
    ///
    /// KvikIO's `default_logger` has no counterpart: an engine counts, and writes no log.
    #[doc(alias = "default_logger")]
    pub fn stats(&self) -> Stats {
        let mut stats = self.0.gpus.counters.stats();
        let objects = self.0.objects.iter().flatten().filter_map(OnceCell::get);
        for engine in objects.chain([self]) {
            let relays = engine.0.relays.get().and_then(Option::as_ref);
            stats.pinned_bytes += relays.map_or(0, |relays| relays.rings.pinned_bytes()) as u64;
        }
        stats
    }

    pub(crate) fn gpus(&self) -> &Arc<Gpus> {
        &self.0.gpus
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.0.workers
    }

    /// Checks the entries of a transfer before anything of it begins.
    ///
    /// # Errors
    /// The first entry that does not lie in its buffer, or of a read, that overlaps another in memory.
    pub(crate) fn check(transfer: &Transfer<'_>) -> Result<(), EntryStop> {
        let Transfer { direction, entries, .. } = transfer;
        let overlapping = || match direction {
            Direction::Read => Chunks::default().overlap(entries),
            Direction::Write => None,
        };
        entries.out_of_range().or_else(overlapping).map_or(Ok(()), Err)
    }

    /// Returns the thread of relays. Returns `None` in a forked child, or if the operating system starts no threads.
    pub(crate) fn relays(&self) -> Option<&Arc<RelayThread>> {
        let workers = &self.0.workers;
        if workers.is_forked() {
            return None;
        }
        let start = || RelayThread::new(self.0.settings.threads, workers.lanes_for_relays());
        self.0.relays.get_or_init(start).as_ref()
    }
}

impl Route {
    /// Returns the best route to device memory of any file in this process, with the reason why it is not a better one.
    /// [`File::route`](crate::File::route) returns the route of one file.
    ///
    /// The first call may load CUDA and open the cuFile driver, which takes a tenth of a second or more.
    ///
    /// ```
    /// use gpufile::{Engine, Route, RouteKind};
    ///
    /// let route = Route::best(Engine::global());
    /// match route.kind() {
    ///     RouteKind::Gds | RouteKind::P2pDma => println!("direct, if the file system supports it"),
    ///     RouteKind::Unavailable => println!("host memory only: {route}"),
    ///     _ => println!("through the host's memory: {route}"),
    /// }
    /// ```
    ///
    /// Names elsewhere: `infer_compat_mode_if_auto`, `is_gds_available` (KvikIO); `resolve_compat_mode` (kvik-rs).
    #[doc(alias = "infer_compat_mode_if_auto")]
    #[doc(alias = "is_gds_available")]
    #[doc(alias = "resolve_compat_mode")]
    pub fn best(engine: &Engine) -> Self {
        best_route(&engine.0.gpus).counted_in(&engine.0.gpus.counters)
    }
}

// A panic leaves no half-done state for later calls: the data behind each lock is consistent at any time.
impl UnwindSafe for Engine {}
impl RefUnwindSafe for Engine {}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("settings", &self.settings)
            .field("cuda", &self.gpus.loaded_cuda())
            .finish_non_exhaustive()
    }
}

// These tests lie outside the modules that they test, because the models of interleavings compile those modules again.
#[cfg(test)]
mod relay_load_tests;
#[cfg(test)]
mod relay_ring_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_other_threads_unless_their_number_is_chosen() {
        let default = Engine::builder().build();
        for (are_near, threads) in [(false, 64), (true, 32)] {
            let objects = default.for_objects(are_near);
            assert!(objects.settings().threads == threads && Arc::ptr_eq(objects.gpus(), default.gpus()));
            assert!(Arc::ptr_eq(&objects.0, &default.for_objects(are_near).0));
            assert!(Arc::ptr_eq(&objects.0, &objects.for_objects(!are_near).0));
        }
        for builder in [
            Engine::builder().threads(Settings::default().threads),
            Engine::builder().bounce_memory_bytes(64 << 20),
            Engine::builder()
                .settings(Settings { threads: 1 + Settings::default().threads, ..Settings::default() }),
        ] {
            let engine = builder.build();
            assert!(Arc::ptr_eq(&engine.0, &engine.for_objects(true).0), "{engine:?}");
        }
    }

    #[test]
    fn buffers_for_objects_are_counted_and_released() {
        use std::slice;

        use testkit::bed::{Bed, pattern};
        use testkit::in_flight::soon;

        use crate::File;

        let bed = Bed::emulated();
        let bytes = pattern(4 << 20);
        drop(bed.file("data", &bytes));
        let stream = bed.device.stream().unwrap();
        let engine = Engine::builder().driver(bed.driver.clone()).chunk_bytes(64 << 10).build();
        for are_near in [false, true] {
            let objects = engine.for_objects(are_near);
            let file = File::options().read(true).engine(&objects).open(bed.path("data")).unwrap();
            let of_threads = || objects.warm_up(slice::from_ref(&bed.device)).unwrap();
            let of_relays = || {
                let (count, device) =
                    file.read_at_on_stream(&stream, bed.device.alloc(bytes.len()).unwrap(), 0).wait();
                assert!(count.unwrap() == bytes.len() && device.to_vec().unwrap() == bytes);
            };
            for pin in [&of_threads as &dyn Fn(), &of_relays] {
                pin();
                assert!(engine.stats().pinned_bytes > 0);
                // A worker may hold its lane a little longer than the transfer takes.
                soon("all are released", || {
                    engine.release_buffers();
                    engine.stats().pinned_bytes == 0
                });
            }
        }
    }

    #[test]
    fn builders_set_each_setting() {
        let built = |change: fn(EngineBuilder) -> EngineBuilder| change(Engine::builder()).build();
        let default = Engine::builder().build();
        assert_eq!(built(|builder| builder.threads(0)).settings().threads, 1);
        assert_eq!(built(|builder| builder.threads(7)).settings().threads, 7);
        assert_eq!(built(|builder| builder.threads(usize::MAX)).settings().threads, 1024);
        assert_eq!(built(|builder| builder.chunk_bytes(0)).settings().chunk_bytes, Some(1));
        assert_eq!(built(|builder| builder.chunk_bytes(9)).settings().chunk_bytes, Some(9));
        assert_eq!(built(|builder| builder.gds_threshold_bytes(9)).settings().gds_threshold_bytes, 9);
        let policy = built(|builder| builder.policy(RoutePolicy::PosixOnly)).settings().policy;
        assert_eq!(policy, RoutePolicy::PosixOnly);
        for direct in [DirectIo::Always, DirectIo::Never, DirectIo::Auto] {
            let both = Engine::builder().direct_read(direct).direct_write(DirectIo::Never).build();
            assert_eq!(both.settings().direct_read, direct);
            let both = Engine::builder().direct_write(direct).direct_read(DirectIo::Never).build();
            assert_eq!(both.settings().direct_write, direct);
        }
        for value in [true, false] {
            let engine = Engine::builder().overread(value).build();
            assert_eq!(engine.settings().overread, value);
        }
        // Each setter keeps the other settings.
        let all =
            built(|builder| builder.threads(3).chunk_bytes(5).overread(false).direct_read(DirectIo::Always));
        assert_eq!((all.settings().threads, all.settings().chunk_bytes), (3, Some(5)));
        let changed = Settings::clone(all.settings());
        assert_eq!(Engine::builder().settings(changed).build().settings().threads, 3);
        assert_eq!(default.settings().chunk_bytes, None);
    }

    #[test]
    fn bounce_buffers_are_whole_pages_up_to_one_gib() {
        for (asked, bytes) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (usize::MAX, 1 << 30)] {
            let engine = Engine::builder().bounce_buffer_bytes(asked).build();
            assert_eq!(engine.settings().bounce_buffer_bytes, bytes, "{asked}");
        }
    }
}
