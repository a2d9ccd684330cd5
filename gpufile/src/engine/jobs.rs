//! The jobs of an engine: made of transfers, given to workers or done by the caller, and waited for.

use std::sync::{Arc, PoisonError};

use super::job::{Job, Stop};
use super::plan::Refused;
use super::pool::{self, Pool};
use super::sync::on_worker;
use super::transfer::Transfer;
use super::{Cutting, Engine};
use crate::memory::Place;

impl Engine {
    /// Carries out a transfer and waits for its end; tells what stopped it before.
    ///
    /// # Errors
    /// That a range does not lie in its buffer, or that two entries of a read overlap in memory.
    ///
    /// # Safety
    /// The memory must be as an [`IoBuf`](cufile::IoBuf) (for reads, [`IoBufMut`](cufile::IoBufMut)) promises.
    pub(crate) unsafe fn run(
        &self,
        transfer: &Transfer<'_>,
        cutting: Cutting,
    ) -> Result<Option<Stop>, Refused> {
        // SAFETY: this function returns when the job is done.
        let (job, chunks) = unsafe { self.prepare(transfer, &cutting) }?;
        let inline = cutting.inline || chunks == 1;
        let is_host = !inline && transfer.entries.place() == Place::Host;
        self.start(transfer, &job, chunks, inline || is_host && self.0.settings.threads == 1);
        if is_host {
            self.work_beside(&job);
        }
        Ok(self.finish(job))
    }

    /// Works on a job of host memory along with the workers: waking them takes longer than to copy some 100 KiB. Not if
    /// there is no lane to be had at once: one who waits for it must not have chunks of a job.
    fn work_beside(&self, job: &Arc<Job>) {
        if job.is_done() {
            return;
        }
        if let Some(lane) = self.0.lanes.try_take_for_host() {
            pool::work_inline(&self.0.lanes, Some(lane), job);
        }
    }

    /// Lets the workers do a job, or does it, if that is said or the calling thread is a worker.
    pub(crate) fn start(&self, transfer: &Transfer<'_>, job: &Arc<Job>, chunks: usize, inline: bool) {
        if inline || on_worker() {
            self.work_inline(job);
        } else {
            self.submit(transfer.device(), job, chunks);
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
    pub(crate) unsafe fn prepare(
        &self,
        transfer: &Transfer<'_>,
        cutting: &Cutting,
    ) -> Result<(Arc<Job>, usize), Refused> {
        let job = self.idle_job();
        // SAFETY: the caller's promise; an idle job is set up by no one else.
        let (chunks, _) = unsafe { job.set_up(transfer, cutting) }?;
        Ok((job, chunks))
    }

    /// Lets the workers for a block device do a job. If the operating system gives no threads, the caller does it.
    pub(crate) fn submit(&self, device: u64, job: &Arc<Job>, chunks: usize) {
        match self.pool(device) {
            Some(pool) => pool.submit(job, chunks),
            None => self.work_inline(job),
        }
    }

    /// Does a job on the calling thread.
    fn work_inline(&self, job: &Arc<Job>) {
        if self.0.is_forked() {
            // The parent's may be locked for ever, or lent to threads that are not here.
            return pool::work_inline(&self.0.lanes_apart(), None, job);
        }
        pool::work_inline(&self.0.lanes, None, job);
    }

    /// A job that is not in use.
    pub(super) fn idle_job(&self) -> Arc<Job> {
        if self.0.is_forked() { Arc::default() } else { self.0.idle_jobs.take() }
    }

    /// Works on a job if the calling thread is a worker: were all workers to wait, nobody would do it.
    pub(crate) fn help(&self, job: &Arc<Job>) {
        if on_worker() && !job.is_done() {
            self.work_inline(job);
        }
    }

    /// Waits for a job that was started, and tells what stopped it before its end.
    pub(crate) fn finish(&self, job: Arc<Job>) -> Option<Stop> {
        self.help(&job);
        job.wait();
        // SAFETY: it is done, and who started it calls this.
        let stop = unsafe { job.take_outcome() };
        if !self.0.is_forked() {
            self.0.idle_jobs.put(job);
        }
        stop
    }

    /// The workers for files on this block device; none if the operating system gives no threads, or did so in another
    /// process.
    fn pool(&self, device: u64) -> Option<Arc<Pool>> {
        if self.0.is_forked() {
            return None;
        }
        let key = if self.0.settings.pool_per_block_device { device } else { 0 };
        let mut pools = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pool)) = pools.iter().find(|(of, _)| *of == key) {
            return Some(pool.clone());
        }
        // More could have a chunk, but no lane for it.
        let threads = self.0.settings.threads.min(self.0.lanes.limit());
        let pool = Arc::new(Pool::new(threads, &self.0.lanes).ok()?);
        pools.push((key, pool.clone()));
        Some(pool)
    }
}
