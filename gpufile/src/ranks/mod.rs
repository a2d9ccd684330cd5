//! Groups of processes, one for each GPU, on one host or on several. Their GPUs exchange bytes with NCCL.
//!
//! libnccl 2.14 or newer is loaded at run time, when first needed: the file that the variable `NCCL_LIBRARY` names, or
//! `libnccl.so.2` from the dynamic loader's folders, CUDA's toolkits or Python's packages.
//!
//! One rank creates a [`UniqueId`], and the program passes it to the others, for example through a file, a socket or
//! MPI. Each rank then joins the [`RankGroup`], and all load a model
//! [together](crate::formats::safetensors::PlacedLoad::by_rank):
//!
//! ```no_run
//! use gpufile::Engine;
//! use gpufile::formats::safetensors::{Checkpoint, Placement};
//! use gpufile::ranks::{RankGroup, UniqueId};
//!
//! # fn share_with_all_ranks(id: Option<UniqueId>) -> Result<UniqueId, Box<dyn std::error::Error>> { Ok(id.unwrap()) }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (rank, ranks) = (0, 1);
//! let id = if rank == 0 { Some(UniqueId::new()?) } else { None };
//! let id = share_with_all_ranks(id)?;
//! let device = Engine::global().cuda()?.device(rank)?;
//! let mut group = RankGroup::join(&device, &id, rank as usize, ranks)?;
//! let checkpoint = Checkpoint::open("model.safetensors.index.json")?;
//! let loaded = checkpoint.load().placed(&Placement::all()).by_rank(&mut group)?;
//! println!("{} tensors on {:?}", loaded.iter().len(), loaded.buffer().device());
//! # Ok(())
//! # }
//! ```
//!
//! # Failures
//! A rank that fails sends its error to the others, and all return an error. The group can be used again. If a rank is
//! killed or stops, the others return [`RankError::TimedOut`] after [a time](RankGroup::TIMEOUT), and the group ends.

mod error;
mod library;
mod report;

use cufile::IoBufMut;
use std::ffi::c_int;
use std::fmt;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use crate::cuda::{Device, DeviceBuffer, Event, Stream};
pub use error::RankError;
use library::{BYTES, Code, Comm, Config, IN_PROGRESS, Id, Nccl, SUCCESS};
pub(crate) use report::Report;

/// The name of a new group of ranks, for one use.
///
/// The process that makes it must live until all ranks have joined: they find each other through it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; 128]);

impl UniqueId {
    /// Makes an id. Only one rank does.
    ///
    /// # Errors
    /// [`RankError::Load`], [`RankError::Nccl`].
    #[doc(alias = "ncclGetUniqueId")]
    pub fn new() -> Result<Self, RankError> {
        let nccl = Nccl::load()?;
        let mut id = Id([0; 128]);
        // SAFETY: `id` outlives the call.
        check(nccl, "ncclGetUniqueId", unsafe { (nccl.ncclGetUniqueId)(&mut id) })?;
        Ok(Self(id.0))
    }

    /// Returns the id that another rank made.
    pub fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to hand to the other ranks.
    pub fn to_bytes(self) -> [u8; 128] {
        self.0
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").finish_non_exhaustive()
    }
}

/// A place in a group of ranks, each a process or a thread with one GPU.
///
/// All ranks must make the same calls in the same order. Dropping it leaves the group, and waits at most ten seconds for
/// NCCL.
pub struct RankGroup {
    nccl: &'static Nccl,
    /// Null once the group has ended.
    comm: Comm,
    device: Device,
    stream: Stream,
    /// The reports of all ranks in the exchange in flight.
    reports: DeviceBuffer,
    /// The report of this rank in `reports`, copied only when it changes, because its copy waits for the copies of
    /// tensors.
    own: Option<[u8; Report::LEN_BYTES]>,
    /// The end of the exchange in flight.
    in_flight: Option<Event>,
    rank: usize,
    ranks: usize,
    timeout: Duration,
}

// SAFETY: NCCL allows calls from any thread, one at a time, and each call here takes `&mut`.
unsafe impl Send for RankGroup {}
// SAFETY: `&` reaches only the device and numbers.
unsafe impl Sync for RankGroup {}

#[derive(Clone, Copy)]
pub(crate) struct Spread {
    /// The rank that has them.
    pub root: usize,
    /// Their place on this GPU.
    pub place: *mut u8,
    pub len_bytes: usize,
}

impl RankGroup {
    /// The most time to wait for other ranks, unless the caller chooses one: two minutes. Each wait is for one batch of
    /// reads of the slowest rank.
    pub const TIMEOUT: Duration = Duration::from_secs(120);

