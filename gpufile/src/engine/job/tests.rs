//! Jobs whose chunks are taken and completed by hand, without lanes.

use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::job::{After, IdleJobs, Job};
use super::{Cutting, Engine, Entries, IoRange, Side, Transfer};
use crate::error::Cause;
use crate::memory::Memory;
use crate::open_file::OpenFile;
use crate::route::RoutePolicy;
use crate::settings::DirectIo;

const CHUNK: usize = 4096;

fn open() -> OpenFile {
    let (file, engine) = (tempfile::tempfile().unwrap(), Engine::builder().build());
    let direct = (DirectIo::Never, DirectIo::Never);
    OpenFile::new(PathBuf::new(), file, engine, RoutePolicy::PosixOnly, direct).unwrap()
}

/// Sets a job up for one range of so many bytes, and lets `test` work on it with the number of this use.
fn set_up(job: &Job, len_bytes: usize, cutting: &Cutting, test: impl FnOnce(&Job, u64)) {
    let file = open();
    // Nothing is read from there.
    let memory = Memory::on_host(ptr::without_provenance_mut(1 << 32), len_bytes);
    let ranges = [IoRange { file_offset: 0, buffer_offset: 0, len_bytes }];
    let entries = Entries::Ranges { file: &file, memory, ranges: &ranges, file_limit: u64::MAX };
    // SAFETY: no chunk is carried out, and all stays until the end of the test.
    let (chunks, keeps_order) =
        unsafe { job.set_up(&Transfer { side: Side::Read, entries }, cutting) }.unwrap();
    assert_eq!((chunks, keeps_order), (len_bytes.div_ceil(CHUNK), true));
    test(job, job.current_use());
}

fn with_job(chunks: usize, cutting: &Cutting, test: impl FnOnce(&Job, u64)) {
    set_up(&Job::default(), chunks * CHUNK, &Cutting { chunk_bytes: CHUNK, ..*cutting }, test);
}

/// The result of completing a chunk, without the waker.
#[derive(Debug, PartialEq)]
enum Then {
    Nothing,
    More,
    Finished,
}

fn complete(job: &Job, chunk: usize, stop: Option<usize>) -> Then {
    match job.complete(chunk, stop.map(|bytes| (bytes, None))) {
        After::Nothing => Then::Nothing,
        After::MoreIsReady(of_use) => {
            assert_eq!(of_use, job.current_use());
            Then::More
        }
        After::Finished(waker) => {
            assert!(waker.is_none() && job.is_done());
            Then::Finished
        }
    }
}

/// The entry that was stopped, and the number of its bytes that were done.
fn outcome(job: &Job) -> Option<(usize, usize)> {
    assert!(job.is_done());
    job.wait();
    // SAFETY: it is done, and nobody else has it.
    unsafe { job.take_outcome() }.map(|stop| (stop.entry, stop.done_bytes))
}

#[test]
fn chunks_are_handed_out_once_each_to_one_use() {
    with_job(3, &Cutting::default(), |job, of_use| {
        assert_eq!(job.take(of_use + 1), None);
        assert_eq!([job.take(of_use), job.take(of_use)], [Some((0, true)), Some((1, true))]);
        assert_eq!([job.take(of_use), job.take(of_use)], [Some((2, false)), None]);
        assert_eq!(job.take_after(2), None);
        assert!(!job.is_done());
        assert_eq!([1, 2].map(|chunk| complete(job, chunk, None)), [Then::Nothing, Then::Nothing]);
        assert_eq!(complete(job, 0, None), Then::Finished);
        assert_eq!(outcome(job), None);
    });
}

