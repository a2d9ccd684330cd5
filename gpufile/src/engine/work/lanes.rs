//! The lanes of an engine. Each is lent to one thread at a time, and kept when it comes back. Each GPU has its own lanes, and
//! so does host memory.

use std::iter;
use std::mem;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use cufile::cuda::Device;
use cufile::fork::{self, OnceCell, ScopedJoinHandle};

use super::super::device::submitter::Submitter;
use super::super::sync::{AtomicUsize, Condvar, Instant, Mutex, MutexGuard, Ordering};
use super::job::{Claim, Counted};
use super::lane::Lane;
use super::queue::Reports;
use crate::gpu::bounce::Bounce;
use crate::gpu::gpus::Gpus;
use crate::gpu::processors::Processors;
use crate::memory::Place;
use crate::open_file::outcome::Stop;
use crate::route::Way;

pub(crate) struct Lanes {
    /// The lanes for host memory, and the head of a list of those of each GPU.
    host: PlaceLanes,
    /// The most lanes for each place.
    limit: usize,
    bounce_bytes: usize,
    /// The way that transfers of host memory count as.
    host_way: Way,
    gpus: Arc<Gpus>,
}

struct PlaceLanes {
    place: Place,
    state: Mutex<State>,
    came_back: Condvar,
    /// The number of waiting threads. Threads that have a lane read it without the lock.
    waiting: AtomicUsize,
    /// The bytes of reads in flight.
    read_bytes: Arc<AtomicUsize>,
    submitter: Mutex<Weak<Submitter>>,
    next: OnceCell<Box<PlaceLanes>>,
}

#[derive(Default)]
struct State {
    /// The free lanes, the latest last.
    free: Vec<Lane>,
    existing: usize,
    /// The number of tickets: each thread that asks for a lane gets one.
    tickets: u64,
    /// The ticket to be served next.
    turn: u64,
    /// The time at which a long transfer was last planned.
    planned: Option<Instant>,
}

impl Lanes {
    /// Returns lanes of two buffers for `bounce_bytes` each. Each place has as many as fit into `memory_bytes`, and at least
    /// one.
    pub fn new(gpus: Arc<Gpus>, bounce_bytes: usize, memory_bytes: usize) -> Self {
        let limit = (memory_bytes / 2 / Bounce::bytes_for(bounce_bytes)).max(1);
        Self { host: PlaceLanes::new(Place::Host), limit, bounce_bytes, host_way: Way::Host, gpus }
    }

    /// Returns separate lanes with buffers of the same size, without a limit.
    pub fn apart(&self) -> Self {
        Self::new(self.gpus.clone(), self.bounce_bytes, usize::MAX)
    }

