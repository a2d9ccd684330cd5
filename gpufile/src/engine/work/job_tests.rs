//! Jobs whose chunks are taken and completed by hand, without lanes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::super::plan::chunks::Chunks;
use super::super::plan::schedule::{Order, Plan, Schedule};
use super::super::plan::transfer::{Entries, IoRange, Transfer};
use super::job::{Claim, Job, NextStep};
use super::workers::IdleJobs;
use crate::direction::Direction;
use crate::error::Cause;
use crate::memory::Memory;
use crate::open_file::outcome::Stop;
use crate::open_file::{Method, OpenFile};
use crate::settings::Settings;

const CHUNK: usize = 4096;

/// A job, and its claims by the numbers of their chunks.
struct Hands<'a> {
    job: &'a Arc<Job>,
    claims: RefCell<BTreeMap<usize, Claim>>,
}

/// Sets a job up for ranges of `lens` bytes that each have an outcome, in chunks of `CHUNK`. Lets `test` have it.
fn with_each(lens: &[usize], order: Order, test: impl FnOnce(&Arc<Job>)) {
    let file = OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default());
    let total_bytes = lens.iter().sum();
    let memory = Memory::on_host(ptr::without_provenance_mut(1 << 32), total_bytes);
    let mut start = 0;
    let range = |len_bytes| {
        start += len_bytes;
        let buffer_offset = start - len_bytes;
        IoRange { file_offset: buffer_offset as u64, buffer_offset, len_bytes }
    };
    let ranges: Vec<_> = lens.iter().copied().map(range).collect();
    let entries = Entries::Ranges { file: &file, memory, ranges: &ranges };
    let transfer = Transfer::for_test(Direction::Read, entries).each();
    let schedule = Schedule { chunk_bytes: CHUNK, ..Schedule::default() };
    let plan = Plan { method: Method::Calls, schedule, order };
    let cut = |chunks: &mut Chunks| chunks.cut_anew(&transfer, &plan).map(|()| plan.clone());
    let job: Arc<Job> = Arc::default();
    // SAFETY: no chunk is carried out, and everything stays until the end of the test.
    unsafe { job.set_up(&transfer, cut, false) }.unwrap();
    test(&job);
}

/// Carries out a job whose entries fail from these bytes on. Returns the claims' entries, and the stops.
fn carry_out(
    job: &Arc<Job>,
    fails: impl Fn(usize) -> Option<usize>,
    cause: impl Fn() -> Option<Cause>,
) -> (Vec<Vec<usize>>, Vec<(usize, usize)>) {
    let mut claims = Vec::new();
    while let Some((claim, _)) = Job::claim(job, job.generation(), None) {
        claims.push(claim.segments().map(|segment| segment.entry).collect());
        let mut done_bytes = 0;
        let stop = claim.segments().find_map(|segment| {
            let failed = fails(segment.entry).map(|at| at.min(segment.len_bytes - 1));
            done_bytes += failed.unwrap_or(segment.len_bytes);
            failed.map(|_| Stop { done_bytes, cause: cause() })
        });
        let _ = claim.complete(stop.map_or(Ok(()), Err));
    }
    assert!(job.is_done());
    // SAFETY: the job is done, and no other thread has it.
    let stops = unsafe { job.take_outcome() };
    let mut stops: Vec<_> = stops.iter().map(|stop| (stop.entry, stop.stop.done_bytes)).collect();
    stops.sort_unstable();
    (claims, stops)
}

