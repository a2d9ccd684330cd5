//! The host's side of a transfer that a stream waits for. The transfer is carried out in parts, each with a [load].
//!
//! The call submits everything that the stream will do: wait until the host hands it a slot of the [ring],
//! copy, and hand the slot back. From then on the host calls CUDA no more, because the holder of CUDA's locks
//! may wait for this very stream.

pub(super) mod load;
pub(super) mod ring;
pub(super) mod thread;

use std::mem::ManuallyDrop;
use std::sync::{Arc, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;
use std::{ptr, slice};

use cufile::cuda::{Event, Stream, WordOperation};

use self::load::{Load, Loads, SlotCopy};
use self::ring::{Ring, SLOTS, Turn, Turns};
use self::thread::RelayThread;
use super::plan::transfer::{Choices, Growth, IoRange, Transfer};
use super::sync::{Condvar, Instant, Mutex, MutexGuard, sleep};
use super::work::job::Job;
use super::work::workers::Workers;
use crate::direction::Direction;
use crate::memory::{Memory, Place};
use crate::open_file::OpenFile;
use crate::open_file::outcome::EntryStop;

/// The caller's side of a relay, which frees what it keeps.
///
/// After [`finish`](Self::finish) or [`give_up`](Self::give_up), dropping it frees the file, the ring, and perhaps the
/// thread of relays. Before, the stream may still need all of that, so dropping leaks it.
pub(crate) struct OwnedRelay {
    relay: ManuallyDrop<Arc<Relay>>,
    is_over: bool,
}

/// A transfer that a stream waits for. Other threads refer to it, but free nothing that it keeps, because freeing pinned
/// memory calls CUDA.
pub(crate) struct Relay {
    /// Only [`OwnedRelay`] drops this.
    kept: ManuallyDrop<Kept>,
    chunk_bytes: Option<usize>,
    direction: Direction,
    memory: Memory,
    /// The ranges of the file, and their places in the memory.
    ranges: Arc<[IoRange]>,
    parts: Box<[Part]>,
    pieces: Vec<IoRange>,
    state: Mutex<State>,
    ended: Condvar,
}

/// The values that a relay refers to, except the buffer's memory.
struct Kept {
    file: Arc<OpenFile>,
    ring: Arc<Ring>,
    /// The thread of relays and its workers, which serve the stream even if no engine is left.
    thread: Arc<RelayThread>,
}

// SAFETY: only the addresses of the memory and of the slots keep a relay from being `Send`. They stay valid, as
// `OwnedRelay::new` demands, and any thread may use them.
unsafe impl Send for Relay {}
// SAFETY: as above.
unsafe impl Sync for Relay {}

struct Part {
    turn: Turn,
    /// The memory that the file's side uses: the slot, or the caller's memory if the host can access that.
    host: Memory,
    load: Load,
}

#[derive(Default)]
struct State {
    next: usize,
    running: usize,
    latest: Option<Arc<Job>>,
    /// The number of the first part that stopped early, and its stop.
    stop: Option<(usize, EntryStop)>,
    /// The time at which the stream reached the transfer.
    begun: Option<Instant>,
    /// True if enough is submitted to start the first part. Earlier, workers would slow down the submitting.
    is_submitted: bool,
    given_up: bool,
    ended: bool,
}

impl OwnedRelay {
    /// Returns a relay that uses these turns of the ring. [`finish`](Self::finish) or
    /// [`give_up`](Self::give_up) releases the ring.
    ///
    /// # Safety
    /// Until one of these has returned, the memory must meet the promises of [`IoBuf`](cufile::IoBuf) (for reads,
    /// [`IoBufMut`](cufile::IoBufMut)).
    pub unsafe fn new(
        (file, chunk_bytes): (Arc<OpenFile>, Option<usize>),
        direction: Direction,
        memory: Memory,
        ranges: Arc<[IoRange]>,
        thread: Arc<RelayThread>,
        ring: &Arc<Ring>,
        turns: &mut Turns,
    ) -> Self {
        let Loads { pieces, loads } = match memory.place {
            Place::Host => Loads::whole(&ranges),
            Place::Device(_) => Loads::cut(&ranges, ring.slot_bytes()),
        };
        let parts = loads.into_iter().map(|load| {
            let turn = turns.take();
            let host = match memory.place {
                Place::Host => memory,
                Place::Device(_) => Memory::on_host(ring.slot(turn), load.len_bytes),
            };
            Part { turn, host, load }
        });
        let relay = Relay {
            kept: ManuallyDrop::new(Kept { file, ring: ring.clone(), thread }),
            chunk_bytes,
            direction,
            memory,
            parts: parts.collect(),
            pieces,
            ranges,
            state: Mutex::default(),
            ended: Condvar::new(),
        };
        Self { relay: ManuallyDrop::new(Arc::new(relay)), is_over: false }
    }

    /// Submits the transfer's operations to the stream. Returns the event that marks their end.
    ///
    /// # Errors
    /// The error that CUDA returned; some operations may have been submitted.
    pub fn submit(&self, stream: &Stream) -> cufile::Result<Event> {
        self.relay.submit(stream)
    }

    /// Waits until the transfer has ended. Returns the first stop of a range. Called once, after the stream has passed
    /// all submitted operations.
    pub fn finish(&mut self) -> Option<EntryStop> {
        let stop = self.relay.finish();
        self.is_over = true;
        stop
    }

    /// Gives up a relay that could not be submitted, or whose stream failed. It starts no more parts, and the stream no
    /// longer waits. `stream_is_done` waits for the submitted operations. `is_dead` returns whether the stream will
    /// never go on. Called once, instead of [`finish`](Self::finish).
    ///
    /// If the stream is dead, transfers before this one may have stopped in the middle of their turns. The ring is then
    /// not released.
    pub fn give_up(&mut self, is_dead: impl Fn() -> bool, stream_is_done: impl FnOnce()) {
        self.relay.give_up(is_dead, stream_is_done);
        self.is_over = true;
    }

    pub fn has_ended(&self) -> bool {
        self.relay.state().ended
    }
}

impl Drop for OwnedRelay {
    fn drop(&mut self) {
        if self.is_over {
            // SAFETY: only the owner reads `kept` like this, once. Nothing uses the copy behind it any more: the
            // transfer has ended, and other holders of the relay then only drop it.
            drop(unsafe { ptr::read(&*self.relay.kept) });
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.relay) };
        }
    }
}

