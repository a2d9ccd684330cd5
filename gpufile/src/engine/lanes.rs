//! The lanes of an engine. Each lane is lent to one thread at a time, and kept when it comes back. Their
//! number is limited.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, PoisonError};

use super::job::Claim;
use super::lane::Lane;
use super::queue::Reports;
use super::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};
use crate::bounce::Bounce;
use crate::gpus::Gpus;
use crate::memory::Place;
use crate::outcome::Stop;

/// Free lanes, and the number of lanes that exist.
pub(crate) struct Lanes {
    state: Mutex<State>,
    came_back: Condvar,
    /// The number of threads that wait for a lane. Threads that have a lane read it without the lock.
    waiting: AtomicUsize,
    /// The number of lanes that may exist at once.
    limit: usize,
    bounce_bytes: usize,
    gpus: Arc<Gpus>,
}

#[derive(Default)]
struct State {
    /// The free lanes, of which the first came back first.
    free: VecDeque<Lane>,
    existing: usize,
    /// The number of threads that have asked for a lane. Each gets its number as a ticket.
    tickets: u64,
    /// The ticket to be served next. Threads get lanes in the order of asking.
    turn: u64,
}

impl Lanes {
    /// Returns lanes of two buffers for `bounce_bytes` each. As many may exist as fit into `memory_bytes`,
    /// and at least one.
    pub fn new(gpus: Arc<Gpus>, bounce_bytes: usize, memory_bytes: usize) -> Self {
        let limit = (memory_bytes / 2 / Bounce::bytes_for(bounce_bytes)).max(1);
        Self {
            state: Mutex::default(),
            came_back: Condvar::new(),
            waiting: AtomicUsize::new(0),
            limit,
            bounce_bytes,
            gpus,
        }
    }

    /// Returns separate lanes with buffers of the same size. Their number has no limit.
    pub fn apart(&self) -> Self {
        Self::new(self.gpus.clone(), self.bounce_bytes, usize::MAX)
    }

    /// Returns the number of lanes that may exist at once.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Lends a lane. Waits for the thread's turn, and for a free lane if no more may be made. A thread that
    /// has a lane must not ask for another.
    ///
    /// # Errors
    /// Fails with the reason why no lane could be made.
    pub fn take(&self, place: Place) -> cufile::Result<Lane> {
        let mut state = self.in_turn();
        if let Some(lane) = state.take_of(place) {
            return Ok(lane);
        }
        let other = if state.existing < self.limit {
            state.existing += 1;
            None
        } else {
            // The free lanes are of other places. The lane used longest ago gives its buffers, because
            // allocating page-locked memory takes long.
            state.free.pop_front()
        };
        drop(state);
        let bounces = other.map_or_else(|| self.new_bounces(), Lane::into_bounces);
        let made = match place {
            Place::Host => Ok(Lane::on_host(self.gpus.clone(), bounces)),
            Place::Device(ordinal) => {
                let gpus = self.gpus.clone();
                self.gpus.device(ordinal).and_then(|device| Lane::on_device(&device, gpus, bounces))
            }
        };
        made.inspect_err(|_| {
            self.state().existing -= 1;
            self.came_back.notify_all();
        })
    }

    /// Begins a chunk on a lane of its place: the thread's own `lane`, or another that takes its place. The lane
    /// may complete the chunk later.
    pub fn start(&self, lane: &mut Option<Lane>, claim: Claim, reports: &mut Reports<'_>) {
        if claim.is_stopped_before() {
            return reports.completed(claim, Ok(()));
        }
        let place = claim.place();
        if let Some(mut other) = lane.take_if(|lane| lane.place() != place || self.are_wanted()) {
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

    /// Waits until it is this thread's turn, and a lane is free or may be made.
    fn in_turn(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        let ticket = state.tickets;
        state.tickets += 1;
        let mut waits = false;
        while state.turn != ticket || !state.has_one(self.limit) {
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

    /// Returns whether a thread waits for a lane. If so, a worker with more to do gives its lane back first.
    pub fn are_wanted(&self) -> bool {
        self.waiting() > 0
    }

    /// Returns the number of threads that wait for a lane.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lends a lane for host memory. Returns `None` if the thread would have to wait.
    pub fn try_take_for_host(&self) -> Option<Lane> {
        let mut state = self.state();
        if state.turn != state.tickets {
            return None;
        }
        if let Some(lane) = state.take_of(Place::Host) {
            return Some(lane);
        }
        let may_be_made = state.existing < self.limit;
        state.existing += usize::from(may_be_made);
        may_be_made.then(|| Lane::on_host(self.gpus.clone(), self.new_bounces()))
    }

    /// Takes back a lane that has nothing in flight.
    pub fn put(&self, lane: Lane) {
        debug_assert!(!lane.is_busy());
        let mut state = self.state();
        state.free.push_back(lane);
        // Waking is a system call. Without this check, each small read would pay for it.
        let is_wanted = state.turn != state.tickets;
        drop(state);
        if is_wanted {
            self.came_back.notify_all();
        }
    }

    /// Frees the lanes that are not lent. Returns the number of bytes that their buffers took.
    pub fn release(&self) -> usize {
        let lanes = mem::take(&mut self.state().free);
        let (count, bytes) = (lanes.len(), lanes.iter().map(Lane::buffer_bytes).sum());
        // Other threads may make new lanes only when these are gone.
        drop(lanes);
        self.state().existing -= count;
        self.came_back.notify_all();
        bytes
    }

    fn new_bounces(&self) -> [Bounce; 2] {
        [0; 2].map(|_| Bounce::new(self.bounce_bytes))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_one(&self, limit: usize) -> bool {
        self.existing < limit || !self.free.is_empty()
    }

    /// Takes a free lane of this place. It is the one that came back last, because the processor's cache most
    /// likely still has its buffers.
    fn take_of(&mut self, place: Place) -> Option<Lane> {
        let at = self.free.iter().rposition(|lane| lane.place() == place)?;
        self.free.remove(at)
    }
}
