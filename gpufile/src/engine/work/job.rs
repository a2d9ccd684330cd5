//! A transfer that workers share: its chunks, the claims to them, and what stopped it. Also the order in
//! which chunks are handed out.

use std::cell::UnsafeCell;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};

use super::super::plan::chunks::Chunks;
use super::super::plan::schedule::{Order, Plan};
use super::super::plan::transfer::{Segment, Transfer};
use super::super::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, look_until};
use crate::direction::Direction;
use crate::memory::{Memory, Place};
use crate::open_file::Method;
use crate::open_file::outcome::{EntryStop, Outcome, Stop};

/// The action that is due after a claim was completed.
#[must_use]
pub(crate) enum NextStep {
    Nothing,
    /// Workers may now claim chunks of this generation that were held back.
    MoreIsReady(Arc<Job>, u64),
    /// The job is done. The waker, if there is one, must be woken.
    Finished(Option<Waker>),
}

/// A job, which is set up again for other transfers.
#[derive(Default)]
pub(crate) struct Job {
    work: UnsafeCell<Work>,
    state: Mutex<State>,
    /// Notified, while threads wait for it, when all chunks are handed out, and when all are completed.
    progressed: Condvar,
    is_done: AtomicBool,
}

#[derive(Default)]
struct Work {
    /// The transfer, whose true lifetime ends when the job is done.
    transfer: Option<Transfer<'static>>,
    method: Option<Method>,
    chunks: Chunks,
}

impl Work {
    fn transfer(&self) -> &Transfer<'static> {
        self.transfer.as_ref().expect("a job with chunks has a transfer")
    }

    /// Converts a stop within a chunk to the stop of an entry.
    fn locate(&self, chunk: usize, stop: Stop) -> EntryStop {
        let (entry, done_bytes) = self.chunks.locate(self.transfer(), chunk, stop.done_bytes);
        EntryStop { entry, stop: Stop { done_bytes, ..stop } }
    }
}

#[derive(Default)]
struct State {
    /// The number of times that the job was set up. A worker with an earlier generation gets no chunks of
    /// this one.
    generation: u64,
    /// The number of bytes of memory that the lists of chunks take.
    kept_bytes: usize,
    /// The chunks of each place.
    shares: Vec<HandOut>,
    /// The chunk in which the transfer stopped, and the stop.
    stop: Option<(usize, EntryStop)>,
    waker: Option<Waker>,
    /// The number of threads that wait for `progressed`.
    waiting: usize,
}

impl State {
    /// Returns whether no chunk is out and no more will be handed out.
    fn is_done(&self) -> bool {
        self.shares.iter().all(HandOut::is_done)
    }

    /// Returns whether no more chunks will be handed out.
    fn all_were_out(&self) -> bool {
        self.shares.iter().all(HandOut::all_were_out)
    }

    /// Returns the first chunk that was not handed out.
    fn next(&self) -> Option<usize> {
        self.shares.iter().filter_map(HandOut::next).min()
    }

    fn stop_handing_out(&mut self) {
        self.shares.iter_mut().for_each(HandOut::stop);
    }

    fn share_of(&mut self, chunk: usize) -> &mut HandOut {
        let share = self.shares.iter_mut().find(|share| share.chunks.contains(&chunk));
        share.expect("each chunk belongs to a share")
    }
}