impl Relay {
    fn submit(self: &Arc<Self>, stream: &Stream) -> cufile::Result<Event> {
        /// The number of copies submitted before the host begins. A stream has room for about a thousand calls, and then
        /// makes submitting wait.
        const MOST_AHEAD: usize = 64;
        let _entered = stream.device().enter()?;
        let (this, begin) = (self.clone(), self.kept.thread.begin());
        stream.call_on_host(move || begin(this))?;
        // A call takes a microsecond or two, so adjacent operations are submitted together.
        let mut words = Vec::new();
        let mut ahead = 0;
        for part in &self.parts {
            if ahead >= MOST_AHEAD {
                self.state().is_submitted = true;
            }
            words.push(self.wait_for(match self.direction {
                Direction::Read => part.turn,
                Direction::Write => part.turn.before(),
            }));
            if self.memory.place != Place::Host {
                self.submit_words(stream, &mut words)?;
                for copy in part.load.copies(&self.pieces, &self.ranges) {
                    self.submit_copy(stream, part, copy)?;
                    ahead += 1;
                }
            }
            let (word, number) = self.ring().to_host(part.turn);
            words.push(WordOperation::Write(word, number));
        }
        if self.direction == Direction::Write {
            // The stream also waits for the last use of each slot.
            words.extend(self.parts.iter().rev().take(SLOTS).map(|part| self.wait_for(part.turn)));
        }
        self.submit_words(stream, &mut words)?;
        let passed = stream.record()?;
        self.state().is_submitted = true;
        Ok(passed)
    }

    fn wait_for(&self, turn: Turn) -> WordOperation {
        let (word, number) = self.ring().to_stream(turn);
        WordOperation::Wait(word, number)
    }

    fn submit_words(&self, stream: &Stream, words: &mut Vec<WordOperation>) -> cufile::Result<()> {
        // SAFETY: these are words of the ring. Its memory may be freed only after the release, when the
        // stream has passed.
        unsafe { stream.on_words(words) }?;
        words.clear();
        Ok(())
    }

    fn submit_copy(&self, stream: &Stream, part: &Part, copy: SlotCopy) -> cufile::Result<()> {
        let SlotCopy { slot_offset, buffer_offset, len_bytes } = copy;
        let device_ptr = self.memory.ptr.wrapping_add(buffer_offset);
        let ptr = part.host.ptr.wrapping_add(slot_offset);
        match self.direction {
            // SAFETY: the stream then owns the slot, and the transfer has exclusive use of the memory that it
            // copies to.
            Direction::Read => unsafe {
                stream.copy_to_device(device_ptr, slice::from_raw_parts(ptr, len_bytes))
            },
            // SAFETY: the transfer keeps the memory that it copies from, and the stream then owns the slot.
            Direction::Write => unsafe {
                stream.copy_from_device(slice::from_raw_parts_mut(ptr, len_bytes), device_ptr)
            },
        }
    }

    /// Notes that the stream has reached the relay. Returns false if the relay was given up before.
    pub fn begin(&self) -> bool {
        let mut state = self.state();
        state.begun = (!state.given_up).then(Instant::now);
        state.begun.is_some()
    }