    /// Returns such separate lanes for relays, whose host memory is that of rings.
    pub fn apart_for_relays(&self) -> Self {
        Self { host_way: Way::BOUNCED, ..self.apart() }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the bytes of a chunk that fills a bounce buffer.
    pub fn bounce_bytes(&self) -> usize {
        self.bounce_bytes
    }

    /// Returns the processors that the workers of a place should keep to, if not all.
    pub fn processors_near(&self, place: Place) -> Option<Processors> {
        self.gpus.processors_near(place)
    }

    /// Lends a lane. Waits for the thread's turn, and for a free lane if no more may be made. A thread that
    /// has a lane must not ask for another.
    ///
    /// # Errors
    /// The reason why no lane could be made.
    pub fn take(&self, place: Place) -> cufile::Result<Lane> {
        let lanes = self.of(place);
        let mut state = lanes.in_turn(self.limit);
        let free = state.free.pop();
        state.existing += usize::from(free.is_none());
        drop(state);
        match free {
            Some(lane) if !lane.is_lost() => return Ok(lane),
            // Another lane is made in its stead.
            Some(lane) => self.forget_lost(lane),
            None => {}
        }
        self.make(place).inspect_err(|_| lanes.lose(1))
    }

    /// Makes lanes until `count` exist or the limit is reached. A thread near the GPU makes and pins each, because pinning
    /// takes most of the time of a first transfer.
    ///
    /// # Errors
    /// The reason why a lane could not be made. The others are kept.
    pub fn make_ahead(&self, place: Place, count: usize) -> cufile::Result<()> {
        let lanes = self.of(place);
        let missing = {
            let mut state = lanes.state();
            let missing = count.min(self.limit).saturating_sub(state.existing);
            state.existing += missing;
            missing
        };
        let near = self.processors_near(place);
        let make = || {
            if let Some(near) = near {
                near.keep_this_thread();
            }
            let mut lane = self.make(place).inspect_err(|_| lanes.lose(1))?;
            lane.pin();
            self.put(lane);
            Ok(())
        };
        fork::scope(|scope| {
            let spawn = |_| scope.spawn("gpufile-lane", make);
            let threads: Vec<_> = (0..missing).map_while(|number| spawn(number).ok()).collect();
            // The operating system may start no more threads. Transfers make the other lanes.
            lanes.lose(missing - threads.len());
            let join =
                |thread: ScopedJoinHandle<'_, '_, _>| thread.join().expect("making a lane does not panic");
            // Each is joined, also behind a failure.
            let outcomes: Vec<cufile::Result<()>> = threads.into_iter().map(join).collect();
            outcomes.into_iter().collect()
        })
    }

    /// Forgets a lane of a GPU that was reset, the free lanes that were lost with it, and what engines keep for that GPU. Lanes and
    /// kernels made since stay.
    fn forget_lost(&self, lane: Lane) {
        let lanes = self.of(lane.place());
        let is_lost = |other: &Arc<Submitter>| lane.submitter().is_some_and(|lost| Arc::ptr_eq(lost, other));
        let is_first = {
            let mut kept = lanes.submitter.lock();
            let is_first = kept.upgrade().is_some_and(|kept| is_lost(&kept));
            if is_first {
                *kept = Weak::new();
            }
            is_first
        };
        if let Place::Device(ordinal) = lane.place()
            && is_first
        {
            self.gpus.forget_kernels(ordinal);
        }
        let others: Vec<_> =
            lanes.state().free.extract_if(.., |other| other.submitter().is_some_and(is_lost)).collect();
        // Threads that wait make lanes in their stead, with new streams and kernels.
        lanes.lose(others.len());
        let pinned_bytes = lane.pinned_bytes() + others.iter().map(Lane::pinned_bytes).sum::<usize>();
        self.gpus.counters.freed_pinned(pinned_bytes);
        // CUDA has freed all that they own, except registered pages: those stay mapped, and are not used again.
        mem::forget((lane, others));
    }

    /// Lends a lane for host memory. Returns `None` if the thread would have to wait.
    pub fn try_take_for_host(&self) -> Option<Lane> {
        let mut state = self.host.state();
        if state.turn != state.tickets || !state.has_one(self.limit) {
            return None;
        }
        Some(state.free.pop().unwrap_or_else(|| {
            state.existing += 1;
            Lane::on_host(self.host_way, self.gpus.clone(), self.new_bounces())
        }))
    }

    /// Takes back a lane that has nothing in flight.
    pub fn put(&self, lane: Lane) {
        assert!(!lane.is_busy(), "nothing uses the buffers of a free lane");
        let lanes = self.of(lane.place());
        let mut state = lanes.state();
        state.free.push(lane);
        // Waking is a system call. Without this check, each small read would pay for it.
        let is_wanted = state.turn != state.tickets;
        drop(state);
        if is_wanted {
            lanes.came_back.notify_all();
        }
    }

    /// Begins a chunk on a lane of its place: `lane`, or another that replaces it. The lane may complete the chunk later.
    pub fn start(&self, lane: &mut Option<Lane>, claim: Claim, reports: &mut Reports<'_>) {
        if claim.is_stopped_before() {
            return reports.completed(claim, Ok(()));
        }
        let place = claim.place();
        // A worker may have kept the lane since an earlier transfer.
        if let Some(lost) = lane.take_if(|lane| !lane.is_busy() && lane.is_lost()) {
            let lanes = self.of(lost.place());
            self.forget_lost(lost);
            lanes.lose(1);
        }
        if let Some(mut other) = lane.take_if(|lane| lane.place() != place || self.are_wanted(place)) {
            other.finish_all(reports);
            self.put(other);
        }
        let lane = match lane {
            Some(lane) => lane,
            None => match self.take(place) {
                Ok(taken) => lane.insert(taken),
                Err(error) => return reports.completed(claim, Err(Stop::failed(0, error))),
            },
        };
        lane.start(claim, reports);
    }

    /// Returns whether a thread waits for a lane of this place. Workers then give theirs back.
    pub fn are_wanted(&self, place: Place) -> bool {
        self.waiting(place) > 0
    }

    pub(super) fn waiting(&self, place: Place) -> usize {
        self.of(place).waiting.load(Ordering::Relaxed)
    }

    /// Returns the bytes of reads to a GPU in flight.
    pub fn read_bytes(&self, gpu: Place) -> usize {
        self.of(gpu).read_bytes.load(Ordering::Relaxed)
    }

    pub fn count_read(&self, gpu: Place, bytes: usize) -> Counted {
        Counted::new(bytes, &self.of(gpu).read_bytes)
    }

    /// Frees the lanes that are not lent. Returns their bytes.
    pub fn release(&self) -> usize {
        self.all().map(PlaceLanes::release).sum()
    }

    /// Notes that a long transfer is planned for the GPUs of these bits. Returns the number of GPUs with transfers: those, and
    /// others with lent lanes or a recent long transfer. If CUDA shows several GPUs, at least two count: a transfer for
    /// another is likely to begin, maybe in another process.
    pub fn busy_gpus(&self, gpus: u64) -> usize {
        /// Longer than pauses between the reads of a loader.
        const LATELY: Duration = Duration::from_millis(100);
        let planned = (0..u64::BITS).filter(|ordinal| gpus & 1 << ordinal != 0);
        planned.for_each(|ordinal| self.of(Place::Device(ordinal)).state().planned = Some(Instant::now()));
        let is_busy = |lanes: &&PlaceLanes| {
            let state = lanes.state();
            let is_lately = state.planned.is_some_and(|planned| planned.elapsed() < LATELY);
            is_lately || state.existing > state.free.len()
        };
        let busy = self.all().skip(1).filter(is_busy).count();
        busy.max(self.gpus.visible().min(2))
    }

    fn make(&self, place: Place) -> cufile::Result<Lane> {
        let (gpus, bounces) = (self.gpus.clone(), self.new_bounces());
        match place {
            Place::Host => Ok(Lane::on_host(self.host_way, gpus, bounces)),
            Place::Device(ordinal) => {
                let device = self.gpus.device(ordinal)?;
                let buffer_bytes = Bounce::bytes_for(self.bounce_bytes);
                let submitter = self.of(place).submitter(&device, buffer_bytes, self.limit)?;
                let bounces = bounces.map(|bounce| bounce.in_region(&submitter.pinned));
                Lane::on_device(&device, submitter, gpus, bounces)
            }
        }
    }

    fn new_bounces(&self) -> [Bounce; 2] {
        [0; 2].map(|_| Bounce::new(self.bounce_bytes).counted_in(&self.gpus.counters))
    }

    fn of(&self, place: Place) -> &PlaceLanes {
        let mut lanes = &self.host;
        while lanes.place != place {
            lanes = lanes.next.get_or_init(|| Box::new(PlaceLanes::new(place)));
        }
        lanes
    }

    fn all(&self) -> impl Iterator<Item = &PlaceLanes> {
        iter::successors(Some(&self.host), |lanes| lanes.next.get().map(Box::as_ref))
    }
}

impl PlaceLanes {
    fn new(place: Place) -> Self {
        Self {
            place,
            state: Mutex::default(),
            came_back: Condvar::new(),
            waiting: AtomicUsize::new(0),
            read_bytes: Arc::default(),
            submitter: Mutex::default(),
            next: OnceCell::new(),
        }
    }