#[test]
fn stopped_entries_spare_the_others_if_each_has_an_outcome() {
    let failing = |entry: usize| [1, 2, 6].contains(&entry).then_some(3);
    for order in
        [Order::ANY, Order::Serial, Order::LastAlone { at_once: None }, Order::Any { at_once: Some(1) }]
    {
        with_each(&[100; 8], order, |job| {
            let (claims, stops) = carry_out(job, failing, || None);
            assert_eq!(stops, [(1, 3), (2, 3), (6, 3)]);
            // What precedes a stop is not repeated. The last half comes first.
            let all: Vec<Vec<usize>> =
                vec![(0..8).collect(), (5..8).collect(), vec![7], (2..5).collect(), vec![4], vec![3]];
            assert_eq!(claims, all);
        });
    }
    // Each chunk of a long entry has a stop.
    with_each(&[10, 3 * CHUNK], Order::ANY, |job| {
        let (_, stops) = carry_out(job, |entry| (entry == 1).then_some(7), || None);
        assert_eq!(stops, [(1, 7), (1, CHUNK - 10 + 7), (1, 2 * CHUNK - 10 + 7), (1, 3 * CHUNK - 10 + 7)]);
    });
}

#[test]
fn failed_copies_are_repeated_for_fewer_entries() {
    let forked = || Some(cufile::Error::Forked.into());
    with_each(&[10; 5], Order::ANY, |job| {
        let (claims, stops) = carry_out(job, |entry| (entry == 3).then_some(0), forked);
        assert_eq!(stops, [(3, 0)]);
        assert_eq!(claims, [vec![0, 1, 2, 3, 4], vec![4], vec![3]]);
    });
    // All fail, from the first on: no entry is repeated more often than halves have halves.
    with_each(&[1; 1024], Order::ANY, |job| {
        let (claims, stops) = carry_out(job, |_| Some(0), forked);
        assert!(stops.into_iter().eq((0..1024).map(|entry| (entry, 0))));
        assert_eq!(claims.iter().map(Vec::len).sum::<usize>(), 1024 * 11);
    });
}

#[test]
fn cancelled_entries_fail_singly_if_each_has_an_outcome() {
    with_each(&[CHUNK, CHUNK + 5, 10], Order::ANY, |job| {
        let claim = |entry: usize| {
            let (claim, _) = Job::claim(job, job.generation(), None).unwrap();
            assert_eq!(claim.segments().next().unwrap().entry, entry);
            claim
        };
        let [first, second] = [claim(0), claim(1)];
        // SAFETY: no other thread has the job.
        unsafe { job.cancel() };
        assert!(Job::claim(job, job.generation(), None).is_none());
        assert!(matches!(first.complete(Ok(())), NextStep::Nothing));
        assert!(matches!(second.complete(Ok(())), NextStep::Finished(None)));
        // SAFETY: as above. The job is done.
        let stops = unsafe { job.take_outcome() };
        let stops: Vec<_> = stops.iter().map(|stop| (stop.entry, stop.stop.done_bytes)).collect();
        assert_eq!(stops, [(1, CHUNK), (2, 0)]);
    });
    with_each(&[10; 3], Order::ANY, |job| {
        let (claim, _) = Job::claim(job, job.generation(), None).unwrap();
        // SAFETY: as above.
        unsafe { job.cancel() };
        assert!(matches!(claim.complete(Err(Stop::end_of_file(4))), NextStep::Finished(None)));
        // SAFETY: as above.
        let stops = unsafe { job.take_outcome() };
        let errno = |stop: &Stop| match &stop.cause {
            Some(Cause::Io(error)) => error.raw_os_error(),
            _ => None,
        };
        let found: Vec<_> = stops.iter().map(|stop| (stop.entry, errno(&stop.stop))).collect();
        let cancelled = Some(libc::ECANCELED);
        assert_eq!(found, [(0, None), (1, cancelled), (2, cancelled)]);
    });
}

