//! Lists that calls use one after the other, so that a long list takes no new memory from the operating system each time.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most bytes of memory that idle lists of one kind have.
const MOST_BYTES: usize = 8 << 20;

/// The lists that no call uses.
pub struct Spares<T>(Mutex<Idle<T>>);

struct Idle<T> {
    lists: Vec<Vec<T>>,
    bytes: usize,
}

/// A list whose memory goes back to the spares when it is dropped.
pub struct Spare<T> {
    list: Vec<T>,
    /// `None` for a list without memory.
    home: Option<Arc<Spares<T>>>,
}

impl<T> Spares<T> {
    /// Returns an empty list.
    pub fn take(self: &Arc<Self>) -> Spare<T> {
        let mut idle = self.lock();
        let list = idle.lists.pop().unwrap_or_default();
        idle.bytes -= bytes_of(&list);
        Spare { list, home: Some(self.clone()) }
    }

    /// Keeps the memory of a list if there is not too much yet.
    fn put(&self, mut list: Vec<T>) {
        list.clear();
        let mut idle = self.lock();
        let bytes = idle.bytes + bytes_of(&list);
        if list.capacity() > 0 && bytes <= MOST_BYTES {
            idle.lists.push(list);
            idle.bytes = bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

impl<T> Default for Spares<T> {
    fn default() -> Self {
        Self(Mutex::new(Idle { lists: Vec::new(), bytes: 0 }))
    }
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self { list: Vec::new(), home: None }
    }
}

impl<T> Drop for Spare<T> {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.put(mem::take(&mut self.list));
        }
    }
}

impl<T> Deref for Spare<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.list
    }
}

impl<T> DerefMut for Spare<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_return_empty_and_within_a_limit() {
        let spares = Arc::new(Spares::<u8>::default());
        let mut list = spares.take();
        list.extend([7; 1000]);
        let place = list.as_ptr();
        drop(list);
        let (again, other) = (spares.take(), spares.take());
        assert!(again.is_empty() && again.as_ptr() == place && again.capacity() >= 1000);
        assert_eq!((other.capacity(), spares.lock().bytes), (0, 0));
        drop((again, other));
        assert_eq!(spares.lock().lists.len(), 1, "a list without memory is not kept");

        let lists: Vec<_> = (0..5).map(|_| spares.take()).collect();
        for mut list in lists {
            list.reserve_exact(MOST_BYTES / 3);
        }
        let idle = spares.lock();
        assert!(idle.lists.len() >= 2 && idle.bytes <= MOST_BYTES);
        assert_eq!(idle.bytes, idle.lists.iter().map(bytes_of).sum::<usize>());
    }
}
