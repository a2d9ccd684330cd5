//! Words in pinned memory that streams wait for.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cufile::cuda::{Device, PinnedBuffer};

/// A page of words, and those that are free with the value that each has.
#[derive(Default)]
pub(crate) struct Words(Mutex<State>);

#[derive(Default)]
struct State {
    page: Option<PinnedBuffer>,
    free: Vec<(usize, u32)>,
}

/// Words are a cache line apart.
const STRIDE_BYTES: usize = 64;
const WORDS: usize = 256;

impl Words {
    /// A word that nobody waits for; `None` if all are in use, or no memory is to be had.
    pub fn take(self: &Arc<Self>, device: &Device) -> Option<Word> {
        let mut state = self.state();
        if state.page.is_none() {
            state.page = Some(device.alloc_pinned(WORDS * STRIDE_BYTES).ok()?);
            state.free = (0..WORDS).map(|index| (index, 0)).collect();
        }
        let (index, value) = state.free.pop()?;
        let page = state.page.as_mut().expect("allocated above");
        let word = page.as_mut_ptr().wrapping_add(index * STRIDE_BYTES).cast();
        Some(Word { words: self.clone(), index, word, awaited: value.wrapping_add(1) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A word, and the value that is waited for. Values only grow, so that a stream that looks late finds enough too.
pub(crate) struct Word {
    words: Arc<Words>,
    index: usize,
    word: *mut u32,
    awaited: u32,
}

// SAFETY: a pointer to memory that `words` keeps, accessed as an atomic.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    pub fn as_ptr(&self) -> *const u32 {
        self.word
    }

    pub fn awaited(&self) -> u32 {
        self.awaited
    }

    /// Lets the stream go on.
    pub fn set(&self) {
        // SAFETY: aligned, kept by `words`, and accessed by nothing else of the host but as an atomic.
        unsafe { AtomicU32::from_ptr(self.word) }.store(self.awaited, Ordering::Release);
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // SAFETY: as in `set`.
        let value = unsafe { AtomicU32::from_ptr(self.word) }.load(Ordering::Relaxed);
        self.words.state().free.push((self.index, value));
    }
}