#[test]
fn serial_chunks_are_out_one_at_a_time_but_for_the_next() {
    let serial = Cutting { serial: true, ..Cutting::default() };
    with_job(4, &serial, |job, of_use| {
        assert_eq!([job.take(of_use), job.take(of_use)], [Some((0, false)), None]);
        assert_eq!(complete(job, 0, None), Then::More);
        assert_eq!(job.take(of_use), Some((1, false)));
        assert_eq!([job.take_after(0), job.take_after(2)], [None, None]);
        assert_eq!([job.take_after(1), job.take_after(1)], [Some(2), None]);
        assert_eq!(job.take_after(2), None, "two are out");
        assert_eq!(complete(job, 1, None), Then::Nothing, "one is still out");
        assert_eq!(job.take(of_use), None);
        assert_eq!(job.take_after(2), Some(3));
        assert_eq!(complete(job, 2, None), Then::Nothing);
        assert_eq!(job.take_after(3), None, "there are no more");
        assert_eq!(complete(job, 3, None), Then::Finished);
    });
}

#[test]
fn only_serial_jobs_have_a_next_chunk() {
    with_job(3, &Cutting::default(), |job, of_use| {
        assert_eq!(job.take(of_use), Some((0, true)));
        assert_eq!(job.take_after(0), None);
    });
}

#[test]
fn no_more_chunks_are_out_at_once_than_may() {
    let two = Cutting { at_once: Some(2), ..Cutting::default() };
    with_job(4, &two, |job, of_use| {
        assert_eq!([job.take(of_use), job.take(of_use)], [Some((0, true)), Some((1, false))]);
        assert_eq!(job.take(of_use), None);
        assert_eq!(complete(job, 1, None), Then::More);
        assert_eq!([job.take(of_use), job.take(of_use)], [Some((2, false)), None]);
        assert_eq!(complete(job, 0, None), Then::More);
        assert_eq!(job.take(of_use), Some((3, false)));
        assert_eq!(complete(job, 3, None), Then::Nothing, "none is left");
        assert_eq!(complete(job, 2, None), Then::Finished);
    });
}

#[test]
fn the_last_chunk_waits_for_the_others() {
    let last_alone = Cutting { last_bytes: CHUNK, ..Cutting::default() };
    with_job(3, &last_alone, |job, of_use| {
        assert_eq!([job.take(of_use), job.take(of_use)], [Some((0, true)), Some((1, false))]);
        assert_eq!(job.take(of_use), None);
        assert_eq!(complete(job, 1, None), Then::Nothing, "one is still out");
        assert_eq!(job.take(of_use), None);
        assert_eq!(complete(job, 0, None), Then::More);
        assert_eq!(job.take(of_use), Some((2, false)));
        assert_eq!(complete(job, 2, None), Then::Finished);
    });
    // With others left, a worker comes for them anyway.
    with_job(4, &last_alone, |job, of_use| {
        assert_eq!(job.take(of_use), Some((0, true)));
        assert_eq!(complete(job, 0, None), Then::Nothing);
    });
    with_job(1, &last_alone, |job, of_use| assert_eq!(job.take(of_use), Some((0, false))));
}

#[test]
fn the_first_chunk_that_stopped_is_the_outcome() {
    for order in [[1, 2], [2, 1]] {
        with_job(4, &Cutting::default(), |job, of_use| {
            (0..3).for_each(|chunk| assert_eq!(job.take(of_use), Some((chunk, true))));
            assert!(!(0..4).any(|chunk| job.is_stopped_before(chunk)));
            assert_eq!(complete(job, order[0], Some(100 * order[0])), Then::Nothing);
            assert_eq!(job.take(of_use), None, "what comes later is not begun");
            let stopped = [0, 1, 2, 3].map(|chunk| job.is_stopped_before(chunk));
            assert_eq!(stopped, [0, 1, 2, 3].map(|chunk| chunk > order[0]));
            assert_eq!(complete(job, order[1], Some(100 * order[1])), Then::Nothing);
            assert_eq!(complete(job, 0, None), Then::Finished);
            assert_eq!(outcome(job), Some((0, CHUNK + 100)));
        });
    }
}

