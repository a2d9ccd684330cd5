//! The generation of a process, and locks and threads that know theirs.
//!
//! A forked child has a copy of the parent's memory and none of its threads: their work is never done, and a lock of
//! the standard library that one of them held stays locked. So a value that waits for threads or CUDA notes the
//! generation in which it was made. In a later one, it returns or leaks instead of waiting.
//!
//! [`Mutex`] and [`OnceCell`] do so by themselves, and [`spawn`] and [`scope`] start threads also in a child. Clippy refuses the
//! standard library's locks and thread builder in all crates of this family.
//!
//! Process ids are not enough: the main processes of two PID namespaces both have 1, and one may be forked from the
//! other.

mod mutex;
mod once_cell;
mod threads;

pub use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub use mutex::Mutex;
pub use once_cell::OnceCell;
pub use threads::{JoinHandle, Scope, ScopedJoinHandle, scope, spawn};

use crate::system;

/// The number of forks so far, or a higher one. It only grows.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// An identifier of this process, which differs in a forked child.
///
/// ```
/// use cufile::fork::Generation;
///
/// let made_in = Generation::current();
/// // In a forked child, this would be false.
/// assert!(made_in.is_current());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    const FIRST: Self = Self(0);

    /// Returns the generation of this process.
    #[doc(alias = "pthread_atfork")]
    pub fn current() -> Self {
        static ARE_COUNTED: AtomicBool = AtomicBool::new(false);
        // Not a `Once`: a fork while another thread runs it would leave the child waiting for that thread. Two threads
        // may get here at once. Each fork then counts twice.
        if !ARE_COUNTED.load(Ordering::Acquire) {
            // SAFETY: the handler only changes an atomic, which is allowed between fork and exec.
            let are_counted = unsafe { system::call_in_children(count_fork) };
            ARE_COUNTED.store(are_counted, Ordering::Release);
        }
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether this process was forked from one that counted forks.
    fn is_child() -> bool {
        Self::current() != Self::FIRST
    }

    /// Returns whether the generation is that of this process. It is not in a child that was forked since.
    #[inline]
    pub fn is_current(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks, and returns whether `holds` in the child.
    pub fn in_a_child(holds: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only forks, compares numbers and ends.
        let child = unsafe { libc::fork() };
        assert_ne!(child, -1);
        if child == 0 {
            let holds = holds();
            // SAFETY: ends the child.
            unsafe { libc::_exit(holds.into()) };
        }
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn each_fork_begins_another_generation() {
        let ours = Generation::current();
        assert!(in_a_child(|| {
            let theirs = Generation::current();
            !ours.is_current()
                && theirs.is_current()
                && in_a_child(|| !theirs.is_current() && !ours.is_current())
        }));
        assert!(ours.is_current() && ours == Generation::current());
    }
}