// SAFETY: only `Job::set_up` and `Job::take_outcome` change `work`. The job's owner, which set it up, calls
// them while no claim exists. Claims and the owner read `work`. The mutex orders these accesses.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Sets the job up for a transfer, whose chunks `plan` cuts. Returns the number of chunks. Entries of a read may
    /// overlap in memory if `may_overlap` is set.
    ///
    /// # Errors
    /// The first entry that does not lie in its buffer, or of a read, that overlaps another.
    ///
    /// # Safety
    /// The job must be new, or its outcome must have been taken. No other thread may set it up at the same
    /// time. Everything that the transfer refers to must stay valid until the job [is done](Self::wait). That
    /// long, its memory must meet the promises of [`IoBuf`](cufile::IoBuf) (for reads,
    /// [`IoBufMut`](cufile::IoBufMut)).
    pub unsafe fn set_up(
        &self,
        transfer: &Transfer<'_>,
        plan: impl FnOnce(&mut Chunks) -> Result<Plan, EntryStop>,
        may_overlap: bool,
    ) -> Result<usize, EntryStop> {
        // SAFETY: no claim exists, and none can until the state changes below.
        let work = unsafe { &mut *self.work.get() };
        let Plan { method, order, .. } = plan(&mut work.chunks)?;
        if !may_overlap
            && transfer.direction == Direction::Read
            && let Some(refused) = work.chunks.overlap(&transfer.entries)
        {
            return Err(refused);
        }
        // SAFETY: only the lifetime changes. The caller keeps everything that it stands for until the job is
        // done.
        work.transfer = Some(unsafe { mem::transmute::<Transfer<'_>, Transfer<'static>>(transfer.clone()) });
        work.method = Some(method);
        let Work { transfer, chunks, .. } = work;
        let transfer = transfer.as_ref().expect("set above");
        let kept_bytes = chunks.kept_bytes();
        self.is_done.store(false, Ordering::Relaxed);
        let mut state = self.state();
        let mut shares = mem::take(&mut state.shares);
        shares.clear();
        chunks.for_shares(transfer, |place, chunks| shares.push(HandOut::new(place, chunks, order)));
        let (generation, waiting) = (state.generation + 1, state.waiting);
        *state = State { generation, kept_bytes, shares, waiting, ..State::default() };
        drop(state);
        Ok(chunks.count())
    }

    /// Returns the place of a share of the chunks, and the number of its chunks. Returns `None` for a number
    /// behind that of the last share.
    pub fn share(&self, number: usize) -> Option<(Place, usize)> {
        self.state().shares.get(number).map(|share| (share.place, share.chunks.len()))
    }

    /// Returns the number of times that the job was set up, for [`claim`](Self::claim).
    pub fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Claims a chunk of this generation from the share of a place; with `None`, from any share. Also returns
    /// whether another chunk is ready there.
    pub fn claim(this: &Arc<Self>, generation: u64, place: Option<Place>) -> Option<(Claim, bool)> {
        let mut state = this.state();
        if state.generation != generation {
            return None;
        }
        let is_meant = |share: &HandOut| place.is_none_or(|place| share.place == place) && share.is_ready();
        let number = state.shares.iter().position(is_meant)?;
        let chunk = state.shares[number].claim()?;
        this.note_progress(&state);
        Some((Claim { job: this.clone(), chunk }, state.shares[number].is_ready()))
    }

    /// Notifies waiting threads if no more chunks will be handed out.
    fn note_progress(&self, state: &State) {
        if state.all_were_out() {
            self.notify(state);
        }
    }

    /// Notifies waiting threads. Calls the kernel only if there are any. A thread that finds the job not done
    /// counts itself before it unlocks the state, and the caller has the state locked.
    fn notify(&self, state: &State) {
        if state.waiting > 0 {
            self.progressed.notify_all();
        }
    }

    /// Stops handing out chunks. Workers complete the chunks that are out, so that no gap precedes
    /// transferred bytes.
    ///
    /// # Safety
    /// Only the job's owner, which set it up, may call this, and only before it takes the outcome.
    pub unsafe fn cancel(&self) {
        let mut state = self.state();
        let Some(next) = state.next() else { return };
        // SAFETY: nothing changes `work` before the outcome is taken.
        let stop = unsafe { &*self.work.get() }.locate(next, Stop { done_bytes: 0, cause: None });
        state.stop = Some((next, stop));
        state.stop_handing_out();
        let waker = state.waker.take();
        if state.is_done() {
            self.is_done.store(true, Ordering::Release);
        }
        self.notify(&state);
        // The waker is foreign code, also when it is dropped. So the lock is released first.
        drop(state);
        drop(waker);
    }

    /// Waits until the job is done: no more chunks will be handed out, and all claims are completed.
    pub fn wait(&self) {
        let mut state = self.state();
        while !state.all_were_out() {
            state = self.wait_for_progress(state);
        }
        if !state.is_done() {
            // The last chunks may take less time than waking up a thread.
            drop(state);
            look_until(|| self.is_done.load(Ordering::Acquire));
            state = self.state();
        }
        while !state.is_done() {
            state = self.wait_for_progress(state);
        }
    }

    fn wait_for_progress<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = self.progressed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    pub fn is_done(&self) -> bool {
        self.state().is_done()
    }

    /// Returns whether the job is done. If it is not, its end will wake `waker`.
    pub fn poll(&self, waker: &Waker) -> Poll<()> {
        // Wakers are foreign code, which must not run while the job is locked.
        let mut waker = Some(waker.clone());
        let mut state = self.state();
        if state.is_done() {
            return Poll::Ready(());
        }
        mem::swap(&mut state.waker, &mut waker);
        drop(state);
        Poll::Pending
    }

    /// Returns the number of bytes of memory that the lists of chunks take.
    pub fn kept_bytes(&self) -> usize {
        self.state().kept_bytes
    }

    /// Takes the reason why the transfer stopped. Returns `None` if all of it was carried out.
    ///
    /// # Safety
    /// Only the job's owner, which set it up, may call this, and only when the job is done.
    pub unsafe fn take_outcome(&self) -> Option<EntryStop> {
        // SAFETY: no claim exists, so nothing else reads `work`.
        unsafe {
            (*self.work.get()).transfer = None;
            (*self.work.get()).method = None;
        }
        self.state().stop.take().map(|(_, stop)| stop)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent even if a thread panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A chunk that was handed out to one worker, which completes it.
///
/// As long as a claim exists, the job is not done, and its transfer does not change.
pub(crate) struct Claim {
    job: Arc<Job>,
    chunk: usize,
}

impl Claim {
    fn work(&self) -> &Work {
        // SAFETY: nothing changes `work` while a claim exists.
        unsafe { &*self.job.work.get() }
    }

    /// Returns the segments of the chunk, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> + Clone {
        let Work { chunks, .. } = self.work();
        chunks.segments(self.work().transfer(), self.chunk)
    }

    /// Returns the place of the chunk's memory. A chunk has memory of one place only.
    pub fn place(&self) -> Place {
        self.work().chunks.place(self.work().transfer(), self.chunk)
    }

    /// Returns the memory of an entry.
    pub fn memory(&self, entry: usize) -> &Memory {
        self.work().transfer().entries.memory(entry)
    }

    /// Returns the whole of an entry.
    pub fn entry(&self, entry: usize) -> Segment<'_> {
        self.work().transfer().entries.get(entry)
    }

    pub fn direction(&self) -> Direction {
        self.work().transfer().direction
    }

    pub fn method(&self) -> &Method {
        self.work().method.as_ref().expect("a job with chunks has a method")
    }

    /// Returns whether this is the last chunk of the job.
    pub fn is_last(&self) -> bool {
        self.chunk + 1 == self.work().chunks.count()
    }

    /// Returns whether the job has no other chunk.
    pub fn is_only(&self) -> bool {
        self.work().chunks.count() == 1
    }

    /// Returns whether a chunk before this one stopped the transfer. If so, the worker skips this one.
    pub fn is_stopped_before(&self) -> bool {
        self.job.state().stop.as_ref().is_some_and(|(first, _)| *first < self.chunk)
    }

    /// Claims the next chunk of a serial job. The worker must begin this chunk first.
    pub fn next(&self) -> Option<Self> {
        let mut state = self.job.state();
        let chunk = state.share_of(self.chunk).claim_after(self.chunk)?;
        self.job.note_progress(&state);
        Some(Self { job: self.job.clone(), chunk })
    }

    /// Gives the chunk back with the outcome of its transfer.
    pub fn complete(self, outcome: Outcome) -> NextStep {
        let stop = outcome.err().map(|stop| (self.chunk, self.work().locate(self.chunk, stop)));
        let Self { job, chunk } = self;
        let mut state = job.state();
        if stop.is_some() {
            // No other chunk begins any more. Of the chunks that stopped in flight, the first counts. In a
            // transfer of one place, all chunks before it are complete.
            state.stop_handing_out();
            let stops = state.stop.take().into_iter().chain(stop);
            state.stop = stops.min_by_key(|(chunk, _)| *chunk);
        }
        let more_is_ready = state.share_of(chunk).complete();
        if state.is_done() {
            job.is_done.store(true, Ordering::Release);
            let waker = state.waker.take();
            job.notify(&state);
            return NextStep::Finished(waker);
        }
        let generation = state.generation;
        drop(state);
        if more_is_ready { NextStep::MoreIsReady(job, generation) } else { NextStep::Nothing }
    }
}

