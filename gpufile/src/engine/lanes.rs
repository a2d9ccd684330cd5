//! The lanes of an engine: lent to one thread at a time, kept when they come back, no more than allowed.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, PoisonError};

use super::bounce::Bounce;
use super::devices::Devices;
use super::lane::Lane;
use super::sync::{Condvar, Mutex, MutexGuard};
use crate::memory::Place;

/// Lanes that are free, and how many exist.
pub(crate) struct Lanes {
    state: Mutex<State>,
    came_back: Condvar,
    /// How many lanes may exist at once.
    limit: usize,
    bounce_bytes: usize,
    devices: Arc<Devices>,
}

#[derive(Default)]
struct State {
    /// The one that came back first is the first.
    free: VecDeque<Lane>,
    existing: usize,
}

impl Lanes {
    /// Lanes of two buffers for `bounce_bytes` each, as many as `memory_bytes` suffice for, and at least one.
    pub fn new(devices: Arc<Devices>, bounce_bytes: usize, memory_bytes: usize) -> Self {
        let limit = (memory_bytes / 2 / Bounce::bytes_for(bounce_bytes)).max(1);
        Self { state: Mutex::default(), came_back: Condvar::new(), limit, bounce_bytes, devices }
    }

    /// How many lanes may exist at once.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Lends a lane; waits for one if there are as many as may be. Who has one must not ask for another.
    ///
    /// # Errors
    /// Why none could be made.
    pub fn take(&self, place: Place) -> cufile::Result<Lane> {
        let mut state = self.state();
        let other = loop {
            if let Some(lane) = state.take_of(place) {
                return Ok(lane);
            }
            if state.existing < self.limit {
                state.existing += 1;
                break None;
            }
            // Of other places; the one used longest ago gives its buffers, because page-locked memory takes long to have.
            if let Some(other) = state.free.pop_front() {
                break Some(other);
            }
            state = self.came_back.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let bounces = other.map_or_else(|| self.new_bounces(), Lane::into_bounces);
        let made = match place {
            Place::Host => Ok(Lane::on_host(bounces)),
            Place::Device(ordinal) => {
                self.devices.get(ordinal).and_then(|device| Lane::on_device(&device, bounces))
            }
        };
        made.inspect_err(|_| {
            self.state().existing -= 1;
            self.came_back.notify_one();
        })
    }

    /// Lends a lane for host memory, unless there are as many as may be.
    pub fn try_take_for_host(&self) -> Option<Lane> {
        let mut state = self.state();
        if let Some(lane) = state.take_of(Place::Host) {
            return Some(lane);
        }
        let may_be_made = state.existing < self.limit;
        state.existing += usize::from(may_be_made);
        may_be_made.then(|| Lane::on_host(self.new_bounces()))
    }

    /// Takes a lane back that has nothing under way.
    pub fn put(&self, lane: Lane) {
        debug_assert!(!lane.is_busy());
        self.state().free.push_back(lane);
        self.came_back.notify_one();
    }

    /// Frees those that are not lent; returns how many bytes of bounce buffers that were.
    pub fn release(&self) -> usize {
        let lanes = mem::take(&mut self.state().free);
        let (count, bytes) = (lanes.len(), lanes.iter().map(Lane::bounce_bytes).sum());
        // Others may only make new ones when these are gone.
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
    /// A free lane of this place: the one that came back last, which the processor's cache knows best.
    fn take_of(&mut self, place: Place) -> Option<Lane> {
        let at = self.free.iter().rposition(|lane| lane.place() == place)?;
        self.free.remove(at)
    }
}
