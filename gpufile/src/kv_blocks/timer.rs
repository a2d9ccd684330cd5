//! The thread that ends blocks at their deadlines, whatever the storage does.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::io;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use cufile::fork::{self, Mutex};

use crate::kv_blocks::call::Call;

/// The time between two looks of the thread for calls that are gone, when the store is.
const LOOK: Duration = Duration::from_millis(100);

/// The deadlines of the calls in flight. The first deadline starts the thread, which ends when no deadline is left.
#[derive(Default)]
pub struct Timer {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    due: BinaryHeap<Due>,
    /// The number of deadlines from which on those of ended calls are removed.
    most: usize,
    has_thread: bool,
    is_closed: bool,
}

/// The next deadline of a call.
struct Due {
    at: Instant,
    call: Weak<Call>,
}

impl Timer {
    /// Notes the next deadline of a call.
    ///
    /// # Errors
    /// The error that the operating system returned when no thread could be started. The deadline then does not hold.
    pub fn watch(self: &Arc<Self>, at: Instant, call: &Arc<Call>) -> io::Result<()> {
        let mut state = self.lock();
        if !state.has_thread {
            let this = self.clone();
            fork::spawn("gpufile-kv-timer", move || this.run())?;
            state.has_thread = true;
        }
        let is_next = state.due.peek().is_none_or(|due| at < due.at);
        if state.due.len() >= state.most {
            state.remove_gone();
            state.most = 64.max(2 * state.due.len());
        }
        state.due.push(Due { at, call: Arc::downgrade(call) });
        if is_next {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Lets the thread end when all calls are gone, before their deadlines.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.changed.notify_one();
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                state.remove_gone();
            }
            let Some(next) = state.due.peek() else { break };
            let now = Instant::now();
            let mut wait = next.at.saturating_duration_since(now);
            if !wait.is_zero() {
                if state.is_closed {
                    wait = wait.min(LOOK);
                }
                state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let due = state.due.pop().expect("seen above");
            let Some(call) = due.call.upgrade() else { continue };
            drop(state);
            let at = call.expire(now);
            state = self.lock();
            state.due.extend(at.map(|at| Due { at, call: Arc::downgrade(&call) }));
        }
        state.has_thread = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn remove_gone(&mut self) {
        self.due.retain(|due| due.call.strong_count() > 0);
    }
}

impl Ord for Due {
    /// The earliest is the greatest, which the heap returns first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at)
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}
