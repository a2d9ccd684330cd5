//! One call of a store: the outcomes of its blocks, and those that wait for them.

use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use std::{fmt, mem};

use cufile::fork::{Generation, Mutex};

use crate::error::{Cause, Error};
use crate::future::owned::OF_ANOTHER_PROCESS;
use crate::kv_blocks::error::BlockError;

/// The outcome of a block.
pub type Outcome = Result<(), BlockError>;

/// The state of a call, which its [`BlockTransfer`], its tasks and the timer share.
pub struct Call {
    state: Mutex<State>,
    changed: Condvar,
    /// The process in which the call began, and in which its blocks end.
    generation: Generation,
}

type Callback = Box<dyn FnOnce(Vec<Outcome>) + Send>;

#[derive(Default)]
struct State {
    /// `None` for blocks that have not ended. Empty after the outcomes were taken.
    outcomes: Vec<Option<Outcome>>,
    deadlines: Vec<Option<Instant>>,
    /// The number of blocks that have not ended.
    left: usize,
    waker: Option<Waker>,
    callback: Option<Callback>,
}

impl Call {
    /// Returns a call in which no block has ended.
    pub fn new(deadlines: Vec<Option<Instant>>) -> Self {
        let left = deadlines.len();
        let outcomes = deadlines.iter().map(|_| None).collect();
        let state = Mutex::new(State { outcomes, deadlines, left, waker: None, callback: None });
        Self { state, changed: Condvar::new(), generation: Generation::current() }
    }

    /// Gives outcomes to blocks that have not ended.
    pub fn resolve(&self, outcomes: impl IntoIterator<Item = (usize, Outcome)>) {
        let mut state = self.lock();
        for (block, outcome) in outcomes {
            state.resolve(block, outcome);
        }
        self.end(state);
    }

    /// Ends those of these blocks that have not ended.
    pub fn resolve_rest(&self, blocks: Range<usize>, outcome: impl Fn() -> BlockError) {
        let mut state = self.lock();
        for block in blocks {
            if let Some(None) = state.outcomes.get(block) {
                state.resolve(block, Err(outcome()));
            }
        }
        self.end(state);
    }

    /// Ends the blocks whose deadline has passed. Returns the next deadline of the others.
    pub fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        for block in 0..state.outcomes.len() {
            if state.deadlines[block].is_some_and(|at| at <= now) {
                state.resolve(block, Err(BlockError::Deadline));
            }
        }
        let State { outcomes, deadlines, .. } = &*state;
        let pending = outcomes.iter().zip(deadlines).filter(|(outcome, _)| outcome.is_none());
        let next = pending.filter_map(|(_, deadline)| *deadline).min();
        self.end(state);
        next
    }

    /// Returns whether each block has ended.
    pub fn ended(&self) -> Vec<bool> {
        let state = self.lock();
        match state.outcomes.is_empty() {
            true => vec![true; state.deadlines.len()],
            false => state.outcomes.iter().map(Option::is_some).collect(),
        }
    }

    /// Wakes those that wait for the end, if all blocks have ended.
    fn end(&self, mut state: MutexGuard<'_, State>) {
        if state.left > 0 {
            return;
        }
        let (waker, callback) = (state.waker.take(), state.callback.take());
        let outcomes = if callback.is_some() { state.take() } else { Vec::new() };
        drop(state);
        self.changed.notify_all();
        // A panic of the caller's code must not end a thread of the store. Its payload is forgotten, as its drop may panic too.
        let called = catch_unwind(AssertUnwindSafe(|| {
            if let Some(waker) = waker {
                waker.wake();
            }
            if let Some(callback) = callback {
                callback(outcomes);
            }
        }));
        mem::forget(called);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn resolve(&mut self, block: usize, outcome: Outcome) {
        if let Some(place @ None) = self.outcomes.get_mut(block) {
            *place = Some(outcome);
            self.left -= 1;
        }
    }

    /// Returns the outcomes, which all blocks have.
    fn take(&mut self) -> Vec<Outcome> {
        mem::take(&mut self.outcomes).into_iter().map(|outcome| outcome.expect("all have ended")).collect()
    }
}

/// Blocks that are being stored or fetched. Ends with an outcome for each block, in the order of the call.
///
/// It needs no runtime: call [`wait`](Self::wait), give it a callback with [`on_end`](Self::on_end), or `.await` it. It ends
/// whether it is polled or not. Each of these gets `Ok` or the [`BlockError`] of each block.
///
/// # Dropping
/// Dropping it does not wait. Blocks are still stored, if the process lives that long. Of a fetch, the engine continues what it
/// has begun. The memory is in use until then, as [`Region::bytes_in_use`](super::Region::bytes_in_use) shows.
///
/// In a forked child, a transfer of the parent has ended with [`BlockError::Failed`].
#[must_use = "it has the outcome of each block"]
pub struct BlockTransfer {
    /// `None` after the outcomes were taken.
    call: Option<Arc<Call>>,
    blocks: usize,
    /// True if dropping it gives up blocks that the engine has not begun.
    is_fetch: bool,
}

