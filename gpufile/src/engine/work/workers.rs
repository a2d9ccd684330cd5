//! The workers of an engine. A transfer becomes a job here, whose chunks threads or the caller carry out on lanes.

use std::mem;
use std::sync::{Arc, Weak};

use cufile::fork::Generation;

use super::super::plan::chunks::Chunks;
use super::super::plan::transfer::Transfer;
use super::super::sync::{Mutex, MutexGuard, as_worker, on_worker, spawn};
use super::job::{Claim, Job};
use super::lane::Lane;
use super::lanes::Lanes;
use super::queue::{Queue, Reports};
use crate::gpu::nvtx;
use crate::memory::{Memory, Place};
use crate::open_file::OpenFile;
use crate::open_file::outcome::{EntryStop, Outcome, Stop};

/// Threads, their lanes, and idle jobs.
pub(crate) struct Workers {
    pools: Mutex<Vec<(Place, Arc<Pool>)>>,
    pub(super) lanes: Arc<Lanes>,
    idle_jobs: IdleJobs,
    pub(super) threads: usize,
    /// The process that made the workers.
    generation: Generation,
}

impl Workers {
    /// Returns workers with this many threads for host memory and for each GPU. The threads start when first needed.
    pub fn new(threads: usize, lanes: Arc<Lanes>) -> Self {
        Self {
            pools: Mutex::default(),
            lanes,
            idle_jobs: IdleJobs::default(),
            threads,
            generation: Generation::current(),
        }
    }

    /// Carries out a transfer and waits for its end. Returns the stop if it ended early, and all stops if each entry has an
    /// outcome.
    ///
    /// # Errors
    /// The first entry that does not lie in its buffer, or of a read, that overlaps another in memory.
    ///
    /// # Safety
    /// The memory must meet the promises of [`IoBuf`](cufile::IoBuf) (for reads,
    /// [`IoBufMut`](cufile::IoBufMut)).
    pub unsafe fn run(&self, transfer: &Transfer<'_>) -> Result<Vec<EntryStop>, EntryStop> {
        let (_range, _request) = (nvtx::range(|| transfer.to_string()), transfer.request());
        // SAFETY: this function returns only when the job is done.
        let (job, chunks) = unsafe { self.prepare(transfer) }?;
        let is_inline = transfer.choices.is_inline || chunks == 1;
        let is_host = !is_inline && transfer.entries.place() == Place::Host;
        self.start(&job, is_inline || is_host && self.threads == 1);
        if is_host {
            self.work_beside(&job);
        }
        Ok(self.finish(job))
    }

    /// Reads a small range to device memory on this thread.
    ///
    /// # Safety
    /// The memory must meet the promises of [`IoBufMut`](cufile::IoBufMut), and be no larger than a bounce
    /// buffer.
    pub unsafe fn read_small(&self, file: &OpenFile, memory: &Memory, offset: u64) -> Outcome {
        let _range = nvtx::range(|| format!("gpufile: read of {} bytes", memory.len_bytes));
        let apart;
        let lanes = if self.is_forked() {
            apart = self.lanes.apart();
            &apart
        } else {
            &*self.lanes
        };
        let mut lane = lanes.take(memory.place).map_err(|error| Stop::failed(0, error))?;
        // SAFETY: the caller's promise.
        let outcome = unsafe { lane.read_small(file, memory.ptr, memory.len_bytes, offset) };
        lanes.put(lane);
        outcome
    }

    /// Works on a job of host memory along with the workers, because waking them takes longer than copying some 100 KiB. Does
    /// nothing if it would have to wait for a lane.
    fn work_beside(&self, job: &Arc<Job>) {
        if self.is_forked() || job.is_done() {
            return;
        }
        if let Some(lane) = self.lanes.try_take_for_host() {
            work_inline(&self.lanes, Some(lane), job);
        }
    }

    /// Lets the workers do a job, or does it here if `is_inline` is set or this is a worker.
    pub fn start(&self, job: &Arc<Job>, is_inline: bool) {
        if is_inline || on_worker() {
            self.work_inline(job);
        } else {
            self.submit(job, None);
        }
    }

    /// Makes a job of a transfer: plans it, and prepares a write. Also returns the number of its chunks.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Safety
    /// Everything that the transfer refers to must stay valid until [`finish`](Self::finish) has returned for
    /// the job. That long, its memory must meet the promises of [`IoBuf`](cufile::IoBuf) (for reads,
    /// [`IoBufMut`](cufile::IoBufMut)).
    pub unsafe fn prepare(&self, transfer: &Transfer<'_>) -> Result<(Arc<Job>, usize), EntryStop> {
        let job = self.idle_job();
        // In a forked child, the parent's reads are never ended.
        let read = transfer.gpu_read().filter(|_| !self.is_forked());
        let before = read.map_or(0, |(gpu, _)| self.lanes.read_bytes(gpu));
        let plan = |chunks: &mut Chunks| chunks.plan(transfer, before, |gpus| self.busy(gpus));
        // SAFETY: the caller's promise; no other thread has the idle job.
        let chunks = unsafe { job.set_up(transfer, plan, false) }?;
        if let Some((gpu, bytes)) = read {
            job.keep(self.lanes.count_read(gpu, bytes));
        }
        Ok((job, chunks))
    }