/// Sets a job up for one range of `len_bytes`, and lets `test` work on it.
fn set_up(job: &Arc<Job>, len_bytes: usize, order: Order, test: impl FnOnce(&Hands<'_>)) {
    let file = OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default());
    // The test reads nothing from this address.
    let memory = Memory::on_host(ptr::without_provenance_mut(1 << 32), len_bytes);
    let ranges = [IoRange { file_offset: 0, buffer_offset: 0, len_bytes }];
    let entries = Entries::Ranges { file: &file, memory, ranges: &ranges };
    let transfer = Transfer::for_test(Direction::Read, entries);
    let last_bytes = if matches!(order, Order::LastAlone { .. }) { CHUNK } else { 0 };
    let schedule = Schedule { chunk_bytes: CHUNK, last_bytes, ..Schedule::default() };
    let plan = Plan { method: Method::Calls, schedule, order };
    let cut = |chunks: &mut Chunks| chunks.cut_anew(&transfer, &plan).map(|()| plan.clone());
    // SAFETY: no chunk is carried out, and everything stays until the end of the test.
    let chunks = unsafe { job.set_up(&transfer, cut, false) }.unwrap();
    assert_eq!(chunks, len_bytes.div_ceil(CHUNK));
    test(&Hands { job, claims: RefCell::default() });
}

fn with_job(chunks: usize, order: Order, test: impl FnOnce(&Hands<'_>)) {
    set_up(&Arc::default(), chunks * CHUNK, order, test);
}

#[derive(Debug, PartialEq)]
enum Then {
    Nothing,
    More,
    Finished,
}

impl Hands<'_> {
    fn take_of(&self, generation: u64) -> Option<(usize, bool)> {
        let (claim, more) = Job::claim(self.job, generation, None)?;
        Some((self.keep(claim), more))
    }

    fn take(&self) -> Option<(usize, bool)> {
        self.take_of(self.job.generation())
    }

    fn take_after(&self, chunk: usize) -> Option<usize> {
        let next = self.claims.borrow()[&chunk].next()?;
        Some(self.keep(next))
    }

    fn keep(&self, claim: Claim) -> usize {
        let chunk = claim.segments().next().unwrap().offset as usize / CHUNK;
        assert!(self.claims.borrow_mut().insert(chunk, claim).is_none(), "chunk {chunk} is out twice");
        chunk
    }

    fn is_stopped_before(&self, chunk: usize) -> bool {
        self.claims.borrow()[&chunk].is_stopped_before()
    }

    fn complete_with(&self, chunk: usize, stop: Option<Stop>) -> NextStep {
        let claim = self.claims.borrow_mut().remove(&chunk).unwrap();
        claim.complete(stop.map_or(Ok(()), Err))
    }

    fn complete(&self, chunk: usize, stopped_at: Option<usize>) -> Then {
        match self.complete_with(chunk, stopped_at.map(Stop::end_of_file)) {
            NextStep::Nothing => Then::Nothing,
            NextStep::MoreIsReady(job, generation) => {
                assert!(Arc::ptr_eq(&job, self.job) && generation == self.job.generation());
                Then::More
            }
            NextStep::Finished(waker) => {
                assert!(waker.is_none() && self.job.is_done());
                Then::Finished
            }
        }
    }
}

fn outcome(hands: &Hands<'_>) -> Option<(usize, usize)> {
    assert!(hands.job.is_done());
    hands.job.wait();
    // SAFETY: the job is done, and no other thread has it.
    unsafe { hands.job.take_outcome() }.pop().map(|stop| (stop.entry, stop.stop.done_bytes))
}

#[test]
fn each_chunk_is_claimed_once_and_in_one_generation() {
    with_job(3, Order::ANY, |job| {
        assert_eq!(job.take_of(job.job.generation() + 1), None);
        assert_eq!([job.take(), job.take()], [Some((0, true)), Some((1, true))]);
        assert_eq!([job.take(), job.take()], [Some((2, false)), None]);
        assert_eq!(job.take_after(2), None);
        assert!(!job.job.is_done());
        assert_eq!([1, 2].map(|chunk| job.complete(chunk, None)), [Then::Nothing, Then::Nothing]);
        assert_eq!(job.complete(0, None), Then::Finished);
        assert_eq!(outcome(job), None);
    });
}

