//! A value that is made once.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::Mutex;

/// A value that the first caller makes, and for which a forked child never waits. The child has the value if
/// it was complete at the fork, and else makes its own.
///
/// ```
/// use cufile::fork::OnceCell;
///
/// static ANSWER: OnceCell<u32> = OnceCell::new();
/// assert_eq!(*ANSWER.get_or_init(|| 42), 42);
/// ```
pub struct OnceCell<T> {
    value: AtomicPtr<T>,
    making: Mutex<()>,
    owns: PhantomData<(T, std::cell::UnsafeCell<T>)>,
}

impl<T> OnceCell<T> {
    /// Returns an empty cell.
    pub const fn new() -> Self {
        Self { value: AtomicPtr::new(ptr::null_mut()), making: Mutex::of_static(()), owns: PhantomData }
    }

    /// Returns the value if it was made. Never waits.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: a value that was stored stays until the cell is dropped.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Stores a value.
    ///
    /// # Errors
    /// Returns the value if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("called once"));
        value.map_or(Ok(()), Err)
    }

    /// Returns the value. Makes it if there is none, or waits for a thread that does.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _turn = self.making.lock();
        // Another thread may have made it meanwhile.
        self.get().unwrap_or_else(|| {
            let made = Box::into_raw(Box::new(make()));
            self.value.store(made, Ordering::Release);
            // SAFETY: stored above, so it stays until the cell is dropped.
            unsafe { &*made }
        })
    }
}

// SAFETY: threads share the value, and any of them may make or drop it.
unsafe impl<T: Send + Sync> Sync for OnceCell<T> {}

impl<T> Default for OnceCell<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> From<T> for OnceCell<T> {
    fn from(value: T) -> Self {
        let cell = Self::new();
        cell.value.store(Box::into_raw(Box::new(value)), Ordering::Release);
        cell
    }
}

impl<T> Drop for OnceCell<T> {
    fn drop(&mut self) {
        let value = *self.value.get_mut();
        if !value.is_null() {
            // SAFETY: made as a box, and dropped here and nowhere else.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("OnceCell");
        match self.get() {
            Some(value) => shown.field(value),
            None => shown.field(&format_args!("<not made>")),
        }
        .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::super::tests::in_a_child;
    use super::*;

    #[test]
    fn forked_children_make_what_the_parent_was_making() {
        let cell = Arc::new(OnceCell::new());
        let ((begun, has_begun), (end, ended)) = (channel(), channel::<()>());
        let of_thread = cell.clone();
        let maker = thread::spawn(move || {
            let make = || {
                begun.send(()).unwrap();
                ended.recv().unwrap_err();
                1
            };
            assert_eq!(*of_thread.get_or_init(make), 1);
        });
        has_begun.recv().unwrap();
        assert!(in_a_child(|| cell.get().is_none()
            && *cell.get_or_init(|| 2) == 2
            && cell.get() == Some(&2)));
        drop(end);
        maker.join().unwrap();
        assert!(in_a_child(|| *cell.get_or_init(|| 3) == 1));
    }

    #[test]
    fn values_are_made_once_and_dropped_once() {
        let (cell, made, value) = (OnceCell::new(), AtomicUsize::new(0), Arc::new(()));
        let make = || {
            made.fetch_add(1, Ordering::Relaxed);
            value.clone()
        };
        thread::scope(|scope| {
            (0..8).for_each(|_| drop(scope.spawn(|| drop(cell.get_or_init(make).clone()))))
        });
        assert_eq!((made.into_inner(), Arc::strong_count(&value)), (1, 2));
        assert!(cell.set(value.clone()).is_err() && OnceCell::new().set(1) == Ok(()));
        assert_eq!(format!("{cell:?} {:?}", OnceCell::<u8>::new()), "OnceCell(()) OnceCell(<not made>)");
        drop((cell, OnceCell::from(value.clone()), OnceCell::<u8>::default()));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn panics_leave_the_cell_empty() {
        let cell = OnceCell::new();
        let make = std::panic::AssertUnwindSafe(|| *cell.get_or_init(|| panic!("while it is made")));
        assert!(std::panic::catch_unwind(make).is_err());
        assert_eq!(*cell.get_or_init(|| 1), 1);
    }
}
