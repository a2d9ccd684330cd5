//! An engine of workers, their queues, jobs and lanes, on stand-ins for the rest: transfers that record the events of
//! their chunks, and lanes without a GPU.

mod device;
pub mod plan;
pub mod work;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use crate::cuda::Device;
use crate::error::Cause;
use crate::gpu::bounce::Bounce;
use crate::gpu::gpus::Gpus;
use crate::memory::Place;
use crate::open_file::OpenFile;
use crate::open_file::outcome::{Outcome, Stop};
use device::submitter::Submitter;
use plan::schedule::{Order, Schedule};
use plan::transfer::Segment;
use work::job::Claim;
use work::queue::Reports;

/// The synchronisation and the clock of the models, by shuttle. Its scheduler chooses at each step which
/// thread runs next.
pub mod sync {
    use std::cell::Cell;
    use std::sync::{LockResult, PoisonError, atomic};
    use std::time::Duration;

    use shuttle::rand::{Rng, thread_rng};
    use shuttle::sync;
    pub use shuttle::sync::MutexGuard;
    pub use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use crate::world;

    pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        shuttle::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }

    /// A mutex that a forked child must not lock.
    #[derive(Default)]
    pub struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            world::pause();
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub fn lock_unless_forked(&self) -> Option<MutexGuard<'_, T>> {
            Some(self.lock())
        }

        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A condition whose notifications are counted if no thread waits: each costs a call of the kernel.
    #[derive(Default)]
    pub struct Condvar {
        inner: sync::Condvar,
        waiting: atomic::AtomicUsize,
    }

    impl Condvar {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let guard = self.inner.wait(guard);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            guard
        }

        pub fn notify_one(&self) {
            self.count();
            self.inner.notify_one();
        }

        pub fn notify_all(&self) {
            self.count();
            self.inner.notify_all();
        }

        fn count(&self) {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                world::count_vain_notification();
            }
        }
    }

    /// A word in memory that streams use too. Shuttle's own atomics cannot lie in such memory.
    #[repr(transparent)]
    pub struct AtomicU32(atomic::AtomicU32);

    impl AtomicU32 {
        /// Returns the word at `ptr`.
        ///
        /// # Safety
        /// As for the method of the standard library.
        pub unsafe fn from_ptr<'a>(ptr: *mut u32) -> &'a Self {
            // SAFETY: both types have the same layout.
            unsafe { &*ptr.cast() }
        }

        pub fn load(&self, order: Ordering) -> u32 {
            world::pause();
            self.check();
            self.0.load(order)
        }

        pub fn store(&self, value: u32, order: Ordering) {
            world::pause();
            self.check();
            self.0.store(value, order);
            world::pause();
        }

        fn check(&self) {
            world::check(self.0.as_ptr().cast(), size_of::<u32>(), "someone who looks at a word");
        }
    }

    /// An instant whose age the scheduler chooses.
    #[derive(Clone, Copy)]
    pub struct Instant;

    impl Instant {
        pub fn now() -> Self {
            Self
        }

        pub fn elapsed(&self) -> Duration {
            if thread_rng().gen_bool(0.5) { Duration::ZERO } else { Duration::from_secs(1) }
        }
    }

    pub fn sleep(_: Duration) {
        world::pause();
        shuttle::thread::yield_now();
    }

    pub fn or_abort(work: impl FnOnce()) {
        work();
    }

    shuttle::thread_local! {
        static IS_WORKER: Cell<bool> = Cell::new(false);
    }

    pub fn on_worker() -> bool {
        IS_WORKER.with(Cell::get)
    }

    pub fn as_worker(work: impl FnOnce()) {
        IS_WORKER.with(|is_worker| is_worker.set(true));
        work();
    }

    /// Checks the condition twice, and then returns as if time had passed.
    pub fn look_until(holds: impl Fn() -> bool) {
        for _ in 0..2 {
            if holds() {
                return;
            }
            shuttle::thread::yield_now();
        }
    }
}

/// A transfer of chunks of one byte each, which records the events of its chunks.
pub struct Watched {
    pub chunks: usize,
    /// The number of entries in each chunk. Each has an outcome if there are several.
    pub entries: usize,
    /// The entries that fail, as numbers in a transfer of several for each chunk.
    pub bad: &'static [usize],
    /// The cause of these failures.
    pub cause: fn() -> Cause,
    pub schedule: Schedule,
    pub place: Place,
    /// The first chunk of another place, and that place.
    pub then: Option<(usize, Place)>,
    /// The first chunk that fails. All chunks behind it fail too.
    pub fails: Option<usize>,
    /// Two chunks, of which the first continues only after the second has begun.
    pub meet: Option<(usize, usize)>,
    pub events: (sync::Mutex<Seen>, shuttle::sync::Condvar),
}