/// The chunks of one place: those still to be handed out, and those that are out. It only counts, and knows no
/// threads.
#[derive(Debug)]
pub(crate) struct HandOut {
    /// The place of the workers that get the chunks.
    place: Place,
    chunks: Range<usize>,
    /// The chunk to be handed out next.
    next: usize,
    /// The number of chunks that are out.
    out: usize,
    /// In a serial order, the worker of the chunk that is out may have the next one too.
    order: Order,
}

impl HandOut {
    pub fn new(place: Place, chunks: Range<usize>, order: Order) -> Self {
        Self { place, next: chunks.start, chunks, out: 0, order }
    }

    /// Returns whether no chunk is out and no more will be handed out.
    pub fn is_done(&self) -> bool {
        self.all_were_out() && self.out == 0
    }

    /// Returns whether no more chunks will be handed out.
    pub fn all_were_out(&self) -> bool {
        self.next == self.chunks.end
    }

    /// Returns the chunk to be handed out next, if there is one.
    pub fn next(&self) -> Option<usize> {
        (!self.all_were_out()).then_some(self.next)
    }

    /// Returns whether a chunk can be handed out now.
    pub fn is_ready(&self) -> bool {
        self.next < self.ready() && !self.is_full()
    }

    /// Hands out a chunk, if one is ready.
    pub fn claim(&mut self) -> Option<usize> {
        self.is_ready().then(|| self.hand_out())
    }

