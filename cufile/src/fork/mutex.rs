//! A lock at which a forked child never waits for threads of its parent.

#![allow(clippy::disallowed_types, reason = "each is used only in the process that made it")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex as ProcessMutex, MutexGuard, PoisonError, TryLockError};

use super::Generation;

/// A mutex of one process. A forked child finds `T::default()` in it.
///
/// A thread of the parent may have held the lock at the fork, in the middle of a change, so the child neither waits for
/// it nor reads the parent's value, which dropping in the child leaks.
///
/// A panic of a thread that holds the lock does not poison it.
///
/// ```
/// use cufile::fork::Mutex;
///
/// let names = Mutex::new(vec!["of the parent"]);
/// // In a forked child, the list would be empty.
/// assert_eq!(names.lock().len(), 1);
/// ```
pub struct Mutex<T> {
    made_in: Generation,
    value: ManuallyDrop<ProcessMutex<T>>,
    /// The value of the child that locked the mutex last. Those of its own ancestors are leaked.
    of_child: AtomicPtr<OfChild<T>>,
}

struct OfChild<T> {
    made_in: Generation,
    value: ProcessMutex<T>,
}

impl<T> Mutex<T> {
    /// Returns a mutex of this process.
    pub fn new(value: T) -> Self {
        Self::made_in(Generation::current(), value)
    }

    /// Returns the mutex of a static, whose value is the first process's. It should equal the default.
    pub const fn of_static(value: T) -> Self {
        Self::made_in(Generation::FIRST, value)
    }

