//! Pinned memory that the host and a stream hand to each other, slot by slot.
//!
//! Each use of a slot has a number, one more than the use before. Each side has a word, and writes the number there
//! when it hands the slot to the other. Both words only grow, so a late reader still finds enough.

use std::any::Any;
use std::mem;
use std::sync::Arc;

use cufile::cuda::{PinnedBuffer, Stream};

use super::super::sync::{AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::route::Counters;

/// One for the host, and one for the GPU. More would leave the processor's cache before their turn, which costs more
/// than waiting.
pub(crate) const SLOTS: usize = 2;

/// Slots of pinned memory, for one stream at a time.
pub(crate) struct Ring {
    /// The words; the slots follow.
    start: *mut u8,
    slot_bytes: usize,
    /// The owner of the memory.
    memory: Box<dyn Any>,
    /// The GPU and the stream whose transfers use the ring. The next field is the number of these transfers.
    stream: Mutex<(u32, usize)>,
    transfers: AtomicUsize,
    turns: Mutex<Turns>,
}

// SAFETY: the pointer leads into memory that the ring owns. Words are atomics, and say which side owns a
// slot.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// The slot to be used next, and the number of uses of each.
#[derive(Default)]
pub(crate) struct Turns {
    next: usize,
    uses: [u32; SLOTS],
}

/// A use of a slot.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    slot: usize,
    number: u32,
}

impl Turns {
    pub fn take(&mut self) -> Turn {
        let slot = self.next;
        self.next = (slot + 1) % SLOTS;
        self.uses[slot] = self.uses[slot].wrapping_add(1);
        Turn { slot, number: self.uses[slot] }
    }
}

impl Turn {
    pub fn before(self) -> Self {
        Self { number: self.number.wrapping_sub(1), ..self }
    }
}

/// Words are a cache line apart.
const STRIDE_BYTES: usize = 64;
const WORDS_BYTES: usize = 4096;

impl Ring {
    fn new(stream: &Stream, slot_bytes: usize) -> cufile::Result<Self> {
        let mut memory = stream.device().alloc_pinned(len_bytes_for(slot_bytes))?;
        Ok(Self::over(memory.as_mut_ptr(), slot_bytes, Box::new(memory)))
    }

    /// Returns a ring over memory that begins at `start`, with room for words and slots.
    pub(crate) fn over(start: *mut u8, slot_bytes: usize, memory: Box<dyn Any>) -> Self {
        Self {
            start,
            slot_bytes,
            memory,
            stream: Mutex::default(),
            transfers: AtomicUsize::new(0),
            turns: Mutex::default(),
        }
    }

    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Locks the turns. The caller keeps the lock until it has submitted their operations, so that no other transfer's
    /// come between.
    pub fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock()
    }

    pub fn slot(&self, turn: Turn) -> *mut u8 {
        self.start.wrapping_add(WORDS_BYTES + turn.slot * self.slot_bytes)
    }

    /// Returns the word by which the host hands a slot to the stream, and the value that does so.
    pub fn to_stream(&self, turn: Turn) -> (*mut u32, u32) {
        (self.start.wrapping_add(2 * turn.slot * STRIDE_BYTES).cast(), turn.number)
    }

    /// Returns the same for the stream, which hands a slot to the host.
    pub fn to_host(&self, turn: Turn) -> (*mut u32, u32) {
        (self.start.wrapping_add((2 * turn.slot + 1) * STRIDE_BYTES).cast(), turn.number)
    }

    pub fn hand_to_stream(&self, turn: Turn) {
        let (word, number) = self.to_stream(turn);
        self.word(word).store(number, Ordering::Release);
    }

    /// Hands a slot to the host for a stream that will not, but is done with all operations before.
    pub fn hand_to_host(&self, turn: Turn) {
        let (word, number) = self.to_host(turn);
        self.word(word).store(number, Ordering::Release);
    }

    /// Returns whether the stream is done with this use, or a later one.
    pub fn is_with_host(&self, turn: Turn) -> bool {
        self.has_come_to(self.to_host(turn))
    }

    /// Returns the same for the host.
    pub fn is_with_stream(&self, turn: Turn) -> bool {
        self.has_come_to(self.to_stream(turn))
    }

    fn has_come_to(&self, (word, number): (*mut u32, u32)) -> bool {
        self.word(word).load(Ordering::Acquire).wrapping_sub(number).cast_signed() >= 0
    }

    fn word(&self, word: *mut u32) -> &AtomicU32 {
        // SAFETY: the word is aligned, lies in the ring's memory, and the host uses it only as an atomic.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// Ends a transfer's use of the ring, which its stream no longer reaches.
    pub fn release(&self) {
        self.transfers.fetch_sub(1, Ordering::AcqRel);
    }

    fn is_idle(&self) -> bool {
        self.transfers.load(Ordering::Acquire) == 0
    }

    /// Returns whether other code has freed the pinned memory, by a reset of its GPU.
    fn is_lost(&self) -> bool {
        self.memory.downcast_ref::<PinnedBuffer>().is_some_and(|memory| !memory.is_allocated())
    }

    fn serves(&self, stream: (u32, usize)) -> bool {
        *self.stream.lock() == stream
    }

    /// Lets a transfer on this stream use the ring, until it [releases](Self::release) it.
    fn lend_to(&self, stream: (u32, usize)) {
        *self.stream.lock() = stream;
        self.transfers.fetch_add(1, Ordering::AcqRel);
    }

    fn len_bytes(&self) -> usize {
        len_bytes_for(self.slot_bytes)
    }
}