#[test]
fn serial_chunks_are_out_alone_or_with_the_next() {
    let serial = Order::Serial;
    with_job(4, serial, |job| {
        assert_eq!([job.take(), job.take()], [Some((0, false)), None]);
        assert_eq!(job.complete(0, None), Then::More);
        assert_eq!(job.take(), Some((1, false)));
        assert_eq!([job.take_after(1), job.take_after(1)], [Some(2), None]);
        assert_eq!(job.take_after(2), None, "two are out");
        assert_eq!(job.complete(1, None), Then::Nothing, "one is still out");
        assert_eq!(job.take(), None);
        assert_eq!(job.take_after(2), Some(3));
        assert_eq!(job.complete(2, None), Then::Nothing);
        assert_eq!(job.take_after(3), None, "there are no more");
        assert_eq!(job.complete(3, None), Then::Finished);
    });
}

#[test]
fn only_serial_jobs_have_a_next_chunk() {
    with_job(3, Order::ANY, |job| {
        assert_eq!(job.take(), Some((0, true)));
        assert_eq!(job.take_after(0), None);
    });
}

#[test]
fn no_more_chunks_are_out_than_the_schedule_allows() {
    let two = Order::Any { at_once: Some(2) };
    with_job(4, two, |job| {
        assert_eq!([job.take(), job.take()], [Some((0, true)), Some((1, false))]);
        assert_eq!(job.take(), None);
        assert_eq!(job.complete(1, None), Then::More);
        assert_eq!([job.take(), job.take()], [Some((2, false)), None]);
        assert_eq!(job.complete(0, None), Then::More);
        assert_eq!(job.take(), Some((3, false)));
        assert_eq!(job.complete(3, None), Then::Nothing, "none is left");
        assert_eq!(job.complete(2, None), Then::Finished);
    });
}

#[test]
fn the_last_chunk_waits_for_the_others() {
    let last_alone = Order::LastAlone { at_once: None };
    with_job(3, last_alone, |job| {
        assert_eq!([job.take(), job.take()], [Some((0, true)), Some((1, false))]);
        assert_eq!(job.take(), None);
        assert_eq!(job.complete(1, None), Then::Nothing, "one is still out");
        assert_eq!(job.take(), None);
        assert_eq!(job.complete(0, None), Then::More);
        assert_eq!(job.take(), Some((2, false)));
        assert_eq!(job.complete(2, None), Then::Finished);
    });
    // A worker with other chunks comes for the last one anyway.
    with_job(4, last_alone, |job| {
        assert_eq!(job.take(), Some((0, true)));
        assert_eq!(job.complete(0, None), Then::Nothing);
    });
    with_job(1, last_alone, |job| assert_eq!(job.take(), Some((0, false))));
}

#[test]
fn the_outcome_is_the_first_chunk_that_stopped() {
    for order in [[1, 2], [2, 1]] {
        with_job(4, Order::ANY, |job| {
            (0..3).for_each(|chunk| assert_eq!(job.take(), Some((chunk, true))));
            assert!(!(0..3).any(|chunk| job.is_stopped_before(chunk)));
            assert_eq!(job.complete(order[0], Some(100 * order[0])), Then::Nothing);
            assert_eq!(job.take(), None, "what comes later is not begun");
            let left = [0, order[1]];
            assert_eq!(left.map(|chunk| job.is_stopped_before(chunk)), left.map(|chunk| chunk > order[0]));
            assert_eq!(job.complete(order[1], Some(100 * order[1])), Then::Nothing);
            assert_eq!(job.complete(0, None), Then::Finished);
            assert_eq!(outcome(job), Some((0, CHUNK + 100)));
        });
    }
}

#[test]
fn stops_keep_their_cause_and_count_earlier_entries() {
    with_job(2, Order::ANY, |job| {
        job.take().unwrap();
        let cause = std::io::Error::from_raw_os_error(libc::EIO).into();
        let stop = Stop { done_bytes: 7, cause: Some(cause) };
        assert!(matches!(job.complete_with(0, Some(stop)), NextStep::Finished(None)));
        // SAFETY: the job is done, and no other thread has it.
        let stopped = unsafe { job.job.take_outcome() }.pop().unwrap().behind(10).behind(20);
        assert_eq!((stopped.entry, stopped.stop.done_bytes), (30, 7));
        assert!(
            matches!(stopped.stop.cause, Some(Cause::Io(error)) if error.raw_os_error() == Some(libc::EIO))
        );
    });
}

