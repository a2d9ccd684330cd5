//! The workers of an engine: jobs are made of transfers, given to threads or done by the caller, and waited for.

use std::mem;
use std::sync::{Arc, PoisonError};

use super::chunks::Refused;
use super::job::{EntryStop, IdleJobs, Job};
use super::lanes::Lanes;
use super::pool::{self, Pool};
use super::schedule::Schedule;
use super::sync::{Mutex, on_worker};
use super::transfer::Transfer;
use crate::memory::{Memory, Place};
use crate::open_file::OpenFile;
use crate::outcome::{Outcome, Stop};

/// Threads, the lanes that they work on, and idle jobs.
pub(crate) struct Workers {
    /// By block device. Before the lanes, so that the threads end first.
    pools: Mutex<Vec<(u64, Arc<Pool>)>>,
    lanes: Arc<Lanes>,
    idle_jobs: IdleJobs,
    threads: usize,
    pool_per_block_device: bool,
    /// The process that made them.
    process: u32,
}

impl Workers {
    /// `threads` for all block devices, or for each; started when first needed.
    pub fn new(threads: usize, pool_per_block_device: bool, lanes: Arc<Lanes>) -> Self {
        Self {
            pools: Mutex::default(),
            lanes,
            idle_jobs: IdleJobs::default(),
            threads,
            pool_per_block_device,
            process: std::process::id(),
        }
    }

    /// Carries out a transfer and waits for its end. Returns what stopped it before.
    ///
    /// # Errors
    /// That a range does not lie in its buffer, or that two entries of a read overlap in memory.
    ///
    /// # Safety
    /// The memory must be as an [`IoBuf`](cufile::IoBuf) (for reads, [`IoBufMut`](cufile::IoBufMut)) promises.
    pub unsafe fn run(
        &self,
        transfer: &Transfer<'_>,
        schedule: &Schedule,
    ) -> Result<Option<EntryStop>, Refused> {
        // SAFETY: this function returns when the job is done.
        let (job, chunks) = unsafe { self.prepare(transfer, schedule) }?;
        let is_inline = schedule.is_inline || chunks == 1;
        let is_host = !is_inline && transfer.entries.place() == Place::Host;
        self.start(transfer, &job, chunks, is_inline || is_host && self.threads == 1);
        if is_host {
            self.work_beside(&job);
        }
        Ok(self.finish(job))
    }

    /// Reads a small range to device memory, by the calling thread.
    ///
    /// # Safety
    /// The memory must be as an [`IoBufMut`](cufile::IoBufMut) promises, and no larger than a bounce buffer.
    pub unsafe fn read_small(&self, file: &OpenFile, memory: &Memory, offset: u64) -> Outcome {
        let mut lane = self.lanes.take(memory.place).map_err(|error| Stop::failed(0, error))?;
        // SAFETY: the caller's promise.
        let outcome = unsafe { lane.read_small(file, memory.ptr, memory.len_bytes, offset) };
        self.lanes.put(lane);
        outcome
    }

    /// Works on a job of host memory along with the workers: waking them takes longer than to copy some 100 KiB. Not if
    /// there is no lane to be had at once: one who waits for it must not have chunks of a job.
    fn work_beside(&self, job: &Arc<Job>) {
        if job.is_done() {
            return;
        }
        if let Some(lane) = self.lanes.try_take_for_host() {
            pool::work_inline(&self.lanes, Some(lane), job);
        }
    }

    /// Lets the workers do a job. The calling thread does it if `is_inline` is set or it is a worker.
    pub fn start(&self, transfer: &Transfer<'_>, job: &Arc<Job>, chunks: usize, is_inline: bool) {
        if is_inline || on_worker() {
            self.work_inline(job);
        } else {
            self.submit(transfer.block_device(), job, chunks);
        }
    }

    /// Makes a job of a transfer, which nobody works on yet; returns how many chunks it has.
    ///
    /// # Errors
    /// That a range does not lie in its buffer, or that two entries of a read overlap in memory.
    ///
    /// # Safety
    /// Everything that the transfer refers to must stay until [`finish`](Self::finish) was called with the
    /// job. Its memory must be as an [`IoBuf`](cufile::IoBuf) (for reads, [`IoBufMut`](cufile::IoBufMut))
    /// promises that long.
    pub unsafe fn prepare(
        &self,
        transfer: &Transfer<'_>,
        schedule: &Schedule,
    ) -> Result<(Arc<Job>, usize), Refused> {
        let job = self.idle_job();
        // SAFETY: the caller's promise; an idle job is set up by no one else.
        let (chunks, _) = unsafe { job.set_up(transfer, schedule) }?;
        Ok((job, chunks))
    }

    /// Lets the workers for a block device do a job. If the operating system gives no threads, the caller does it.
    pub fn submit(&self, block_device: u64, job: &Arc<Job>, chunks: usize) {
        match self.pool(block_device) {
            Some(pool) => pool.submit(job, chunks),
            None => self.work_inline(job),
        }
    }

    /// Does a job on the calling thread.
    fn work_inline(&self, job: &Arc<Job>) {
        if self.is_forked() {
            // The parent's may be locked for ever, or lent to threads that are not here.
            return pool::work_inline(&self.lanes.apart(), None, job);
        }
        pool::work_inline(&self.lanes, None, job);
    }

    /// Returns a job that is not in use.
    pub fn idle_job(&self) -> Arc<Job> {
        if self.is_forked() { Arc::default() } else { self.idle_jobs.take() }
    }

    /// Waits for a job that was started, and returns what stopped it before its end.
    pub fn finish(&self, job: Arc<Job>) -> Option<EntryStop> {
        // Were all workers to wait, nobody would do it.
        if on_worker() && !job.is_done() {
            self.work_inline(&job);
        }
        job.wait();
        // SAFETY: it is done, and who started it calls this.
        let stop = unsafe { job.take_outcome() };
        if !self.is_forked() {
            self.idle_jobs.put(job);
        }
        stop
    }

    /// Returns lanes of the same size that no other threads share.
    pub fn lanes_apart(&self) -> Arc<Lanes> {
        Arc::new(self.lanes.apart())
    }

    /// Frees the bounce buffers and the lists of chunks that no transfer uses. Returns the number of bytes.
    pub fn release_buffers(&self) -> usize {
        self.idle_jobs.clear() + self.lanes.release()
    }

    /// Starts the threads for a block device. Returns false if the operating system gives none.
    pub fn start_threads(&self, block_device: u64) -> bool {
        self.pool(block_device).is_some()
    }

    /// Returns the threads for files on this block device; none if the operating system gives no threads, or did so in
    /// another process.
    fn pool(&self, block_device: u64) -> Option<Arc<Pool>> {
        if self.is_forked() {
            return None;
        }
        let key = if self.pool_per_block_device { block_device } else { 0 };
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pool)) = pools.iter().find(|(of, _)| *of == key) {
            return Some(pool.clone());
        }
        // More could have a chunk, but no lane for it.
        let threads = self.threads.min(self.lanes.limit());
        let pool = Arc::new(Pool::new(threads, &self.lanes).ok()?);
        pools.push((key, pool.clone()));
        Some(pool)
    }

    /// Returns whether this is a child of the process that made the workers, whose threads are not there.
    pub fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}

impl Drop for Workers {
    /// In a child of the process, there are no threads to be ended, nor is CUDA there to free its memory.
    fn drop(&mut self) {
        if self.is_forked() {
            let pools = self.pools.get_mut().unwrap_or_else(PoisonError::into_inner);
            mem::forget((mem::take(pools), self.lanes.clone()));
        }
    }
}
