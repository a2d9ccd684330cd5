//! Queues with a thread each: streams, and the events that order them.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::control::lock;
use crate::device;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    pushed: u64,
    finished: u64,
    closed: bool,
}

/// Jobs that one thread runs in their order.
#[derive(Default)]
pub(crate) struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

impl Queue {
    /// Starts a queue and its thread, which ends after [`close`](Self::close).
    pub(crate) fn start(name: &str) -> Arc<Self> {
        let queue = Arc::new(Self::default());
        let worker = Arc::clone(&queue);
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || worker.work());
        spawned.expect("a thread for an emulated queue");
        queue
    }

    fn work(&self) {
        loop {
            let mut jobs = lock(&self.jobs);
            let job = loop {
                match jobs.waiting.pop_front() {
                    Some(job) => break job,
                    None if jobs.closed => return,
                    None => jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(jobs);
            job();
            lock(&self.jobs).finished += 1;
            self.changed.notify_all();
        }
    }

    /// Adds a job.
    pub(crate) fn push(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.jobs);
        jobs.waiting.push_back(Box::new(job));
        jobs.pushed += 1;
        drop(jobs);
        self.changed.notify_all();
    }

    /// Returns whether every job is done.
    pub(crate) fn is_idle(&self) -> bool {
        let jobs = lock(&self.jobs);
        jobs.finished == jobs.pushed
    }

    /// Waits for the present jobs of the queue.
    pub(crate) fn wait(&self) {
        let mut jobs = lock(&self.jobs);
        let target = jobs.pushed;
        while jobs.finished < target {
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Drops the jobs that have not begun and waits for the running one.
    pub(crate) fn drain(&self) {
        let mut jobs = lock(&self.jobs);
        jobs.pushed -= jobs.waiting.len() as u64;
        let dropped = std::mem::take(&mut jobs.waiting);
        drop(jobs);
        drop(dropped);
        self.wait();
    }

    /// Lets the thread end once the queue is empty.
    pub(crate) fn close(&self) {
        lock(&self.jobs).closed = true;
        self.changed.notify_all();
    }
}

/// A CUDA stream.
pub(crate) struct Stream {
    pub queue: Arc<Queue>,
    pub device: c_int,
    pub flags: u32,
}

static STREAMS: Mutex<Option<HashMap<usize, Arc<Stream>>>> = Mutex::new(None);
static DEFAULT: Mutex<Option<HashMap<c_int, Arc<Stream>>>> = Mutex::new(None);
static EVENTS: Mutex<Option<HashMap<usize, Arc<Event>>>> = Mutex::new(None);
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Returns an address without a mapping, which is never reused.
pub(crate) fn fresh_handle() -> usize {
    0xE0_0000_0000 + 0x100 * NEXT.fetch_add(1, Ordering::Relaxed)
}

fn start(device: c_int, flags: u32) -> Arc<Stream> {
    let queue = Queue::start("emulated-stream");
    Arc::new(Stream { queue, device, flags })
}

/// Creates a stream.
pub(crate) fn create(device: c_int, flags: u32) -> usize {
    let handle = fresh_handle();
    lock(&STREAMS).get_or_insert_default().insert(handle, start(device, flags));
    handle
}

/// Returns the stream of a handle; 0, 1 and 2 are the null stream of the current device.
pub(crate) fn find(handle: usize) -> Option<Arc<Stream>> {
    if handle > 2 {
        return lock(&STREAMS).get_or_insert_default().get(&handle).cloned();
    }
    let device = device::peek();
    let mut streams = lock(&DEFAULT);
    Some(streams.get_or_insert_default().entry(device).or_insert_with(|| start(device, 0)).clone())
}

/// Forgets a stream, whose work still finishes; false if there is none.
pub(crate) fn destroy(handle: usize) -> bool {
    let removed = lock(&STREAMS).get_or_insert_default().remove(&handle);
    removed.is_some_and(|stream| {
        stream.queue.close();
        true
    })
}

/// Waits for all streams of a device.
pub(crate) fn synchronise(device: c_int) {
    let mut streams: Vec<Arc<Stream>> = lock(&STREAMS).get_or_insert_default().values().cloned().collect();
    streams.extend(lock(&DEFAULT).get_or_insert_default().values().cloned());
    for stream in streams.iter().filter(|stream| stream.device == device) {
        stream.queue.wait();
    }
}

/// Returns the number of streams that were created and not destroyed.
pub(crate) fn live_streams() -> usize {
    lock(&STREAMS).get_or_insert_default().len()
}

#[derive(Default)]
struct Record {
    asked: u64,
    reached: u64,
    at: Option<Instant>,
}

/// A CUDA event.
pub(crate) struct Event {
    record: Mutex<Record>,
    changed: Condvar,
    /// True if it records the time at which it was reached.
    pub timed: bool,
}

impl Event {
    /// Puts the event into a stream.
    pub(crate) fn record(self: &Arc<Self>, stream: &Stream) {
        let event = Arc::clone(self);
        let mut record = lock(&self.record);
        record.asked += 1;
        let number = record.asked;
        // Still locked, so that two records of one event are queued in the order of their numbers.
        stream.queue.push(move || {
            let mut record = lock(&event.record);
            record.reached = record.reached.max(number);
            record.at = Some(Instant::now());
            drop(record);
            event.changed.notify_all();
        });
    }

    /// Returns the number of records of the event.
    pub(crate) fn asked(&self) -> u64 {
        lock(&self.record).asked
    }

    /// Returns whether the last record was reached; true if there was none.
    pub(crate) fn is_reached(&self) -> bool {
        let record = lock(&self.record);
        record.reached >= record.asked
    }

    /// Waits until a record was reached.
    pub(crate) fn wait(&self, number: u64) {
        let mut record = lock(&self.record);
        while record.reached < number {
            record = self.changed.wait(record).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the time at which it was last reached.
    pub(crate) fn reached_at(&self) -> Option<Instant> {
        lock(&self.record).at
    }
}

/// Creates an event.
pub(crate) fn create_event(timed: bool) -> usize {
    let handle = fresh_handle();
    let event = Event { record: Mutex::default(), changed: Condvar::new(), timed };
    lock(&EVENTS).get_or_insert_default().insert(handle, Arc::new(event));
    handle
}

/// Returns the event of a handle.
pub(crate) fn event(handle: usize) -> Option<Arc<Event>> {
    lock(&EVENTS).get_or_insert_default().get(&handle).cloned()
}

/// Forgets an event; false if there is none.
pub(crate) fn destroy_event(handle: usize) -> bool {
    lock(&EVENTS).get_or_insert_default().remove(&handle).is_some()
}

/// Returns the number of events that were created and not destroyed.
pub(crate) fn live_events() -> usize {
    lock(&EVENTS).get_or_insert_default().len()
}
