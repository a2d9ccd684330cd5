//! Events, which order streams and show their progress.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::control::lock;
use crate::stream::{Stream, fresh_handle};

static EVENTS: Mutex<Option<HashMap<usize, Arc<Event>>>> = Mutex::new(None);

#[derive(Default)]
struct Record {
    asked: u64,
    reached: u64,
    at: Option<Instant>,
}

pub(crate) struct Event {
    record: Mutex<Record>,
    changed: Condvar,
    /// True if it records the time at which it was reached.
    pub timed: bool,
}

impl Event {
    pub(crate) fn record(self: &Arc<Self>, stream: &Stream) {
        let event = Arc::clone(self);
        let mut record = lock(&self.record);
        record.asked += 1;
        let number = record.asked;
        // Still locked, so that two records of one event are queued in the order of their numbers.
        stream.push(move || {
            let mut record = lock(&event.record);
            record.reached = record.reached.max(number);
            record.at = Some(Instant::now());
            drop(record);
            event.changed.notify_all();
        });
    }

    pub(crate) fn asked(&self) -> u64 {
        lock(&self.record).asked
    }

    /// Returns true if there was no record.
    pub(crate) fn is_reached(&self) -> bool {
        let record = lock(&self.record);
        record.reached >= record.asked
    }

    pub(crate) fn wait(&self, number: u64) {
        let mut record = lock(&self.record);
        while record.reached < number {
            record = self.changed.wait(record).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn reached_at(&self) -> Option<Instant> {
        lock(&self.record).at
    }
}

pub(crate) fn create(timed: bool) -> usize {
    let handle = fresh_handle();
    let event = Event { record: Mutex::default(), changed: Condvar::new(), timed };
    lock(&EVENTS).get_or_insert_default().insert(handle, Arc::new(event));
    handle
}

pub(crate) fn find(handle: usize) -> Option<Arc<Event>> {
    lock(&EVENTS).get_or_insert_default().get(&handle).cloned()
}

/// Returns false if there is none.
pub(crate) fn destroy(handle: usize) -> bool {
    lock(&EVENTS).get_or_insert_default().remove(&handle).is_some()
}

pub(crate) fn live() -> usize {
    lock(&EVENTS).get_or_insert_default().len()
}
