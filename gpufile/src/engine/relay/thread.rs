//! The thread and the workers that carry on relays.
//!
//! They never call CUDA, so they go on when other threads cannot: a thread that frees GPU memory holds CUDA's locks
//! while it waits for a stream, and waiting streams take the hardware queues that other workers need.

use std::mem;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::super::sync::{Condvar, Mutex, MutexGuard, or_abort, sleep, spawn};
use super::super::work::lanes::Lanes;
use super::super::work::workers::Workers;
use super::Relay;
use super::ring::Rings;

/// Each relay keeps it.
pub(crate) struct RelayThread {
    pub rings: Rings,
    active: Arc<Active>,
    workers: Workers,
}

/// Relays that streams have reached.
#[derive(Default)]
struct Active {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    begun: Vec<Arc<Relay>>,
    closed: bool,
}

impl Active {
    /// Adds a relay without waiting.
    pub fn begin(&self, relay: Arc<Relay>) {
        if relay.begin() {
            self.state().begun.push(relay);
            self.changed.notify_one();
        }
    }

    /// Moves the begun relays to `active`; waits if there is none. Returns false if the thread must end.
    fn take_into(&self, active: &mut Vec<Arc<Relay>>) -> bool {
        let mut state = self.state();
        while active.is_empty() && state.begun.is_empty() {
            if state.closed {
                return false;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        active.append(&mut state.begun);
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl RelayThread {
    /// Starts the thread and its workers. They must not wait for callers of CUDA, so no other workers may share
    /// `lanes`. Returns `None` if the operating system starts no threads.
    pub fn new(threads: usize, lanes: Arc<Lanes>) -> Option<Arc<Self>> {
        let workers = Workers::new(threads, lanes);
        if !workers.start_threads() {
            return None;
        }
        let active = Arc::new(Active::default());
        let of_thread = active.clone();
        // A stream waits for this thread, and perhaps the whole process waits with it.
        spawn("gpufile-relay", move || or_abort(|| carry_on(&of_thread))).ok()?;
        Some(Arc::new(Self { rings: Rings::default(), active, workers }))
    }

    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Returns the function that adds a relay when its stream has reached it.
    pub fn begin(&self) -> impl FnOnce(Arc<Relay>) + Send + 'static {
        let active = self.active.clone();
        move |relay| active.begin(relay)
    }

    /// Frees unused pinned memory and buffers. Returns the bytes freed: none in a forked child, which has no CUDA.
    pub fn release_buffers(&self) -> usize {
        if self.workers.is_forked() { 0 } else { self.rings.free_idle() + self.workers.release_buffers() }
    }
}

impl Drop for RelayThread {
    /// Lets the thread end, without waiting for it. No relay can be left, because each keeps this.
    fn drop(&mut self) {
        if self.workers.is_forked() {
            // The child has no CUDA to free memory with, and the list may be locked for ever.
            mem::forget(mem::take(&mut self.rings));
            return;
        }
        self.active.state().closed = true;
        self.active.changed.notify_all();
    }
}

/// Carries on the active relays. The thread learns the GPU's progress from words in memory, so it must poll.
fn carry_on(active: &Active) {
    const PAUSE: Duration = Duration::from_micros(50);
    let mut relays = Vec::new();
    while active.take_into(&mut relays) {
        relays.retain(|relay| !relay.advance());
        if !relays.is_empty() {
            sleep(PAUSE);
        }
    }
}