    /// Starts the parts whose turn it is. Returns whether the transfer has ended.
    pub fn advance(self: &Arc<Self>) -> bool {
        /// The longest that submitting takes, unless it waits for the stream, which waits for this relay.
        const SUBMITTING: Duration = Duration::from_millis(1);
        let mut state = self.state();
        let may_start = |state: &State| {
            (state.is_submitted || state.begun.is_some_and(|begun| begun.elapsed() > SUBMITTING))
                && state.next < self.parts.len()
                && !state.given_up
                && self.is_ready(state)
        };
        while may_start(&state) {
            let number = state.next;
            state.next += 1;
            if state.stop.is_some() {
                self.hand_on(&self.parts[number], 0);
                continue;
            }
            state.running += 1;
            drop(state);
            self.start(number);
            state = self.state();
        }
        let is_complete = state.next == self.parts.len()
            && self.parts.last().is_none_or(|part| self.ring().is_with_host(part.turn));
        if state.running > 0 || !(state.given_up || is_complete) {
            return false;
        }
        state.ended = true;
        self.ended.notify_all();
        true
    }

    fn is_ready(&self, state: &State) -> bool {
        let turn = self.parts[state.next].turn;
        match self.direction {
            Direction::Read => {
                self.ring().is_with_host(turn.before()) && self.ring().is_with_stream(turn.before())
            }
            // Parts are written one after the other, so that a failure leaves no gap before written bytes.
            Direction::Write => state.running == 0 && self.ring().is_with_host(turn),
        }
    }

    fn start(self: &Arc<Self>, number: usize) {
        let job = self.prepare(&self.parts[number]);
        let done = Arc::new(PartDone { relay: self.clone(), number, job: job.clone() });
        if job.poll(&Waker::from(done.clone())).is_ready() {
            return done.wake();
        }
        // The stream waits for the part before.
        let before = self.state().latest.replace(job.clone());
        self.workers().submit(&job, before.as_ref());
    }

    fn prepare(&self, part: &Part) -> Arc<Job> {
        let Self { direction, chunk_bytes, .. } = *self;
        let choices = Choices { chunk_bytes, growth: Growth::AsWritten, is_inline: false, each: false };
        let pieces = &self.pieces[part.load.pieces.clone()];
        let transfer = Transfer::of_file(direction, &self.kept.file, part.host, pieces, choices);
        // SAFETY: everything stays valid until the transfer ends, which is after the job is finished.
        let prepared = unsafe { self.workers().prepare(&transfer) };
        let (job, _) = prepared.expect("checked ranges, which do not overlap");
        job
    }

    /// Hands a part with `valid_bytes` valid bytes to the stream.
    fn hand_on(&self, part: &Part, valid_bytes: usize) {
        if self.direction == Direction::Read && self.memory.place != Place::Host {
            // The bytes behind them in the slot belong to another transfer.
            // SAFETY: the host owns the slot, which is as long.
            unsafe { part.host.ptr.add(valid_bytes).write_bytes(0, part.host.len_bytes - valid_bytes) };
        }
        self.ring().hand_to_stream(part.turn);
    }

    fn finish(&self) -> Option<EntryStop> {
        let mut state = self.state();
        while !state.ended {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.ring().release();
        let (number, stop) = state.stop.take()?;
        Some(self.parts[number].load.stop_of_caller(stop))
    }

    fn give_up(&self, is_dead: impl Fn() -> bool, stream_is_done: impl FnOnce()) {
        let mut state = self.state();
        state.given_up = true;
        while state.begun.is_some() && !state.ended {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.ended = true;
        drop(state);
        let (ring, turns) = (self.ring(), self.parts.iter().map(|part| part.turn));
        // Only the owner of a slot passes it on. Transfers before this one may still use their slots, and
        // those behind it may already have theirs.
        let in_turn = |has_passed_on: &dyn Fn(Turn) -> bool, pass_on: &dyn Fn(Turn)| {
            turns.clone().all(|turn| {
                while !has_passed_on(turn.before()) {
                    if is_dead() {
                        return false;
                    }
                    sleep(Duration::from_micros(50));
                }
                if !has_passed_on(turn) {
                    pass_on(turn);
                }
                true
            })
        };
        if !in_turn(&|turn| ring.is_with_stream(turn), &|turn| ring.hand_to_stream(turn)) {
            return;
        }
        stream_is_done();
        if in_turn(&|turn| ring.is_with_host(turn), &|turn| ring.hand_to_host(turn)) {
            ring.release();
        }
    }

    fn ring(&self) -> &Ring {
        &self.kept.ring
    }

    fn workers(&self) -> &Workers {
        self.kept.thread.workers()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The waker for the end of a part's job.
struct PartDone {
    relay: Arc<Relay>,
    number: usize,
    job: Arc<Job>,
}

impl Wake for PartDone {
    fn wake(self: Arc<Self>) {
        let Self { relay, number, job } = &*self;
        let stop = relay.workers().finish(job.clone()).pop();
        let part = &relay.parts[*number];
        let mut state = relay.state();
        relay.hand_on(part, part.load.valid_bytes(stop.as_ref()));
        if let Some(stop) = stop
            && state.stop.as_ref().is_none_or(|(first, _)| number < first)
        {
            state.stop = Some((*number, stop));
        }
        state.running -= 1;
    }
}