#[test]
fn a_stop_keeps_its_cause_and_counts_entries_before() {
    with_job(2, &Cutting::default(), |job, of_use| {
        job.take(of_use).unwrap();
        let cause = std::io::Error::from_raw_os_error(libc::EIO).into();
        assert!(matches!(job.complete(0, Some((7, Some(cause)))), After::Finished(None)));
        // SAFETY: it is done, and nobody else has it.
        let stop = unsafe { job.take_outcome() }.unwrap().behind(10).behind(20);
        assert_eq!((stop.entry, stop.done_bytes), (30, 7));
        assert!(matches!(stop.cause, Some(Cause::Io(error)) if error.raw_os_error() == Some(libc::EIO)));
    });
}

#[test]
fn a_cancelled_job_ends_with_the_chunks_that_are_out() {
    with_job(3, &Cutting::default(), |job, of_use| {
        job.take(of_use).unwrap();
        // SAFETY: nobody else has it.
        unsafe { job.cancel() };
        assert!(!job.is_done() && job.take(of_use).is_none());
        assert_eq!(complete(job, 0, None), Then::Finished);
        assert_eq!(outcome(job), Some((0, CHUNK)));
    });
    with_job(3, &Cutting::default(), |job, _| {
        // SAFETY: as above.
        unsafe { job.cancel() };
        assert_eq!(outcome(job), Some((0, 0)));
    });
    with_job(1, &Cutting::default(), |job, of_use| {
        job.take(of_use).unwrap();
        // SAFETY: as above.
        unsafe { job.cancel() };
        assert_eq!(complete(job, 0, None), Then::Finished);
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
    with_job(2, &Cutting::default(), |job, of_use| {
        let [first, second] = [Arc::<Wakes>::default(), Arc::default()];
        assert!(job.poll(&Waker::from(first.clone())).is_pending());
        assert!(job.poll(&Waker::from(second.clone())).is_pending());
        assert_eq!(Arc::strong_count(&first), 1, "it was replaced");
        let taken = [job.take(of_use), job.take(of_use)];
        assert_eq!(taken, [Some((0, true)), Some((1, false))]);
        assert!(matches!(job.complete(0, None), After::Nothing));
        let After::Finished(Some(waker)) = job.complete(1, None) else { panic!("the job is done") };
        waker.wake();
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
        assert!(job.poll(&Waker::from(first.clone())).is_ready());
        assert_eq!(Arc::strong_count(&first), 1);
    });
    with_job(2, &Cutting::default(), |job, _| {
        let waker = Arc::<Wakes>::default();
        assert!(job.poll(&Waker::from(waker.clone())).is_pending());
        // SAFETY: nobody else has it.
        unsafe { job.cancel() };
        assert_eq!((Arc::strong_count(&waker), waker.0.load(Ordering::Relaxed)), (1, 0));
    });
}

/// A job whose plan keeps 1 MiB: the beginnings of 65,535 chunks, and the end.
fn large(jobs: &IdleJobs) -> Arc<Job> {
    let job = jobs.take();
    set_up(&job, 65_535 * CHUNK, &Cutting { chunk_bytes: CHUNK, ..Cutting::default() }, |_, _| ());
    job
}

#[test]
fn idle_jobs_are_used_again_up_to_a_bound() {
    let jobs = IdleJobs::default();
    let taken: Vec<_> = (0..65).map(|_| jobs.take()).collect();
    let addresses: Vec<_> = taken.iter().map(Arc::as_ptr).collect();
    taken.into_iter().for_each(|job| jobs.put(job));
    let again: Vec<_> = (0..64).map(|_| jobs.take()).collect();
    assert!(again.iter().rev().map(Arc::as_ptr).eq(addresses[..64].iter().copied()), "the last is not kept");
    assert_eq!(jobs.clear(), 0);
}

#[test]
fn plans_of_idle_jobs_keep_no_more_than_four_mib() {
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