    /// Returns the number of GPUs with transfers, including `gpus`, and that of the workers of each.
    pub fn busy(&self, gpus: u64) -> Option<(usize, usize)> {
        // The parent's lanes may be locked for ever.
        (!self.is_forked()).then(|| (self.lanes.busy_gpus(gpus), self.threads))
    }

    /// Lets the workers of each place do the job's chunks there, behind those of `before`, an earlier job of the same call. Does
    /// the job itself if the operating system starts no threads.
    pub fn submit(&self, job: &Arc<Job>, before: Option<&Arc<Job>>) {
        let shares = (0..).map_while(|number| job.share(number));
        for (place, chunks) in shares {
            match self.pool(place) {
                Some(pool) => pool.submit(job, chunks, before),
                None => self.work_inline(job),
            }
        }
    }

    fn work_inline(&self, job: &Arc<Job>) {
        if self.is_forked() {
            // The parent's lanes may be locked for ever, or lent to threads that do not exist here.
            return work_inline(&self.lanes.apart(), None, job);
        }
        work_inline(&self.lanes, None, job);
    }

    pub fn idle_job(&self) -> Arc<Job> {
        if self.is_forked() { Arc::default() } else { self.idle_jobs.take() }
    }

    /// Waits for a job that was started. Returns the stops, as [`run`](Self::run) does.
    pub fn finish(&self, job: Arc<Job>) -> Vec<EntryStop> {
        // If all workers waited, no thread would do the job.
        if on_worker() && !job.is_done() {
            self.work_inline(&job);
        }
        job.wait();
        // SAFETY: the job is done, and its owner calls this function.
        let stops = unsafe { job.take_outcome() };
        if !self.is_forked() {
            self.idle_jobs.put(job);
        }
        stops
    }

    /// As [`Lanes::apart_for_relays`].
    pub fn lanes_for_relays(&self) -> Arc<Lanes> {
        Arc::new(self.lanes.apart_for_relays())
    }

    /// Frees unused bounce buffers and lists of chunks. Returns the bytes freed: none in a forked child, where locks may stay
    /// locked for ever.
    pub fn release_buffers(&self) -> usize {
        if self.is_forked() { 0 } else { self.idle_jobs.clear() + self.lanes.release() }
    }

    /// Starts the threads for a GPU, and makes a lane for each. Does nothing in a forked child.
    ///
    /// # Errors
    /// The reason why a lane could not be made.
    pub fn warm_up(&self, place: Place) -> cufile::Result<()> {
        match self.pool(place) {
            Some(_) => self.lanes.make_ahead(place, self.threads),
            None => Ok(()),
        }
    }

    /// Starts the threads for host memory. Returns false if that fails.
    pub fn start_threads(&self) -> bool {
        self.pool(Place::Host).is_some()
    }

    /// Returns the threads for this place; `None` in a forked child, or if the operating system starts none.
    fn pool(&self, place: Place) -> Option<Arc<Pool>> {
        if self.is_forked() {
            return None;
        }
        let mut pools = self.pools.lock();
        if let Some((_, pool)) = pools.iter().find(|(of, _)| *of == place) {
            return Some(pool.clone());
        }
        // More threads could claim chunks, but would have no lanes for them.
        let threads = self.threads.min(self.lanes.limit());
        let pool = Arc::new(Pool::new(place, threads, &self.lanes).ok()?);
        pools.push((place, pool.clone()));
        Some(pool)
    }

    pub fn is_forked(&self) -> bool {
        !self.generation.is_current()
    }
}

impl Drop for Workers {
    /// Forgets threads and lanes in a forked child, which has neither threads nor CUDA.
    fn drop(&mut self) {
        if self.is_forked() {
            let pools = self.pools.get_mut();
            mem::forget((mem::take(pools), self.lanes.clone()));
        }
    }
}

/// A queue of jobs, and its threads.
pub(crate) struct Pool {
    queue: Arc<Queue>,
    /// The lanes. Waiting threads do not keep them, so that the thread that drops the last pool frees their memory.
    _lanes: Arc<Lanes>,
}

