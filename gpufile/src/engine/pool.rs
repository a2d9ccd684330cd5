//! The threads of workers. Each thread claims chunks from a queue and carries them out on a lane.

use std::sync::Arc;

use super::job::{Claim, Job};
use super::lane::Lane;
use super::lanes::Lanes;
use super::queue::{Queue, Reports};
use super::sync::{Builder, JoinHandle, as_worker, on_worker};
use crate::outcome::Stop;

/// A queue of jobs, and the threads that work on them as long as the pool exists.
pub(crate) struct Pool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the threads; fewer if the operating system starts no more.
    ///
    /// # Errors
    /// Fails if the operating system starts no thread at all.
    pub fn new(threads: usize, lanes: &Arc<Lanes>) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let mut pool = Self { queue, threads: Vec::new() };
        for number in 0..threads {
            let (queue, lanes) = (pool.queue.clone(), lanes.clone());
            let spawned = Builder::new()
                .name(format!("gpufile-{number}"))
                .spawn(move || as_worker(|| worker_loop(&queue, &lanes)));
            match spawned {
                Ok(thread) => pool.threads.push(thread),
                Err(error) if pool.threads.is_empty() => return Err(error),
                // Fewer threads work too.
                Err(_) => break,
            }
        }
        Ok(pool)
    }

    /// Lets the workers do a job that has this many chunks.
    pub fn submit(&self, job: &Arc<Job>, chunks: usize) {
        self.queue.submit(job, chunks);
    }
}

impl Drop for Pool {
    /// Ends the threads. No job can be left: a caller or a future waits for each job, and keeps the engine.
    fn drop(&mut self) {
        self.queue.close();
        // A worker may drop the last reference to an engine, together with a future that it woke. The worker
        // may belong to this engine, or to another whose last reference a worker of this one drops. So a
        // worker waits for no threads here.
        if !on_worker() {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }
}

/// Carries out chunks from the queue until the queue is closed.
fn worker_loop(queue: &Queue, lanes: &Lanes) {
    let mut reports = Reports::to(queue);
    let mut lane: Option<Lane> = None;
    loop {
        match queue.claim(lane.is_none()) {
            Some(claim) => start_chunk(lanes, &mut lane, claim, &mut reports),
            // The other jobs have had their turn.
            None => match lane.as_ref().and_then(Lane::claim_next) {
                Some(claim) => start_chunk(lanes, &mut lane, claim, &mut reports),
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
        if reports.has_wakers() {
            // A waker is foreign code, which may use this very engine. No other thread may wait for this one
            // then.
            if let Some(mut lane) = lane.take() {
                lane.finish_all(&mut reports);
                lanes.put(lane);
            }
            reports.wake_all();
        }
    }
}

/// Works on a job on the calling thread, alone or with the workers, until the job is done. `lane` is the
/// thread's lane, if it has one.
pub(crate) fn work_inline(lanes: &Lanes, mut lane: Option<Lane>, job: &Arc<Job>) {
    let mut reports = Reports::default();
    let generation = job.generation();
    loop {
        let claimed = Job::claim(job, generation).map(|(claim, _)| claim);
        match (claimed.or_else(|| lane.as_ref().and_then(Lane::claim_next)), &mut lane) {
            (Some(claim), _) => start_chunk(lanes, &mut lane, claim, &mut reports),
            (None, Some(lane)) if lane.is_busy() => lane.finish_oldest(&mut reports),
            _ => break,
        }
    }
    if let Some(lane) = lane {
        lanes.put(lane);
    }
    // Workers may have claimed chunks too, if the job was submitted.
    job.wait();
    reports.wake_all();
}

/// Begins a chunk on a lane of its place. The lane may complete it later.
fn start_chunk(lanes: &Lanes, lane: &mut Option<Lane>, claim: Claim, reports: &mut Reports<'_>) {
    if claim.is_stopped_before() {
        return reports.completed(claim, Ok(()));
    }
    let place = claim.place();
    if let Some(mut other) = lane.take_if(|lane| lane.place() != place || lanes.are_wanted()) {
        other.finish_all(reports);
        lanes.put(other);
    }
    let lane = match lane {
        Some(lane) => lane,
        None => match lanes.take(place) {
            Ok(taken) => lane.insert(taken),
            Err(error) => return reports.completed(claim, Err(Stop::failed(0, error))),
        },
    };
    lane.start(claim, reports);
}