#[derive(Default)]
pub struct Seen {
    begun: BTreeSet<usize>,
    done: BTreeSet<usize>,
    out: usize,
    /// The most chunks that workers held at one time.
    pub most_out: usize,
    is_writing: bool,
    is_submitted: bool,
    /// Set when the owner has its memory back.
    is_over: bool,
}

impl Watched {
    pub fn new(chunks: usize, schedule: Schedule, place: Place) -> Self {
        let (entries, bad, cause) = (1, &[][..], (|| Cause::Failed) as fn() -> Cause);
        let (then, fails, meet, events) = (None, None, None, Default::default());
        Self { chunks, entries, bad, cause, schedule, place, then, fails, meet, events }
    }

    pub fn seen(&self) -> sync::MutexGuard<'_, Seen> {
        self.events.0.lock()
    }

    /// Notes that the job was submitted. Workers may begin it from now on.
    pub fn is_submitted(&self) {
        self.seen().is_submitted = true;
    }

    fn begin(&self, chunk: usize) {
        let mut seen = self.seen();
        assert!(!seen.is_over, "chunk {chunk} was begun when all was over");
        assert!(seen.is_submitted, "chunk {chunk} was begun before the job was submitted");
        assert!(seen.begun.insert(chunk) || self.entries > 1, "chunk {chunk} was begun twice");
        seen.out += 1;
        seen.most_out = seen.most_out.max(seen.out);
        let most = match self.schedule.order {
            Order::Any { at_once } | Order::LastAlone { at_once } => at_once,
            Order::Serial => Some(2),
        };
        // The limit holds for each place.
        let places = 1 + usize::from(self.then.is_some());
        assert!(most.is_none_or(|most| seen.out <= most * places), "{} out at once", seen.out);
        let has_last = matches!(self.schedule.order, Order::LastAlone { .. }) && self.chunks > 1;
        let is_last = has_last && chunk + 1 == self.chunks;
        assert!(!is_last || seen.out == 1, "the last is not alone");
        self.events.1.notify_all();
        while let Some((first, second)) = self.meet
            && chunk == first
            && !seen.begun.contains(&second)
        {
            seen = self.events.1.wait(seen).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn carry_out(&self, chunk: usize) -> Outcome {
        let mut seen = self.seen();
        assert!(!seen.is_over, "chunk {chunk} was carried out when all was over");
        if self.fails.is_some_and(|first| chunk >= first) {
            return Err(Stop::failed(0, Cause::Failed));
        }
        if self.schedule.order == Order::Serial {
            assert!(!seen.is_writing, "chunk {chunk} was written beside another");
            assert_eq!(seen.done.len(), chunk, "chunk {chunk} was written too early");
            seen.is_writing = true;
            drop(seen);
            shuttle::thread::yield_now();
            seen = self.seen();
            seen.is_writing = false;
        }
        assert!(seen.done.insert(chunk), "chunk {chunk} was carried out twice");
        Ok(())
    }

    /// Carries out entries of a chunk, each of which has an outcome.
    fn carry_out_each(&self, positions: Range<usize>) -> Outcome {
        let mut seen = self.seen();
        assert!(!seen.is_over, "entries {positions:?} were carried out when all was over");
        let is_bad = |at: &usize| self.bad.contains(at);
        // A failed copy is that of all its entries.
        let is_shared = matches!((self.cause)(), Cause::Cufile(_));
        if is_shared && positions.clone().any(|at| is_bad(&at)) {
            return Err(Stop::failed(0, (self.cause)()));
        }
        let end = positions.clone().find(is_bad).unwrap_or(positions.end);
        for at in positions.start..end {
            assert!(seen.done.insert(at), "entry {at} was carried out twice");
        }
        if end < positions.end { Err(Stop::failed(end - positions.start, (self.cause)())) } else { Ok(()) }
    }

    /// Notes that the owner has its memory back, and the entries that failed. Fails if others were not carried out.
    pub fn each_is_over(&self, mut failed: Vec<usize>) {
        let mut seen = self.seen();
        assert_eq!(seen.out, 0, "something is in flight");
        failed.sort_unstable();
        assert_eq!(failed, self.bad);
        let good = (0..self.chunks * self.entries).filter(|at| !self.bad.contains(at));
        assert!(good.eq(seen.done.iter().copied()));
        seen.is_over = true;
    }

    fn end(&self) {
        self.seen().out -= 1;
    }

    /// Notes that the owner has its memory back. Fails if the outcome differs from the chunks that were done,
    /// or if a chunk is in flight.
    pub fn is_over(&self, stopped_at: Option<usize>) {
        let mut seen = self.seen();
        assert_eq!(seen.out, 0, "something is in flight");
        // The workers of one place may stop before those of another have begun.
        let whole = match stopped_at {
            None => self.chunks,
            // The workers of one place may stop before those of another have begun.
            Some(_) if self.then.is_some() => 0,
            Some(chunk) => chunk,
        };
        assert!((0..whole).all(|chunk| seen.done.contains(&chunk)), "{whole} were said to be done");
        assert!(stopped_at.is_none_or(|chunk| !seen.done.contains(&chunk)), "more was done");
        seen.is_over = true;
    }
}

/// A stand-in for the engine's lane, which carries out chunks of device memory later.
pub struct Lane {
    place: Place,
    pending: [Option<Claim>; 2],
    next: usize,
}

impl Lane {
    pub fn pin(&mut self) {}

    pub fn pinned_bytes(&self) -> usize {
        0
    }

    pub fn on_host(_: crate::route::Way, _: Arc<Gpus>, _: [Bounce; 2]) -> Self {
        Self { place: Place::Host, pending: [None, None], next: 0 }
    }

    pub fn on_device(
        device: &Device,
        _: Arc<Submitter>,
        _: Arc<Gpus>,
        _: [Bounce; 2],
    ) -> cufile::Result<Self> {
        Ok(Self { place: Place::Device(device.ordinal()), pending: [None, None], next: 0 })
    }

    pub fn place(&self) -> Place {
        self.place
    }

    pub fn bounce_bytes(&self) -> usize {
        2
    }

    pub fn is_busy(&self) -> bool {
        self.pending.iter().any(Option::is_some)
    }

    pub fn is_lost(&self) -> bool {
        false
    }

    pub fn submitter(&self) -> Option<&Arc<Submitter>> {
        unreachable!("these models reset no GPU")
    }

    pub fn start(&mut self, claim: Claim, reports: &mut Reports<'_>) {
        let slot = self.next;
        self.finish(slot, reports);
        let (watched, segment) = watched(&claim);
        assert_eq!(claim.place(), self.place);
        watched.begin(segment.chunk);
        if self.place != Place::Host {
            self.pending[slot] = Some(claim);
            self.next = 1 - slot;
            return;
        }
        let outcome = carry_out(watched, &segment);
        watched.end();
        reports.completed(claim, outcome);
        self.finish(1 - slot, reports);
    }

    pub unsafe fn read_small(&mut self, _: &OpenFile, _: *mut u8, _: usize, _: u64) -> Outcome {
        unreachable!("these models have no small reads")
    }

    pub fn claim_next(&self) -> Option<Claim> {
        self.pending[1 - self.next].as_ref()?.next()
    }

    pub fn finish_oldest(&mut self, reports: &mut Reports<'_>) {
        let slot = if self.pending[self.next].is_some() { self.next } else { 1 - self.next };
        self.finish(slot, reports);
    }

    pub fn finish_all(&mut self, reports: &mut Reports<'_>) {
        while self.is_busy() {
            self.finish_oldest(reports);
        }
    }

    fn finish(&mut self, slot: usize, reports: &mut Reports<'_>) {
        let Some(claim) = self.pending[slot].take() else { return };
        shuttle::thread::yield_now();
        let (watched, segment) = watched(&claim);
        let outcome = if claim.is_stopped_before() { Ok(()) } else { carry_out(watched, &segment) };
        watched.end();
        reports.completed(claim, outcome);
    }
}

fn carry_out(watched: &Watched, segment: &Segment<'_>) -> Outcome {
    match watched.entries {
        1 => watched.carry_out(segment.chunk),
        _ => watched.carry_out_each(segment.positions.clone()),
    }
}

fn watched(claim: &Claim) -> (&'static Watched, Segment<'_>) {
    let segment = claim.segments().next().expect("a chunk is one segment");
    // SAFETY: the models leak the transfers that they watch.
    (unsafe { &*std::ptr::from_ref(segment.watched) }, segment)
}