impl Pool {
    /// Starts the threads for one place; fewer if the operating system starts no more.
    ///
    /// # Errors
    /// Fails if the operating system starts no thread at all.
    pub fn new(place: Place, threads: usize, lanes: &Arc<Lanes>) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::new(place));
        let near = lanes.processors_near(place);
        let pool = Self { queue, _lanes: lanes.clone() };
        for number in 0..threads {
            let (queue, lanes) = (pool.queue.clone(), Arc::downgrade(lanes));
            let spawned = spawn(&format!("gpufile-{number}"), move || {
                if let Some(near) = near {
                    near.keep_this_thread();
                }
                as_worker(|| worker_loop(&queue, &lanes));
            });
            match spawned {
                // The thread ends by itself when the pool is dropped.
                Ok(_) => {}
                Err(error) if number == 0 => return Err(error),
                // Fewer threads work too.
                Err(_) => break,
            }
        }
        Ok(pool)
    }

    /// As [`Queue::submit`].
    pub fn submit(&self, job: &Arc<Job>, chunks: usize, before: Option<&Arc<Job>>) {
        self.queue.submit(job, chunks, before);
    }
}

impl Drop for Pool {
    /// Lets the threads end. No job can be left: its owner keeps the engine.
    ///
    /// This only waits until the threads have put back their lanes. A thread may run foreign code (a waker, the drop of a buffer)
    /// that waits for a lock of the caller, or drops an engine itself.
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Carries out chunks until the queue is closed. The thread keeps nothing of the engine while it waits, or runs wakers.
fn worker_loop(queue: &Queue, lanes: &Weak<Lanes>) {
    let mut reports = Reports::to(queue);
    let mut is_busy = false;
    while let Some(claim) = queue.wait_for_claim(&mut is_busy) {
        let lanes = lanes.upgrade().expect("the owner of a claimed job keeps the engine");
        carry_out_all(queue, &lanes, claim, &mut reports);
        drop(lanes);
        if reports.has_wakers() {
            // A waker is foreign code, which may use or drop this very engine.
            queue.rest(&mut is_busy);
            reports.wake_all();
        }
    }
}

/// Carries out a chunk, and those that are ready afterwards. Ends early if a waker is due.
fn carry_out_all(queue: &Queue, lanes: &Lanes, first: Claim, reports: &mut Reports<'_>) {
    let mut lane: Option<Lane> = None;
    let mut claim = Some(first);
    loop {
        match (claim, &mut lane) {
            (Some(claim), _) => lanes.start(&mut lane, claim, reports),
            (None, Some(lane)) if lane.is_busy() => lane.finish_oldest(reports),
            (None, _) => break,
        }
        if reports.has_wakers() {
            break;
        }
        // The other jobs have their turn first.
        claim = queue.claim().or_else(|| lane.as_ref().and_then(Lane::claim_next));
    }
    if let Some(mut lane) = lane {
        lane.finish_all(reports);
        lanes.put(lane);
    }
}

/// Works on a job on this thread until it is done. `lane` is the thread's lane, if it has one.
pub(crate) fn work_inline(lanes: &Lanes, mut lane: Option<Lane>, job: &Arc<Job>) {
    let mut reports = Reports::default();
    let generation = job.generation();
    loop {
        let claimed = Job::claim(job, generation, None).map(|(claim, _)| claim);
        match (claimed.or_else(|| lane.as_ref().and_then(Lane::claim_next)), &mut lane) {
            (Some(claim), _) => lanes.start(&mut lane, claim, &mut reports),
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

/// Unused jobs, kept so that a transfer need not allocate one.
#[derive(Default)]
pub(crate) struct IdleJobs(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    jobs: Vec<Arc<Job>>,
    /// The bytes of the jobs' lists of chunks.
    bytes: usize,
}

impl IdleJobs {
    const MOST: usize = 64;
    /// The most bytes that the lists of idle jobs may take. Those of a million reordered ranges take 28 MB.
    const MOST_BYTES: usize = 4 << 20;

    pub fn take(&self) -> Arc<Job> {
        let mut kept = self.kept();
        let Some(job) = kept.jobs.pop() else { return Arc::default() };
        kept.bytes -= job.kept_bytes();
        job
    }

    /// Keeps a job whose outcome was taken. The queue may still refer to it, but gets no chunks of its next use.
    pub fn put(&self, job: Arc<Job>) {
        let bytes = job.kept_bytes();
        let mut kept = self.kept();
        if kept.jobs.len() < Self::MOST && kept.bytes + bytes <= Self::MOST_BYTES {
            kept.bytes += bytes;
            kept.jobs.push(job);
        }
    }

    /// Frees the idle jobs. Returns the bytes of their lists.
    pub fn clear(&self) -> usize {
        mem::take(&mut *self.kept()).bytes
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock()
    }
}