impl BlockTransfer {
    pub(super) fn new(call: Arc<Call>, blocks: usize, is_fetch: bool) -> Self {
        Self { call: Some(call), blocks, is_fetch }
    }

    /// Returns whether all blocks have ended.
    pub fn is_done(&self) -> bool {
        self.call.as_ref().is_none_or(|call| !call.generation.is_current() || call.lock().left == 0)
    }

    /// Waits for the end of all blocks, at most until their deadlines.
    ///
    /// # Panics
    /// If the outcomes were taken by polling.
    pub fn wait(mut self) -> Vec<Outcome> {
        let call = self.take();
        if !call.generation.is_current() {
            return self.in_a_child();
        }
        let mut state = call.lock();
        while state.left > 0 {
            state = call.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.take()
    }

    /// Ends all blocks at once, with [`BlockError::Cancelled`] for those that had not ended. Waits for nothing.
    ///
    /// The engine continues what it has begun. A cancelled block may be stored after all. Its memory is in use until the
    /// storage has answered.
    ///
    /// # Panics
    /// If the outcomes were taken by polling.
    pub fn cancel(mut self) -> Vec<Outcome> {
        let call = self.take();
        if !call.generation.is_current() {
            return self.in_a_child();
        }
        call.resolve_rest(0..self.blocks, || BlockError::Cancelled);
        call.lock().take()
    }

    /// Calls `callback` with the outcomes when all blocks have ended: on a thread of the store, or now if they have ended. It
    /// must return soon, because deadlines and other calls wait for it. It cannot close the store. A panic of it ends no
    /// thread of the store; on the calling thread, it is a panic of this call.
    ///
    /// # Panics
    /// If the outcomes were taken by polling.
    pub fn on_end(mut self, callback: impl FnOnce(Vec<Outcome>) + Send + 'static) {
        let call = self.take();
        if !call.generation.is_current() {
            return callback(self.in_a_child());
        }
        let mut state = call.lock();
        if state.left > 0 {
            state.callback = Some(Box::new(callback));
            return;
        }
        // On this thread, a panic is the caller's.
        let outcomes = state.take();
        drop(state);
        callback(outcomes);
    }

    fn take(&mut self) -> Arc<Call> {
        self.call.take().expect("the outcomes were not taken")
    }

    /// Returns the outcomes in a forked child.
    fn in_a_child(&self) -> Vec<Outcome> {
        let failed = || Error::Cufile { cause: Cause::Invalid(OF_ANOTHER_PROCESS.to_owned()) };
        (0..self.blocks).map(|_| Err(BlockError::Failed(failed()))).collect()
    }
}

impl Future for BlockTransfer {
    type Output = Vec<Outcome>;

    /// # Panics
    /// If the transfer is polled after it returned the outcomes.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.take();
        if !call.generation.is_current() {
            return Poll::Ready(self.in_a_child());
        }
        // Wakers are foreign code, also when they are cloned or dropped. It runs without the lock.
        let mut waker = Some(context.waker().clone());
        let mut state = call.lock();
        if state.left == 0 {
            return Poll::Ready(state.take());
        }
        mem::swap(&mut state.waker, &mut waker);
        drop(state);
        self.call = Some(call);
        Poll::Pending
    }
}

impl Drop for BlockTransfer {
    fn drop(&mut self) {
        if let Some(call) = &self.call
            && self.is_fetch
            && call.generation.is_current()
        {
            call.resolve_rest(0..self.blocks, || BlockError::Cancelled);
        }
    }
}

impl fmt::Debug for BlockTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockTransfer")
            .field("blocks", &self.blocks)
            .field("is_done", &self.is_done())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::task::Wake;
    use std::thread;
    use std::time::Duration;

    use testkit::in_flight::Bomb;

    use super::*;

    /// A waker that lets another thread look at the call when it is dropped, and waits for that.
    struct Looks(Arc<Call>, Sender<bool>);

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Looks {
        fn drop(&mut self) {
            let (call, (looked, has_looked)) = (self.0.clone(), channel());
            thread::spawn(move || looked.send(call.ended()));
            let _ = self.1.send(has_looked.recv_timeout(Duration::from_secs(5)).is_ok());
        }
    }

    #[test]
    fn replaced_wakers_are_dropped_without_the_lock() {
        let call = Arc::new(Call::new(vec![None]));
        let mut transfer = BlockTransfer::new(call.clone(), 1, false);
        let (sender, looked) = channel();
        for waker in [Waker::from(Arc::new(Looks(call.clone(), sender))), Waker::noop().clone()] {
            assert!(Pin::new(&mut transfer).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(looked.try_recv(), Ok(true));
    }

    #[test]
    fn payloads_of_callbacks_are_never_dropped() {
        let call = Arc::new(Call::new(vec![None]));
        let transfer = BlockTransfer::new(call.clone(), 1, false);
        transfer.on_end(|_| std::panic::panic_any(Bomb));
        // The thread that ends the block goes on.
        call.resolve([(0, Ok(()))]);
        assert_eq!(call.ended(), [true]);
    }
}