    /// Returns the GPU's submitter, which exists as long as a lane has it.
    ///
    /// # Errors
    /// The error that CUDA returned.
    fn submitter(
        &self,
        device: &Device,
        buffer_bytes: usize,
        lanes: usize,
    ) -> cufile::Result<Arc<Submitter>> {
        let mut kept = self.submitter.lock();
        if let Some(submitter) = kept.upgrade() {
            return Ok(submitter);
        }
        let submitter = Arc::new(Submitter::new(device, buffer_bytes, lanes)?);
        *kept = Arc::downgrade(&submitter);
        Ok(submitter)
    }

    /// Waits until it is this thread's turn, and a lane is free or may be made.
    fn in_turn(&self, limit: usize) -> MutexGuard<'_, State> {
        let mut state = self.state();
        let ticket = state.tickets;
        state.tickets += 1;
        let mut waits = false;
        while state.turn != ticket || !state.has_one(limit) {
            if !waits {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                waits = true;
            }
            state = self.came_back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if waits {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        state.turn += 1;
        if state.turn != state.tickets {
            // There may be a lane for the next thread, too.
            self.came_back.notify_all();
        }
        state
    }

    /// Subtracts lanes that could not be made, or are no more.
    fn lose(&self, count: usize) {
        self.state().existing -= count;
        self.came_back.notify_all();
    }

    /// Frees the lanes that are not lent, and unused staging buffers. Returns the bytes freed. An allocation is freed with its
    /// last staging buffer.
    fn release(&self) -> usize {
        let staging_before = self.staging_bytes();
        let lanes = mem::take(&mut self.state().free);
        let (count, bytes) = (lanes.len(), lanes.iter().map(Lane::bounce_bytes).sum::<usize>());
        // Other threads may make new lanes only when these are gone.
        drop(lanes);
        self.lose(count);
        if let Some(submitter) = self.live_submitter() {
            submitter.free_unused_staging();
        }
        bytes + staging_before.saturating_sub(self.staging_bytes())
    }

    fn staging_bytes(&self) -> usize {
        self.live_submitter().map_or(0, |submitter| submitter.staging_bytes())
    }

    fn live_submitter(&self) -> Option<Arc<Submitter>> {
        self.submitter.lock().upgrade()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn has_one(&self, limit: usize) -> bool {
        self.existing < limit || !self.free.is_empty()
    }
}
