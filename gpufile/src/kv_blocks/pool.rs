//! The threads of a store, each of which carries out one task at a time. They wait for the storage, so that callers need not.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

use cufile::fork::{self, JoinHandle, Mutex};

/// The most tasks that are carried out at once. The others wait for their turn.
const THREADS: usize = 8;

type Task = Box<dyn FnOnce() + Send>;

/// Threads, which start when they are first needed, and end when the pool is closed.
#[derive(Default)]
pub struct Pool {
    state: Mutex<State>,
    /// For threads that wait for tasks.
    submitted: Condvar,
    /// For those that wait for the end of all tasks.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    running: usize,
    threads: usize,
    /// The handles of the threads, for the caller that waits for their end.
    handles: Vec<JoinHandle>,
    idle: usize,
    is_closed: bool,
}

impl Pool {
    /// Carries out a task when a thread is free.
    ///
    /// # Errors
    /// The error that the operating system returned when no thread could be started. The task is dropped.
    pub fn submit(self: &Arc<Self>, task: Task) -> io::Result<()> {
        let mut state = self.lock();
        if state.idle <= state.tasks.len() && state.threads < THREADS {
            let this = self.clone();
            match fork::spawn("gpufile-kv", move || this.run()) {
                Ok(handle) => {
                    state.threads += 1;
                    state.handles.push(handle);
                }
                Err(error) if state.threads == 0 => return Err(error),
                Err(_) => {}
            }
        }
        state.tasks.push_back(task);
        self.submitted.notify_one();
        Ok(())
    }

    /// Waits until no task is left and the threads have ended. Returns false at once in one of its own threads.
    pub fn end(&self) -> bool {
        let mut state = self.lock();
        if state.handles.iter().any(JoinHandle::is_caller) {
            return false;
        }
        while state.running > 0 || !state.tasks.is_empty() {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let handles = mem::take(&mut state.handles);
        drop(state);
        self.close();
        // A thread has caught the panics of its tasks.
        handles.into_iter().for_each(|handle| drop(handle.join()));
        true
    }

    /// Lets the threads end when no task is left.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.submitted.notify_all();
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                state.running += 1;
                drop(state);
                // Dropping a task ends its call, so a panic of one does not stop the others.
                let _ = catch_unwind(AssertUnwindSafe(task));
                state = self.lock();
                state.running -= 1;
                if state.running == 0 && state.tasks.is_empty() {
                    self.ended.notify_all();
                }
            } else if state.is_closed {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                state = self.submitted.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_thread_outlives_the_end() {
        for _ in 0..30 {
            let (pool, done) = (Arc::<Pool>::default(), Arc::new(AtomicUsize::new(0)));
            for task in 0..20 {
                let done = done.clone();
                let run = move || {
                    done.fetch_add(1, Ordering::Relaxed);
                    assert!(task % 7 != 3, "a task that panics");
                };
                pool.submit(Box::new(run)).unwrap();
            }
            assert!(pool.end());
            // Each thread has a reference.
            assert_eq!((Arc::strong_count(&pool), done.load(Ordering::Relaxed)), (1, 20));
        }
    }
}
