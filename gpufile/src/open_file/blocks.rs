//! The blocks of a file that are being written. Writes by cuFile hold their blocks alone.
//!
//! On a direct route, libcufile writes whole blocks. Where a range ends within one, libcufile reads it, changes it and
//! writes it back. Bytes that another writer puts there at the same time are lost.
//!
//! Writes through the page cache share theirs with each other. A writer takes all blocks of one call of libcufile or
//! the kernel at once, and no others before it has released them. Hence no writer waits for a writer that waits.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};

use cufile::fork::{Generation, Mutex, OnceCell};

/// The files that are being written, by block device and inode.
#[derive(Debug, Default)]
pub(super) struct WrittenFiles(Mutex<HashMap<(u64, u64), Weak<Blocks>>>);

impl WrittenFiles {
    /// Returns the files of the process, because two engines may have one file open.
    ///
    /// A forked child gets its own, because no thread of the child releases the blocks that the parent's
    /// threads held.
    pub fn of_process() -> &'static Self {
        static FILES: OnceCell<WrittenFiles> = OnceCell::new();
        FILES.get_or_init(Self::default)
    }

    /// Returns the blocks of a file. The caller has the file open, so no other file gets its inode.
    pub fn blocks_of(&self, file: (u64, u64)) -> Arc<Blocks> {
        let mut files = self.0.lock();
        if let Some(blocks) = files.get(&file).and_then(Weak::upgrade) {
            return blocks;
        }
        if files.len() == files.capacity() {
            files.retain(|_, blocks| blocks.strong_count() > 0);
        }
        let blocks = Arc::new(Blocks::new());
        files.insert(file, Arc::downgrade(&blocks));
        blocks
    }
}

#[derive(Debug)]
pub(super) struct Blocks {
    /// The process whose threads write.
    generation: Generation,
    state: Mutex<State>,
    /// Notified when a writer ends while others wait.
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    writers: Vec<Writer>,
    waiting: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Writer {
    first: u64,
    last: u64,
    sharing: Sharing,
}

/// The other writers that a writer tolerates in its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    Alone,
    /// The kernel keeps the bytes of those that share apart.
    Shared,
}

impl Writer {
    /// The range must not be empty.
    fn new(offset: u64, len_bytes: usize, sharing: Sharing) -> Self {
        /// The size in bytes of the blocks that libcufile reads and writes as a whole.
        const BLOCK_BYTES: u64 = 4096;
        let last = offset.saturating_add(len_bytes as u64 - 1);
        Self { first: offset / BLOCK_BYTES, last: last / BLOCK_BYTES, sharing }
    }

    fn bears(&self, other: &Self) -> bool {
        let is_apart = self.last < other.first || other.last < self.first;
        is_apart || self.sharing == Sharing::Shared && other.sharing == Sharing::Shared
    }
}

impl Blocks {
    fn new() -> Self {
        Self { generation: Generation::current(), state: Mutex::default(), freed: Condvar::new() }
    }

