//! A transfer that workers share: its chunks, the claims to them, and what stopped it.

use std::cell::UnsafeCell;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};
use std::{io, mem};

use super::super::plan::chunks::Chunks;
use super::super::plan::schedule::Plan;
use super::super::plan::transfer::{Segment, Transfer};
use super::super::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, look_until};
use super::hand_out::{HandOut, Piece};
use crate::direction::Direction;
use crate::error::Cause;
use crate::memory::{Memory, Place};
use crate::open_file::Method;
use crate::open_file::outcome::{EntryStop, Outcome, Stop};

/// The action that is due after a claim was completed.
#[must_use]
pub(crate) enum NextStep {
    Nothing,
    /// Workers may now claim chunks that were held back.
    MoreIsReady(Arc<Job>, u64),
    /// The job is done. The waker, if there is one, must be woken.
    Finished(Option<Waker>),
}

/// A job, which is set up again for other transfers.
#[derive(Default)]
pub(crate) struct Job {
    work: UnsafeCell<Work>,
    state: Mutex<State>,
    /// Notified when all chunks are handed out, and when all are completed.
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

    /// Returns the position of a stop within a piece, and the stop of the entry there.
    fn locate(&self, Piece { chunk, positions }: &Piece, stop: Stop) -> (usize, EntryStop) {
        let (at, done_bytes) =
            self.chunks.locate(self.transfer(), *chunk, positions.clone(), stop.done_bytes);
        (at, EntryStop { entry: self.chunks.entry(at), stop: Stop { done_bytes, ..stop } })
    }

    fn whole(&self, chunk: usize) -> Piece {
        Piece { chunk, positions: self.chunks.positions(chunk) }
    }

    fn segments<'w>(&'w self, piece: &Piece) -> impl Iterator<Item = Segment<'w>> + Clone + use<'w> {
        self.chunks.segments(self.transfer(), piece.chunk, piece.positions.clone())
    }

    /// Returns the stops of a piece that a cancelled transfer leaves out.
    fn cancelled<'w>(&'w self, piece: &Piece) -> impl Iterator<Item = (usize, EntryStop)> + use<'w> {
        let chunk = piece.chunk;
        piece.positions.clone().map(move |at| {
            let cause = io::Error::from_raw_os_error(libc::ECANCELED);
            let (_, stop) = self.locate(&Piece { chunk, positions: at..at + 1 }, Stop::failed(0, cause));
            (chunk, stop)
        })
    }
}

#[derive(Default)]
struct State {
    /// The number of times that the job was set up. Workers with an earlier one get no chunks.
    generation: u64,
    kept_bytes: usize,
    /// The chunks of each place.
    shares: Vec<HandOut>,
    /// The stop and its chunk; several if each entry has an outcome.
    stops: Vec<(usize, EntryStop)>,
    is_cancelled: bool,
    counted: Option<Counted>,
    waker: Option<Waker>,
    /// The number of threads that wait for `progressed`.
    waiting: usize,
}

impl State {
    fn is_done(&self) -> bool {
        self.shares.iter().all(HandOut::is_done)
    }

    /// Returns whether every chunk was handed out.
    fn all_were_out(&self) -> bool {
        self.shares.iter().all(HandOut::all_were_out)
    }

    /// Returns the first chunk that was not handed out.
    fn next(&self) -> Option<usize> {
        self.shares.iter().filter_map(HandOut::next).min()
    }

    /// Notes that an entry stopped, so that nothing behind it begins.
    fn stop_at(&mut self, chunk: usize, stop: EntryStop) {
        self.shares.iter_mut().for_each(|share| drop(share.stop()));
        // Of the chunks that stopped in flight, the first counts. In a transfer of one place, all chunks before it are
        // complete.
        if self.stops.first().is_none_or(|(first, _)| chunk < *first) {
            self.stops = vec![(chunk, stop)];
        }
    }

    fn share_of(&mut self, chunk: usize) -> &mut HandOut {
        let share = self.shares.iter_mut().find(|share| share.chunks.contains(&chunk));
        share.expect("each chunk belongs to a share")
    }
}