fn len_bytes_for(slot_bytes: usize) -> usize {
    WORDS_BYTES + SLOTS * slot_bytes
}

#[derive(Default)]
pub(crate) struct Rings(Mutex<Made>);

#[derive(Default)]
struct Made {
    /// The rings, oldest first.
    rings: Vec<Arc<Ring>>,
    /// Their pinned bytes, with rings that are being made or freed.
    bytes: usize,
}

impl Rings {
    /// The most bytes of pinned memory that all rings take together.
    const LIMIT_BYTES: usize = 400 << 20;

    /// Lends a ring for a transfer of `len_bytes`, until it is [released](Ring::release). Returns `None` if the limit
    /// is reached or no memory can be allocated. Transfers of one stream follow each other, and share a ring.
    pub fn take(&self, stream: &Stream, len_bytes: usize, counters: &Counters) -> Option<Arc<Ring>> {
        let key = (stream.device().ordinal(), stream.as_raw().addr());
        let slot_bytes = slot_bytes_for(len_bytes);
        let make = || Ring::new(stream, slot_bytes).inspect_err(|error| counters.not_pinned(error));
        self.take_for(key, slot_bytes, make)
    }

    pub(crate) fn take_for(
        &self,
        key: (u32, usize),
        slot_bytes: usize,
        make: impl FnOnce() -> cufile::Result<Ring>,
    ) -> Option<Arc<Ring>> {
        let needed = len_bytes_for(slot_bytes);
        let mut made = self.made();
        let lost: Vec<_> = made.rings.extract_if(.., |ring| ring.is_idle() && ring.is_lost()).collect();
        made.bytes -= lost.iter().map(|ring| ring.len_bytes()).sum::<usize>();
        // CUDA has freed their memory.
        mem::forget(lost);
        loop {
            let mut fitting = made.rings.iter().filter(|ring| ring.slot_bytes == slot_bytes);
            let own = fitting.clone().find(|ring| ring.serves(key));
            if let Some(ring) = own.or_else(|| fitting.find(|ring| ring.is_idle())) {
                ring.lend_to(key);
                return Some(ring.clone());
            }
            if made.bytes + needed <= Self::LIMIT_BYTES {
                break;
            }
            let idle = made.rings.iter().position(|ring| ring.is_idle())?;
            let idle = made.rings.remove(idle);
            drop(made);
            self.free(vec![idle]);
            made = self.made();
        }
        made.bytes += needed;
        drop(made);
        let ring = make().map(Arc::new);
        let mut made = self.made();
        let Ok(ring) = ring else {
            made.bytes -= needed;
            return None;
        };
        ring.lend_to(key);
        made.rings.push(ring.clone());
        Some(ring)
    }

    pub fn pinned_bytes(&self) -> usize {
        self.made().bytes
    }

    /// Frees the unused rings. Returns the bytes freed.
    pub fn free_idle(&self) -> usize {
        let idle = self.made().rings.extract_if(.., |ring| ring.is_idle()).collect();
        self.free(idle)
    }

    /// Frees removed rings, which takes long, and then subtracts their bytes. Returns them.
    fn free(&self, rings: Vec<Arc<Ring>>) -> usize {
        let bytes = rings.iter().map(|ring| ring.len_bytes()).sum();
        drop(rings);
        self.made().bytes -= bytes;
        bytes
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.0.lock()
    }
}

/// Returns the slot length in bytes for a transfer of `len_bytes`. It is long enough that a call submits
/// little, and short enough that copying begins soon.
pub(crate) fn slot_bytes_for(len_bytes: usize) -> usize {
    const MIB: usize = 1 << 20;
    match len_bytes {
        0 => 0,
        len if len <= 3 * MIB => MIB,
        len if len <= 192 * MIB => 8 * MIB,
        _ => 48 * MIB,
    }
}