#[test]
fn cancelled_jobs_end_with_their_claims_in_flight() {
    with_job(3, Order::ANY, |job| {
        job.take().unwrap();
        // SAFETY: no other thread has the job.
        unsafe { job.job.cancel() };
        assert!(!job.job.is_done() && job.take().is_none());
        assert_eq!(job.complete(0, None), Then::Finished);
        assert_eq!(outcome(job), Some((0, CHUNK)));
    });
    with_job(3, Order::ANY, |job| {
        // SAFETY: as above.
        unsafe { job.job.cancel() };
        assert_eq!(outcome(job), Some((0, 0)));
    });
    with_job(1, Order::ANY, |job| {
        job.take().unwrap();
        // SAFETY: as above.
        unsafe { job.job.cancel() };
        assert_eq!(job.complete(0, None), Then::Finished);
        assert_eq!(outcome(job), None, "all chunks were out");
    });
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_last_waker_is_woken_once_at_the_end() {
    with_job(2, Order::ANY, |job| {
        let [first, second] = [Arc::<Wakes>::default(), Arc::default()];
        assert!(job.job.poll(&Waker::from(first.clone())).is_pending());
        assert!(job.job.poll(&Waker::from(second.clone())).is_pending());
        assert_eq!(Arc::strong_count(&first), 1, "it was replaced");
        let taken = [job.take(), job.take()];
        assert_eq!(taken, [Some((0, true)), Some((1, false))]);
        assert!(matches!(job.complete_with(0, None), NextStep::Nothing));
        let NextStep::Finished(Some(waker)) = job.complete_with(1, None) else { panic!("the job is done") };
        waker.wake();
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
        assert!(job.job.poll(&Waker::from(first.clone())).is_ready());
        assert_eq!(Arc::strong_count(&first), 1);
    });
    with_job(2, Order::ANY, |job| {
        let waker = Arc::<Wakes>::default();
        assert!(job.job.poll(&Waker::from(waker.clone())).is_pending());
        // SAFETY: no other thread has the job.
        unsafe { job.job.cancel() };
        assert_eq!((Arc::strong_count(&waker), waker.0.load(Ordering::Relaxed)), (1, 0));
    });
}

/// Returns a job whose lists take 1 MiB: the beginnings of 65,535 chunks, and the end.
fn large(jobs: &IdleJobs) -> Arc<Job> {
    let job = jobs.take();
    set_up(&job, 65_535 * CHUNK, Order::ANY, |_| ());
    job
}

#[test]
fn idle_jobs_are_reused_up_to_a_limit() {
    let jobs = IdleJobs::default();
    let taken: Vec<_> = (0..65).map(|_| jobs.take()).collect();
    let addresses: Vec<_> = taken.iter().map(Arc::as_ptr).collect();
    taken.into_iter().for_each(|job| jobs.put(job));
    let again: Vec<_> = (0..64).map(|_| jobs.take()).collect();
    assert!(again.iter().rev().map(Arc::as_ptr).eq(addresses[..64].iter().copied()), "the last is not kept");
    assert_eq!(jobs.clear(), 0);
}

#[test]
fn chunks_of_idle_jobs_keep_four_mib_at_most() {
    let jobs = IdleJobs::default();
    let mut all: Vec<_> = (0..5).map(|_| large(&jobs)).collect();
    let fifth = Arc::downgrade(&all[4]);
    all.drain(..).for_each(|job| jobs.put(job));
    assert!(fifth.upgrade().is_none(), "it is one too many");
    let fourth = jobs.take();
    assert_eq!(jobs.clear(), 3 << 20);
    assert_eq!(jobs.clear(), 0);
    jobs.put(fourth);
    assert_eq!(jobs.clear(), 1 << 20);
}