/// Bytes that are counted as long as this exists.
pub(crate) struct Counted {
    bytes: usize,
    sum: Arc<AtomicUsize>,
}

impl Counted {
    /// Adds bytes to a sum.
    pub fn new(bytes: usize, sum: &Arc<AtomicUsize>) -> Self {
        sum.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, sum: sum.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// SAFETY: only `Job::set_up` and `Job::take_outcome` change `work`. The job's owner, which set it up, calls
// them while no claim exists. Claims and the owner read `work`. The mutex orders these accesses.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Sets the job up for a transfer, whose chunks `plan` cuts. Returns their number. Entries of a read may overlap in memory
    /// if `may_overlap` is set.
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

    /// Keeps a count until the outcome is taken.
    pub fn keep(&self, counted: Counted) {
        self.state().counted = Some(counted);
    }

    /// Returns the place and the number of chunks of a share; `None` behind the last share.
    pub fn share(&self, number: usize) -> Option<(Place, usize)> {
        self.state().shares.get(number).map(|share| (share.place, share.chunks.len()))
    }

    /// Returns the generation for [`claim`](Self::claim).
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
        let share = &mut state.shares[number];
        let piece = match share.claim_again() {
            Some(piece) => piece,
            // SAFETY: a chunk is out, so nothing changes `work`.
            None => share.claim().map(|chunk| unsafe { &*this.work.get() }.whole(chunk))?,
        };
        this.note_progress(&state);
        Some((Claim { job: this.clone(), piece }, state.shares[number].is_ready()))
    }

    /// Notifies waiting threads if no more chunks will be handed out.
    fn note_progress(&self, state: &State) {
        if state.all_were_out() {
            self.notify(state);
        }
    }

    /// Notifies waiting threads, if there are any. They count themselves under the lock, which the caller has.
    fn notify(&self, state: &State) {
        if state.waiting > 0 {
            self.progressed.notify_all();
        }
    }

    /// Stops handing out chunks. Workers complete those that are out, so that no gap precedes transferred bytes, except those
    /// that wait for a server. If each entry has an outcome, those left out get `ECANCELED`.
    ///
    /// # Safety
    /// Only the job's owner, which set it up, may call this, and only before it takes the outcome.
    pub unsafe fn cancel(&self) {
        let mut state = self.state();
        state.is_cancelled = true;
        // SAFETY: nothing changes `work` before the outcome is taken.
        let work = unsafe { &*self.work.get() };
        if work.transfer().choices.each {
            let left: Vec<_> = state.shares.iter_mut().map(HandOut::stop).collect();
            for (chunks, again) in left {
                let pieces = chunks.map(|chunk| work.whole(chunk)).chain(again);
                pieces.for_each(|piece| state.stops.extend(work.cancelled(&piece)));
            }
        } else if let Some(next) = state.next() {
            let (_, stop) = work.locate(&work.whole(next), Stop { done_bytes: 0, cause: None });
            state.stop_at(next, stop);
        } else {
            return;
        }
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

    /// Returns the bytes of memory that the lists of chunks take.
    pub fn kept_bytes(&self) -> usize {
        self.state().kept_bytes
    }

    /// Takes the stops: none if all was carried out, and one at most unless each entry has an outcome. An entry may then have
    /// one for each of its chunks.
    ///
    /// # Safety
    /// Only the job's owner, which set it up, may call this, and only when the job is done.
    pub unsafe fn take_outcome(&self) -> Vec<EntryStop> {
        // SAFETY: no claim exists, so nothing else reads `work`.
        unsafe {
            (*self.work.get()).transfer = None;
            (*self.work.get()).method = None;
        }
        let mut state = self.state();
        state.counted = None;
        let stops = mem::take(&mut state.stops);
        drop(state);
        stops.into_iter().map(|(_, stop)| stop).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent even if a thread panicked while it held the lock.
        self.state.lock()
    }
}

/// A chunk that was handed out to one worker, which completes it.
///
/// While it exists, the job is not done, and its transfer does not change.
pub(crate) struct Claim {
    job: Arc<Job>,
    piece: Piece,
}

impl Claim {
    fn work(&self) -> &Work {
        // SAFETY: nothing changes `work` while a claim exists.
        unsafe { &*self.job.work.get() }
    }

