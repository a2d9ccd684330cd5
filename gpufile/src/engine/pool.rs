//! The workers, and the queue of jobs that they take chunks from.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use super::job::{After, Job};
use super::lane::Lane;
use super::lanes::Lanes;
use super::sync::{Builder, Condvar, JoinHandle, Mutex, MutexGuard, as_worker, on_worker};
use crate::error::Cause;

/// Threads that live as long as this.
pub(crate) struct Pool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

/// Jobs that have chunks to hand out. Each gives one chunk at a turn, so that none keeps the others waiting.
#[derive(Default)]
struct Queue {
    state: Mutex<Waiting>,
    work: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// Each with the use that it is there for.
    jobs: VecDeque<(Arc<Job>, u64)>,
    closed: bool,
}

impl Pool {
    /// # Errors
    /// That the operating system gives no thread at all.
    pub fn new(threads: usize, lanes: &Arc<Lanes>) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let mut pool = Self { queue, threads: Vec::new() };
        for number in 0..threads {
            let (queue, lanes) = (pool.queue.clone(), lanes.clone());
            let spawned = Builder::new()
                .name(format!("gpufile-{number}"))
                .spawn(move || as_worker(|| work(&queue, &lanes)));
            match spawned {
                Ok(thread) => pool.threads.push(thread),
                Err(error) if pool.threads.is_empty() => return Err(error),
                // Fewer do too.
                Err(_) => break,
            }
        }
        Ok(pool)
    }

    /// Lets the workers do a job that has this many chunks.
    pub fn submit(&self, job: &Arc<Job>, chunks: usize) {
        self.queue.submit(job, chunks);
    }

    pub fn submitter(&self) -> Submitter {
        Submitter(self.queue.clone())
    }
}

/// Submits jobs without keeping the pool; whoever waits for a job keeps it.
pub(crate) struct Submitter(Arc<Queue>);

impl Submitter {
    /// Lets the workers do a job that has this many chunks.
    pub fn submit(&self, job: &Arc<Job>, chunks: usize) {
        self.0.submit(job, chunks);
    }
}

impl Drop for Pool {
    /// Ends the threads. No job can be left: each has a caller or a future that waits for it and keeps the engine.
    fn drop(&mut self) {
        self.queue.state().closed = true;
        self.queue.work.notify_all();
        // The last reference to an engine may go on a worker, with a future that was woken there: a worker of this engine,
        // or of another whose last reference goes on one of this.
        if !on_worker() {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }
}

impl Queue {
    fn submit(&self, job: &Arc<Job>, chunks: usize) {
        self.push(job.clone(), job.current_use());
        if chunks == 1 { self.work.notify_one() } else { self.work.notify_all() }
    }

    fn push(&self, job: Arc<Job>, of_use: u64) {
        self.state().jobs.push_back((job, of_use));
    }

    /// Queues a job of which more chunks are ready. Others may have found nothing and gone to sleep meanwhile.
    fn push_again(&self, job: Arc<Job>, of_use: u64) {
        self.push(job, of_use);
        self.work.notify_one();
    }

    /// The next chunk to work on; `None` if there is none and `wait` is not set, or the queue is closed.
    fn take(&self, wait: bool) -> Option<(Arc<Job>, usize)> {
        let mut state = self.state();
        loop {
            while let Some((job, of_use)) = state.jobs.pop_front() {
                if let Some((chunk, more)) = job.take(of_use) {
                    if more {
                        state.jobs.push_back((job.clone(), of_use));
                    }
                    return Some((job, chunk));
                }
            }
            if state.closed || !wait {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the news that chunks are completed.
#[derive(Default)]
pub(crate) struct Reports<'a> {
    queue: Option<&'a Queue>,
    wakers: Vec<Waker>,
}

impl Reports<'_> {
    fn wake_all(&mut self) {
        for waker in self.wakers.drain(..) {
            // What it does is not the engine's business, nor are its panics, nor what those carry.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                mem::forget(panic);
            }
        }
    }

    pub fn completed(&mut self, job: &Arc<Job>, chunk: usize, stop: Option<(usize, Option<Cause>)>) {
        match job.complete(chunk, stop) {
            After::Nothing | After::Finished(None) => {}
            After::Finished(Some(waker)) => self.wakers.push(waker),
            After::MoreIsReady(of_use) => {
                if let Some(queue) = self.queue {
                    queue.push_again(job.clone(), of_use);
                }
            }
        }
    }
}

/// Runs a worker: takes chunks from the queue until the queue is closed.
fn work(queue: &Queue, lanes: &Lanes) {
    let mut reports = Reports { queue: Some(queue), wakers: Vec::new() };
    let mut lane: Option<Lane> = None;
    loop {
        match queue.take(lane.is_none()) {
            Some((job, chunk)) => run(lanes, &mut lane, &job, chunk, &mut reports),
            // The other jobs had their turn.
            None => match lane.as_ref().and_then(Lane::take_next) {
                Some((job, chunk)) => run(lanes, &mut lane, &job, chunk, &mut reports),
                None => match lane.take() {
                    Some(mut busy) if busy.is_busy() => {
                        busy.finish_oldest(&mut reports);
                        lane = Some(busy);
                    }
                    Some(idle) => lanes.put(idle),
                    None => return,
                },
            },
        }
        if !reports.wakers.is_empty() {
            // A waker is foreign code, which may use this very engine: nothing may wait for this thread meanwhile.
            if let Some(mut lane) = lane.take() {
                lane.finish_all(&mut reports);
                lanes.put(lane);
            }
            reports.wake_all();
        }
    }
}

/// Does all of a job on the calling thread, or with the workers what is left of it; with a lane, if it has one.
pub(crate) fn work_inline(lanes: &Lanes, mut lane: Option<Lane>, job: &Arc<Job>) {
    let mut reports = Reports::default();
    let of_use = job.current_use();
    loop {
        let next = || lane.as_ref().and_then(Lane::take_next);
        let taken = job.take(of_use).map(|(chunk, _)| chunk).or_else(|| next().map(|(_, chunk)| chunk));
        match (taken, &mut lane) {
            (Some(chunk), _) => run(lanes, &mut lane, job, chunk, &mut reports),
            (None, Some(lane)) if lane.is_busy() => lane.finish_oldest(&mut reports),
            _ => break,
        }
    }
    if let Some(lane) = lane {
        lanes.put(lane);
    }
    // Workers may have taken chunks too, if it was submitted.
    job.wait();
    reports.wake_all();
}

/// Begins a chunk on a lane of its place, which may be completed later.
fn run(lanes: &Lanes, lane: &mut Option<Lane>, job: &Arc<Job>, chunk: usize, reports: &mut Reports<'_>) {
    if job.is_stopped_before(chunk) {
        return reports.completed(job, chunk, None);
    }
    // SAFETY: the chunk was handed out to this thread.
    let (transfer, plan) = unsafe { job.work() };
    let place = plan.place(transfer, chunk);
    if let Some(mut other) = lane.take_if(|lane| lane.place() != place || lanes.are_wanted()) {
        other.finish_all(reports);
        lanes.put(other);
    }
    let lane = match lane {
        Some(lane) => lane,
        None => match lanes.take(place) {
            Ok(taken) => lane.insert(taken),
            Err(error) => return reports.completed(job, chunk, Some((0, Some(error.into())))),
        },
    };
    lane.start(job, chunk, reports);
}