    /// Joins the group as rank `rank` of `ranks`, and waits for the others.
    ///
    /// # Errors
    /// [`RankError::Load`] if libnccl is missing; [`RankError::TimedOut`] if other ranks do not join;
    /// [`RankError::Nccl`], [`RankError::Cuda`].
    #[doc(alias = "ncclCommInitRank")]
    pub fn join(device: &Device, id: &UniqueId, rank: usize, ranks: usize) -> Result<Self, RankError> {
        Self::join_within(Self::TIMEOUT, device, id, rank, ranks)
    }

    /// Joins the group as [`join`](Self::join). Here and in later calls, waits at most `timeout` for other ranks at a
    /// time.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_within(
        timeout: Duration,
        device: &Device,
        id: &UniqueId,
        rank: usize,
        ranks: usize,
    ) -> Result<Self, RankError> {
        let nccl = Nccl::load()?;
        let cuda = |error: cufile::Error| RankError::Cuda { rank, cause: error.into() };
        let mut group = Self {
            nccl,
            comm: ptr::null_mut(),
            device: device.clone(),
            stream: device.stream().map_err(cuda)?,
            reports: device.alloc(ranks.saturating_mul(Report::LEN_BYTES)).map_err(cuda)?,
            own: None,
            in_flight: None,
            rank,
            ranks,
            timeout,
        };
        let number = |value: usize| c_int::try_from(value).unwrap_or(-1);
        let mut config = Config::without_waiting();
        let entered = device.enter().map_err(cuda)?;
        // SAFETY: the pointers outlive the call, and the config has the size that it names.
        let code = unsafe {
            let comm = &mut group.comm;
            (nccl.ncclCommInitRankConfig)(comm, number(ranks), Id(id.0), number(rank), &mut config)
        };
        drop(entered);
        let joined = check(nccl, "ncclCommInitRankConfig", code).and_then(|()| group.settle());
        joined.inspect_err(|_| group.end())?;
        Ok(group)
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the GPU of this rank.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Starts to send a report to all ranks, and bytes from the ranks that have them.
    ///
    /// # Errors
    /// An error that ends the group.
    ///
    /// # Safety
    /// Each place must be memory of this rank's GPU. Until [`finish`](Self::finish) or
    /// [`end_if_unfinished`](Self::end_if_unfinished) returns, nothing else may write it, and on ranks other than the root
    /// nothing may read it.
    pub(crate) unsafe fn start(&mut self, report: &Report, spreads: &[Spread]) -> Result<(), RankError> {
        assert!(self.in_flight.is_none(), "one transfer is in flight at a time");
        if self.comm.is_null() {
            return Err(RankError::Ended);
        }
        // SAFETY: the caller's promise.
        let started = unsafe { self.submit(report, spreads) };
        started.inspect_err(|_| self.end())
    }

    /// # Safety
    /// As [`start`](Self::start).
    unsafe fn submit(&mut self, report: &Report, spreads: &[Spread]) -> Result<(), RankError> {
        let (nccl, comm, stream) = (self.nccl, self.comm, self.stream.as_raw().cast());
        let own = self.rank * Report::LEN_BYTES;
        let bytes = report.to_bytes();
        if self.own != Some(bytes) {
            self.reports.copy_from_host(own, &bytes).map_err(|error| self.cuda(error))?;
            self.own = Some(bytes);
        }
        let all = self.reports.as_mut_ptr();
        let entered = self.device.enter().map_err(|error| self.cuda(error))?;
        // SAFETY: takes nothing.
        check(nccl, "ncclGroupStart", unsafe { (nccl.ncclGroupStart)() })?;
        let gather = || {
            // SAFETY: the buffer has a report of each rank, and its own is at the place that NCCL wants.
            let code = unsafe {
                let own = all.wrapping_add(own).cast_const().cast();
                (nccl.ncclAllGather)(own, all.cast(), Report::LEN_BYTES, BYTES, comm, stream)
            };
            check(nccl, "ncclAllGather", code)?;
            for &Spread { root, place, len_bytes } in spreads {
                // SAFETY: the caller's promise.
                let code = unsafe {
                    let (from, to) = (place.cast_const().cast(), place.cast());
                    (nccl.ncclBroadcast)(from, to, len_bytes, BYTES, root as c_int, comm, stream)
                };
                check(nccl, "ncclBroadcast", code)?;
            }
            Ok(())
        };
        let gathered = gather();
        // SAFETY: takes nothing. A group ends even after a failure in it.
        let ended = check(nccl, "ncclGroupEnd", unsafe { (nccl.ncclGroupEnd)() });
        drop(entered);
        gathered.and(ended)?;
        // Before that, the stream may lack the work.
        self.settle()?;
        self.in_flight = Some(self.stream.record().map_err(|error| self.cuda(error))?);
        Ok(())
    }

    /// Waits for the exchange in flight, if there is one. Returns the reports of all ranks.
    ///
    /// # Errors
    /// An error that ends the group.
    pub(crate) fn finish(&mut self) -> Result<Vec<Report>, RankError> {
        let Some(event) = self.in_flight.take() else { return Ok(Vec::new()) };
        let finished = self.wait(&event);
        // The work is still in flight, so the group ends before the caller frees the memory.
        finished.inspect_err(|_| self.end())
    }

    fn wait(&self, event: &Event) -> Result<Vec<Report>, RankError> {
        self.until(|| {
            let is_done = event.is_done().map_err(|error| self.cuda(error))?;
            if !is_done {
                self.state()?;
            }
            Ok(is_done)
        })?;
        let mut bytes = vec![0; self.ranks * Report::LEN_BYTES];
        self.reports.copy_to_host(0, &mut bytes).map_err(|error| self.cuda(error))?;
        Ok(bytes.chunks_exact(Report::LEN_BYTES).map(Report::of_bytes).collect())
    }

    /// Waits until NCCL has done what it was called for, except the work on the stream.
    fn settle(&self) -> Result<(), RankError> {
        self.until(|| Ok(self.state()? == SUCCESS))
    }

    fn state(&self) -> Result<Code, RankError> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive, and `state` outlives the call.
        let code = unsafe { (self.nccl.ncclCommGetAsyncError)(self.comm, &mut state) };
        check(self.nccl, "ncclCommGetAsyncError", code)?;
        check(self.nccl, "NCCL's work", state).map(|()| state)
    }

    fn until(&self, mut is_done: impl FnMut() -> Result<bool, RankError>) -> Result<(), RankError> {
        const PAUSE: Duration = Duration::from_micros(50);
        let start = Instant::now();
        while !is_done()? {
            if start.elapsed() >= self.timeout {
                return Err(RankError::TimedOut {
                    rank: self.rank,
                    ranks: self.ranks,
                    timeout: self.timeout,
                });
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Ends the group for this rank, and the work in flight.
    fn end(&mut self) {
        self.in_flight = None;
        let entered = self.device.enter();
        // In a forked child, the communicator is the parent's.
        if self.comm.is_null() || matches!(entered, Err(cufile::Error::Forked)) {
            return;
        }
        // Also without the context: the memory that NCCL's kernels use may be freed next, and NCCL knows its own GPU.
        // SAFETY: the communicator is alive, and not used again.
        unsafe { (self.nccl.ncclCommAbort)(self.comm) };
        self.comm = ptr::null_mut();
        // The abort ends the kernels.
        let _ = self.stream.synchronize();
    }

    /// Ends the group if an exchange is in flight, whose memory may be freed next, or if a panic ends a load, because other
    /// ranks would take the next load for this one.
    pub(crate) fn end_if_unfinished(&mut self) {
        if self.in_flight.is_some() || thread::panicking() {
            self.end();
        }
    }

    fn cuda(&self, error: cufile::Error) -> RankError {
        RankError::Cuda { rank: self.rank, cause: error.into() }
    }
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        const LONGEST: Duration = Duration::from_secs(10);
        if self.comm.is_null() || self.in_flight.is_some() {
            return self.end();
        }
        self.timeout = self.timeout.min(LONGEST);
        let Ok(entered) = self.device.enter() else { return };
        // SAFETY: the communicator is alive.
        let code = unsafe { (self.nccl.ncclCommFinalize)(self.comm) };
        drop(entered);
        if check(self.nccl, "ncclCommFinalize", code).and_then(|()| self.settle()).is_err() {
            return self.end();
        }
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: the communicator has no more work, and is not used again.
        unsafe { (self.nccl.ncclCommDestroy)(self.comm) };
    }
}

impl fmt::Debug for RankGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RankGroup(rank {} of {} on {:?})", self.rank, self.ranks, self.device)
    }
}

fn check(nccl: &Nccl, operation: &'static str, code: Code) -> Result<(), RankError> {
    match code {
        SUCCESS | IN_PROGRESS => Ok(()),
        code => Err(RankError::Nccl { operation, code, message: nccl.message(code) }),
    }
}