    /// Returns the segments of the chunk, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> + Clone {
        self.work().segments(&self.piece)
    }

    /// Returns the place of the chunk's memory.
    pub fn place(&self) -> Place {
        self.work().chunks.place(self.work().transfer(), self.piece.chunk)
    }

    pub fn memory(&self, entry: usize) -> &Memory {
        self.work().transfer().entries.memory(entry)
    }

    pub fn entry(&self, entry: usize) -> Segment<'_> {
        self.work().transfer().entries.get(entry)
    }

    pub fn direction(&self) -> Direction {
        self.work().transfer().direction
    }

    pub fn method(&self) -> &Method {
        self.work().method.as_ref().expect("a job with chunks has a method")
    }

    pub fn is_last(&self) -> bool {
        self.piece.chunk + 1 == self.work().chunks.count()
    }

    pub fn is_only(&self) -> bool {
        self.work().chunks.count() == 1
    }

    /// Returns whether an earlier chunk stopped the transfer, so that the worker skips this one.
    pub fn is_stopped_before(&self) -> bool {
        let first = || self.job.state().stops.first().map(|(chunk, _)| *chunk);
        !self.each() && first().is_some_and(|first| first < self.piece.chunk)
    }

    /// Returns whether the bytes are no longer needed: the transfer was cancelled, or stopped by an earlier chunk.
    pub fn is_unwanted(&self) -> bool {
        let is_cancelled = self.job.state().is_cancelled;
        is_cancelled || self.is_stopped_before()
    }

    fn each(&self) -> bool {
        self.work().transfer().choices.each
    }

    /// Claims the next chunk of a serial job. The worker must begin this chunk first.
    pub fn next(&self) -> Option<Self> {
        let mut state = self.job.state();
        let chunk = state.share_of(self.piece.chunk).claim_after(self.piece.chunk)?;
        self.job.note_progress(&state);
        Some(Self { job: self.job.clone(), piece: self.work().whole(chunk) })
    }

    /// Gives the chunk back with the outcome of its transfer.
    pub fn complete(self, outcome: Outcome) -> NextStep {
        let stopped = outcome.err().map(|stop| self.work().locate(&self.piece, stop));
        let (each, chunk) = (self.each(), self.piece.chunk);
        let mut state = self.job.state();
        let mut more_is_ready = false;
        match stopped {
            None => {}
            Some((at, stop)) if each => more_is_ready = self.go_on_behind(&mut state, at, stop),
            Some((_, mut stop)) => {
                // A transfer of one outcome that was cancelled is a short one.
                stop.stop.cause.take_if(|cause| state.is_cancelled && cause.is_cancelled());
                state.stop_at(chunk, stop);
            }
        }
        more_is_ready |= state.share_of(chunk).complete();
        if state.is_done() {
            self.job.is_done.store(true, Ordering::Release);
            let waker = state.waker.take();
            self.job.notify(&state);
            return NextStep::Finished(waker);
        }
        let generation = state.generation;
        drop(state);
        if more_is_ready { NextStep::MoreIsReady(self.job, generation) } else { NextStep::Nothing }
    }

    /// Notes the stop of one entry among others, and the rest of the claim, to be carried out again. Returns whether there is a
    /// rest.
    fn go_on_behind(&self, state: &mut State, at: usize, stop: EntryStop) -> bool {
        let Piece { chunk, positions } = &self.piece;
        // Many entries share a copy to or from the GPU. If it fails, they are tried again in halves.
        let is_shared = positions.end - at > 1 && matches!(stop.stop.cause, Some(Cause::Cufile(_)));
        if !is_shared {
            state.stops.push((*chunk, stop));
        }
        let behind = if is_shared { at } else { at + 1 };
        let pieces = Piece::halves(*chunk, behind..positions.end);
        if state.is_cancelled {
            pieces.for_each(|piece| state.stops.extend(self.work().cancelled(&piece)));
            return false;
        }
        let share = state.share_of(*chunk);
        share.again.extend(pieces);
        !share.again.is_empty()
    }
}
