//! Memory whose parts take part in transfers.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard};

use cufile::fork::Mutex;
use cufile::{IoBuf, IoBufMut, Location};

use crate::kv_blocks::leases::Leases;

/// Memory that blocks are stored from and fetched into: the paged memory of a KV cache, or a tensor of one layer.
///
/// The region owns its buffer, on a GPU or on the host. [`piece`](Self::piece) names a part of it. A part belongs to at most
/// one transfer at a time, from the call until the storage has answered. That may be long after the caller has cancelled.
/// Until then the engine may write to it, and another call that names it gets [`BlockError::InUse`](super::BlockError). So a
/// late answer of a storage never changes bytes that have a new use.
///
/// In a forked child, a region of its parent has no bytes, and no access.
///
/// Clones refer to the same memory, which is freed when the last clone and the last transfer are gone. Kernels use the
/// memory through the addresses of the buffer; the region does not see them.
///
/// ```
/// use gpufile::kv_blocks::Region;
///
/// let region = Region::new(vec![0; 8192]); // or device memory
/// region.access(|bytes| bytes[..4].copy_from_slice(b"keys")).expect("no transfer uses it");
/// assert_eq!((region.len_bytes(), region.bytes_in_use()), (8192, 0));
/// ```
pub struct Region<B> {
    shared: Arc<Shared>,
    buffer: PhantomData<fn() -> B>,
}

/// A part of a [`Region`], and its place in a block.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    pub(super) shared: &'a Arc<Shared>,
    /// The start of the piece in the region, in bytes.
    pub offset: usize,
    /// The length of the piece, in bytes.
    pub len_bytes: usize,
    /// The start of the piece in its block, in bytes.
    pub block_offset: usize,
}

/// The memory of a region, without the type of its buffer.
pub(super) struct Shared {
    state: Mutex<State>,
}

struct State {
    /// On the heap, so that the bytes stay in place. Freed when the state is dropped.
    buffer: NonNull<dyn Any + Send>,
    memory: RegionMemory,
    leases: Leases,
    /// True while the owner has access to the buffer.
    is_accessed: bool,
}

/// The bytes of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RegionMemory {
    ptr: *mut u8,
    len_bytes: usize,
    location: Location,
}

// SAFETY: the buffer is `Send`. The pointers refer to it, and transfers may use its bytes from any thread.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Send for RegionMemory {}
// SAFETY: a shared reference gives no access to the bytes without a lease.
unsafe impl Sync for RegionMemory {}

impl<B: IoBufMut + Send + 'static> Region<B> {
    /// Takes over a buffer.
    pub fn new(buffer: B) -> Self {
        let buffer = Box::leak(Box::new(buffer));
        let memory = RegionMemory::of(buffer);
        let (buffer, leases) = (NonNull::from(buffer as &mut (dyn Any + Send)), Leases::default());
        let state = Mutex::new(State { buffer, memory, leases, is_accessed: false });
        Self { shared: Arc::new(Shared { state }), buffer: PhantomData }
    }

    /// Calls `access` with the buffer. Returns `None` without a call while a transfer or another access uses some of it.
    pub fn access<R>(&self, access: impl FnOnce(&mut B) -> R) -> Option<R> {
        /// Ends the access, also after a panic. The buffer may have changed.
        struct Ends<'a, B: IoBufMut>(&'a Shared, &'a mut B);
        impl<B: IoBufMut> Drop for Ends<'_, B> {
            fn drop(&mut self) {
                let memory = RegionMemory::of(self.1);
                // None in a child that the access forked.
                let Some(mut state) = self.0.lock() else { return };
                state.memory = memory;
                state.is_accessed = false;
            }
        }
        let buffer = {
            let mut state = self.shared.lock()?;
            if state.is_accessed || state.leases.bytes() > 0 {
                return None;
            }
            state.is_accessed = true;
            state.buffer.cast::<B>()
        };
        // SAFETY: `new` made it of a `B`. `is_accessed` keeps transfers and other accesses away.
        let ends = Ends(&self.shared, unsafe { &mut *buffer.as_ptr() });
        Some(access(ends.1))
    }
}

impl<B> Region<B> {
    /// Returns a part of the memory: `len_bytes` from `offset` on, which are the bytes of a block from `block_offset` on.
    /// The call that gets it checks it.
    pub fn piece(&self, offset: usize, len_bytes: usize, block_offset: usize) -> Piece<'_> {
        Piece { shared: &self.shared, offset, len_bytes, block_offset }
    }

    /// Returns the length of the memory in bytes.
    pub fn len_bytes(&self) -> usize {
        self.shared.lock().map_or(0, |state| state.memory.len_bytes)
    }

    /// Returns the number of bytes that transfers use.
    pub fn bytes_in_use(&self) -> usize {
        self.shared.lock().map_or(0, |state| state.leases.bytes())
    }
}