    /// Hands out the next chunk of a serial job to the worker that has `chunk`. That worker must complete
    /// `chunk` first. So the GPU can copy one chunk while the worker writes the other.
    pub fn claim_after(&mut self, chunk: usize) -> Option<usize> {
        let follows = self.order == Order::Serial && self.out == 1 && self.next == chunk + 1;
        (follows && self.next < self.ready()).then(|| self.hand_out())
    }

    /// Takes back a completed chunk. Returns whether chunks that were held back can be handed out now.
    pub fn complete(&mut self) -> bool {
        let was_held_back = self.is_full() || self.holds_back_last() && self.next + 1 == self.chunks.end;
        self.out -= 1;
        was_held_back && self.is_ready()
    }

    /// Stops handing out chunks.
    pub fn stop(&mut self) {
        self.next = self.chunks.end;
    }

    fn hand_out(&mut self) -> usize {
        let chunk = self.next;
        self.next += 1;
        self.out += 1;
        chunk
    }

    /// Returns whether as many chunks are out as are allowed.
    fn is_full(&self) -> bool {
        match self.order {
            Order::Any { at_once } => at_once.is_some_and(|most| self.out >= most),
            Order::Serial => self.out >= 1,
            Order::LastAlone => false,
        }
    }

    /// Returns the number of chunks that may be handed out by now, including those that already were.
    fn ready(&self) -> usize {
        let last_is_held_back = self.holds_back_last() && self.out > 0;
        self.chunks.end - usize::from(last_is_held_back)
    }

    fn holds_back_last(&self) -> bool {
        self.order == Order::LastAlone && self.chunks.len() > 1
    }
}