    /// Returns false in a forked child, where no thread releases what the parent's threads held.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.generation.is_current()
    }

    /// Waits until a range's blocks may be written, and holds them until the result is dropped. Returns
    /// `None` for an empty range.
    pub(super) fn hold(self: &Arc<Self>, offset: u64, len_bytes: usize, sharing: Sharing) -> Option<Held> {
        if len_bytes == 0 {
            return None;
        }
        let writer = Writer::new(offset, len_bytes, sharing);
        let mut state = self.state();
        while !state.writers.iter().all(|other| writer.bears(other)) {
            state.waiting += 1;
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state.writers.push(writer);
        Some(Held { blocks: self.clone(), writer })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The blocks that a writer holds, until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    blocks: Arc<Blocks>,
    writer: Writer,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.blocks.state();
        if let Some(at) = state.writers.iter().position(|writer| *writer == self.writer) {
            state.writers.swap_remove(at);
        }
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.blocks.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::Sharing::{Alone, Shared};
    use super::*;

    /// Forks, and returns whether `holds` in the child.
    fn in_a_child(holds: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child uses only its own locks, and ends without returning.
        let child = unsafe { libc::fork() };
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
    fn forked_children_start_with_no_written_files() {
        let blocks_of_file = || WrittenFiles::of_process().blocks_of((1, 1));
        let blocks = blocks_of_file();
        assert!(Arc::ptr_eq(&blocks, &blocks_of_file()));
        assert!(in_a_child(|| !Arc::ptr_eq(&blocks, &blocks_of_file())));
        assert!(blocks.is_of_this_process() && in_a_child(|| !blocks.is_of_this_process()));
    }

    fn bear_each_other(one: (u64, usize, Sharing), other: (u64, usize, Sharing)) -> bool {
        let [one, other] =
            [one, other].map(|(offset, len_bytes, sharing)| Writer::new(offset, len_bytes, sharing));
        assert_eq!(one.bears(&other), other.bears(&one));
        one.bears(&other)
    }

    #[test]
    fn closed_files_are_forgotten() {
        let files = WrittenFiles::default();
        let (one, other) = (files.blocks_of((1, 5)), files.blocks_of((2, 5)));
        assert!(Arc::ptr_eq(&one, &files.blocks_of((1, 5))));
        assert!(!Arc::ptr_eq(&one, &other) && !Arc::ptr_eq(&one, &files.blocks_of((1, 6))));
        (0..10_000).for_each(|inode| drop(files.blocks_of((3, inode))));
        assert!(files.0.lock().len() < 100, "closed files are forgotten");
        assert!(Arc::ptr_eq(&one, &files.blocks_of((1, 5))));
    }

    #[test]
    fn writers_conflict_if_they_touch_one_block() {
        for (one, other, apart) in [
            ((0, 1), (1, 1), false),
            ((0, 1), (4095, 1), false),
            ((0, 4096), (4096, 1), true),
            ((0, 4097), (4096, 1), false),
            ((0, 4097), (8191, 100), false),
            ((0, 4097), (8192, 100), true),
            ((10_000, 100_000), (20_000, 1), false),
            ((10_000, 1), (8191, 1), true),
            ((10_000, 1), (8192, 1), false),
            ((u64::MAX, 5), (u64::MAX - 4095, 1), false),
        ] {
            for (sharing, other_sharing) in [(Alone, Alone), (Alone, Shared), (Shared, Alone)] {
                let found = bear_each_other((one.0, one.1, sharing), (other.0, other.1, other_sharing));
                assert_eq!(found, apart, "{one:?} beside {other:?}");
            }
            assert!(bear_each_other((one.0, one.1, Shared), (other.0, other.1, Shared)));
        }
    }

    #[test]
    fn empty_ranges_hold_no_block() {
        let blocks = Arc::new(Blocks::new());
        let _alone = blocks.hold(0, 10, Alone);
        assert!(blocks.hold(5, 0, Alone).is_none());
    }

    #[test]
    fn exclusive_writers_wait_for_shared_writers() {
        let blocks = Arc::new(Blocks::new());
        let (first, second) = (blocks.hold(0, 10, Shared), blocks.hold(10, 10, Shared));
        let elsewhere = blocks.hold(4096, 10, Alone);
        thread::scope(|scope| {
            let alone = scope.spawn(|| drop(blocks.hold(20, 1, Alone)));
            for held in [first, second] {
                thread::sleep(Duration::from_millis(30));
                assert!(!alone.is_finished());
                drop(held);
            }
            alone.join().unwrap();
        });
        drop(elsewhere);
        assert!(blocks.state().writers.is_empty());
        assert_eq!(blocks.state().waiting, 0);
    }

    #[test]
    fn only_shared_writers_hold_one_block_together() {
        const COUNT: usize = 6;
        let blocks = Arc::new(Blocks::new());
        // The number of writers that share each block; -1 while one writer holds it alone.
        let found: [AtomicI32; COUNT] = Default::default();
        thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (blocks, found) = (&blocks, &found);
                scope.spawn(move || {
                    let mut random = thread;
                    for _ in 0..2000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let number = |shift: u64, below: u64| (random >> shift) % below;
                        let first = number(33, COUNT as u64);
                        let offset = first * 4096 + number(40, 4096);
                        let most = COUNT * 4096 - offset as usize;
                        let len_bytes = 1 + number(20, 9000) as usize % most;
                        let last = (offset as usize + len_bytes - 1) / 4096;
                        let sharing = if number(60, 2) == 0 { Alone } else { Shared };
                        let _held = blocks.hold(offset, len_bytes, sharing);
                        for block in &found[first as usize..=last] {
                            match sharing {
                                Alone => assert_eq!(block.swap(-1, Ordering::SeqCst), 0),
                                Shared => assert!(block.fetch_add(1, Ordering::SeqCst) >= 0),
                            }
                        }
                        thread::yield_now();
                        for block in &found[first as usize..=last] {
                            match sharing {
                                Alone => assert_eq!(block.swap(0, Ordering::SeqCst), -1),
                                Shared => assert!(block.fetch_sub(1, Ordering::SeqCst) >= 1),
                            }
                        }
                    }
                });
            }
        });
        assert!(blocks.state().writers.is_empty());
    }
}