impl Shared {
    /// Returns the state; `None` in a forked child, where the memory is as a thread of the parent may have left it.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.lock_unless_forked()
    }

    /// Takes the pieces of a block, which are ranges of this region, or none of them.
    ///
    /// # Errors
    /// [`Refused`], with the length of the region in bytes if a piece exceeds it.
    pub fn take(&self, ranges: impl Iterator<Item = Range<usize>> + Clone) -> Result<RegionMemory, Refused> {
        let Some(mut state) = self.lock() else { return Err(Refused::InUse) };
        let State { memory, leases, is_accessed, .. } = &mut *state;
        if *is_accessed {
            return Err(Refused::InUse);
        }
        for (taken, range) in ranges.clone().enumerate() {
            let is_within = range.end <= memory.len_bytes;
            if !is_within || !leases.take(range) {
                ranges.take(taken).for_each(|range| leases.give_back(range));
                return Err(if is_within { Refused::InUse } else { Refused::Beyond(memory.len_bytes) });
            }
        }
        Ok(*memory)
    }

    /// Gives ranges back that were taken.
    pub fn give_back(&self, ranges: impl Iterator<Item = Range<usize>>) {
        let Some(mut state) = self.lock() else { return };
        ranges.for_each(|range| state.leases.give_back(range));
    }
}

/// The reason why pieces were not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    InUse,
    /// A piece exceeds the region of this length.
    Beyond(usize),
}

impl RegionMemory {
    fn of<B: IoBufMut>(buffer: &mut B) -> Self {
        Self { ptr: buffer.as_mut_ptr(), len_bytes: buffer.len_bytes(), location: buffer.location() }
    }
}

// SAFETY: the region keeps its buffer in place, and a lease keeps it from being accessed.
unsafe impl IoBuf for RegionMemory {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        self.location
    }
}

// SAFETY: a transfer uses only the ranges that it has leased.
unsafe impl IoBufMut for RegionMemory {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: `new` leaked it. No transfer has a lease, because a lease keeps the region.
        drop(unsafe { Box::from_raw(self.buffer.as_ptr()) });
    }
}

impl<B> Clone for Region<B> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), buffer: PhantomData }
    }
}

impl<B> fmt::Debug for Region<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len_bytes, in_use) = (self.len_bytes(), self.bytes_in_use());
        f.debug_struct("Region").field("len_bytes", &len_bytes).field("bytes_in_use", &in_use).finish()
    }
}

impl fmt::Debug for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, len_bytes, block_offset, .. } = self;
        write!(f, "{len_bytes} bytes at {offset} of a region, at {block_offset} of a block")
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn access_and_transfers_exclude_each_other() {
        let region = Region::new(vec![1_u8; 100]);
        let ranges = [0..10, 20..30];
        let memory = region.shared.take(ranges.iter().cloned()).unwrap();
        assert_eq!((memory.len_bytes, region.bytes_in_use()), (100, 20));
        assert!(region.access(|_| ()).is_none());
        // Of several ranges all are taken or none.
        let others = [40..50, 29..31];
        assert_eq!(region.shared.take(others.iter().cloned()), Err(Refused::InUse));
        assert_eq!(region.shared.take(iter::once(50..101)), Err(Refused::Beyond(100)));
        region.shared.take(iter::once(40..50)).unwrap();
        region.shared.give_back(iter::once(40..50).chain(ranges));

        let inner = region.access(|bytes| {
            bytes.resize(10_000, 7);
            assert!(region.access(|_| ()).is_none());
            region.shared.take(iter::once(0..1))
        });
        assert_eq!(inner, Some(Err(Refused::InUse)));
        assert_eq!(region.len_bytes(), 10_000);
        let panicked = catch_unwind(AssertUnwindSafe(|| region.access(|_| panic!("in an access"))));
        assert!(panicked.is_err());
        assert_eq!(region.access(|bytes| bytes[9999]), Some(7));
    }

    #[test]
    fn the_buffer_lives_as_long_as_the_last_lease() {
        let kept = Arc::new(());
        struct Noted(Vec<u8>, #[allow(dead_code, reason = "its count is what the test reads")] Arc<()>);
        // SAFETY: the vector is never changed.
        unsafe impl IoBuf for Noted {
            fn as_ptr(&self) -> *const u8 {
                self.0.as_ptr()
            }
            fn len_bytes(&self) -> usize {
                self.0.len()
            }
            fn location(&self) -> Location {
                Location::HOST
            }
        }
        // SAFETY: the value owns the vector alone.
        unsafe impl IoBufMut for Noted {
            fn as_mut_ptr(&mut self) -> *mut u8 {
                self.0.as_mut_ptr()
            }
        }
        let region = Region::new(Noted(vec![0; 10], kept.clone()));
        let shared = region.piece(0, 1, 0).shared.clone();
        drop(region);
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(shared);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
