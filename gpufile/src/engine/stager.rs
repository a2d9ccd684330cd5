//! The thread and the workers that carry on transfers that streams wait for.
//!
//! They never call CUDA, so that they go on when others cannot: a thread that frees memory of the GPU holds CUDA's locks
//! while it waits for a stream, and streams that wait take hardware queues, without which the engine's other workers wait
//! for their copies.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::lanes::Lanes;
use super::pool::{Pool, Submitter};
use super::ring::Rings;
use super::staged::Staged;
use super::sync::{Builder, Condvar, JoinHandle, Mutex, MutexGuard, or_abort, sleep};

pub(crate) struct Stager {
    pub rings: Rings,
    pub active: Arc<Active>,
    thread: Option<JoinHandle<()>>,
    // After the thread, which submits to it.
    _pool: Pool,
}

/// Transfers that streams have come to.
#[derive(Default)]
pub(crate) struct Active {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    begun: Vec<Arc<Staged>>,
    closed: bool,
}

impl Active {
    /// Takes up a transfer; does not wait.
    pub fn begin(&self, staged: Arc<Staged>) {
        if staged.begin() {
            self.state().begun.push(staged);
            self.changed.notify_one();
        }
    }

    /// Moves what has begun to `active`, and waits for some if there is none; false if it is time to end.
    fn take_into(&self, active: &mut Vec<Arc<Staged>>) -> bool {
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stager {
    /// `lanes` must be no others', because the workers must not wait for who calls CUDA.
    ///
    /// # Errors
    /// That the operating system gives no threads.
    pub fn new(threads: usize, lanes: Lanes) -> std::io::Result<Self> {
        let pool = Pool::new(threads, &Arc::new(lanes))?;
        let submitter = pool.submitter();
        let active = Arc::new(Active::default());
        let of_thread = active.clone();
        // A stream waits for it, and with it perhaps all of the process.
        let thread = Builder::new()
            .name("gpufile-stager".to_owned())
            .spawn(move || or_abort(|| carry_on(&of_thread, &submitter)))?;
        Ok(Self { rings: Rings::default(), active, thread: Some(thread), _pool: pool })
    }
}

impl Drop for Stager {
    /// No transfer can be left: each has an owner that keeps the engine, or was forgotten with it.
    fn drop(&mut self) {
        self.active.state().closed = true;
        self.active.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Carries on what is active. What the GPU has done it learns from words in memory, so that it must look.
fn carry_on(active: &Active, submitter: &Submitter) {
    const PAUSE: Duration = Duration::from_micros(50);
    let mut staged = Vec::new();
    while active.take_into(&mut staged) {
        staged.retain(|staged| !staged.advance(submitter));
        if !staged.is_empty() {
            sleep(PAUSE);
        }
    }
}