    const fn made_in(made_in: Generation, value: T) -> Self {
        Self {
            made_in,
            value: ManuallyDrop::new(ProcessMutex::new(value)),
            of_child: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Waits for the lock. Returns `None` in a forked child of the process that made the mutex.
    pub fn lock_unless_forked(&self) -> Option<MutexGuard<'_, T>> {
        self.is_own().then(|| self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_own(&self) -> bool {
        // Not `is_current`: a static is used before anything else counts forks.
        self.made_in == Generation::current()
    }

    /// Returns the pointer to the last value of a child, and that value if it is this child's.
    fn of_child(&self) -> (*mut OfChild<T>, Option<&OfChild<T>>) {
        let last = self.of_child.load(Ordering::Acquire);
        // SAFETY: what was stored is freed only when the mutex is dropped.
        (last, unsafe { last.as_ref() }.filter(|child| child.made_in.is_current()))
    }
}

impl<T: Default> Mutex<T> {
    /// Waits for the lock. In a forked child, the value is the child's own.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let value = if self.is_own() { &*self.value } else { self.value_of_child() };
        value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value, which in a forked child is the child's own.
    pub fn get_mut(&mut self) -> &mut T {
        if self.is_own() {
            return self.value.get_mut().unwrap_or_else(PoisonError::into_inner);
        }
        self.value_of_child();
        // SAFETY: set by the call above, and nothing else refers to it.
        unsafe { &mut **self.of_child.get_mut() }.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn value_of_child(&self) -> &ProcessMutex<T> {
        loop {
            // One load for both: what another thread of this child stores after it is not replaced.
            let (stale, of_child) = self.of_child();
            if let Some(child) = of_child {
                return &child.value;
            }
            let (made_in, value) = (Generation::current(), ProcessMutex::default());
            let made = Box::into_raw(Box::new(OfChild { made_in, value }));
            // What this replaces belongs to the child's parent, and stays as it was at the fork.
            if self.of_child.compare_exchange(stale, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: made above, and not stored.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for Mutex<T> {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        } else if self.of_child().1.is_some() {
            // SAFETY: made by this process as a box, and nothing else refers to it.
            drop(unsafe { Box::from_raw(*self.of_child.get_mut()) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value =
            if self.is_own() { Some(&*self.value) } else { self.of_child().1.map(|child| &child.value) };
        let mut shown = f.debug_tuple("Mutex");
        match value.map(ProcessMutex::try_lock) {
            Some(Ok(value)) => shown.field(&*value),
            Some(Err(TryLockError::Poisoned(value))) => shown.field(&*value.into_inner()),
            Some(Err(TryLockError::WouldBlock)) => shown.field(&format_args!("<locked>")),
            None => shown.field(&format_args!("<of the parent>")),
        }
        .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use testkit::{Steps, in_threads};

    use super::super::tests::in_a_child;
    use super::*;

    fn while_held<T: Send + 'static>(mutex: &Arc<Mutex<T>>, test: impl FnOnce()) {
        let ((held, is_held), (end, ended)) = (channel(), channel::<()>());
        let of_thread = mutex.clone();
        let holder = thread::spawn(move || {
            let _guard = of_thread.lock_unless_forked();
            held.send(()).unwrap();
            ended.recv().unwrap_err();
        });
        is_held.recv().unwrap();
        test();
        drop(end);
        holder.join().unwrap();
    }

    #[test]
    fn forked_children_find_the_default_behind_a_held_lock() {
        let mutex = Arc::new(Mutex::new(vec![1]));
        while_held(&mutex, || {
            assert!(in_a_child(|| {
                let was_shown = format!("{mutex:?}") == "Mutex(<of the parent>)";
                let is_empty = mutex.lock().is_empty() && mutex.lock_unless_forked().is_none();
                mutex.lock().extend([2, 3]);
                let is_kept = *mutex.lock() == [2, 3] && format!("{mutex:?}") == "Mutex([2, 3])";
                // A child of the child begins again.
                was_shown && is_empty && is_kept && in_a_child(|| mutex.lock().is_empty())
            }));
        });
        assert!(*mutex.lock() == [1] && *mutex.lock_unless_forked().unwrap() == [1]);
    }

    #[test]
    fn statics_belong_to_each_process() {
        static NUMBERS: Mutex<Vec<u8>> = Mutex::of_static(Vec::new());
        NUMBERS.lock().push(1);
        assert!(in_a_child(|| {
            let is_empty = NUMBERS.lock().is_empty();
            NUMBERS.lock().push(2);
            is_empty && *NUMBERS.lock() == [2] && in_a_child(|| NUMBERS.lock().is_empty())
        }));
        assert_eq!(*NUMBERS.lock(), [1]);
    }

    #[test]
    fn children_drop_only_what_they_made() {
        let value = Arc::new(());
        let mut mutex = Mutex::new(Some(value.clone()));
        assert!(in_a_child(|| {
            // SAFETY: the child ends without using or dropping the value again.
            drop(unsafe { ptr::read(&mutex) });
            let is_leaked = Arc::strong_count(&value) == 2;
            let mut mutex = Mutex::new(Some(value.clone()));
            is_leaked && in_a_child(|| mutex.get_mut().is_none()) && {
                drop(mutex);
                Arc::strong_count(&value) == 2
            }
        }));
        assert!(mutex.get_mut().take().is_some());
        drop(mutex);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn threads_of_a_child_share_one_value() {
        // With many, both threads are often the first at one of them.
        let mutexes: Vec<_> = (0..2000).map(|_| Mutex::new(0)).collect();
        let steps = Steps::default();
        let add = |mutex: &Mutex<u32>| {
            steps.next();
            *mutex.lock() += 1;
        };
        assert!(in_a_child(|| {
            in_threads([(); 2].map(|()| || mutexes.iter().for_each(add)));
            mutexes.iter().all(|mutex| *mutex.lock() == 2)
        }));
        assert!(mutexes.iter().all(|mutex| *mutex.lock() == 0));
    }

    #[test]
    fn panics_do_not_poison() {
        let mutex = Mutex::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = mutex.lock();
            panic!("while it is locked");
        }));
        assert!(panicked.is_err() && *mutex.lock() == 1 && format!("{mutex:?}") == "Mutex(1)");
        let guard = mutex.lock();
        assert_eq!(format!("{mutex:?}"), "Mutex(<locked>)");
        drop(guard);
    }
}
