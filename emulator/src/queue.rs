//! Queues with a thread each.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use crate::control::lock;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    pushed: u64,
    finished: u64,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

impl Queue {
    /// Starts a queue and its thread, which ends after [`close`](Self::close).
    ///
    /// # Errors
    /// That of the operating system, if it starts no thread.
    pub(crate) fn start(name: &str) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self::default());
        let worker = Arc::clone(&queue);
        thread::Builder::new().name(name.to_owned()).spawn(move || worker.work())?;
        Ok(queue)
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

    pub(crate) fn push(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.jobs);
        jobs.waiting.push_back(Box::new(job));
        jobs.pushed += 1;
        drop(jobs);
        self.changed.notify_all();
    }

    pub(crate) fn is_idle(&self) -> bool {
        let jobs = lock(&self.jobs);
        jobs.finished == jobs.pushed
    }

    pub(crate) fn wait(&self) {
        self.wait_for(self.pushed());
    }

    pub(crate) fn pushed(&self) -> u64 {
        lock(&self.jobs).pushed
    }

    pub(crate) fn wait_for(&self, count: u64) {
        let mut jobs = lock(&self.jobs);
        while jobs.finished < count {
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        let jobs = lock(&self.jobs);
        jobs.closed && jobs.finished == jobs.pushed
    }

    /// Drops the jobs that have not begun.
    pub(crate) fn drain(&self) {
        let mut jobs = lock(&self.jobs);
        jobs.pushed -= jobs.waiting.len() as u64;
        let dropped = std::mem::take(&mut jobs.waiting);
        drop(jobs);
        drop(dropped);
        self.wait();
    }

    pub(crate) fn close(&self) {
        lock(&self.jobs).closed = true;
        self.changed.notify_all();
    }
}
