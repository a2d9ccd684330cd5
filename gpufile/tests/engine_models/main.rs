//! Models of the interleavings of the engine's threads. The engine's own files are compiled here with
//! shuttle's locks and threads. Shuttle's scheduler chooses at each step which thread runs next.
//!
//! - The models in this file cover workers, their queue, jobs and lanes, with [`stand_ins`] of
//!   transfers.
//! - [`futures`] covers transfers that own their buffers, and the lanes that carry them out with a GPU.
//! - [`lists`] covers such transfers of several buffers, each with a job.
//! - [`staging`] covers transfers that a stream waits for, and the ring through which their bytes pass.
//!
//! The last three run the [`engine`] with [`cuda`] and [`files`] in place of CUDA and the kernel. [`world`]
//! fails a model if two threads use the same bytes, if a thread uses freed memory, or if a forked child takes a lock of
//! its parent. All atomics are
//! sequentially consistent here.
//!
//! Each model runs with 80 schedules. `GPUFILE_SCHEDULES=100000 cargo test --release -p gpufile --test
//! engine_models -- --nocapture` runs twice as many of each, and prints the number. A failure prints the
//! schedule, for `shuttle::replay`.

#![allow(dead_code, reason = "the models use a part of what the engine has")]
#![allow(clippy::duplicate_mod, reason = "some files are here twice, on different stand-ins")]

// The engine's files take their imports from `cufile` from this crate.
extern crate cufile as real_cufile;
extern crate self as cufile;

mod cuda;
#[path = "../../src/direction.rs"]
mod direction;
mod engine;
mod files;
mod future;
mod futures;
mod gpu;
mod lists;
#[path = "../../src/memory.rs"]
mod memory;
mod staging;
mod stand_ins;
mod world;

/// A stand-in for the generations of a process, and for locks that no model is about.
mod fork {
    use std::sync::PoisonError;

    use crate::world;

    pub use std::sync::OnceLock as OnceCell;

    pub use std::sync::MutexGuard;

    // Threads that no model schedules.
    pub use crate::real_cufile::fork::{ScopedJoinHandle, scope, spawn};

    #[derive(Default)]
    pub struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// True if the value was made in a child.
    #[derive(Clone, Copy)]
    pub struct Generation(bool);

    impl Generation {
        pub fn current() -> Self {
            Self(world::is_child())
        }

        pub fn is_current(self) -> bool {
            self.0 == world::is_child()
        }
    }
}

mod error {
    use std::io;

    pub type Result<T> = std::result::Result<T, Error>;

    #[derive(Debug, PartialEq)]
    pub struct Error {
        pub bytes_done: usize,
        pub cause: Cause,
    }

    #[derive(Debug, PartialEq)]
    pub enum Cause {
        /// The failure of a file, or of a chunk.
        Failed,
        Cufile(()),
        Io(io::ErrorKind),
        Invalid(String),
    }

    impl Cause {
        /// Only reads of objects are cancelled within a chunk.
        pub fn is_cancelled(&self) -> bool {
            false
        }
    }

    impl From<cufile::Error> for Cause {
        fn from(_: cufile::Error) -> Self {
            Cause::Cufile(())
        }
    }

    impl From<io::Error> for Cause {
        fn from(error: io::Error) -> Self {
            Cause::Io(error.kind())
        }
    }
}

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::{env, mem};

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Condvar, Mutex};
use shuttle::{Config, MaxSteps, Runner, thread};

use cuda::{Error, IoBuf, IoBufMut, Location, Result};
use direction::Direction;
use error::Cause;
use files::{file, open_file, route, storage};
use gpu::bounce::Bounce;
use gpu::gpus::Gpus;
use memory::Place;
use open_file::outcome::{EntryStop, Stop};
use stand_ins::plan::schedule::{Order, Schedule};
use stand_ins::plan::transfer::{Choices, Entries, Transfer};
use stand_ins::work::job::Job;
use stand_ins::work::lanes::Lanes;
use stand_ins::work::workers::{IdleJobs, Pool, work_inline};
use stand_ins::{Watched, sync};

const GPU: Place = Place::Device(0);

/// Half of them are random; the others change threads rarely, at random places.
fn explore(name: &str, model: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules = env::var("GPUFILE_SCHEDULES").map_or(40, |count| count.parse().expect("a number"));
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    // Threads poll for the progress of others; no model takes this many steps.
    config.max_steps = MaxSteps::FailAfter(200_000);
    let model = move || {
        world::begin();
        model();
        world::end();
    };
    let random = Runner::new(RandomScheduler::new(schedules), config.clone()).run(model.clone());
    let few_changes = Runner::new(PctScheduler::new(3, schedules), config).run(model);
    println!("{name}: {} schedules", random + few_changes);
}

fn lanes(limit: usize) -> Arc<Lanes> {
    Arc::new(Lanes::new(Arc::<Gpus>::default(), 1, 2 * limit * Bounce::bytes_for(1)))
}

/// Sets up a job of a transfer, to be submitted next. The transfer is never freed, because workers refer to
/// it.
fn set_up(job: &Arc<Job>, watched: &'static Watched) -> usize {
    let choices = Choices { is_inline: false, each: watched.entries > 1 };
    let transfer = Transfer { direction: Direction::Read, entries: Entries(watched), choices };
    // SAFETY: the transfer stays; the caller holds the job alone.
    let chunks =
        unsafe { job.set_up(&transfer, |chunks| chunks.plan(&transfer, 0, |_| None), false) }.unwrap();
    assert_eq!(chunks, watched.chunks);
    thread::yield_now();
    watched.is_submitted();
    chunks
}

fn leak(watched: Watched) -> &'static Watched {
    Box::leak(Box::new(watched))
}

/// Takes the outcome of a job that is done, and compares it with the recorded events.
fn finish(job: &Arc<Job>, watched: &Watched) -> Option<EntryStop> {
    assert!(job.is_done());
    // SAFETY: the job is done, and the caller set it up.
    let stop = unsafe { job.take_outcome() }.pop();
    watched.is_over(stop.as_ref().map(|stop| stop.stop.done_bytes));
    stop
}

#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !*rung {
            rung = self.1.wait(rung).unwrap();
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

struct Call(std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Call {
    fn waker(function: impl FnOnce() + Send + 'static) -> Waker {
        Waker::from(Arc::new(Call(std::sync::Mutex::new(Some(Box::new(function))))))
    }
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        let function = self.0.lock().unwrap().take();
        function.expect("woken once")();
    }
}

fn unlimited(schedule: Schedule) -> Schedule {
    match schedule.order {
        Order::Any { .. } => Schedule::default(),
        _ => schedule,
    }
}

fn schedules() -> impl Iterator<Item = Schedule> {
    [
        Order::Any { at_once: None },
        Order::Any { at_once: Some(1) },
        Order::Any { at_once: Some(2) },
        Order::Serial,
        Order::LastAlone { at_once: None },
        Order::LastAlone { at_once: Some(2) },
    ]
    .map(|order| Schedule { order })
    .into_iter()
}

#[test]
fn each_chunk_runs_once_and_waiters_wake() {
    for schedule in schedules() {
        for (place, limit) in [(GPU, 2), (GPU, 1), (Place::Host, 2)] {
            explore(&format!("{schedule:?} on {place:?}, {limit} lanes"), move || {
                let pool = Pool::new(place, 2, &lanes(limit)).unwrap();
                // The test waits for one job; the other rings a bell.
                let waited = leak(Watched::new(4, schedule, place));
                let rings = leak(Watched::new(3, unlimited(schedule), place));
                let (one, other) = (Arc::<Job>::default(), Arc::<Job>::default());
                pool.submit(&one, set_up(&one, waited), None);
                // Both orders are right, whatever one waits for.
                let before = thread_rng().gen_bool(0.5).then_some(&one);
                pool.submit(&other, set_up(&other, rings), before);
                let bell = Arc::new(Bell::default());
                if other.poll(&Waker::from(bell.clone())).is_pending() {
                    bell.wait();
                }
                assert!(finish(&other, rings).is_none());
                one.wait();
                assert!(finish(&one, waited).is_none());
            });
        }
    }
}

#[test]
fn the_caller_works_beside_the_workers() {
    for schedule in schedules() {
        explore(&format!("beside, {schedule:?}"), move || {
            let lanes = lanes(2);
            let pool = Pool::new(Place::Host, 1, &lanes).unwrap();
            let watched = leak(Watched::new(4, schedule, Place::Host));
            let job = Arc::<Job>::default();
            pool.submit(&job, set_up(&job, watched), None);
            if let Some(lane) = lanes.try_take_for_host() {
                work_inline(&lanes, Some(lane), &job);
            }
            job.wait();
            assert!(finish(&job, watched).is_none());
        });
    }
}

#[test]
fn transfers_without_workers_notify_nobody() {
    for schedule in schedules() {
        explore(&format!("alone, {schedule:?}"), move || {
            let lanes = lanes(2);
            let callers = [(); 2].map(|()| {
                let lanes = lanes.clone();
                thread::spawn(move || {
                    let watched = leak(Watched::new(2, schedule, Place::Host));
                    let job = Arc::<Job>::default();
                    set_up(&job, watched);
                    work_inline(&lanes, None, &job);
                    assert!(finish(&job, watched).is_none());
                })
            });
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            assert_eq!(world::vain_notifications(), 0);
        });
    }
}

#[test]
fn failed_entries_spare_the_others_in_any_interleaving() {
    const BAD: [&[usize]; 4] = [&[], &[0, 5], &[3, 4, 11], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]];
    for schedule in schedules() {
        for bad in BAD {
            for (place, workers, cause) in [
                (GPU, 2, (|| Cause::Failed) as fn() -> Cause),
                (Place::Host, 2, || Cause::Cufile(())),
                (Place::Host, 1, || Cause::Failed),
            ] {
                explore(&format!("{bad:?} fail on {place:?}, {workers} workers, {schedule:?}"), move || {
                    let lanes = lanes(2);
                    let pool = Pool::new(place, workers, &lanes).unwrap();
                    let watched = Watched { entries: 4, bad, cause, ..Watched::new(3, schedule, place) };
                    let (watched, job) = (leak(watched), Arc::<Job>::default());
                    pool.submit(&job, set_up(&job, watched), None);
                    if let Some(lane) = (place == Place::Host).then(|| lanes.try_take_for_host()).flatten() {
                        work_inline(&lanes, Some(lane), &job);
                    }
                    job.wait();
                    // SAFETY: the job is done, and this test set it up.
                    let stops = unsafe { job.take_outcome() };
                    watched.each_is_over(stops.iter().map(|stop| stop.entry).collect());
                });
            }
        }
    }
}

#[test]
fn jobs_use_all_the_workers_they_allow() {
    // The third chunk continues after the fourth has begun, so a sleeping worker must be woken for the
    // fourth.
    explore("two at once", || {
        let pool = Pool::new(Place::Host, 2, &lanes(2)).unwrap();
        let schedule = Schedule { order: Order::Any { at_once: Some(2) } };
        let watched = leak(Watched { meet: Some((2, 3)), ..Watched::new(4, schedule, Place::Host) });
        let job = Arc::<Job>::default();
        pool.submit(&job, set_up(&job, watched), None);
        job.wait();
        finish(&job, watched);
    });
}

#[test]
fn workers_of_each_place_share_a_job() {
    const OTHER: Place = Place::Device(1);
    for schedule in schedules() {
        for fails in [None, Some(1), Some(4)] {
            explore(&format!("two places, {fails:?} fails, {schedule:?}"), move || {
                let lanes = lanes(1);
                let pools = [GPU, OTHER].map(|place| (place, Pool::new(place, 1, &lanes).unwrap()));
                let then = Some((3, OTHER));
                let watched = leak(Watched { then, fails, ..Watched::new(5, schedule, GPU) });
                let job = Arc::<Job>::default();
                set_up(&job, watched);
                let shares: Vec<_> = (0..).map_while(|number| job.share(number)).collect();
                let is_in_order = !matches!(schedule.order, Order::Any { .. });
                assert_eq!(shares, if is_in_order { vec![(GPU, 5)] } else { vec![(GPU, 3), (OTHER, 2)] });
                for (place, chunks) in shares {
                    let (_, pool) = pools.iter().find(|(of, _)| *of == place).unwrap();
                    pool.submit(&job, chunks, None);
                }
                job.wait();
                assert_eq!(finish(&job, watched).is_some(), fails.is_some());
            });
        }
    }
}

#[test]
fn lone_serial_jobs_overlap_two_chunks() {
    explore("serial alone", || {
        let pool = Pool::new(GPU, 1, &lanes(1)).unwrap();
        let watched = leak(Watched::new(4, Schedule { order: Order::Serial }, GPU));
        let job = Arc::<Job>::default();
        pool.submit(&job, set_up(&job, watched), None);
        job.wait();
        finish(&job, watched);
        assert_eq!(watched.seen().most_out, 2);
    });
}

#[test]
fn serial_jobs_continue_beside_a_blocking_job() {
    // A chunk of one job continues after the last chunk of the other job has begun. The other job is serial.
    explore("serial beside", || {
        let pool = Pool::new(GPU, 2, &lanes(2)).unwrap();
        let serial = leak(Watched::new(3, Schedule { order: Order::Serial }, GPU));
        let pair = leak(Watched { meet: Some((0, 1)), ..Watched::new(2, Schedule::default(), GPU) });
        let (one, other) = (Arc::<Job>::default(), Arc::<Job>::default());
        pool.submit(&one, set_up(&one, serial), None);
        pool.submit(&other, set_up(&other, pair), None);
        one.wait();
        other.wait();
        finish(&one, serial);
        finish(&other, pair);
    });
}

#[test]
fn the_first_failure_stops_the_job() {
    for schedule in schedules() {
        for fails in [0, 2, 3] {
            explore(&format!("failing, {schedule:?}"), move || {
                let pool = Pool::new(GPU, 2, &lanes(2)).unwrap();
                let watched = leak(Watched { fails: Some(fails), ..Watched::new(4, schedule, GPU) });
                let job = Arc::<Job>::default();
                pool.submit(&job, set_up(&job, watched), None);
                job.wait();
                let Stop { done_bytes, cause } = finish(&job, watched).expect("a chunk fails").stop;
                assert_eq!((done_bytes, cause), (fails, Some(error::Cause::Failed)));
            });
        }
    }
}

#[test]
fn jobs_are_reused_while_still_in_the_queue() {
    explore("used again", || {
        let pool = Arc::new(Pool::new(GPU, 2, &lanes(2)).unwrap());
        let idle = Arc::new(IdleJobs::default());
        let callers = [2, 3].map(|chunks| {
            let (pool, idle) = (pool.clone(), idle.clone());
            thread::spawn(move || {
                for _ in 0..3 {
                    let watched = leak(Watched::new(chunks, Schedule::default(), GPU));
                    let job = idle.take();
                    pool.submit(&job, set_up(&job, watched), None);
                    job.wait();
                    assert!(finish(&job, watched).is_none());
                    idle.put(job);
                }
            })
        });
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        idle.clear();
    });
}

#[test]
fn cancelled_jobs_have_no_gap_before_their_end() {
    for schedule in schedules() {
        explore(&format!("cancelled, {schedule:?}"), move || {
            let pool = Pool::new(GPU, 2, &lanes(2)).unwrap();
            let watched = leak(Watched::new(5, schedule, GPU));
            let job = Arc::<Job>::default();
            pool.submit(&job, set_up(&job, watched), None);
            thread::yield_now();
            // SAFETY: the job was set up above.
            unsafe { job.cancel() };
            job.wait();
            finish(&job, watched);
        });
    }
}

#[test]
fn the_last_owner_ends_an_abandoned_job_once() {
    for cancels in [false, true] {
        explore(&format!("abandoned, cancelled: {cancels}"), move || {
            // As in `Owned`, the pool is dropped with the job, on a worker if a worker ends the job.
            let pool = Arc::new(Pool::new(GPU, 2, &lanes(2)).unwrap());
            let watched = leak(Watched::new(3, Schedule::default(), GPU));
            let job = Arc::<Job>::default();
            pool.submit(&job, set_up(&job, watched), None);
            let ended = Arc::new(Bell::default());
            let end = {
                let (job, ended) = (job.clone(), ended.clone());
                move || {
                    job.wait();
                    finish(&job, watched);
                    drop(pool);
                    ended.wake();
                }
            };
            if cancels {
                // SAFETY: the job was set up above.
                unsafe { job.cancel() };
            }
            let end = Arc::new(std::sync::Mutex::new(Some(end)));
            let take = {
                let end = end.clone();
                move || end.lock().unwrap().take().expect("ended once")
            };
            let later = take.clone();
            if job.poll(&Call::waker(move || later()())).is_ready() {
                take()();
            }
            ended.wait();
        });
    }
}

#[test]
fn wakers_can_wait_for_another_job_of_their_worker() {
    explore("a waker that waits", || {
        let lanes = lanes(1);
        let pool = Arc::new(Pool::new(GPU, 1, &lanes).unwrap());
        let watched = leak(Watched::new(2, Schedule::default(), GPU));
        let (job, done) = (Arc::<Job>::default(), Arc::new(Bell::default()));
        pool.submit(&job, set_up(&job, watched), None);
        let use_pool = {
            let (pool, lanes, done) = (pool.clone(), lanes.clone(), done.clone());
            move || {
                let nested = leak(Watched::new(3, Schedule::default(), GPU));
                let job = Arc::<Job>::default();
                pool.submit(&job, set_up(&job, nested), None);
                if sync::on_worker() {
                    work_inline(&lanes, None, &job);
                }
                job.wait();
                finish(&job, nested);
                done.wake();
            }
        };
        let waker = Call::waker(use_pool);
        if job.poll(&waker).is_ready() {
            waker.wake();
        } else {
            mem::drop(waker);
        }
        done.wait();
        finish(&job, watched);
    });
}

#[test]
fn lanes_of_two_gpus_respect_their_limits() {
    explore("two GPUs", || {
        let lanes = lanes(1);
        let threads = [0, 1, 0].map(|gpu| {
            let lanes = lanes.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let lane = lanes.take(Place::Device(gpu)).unwrap();
                    assert_eq!(lane.place(), Place::Device(gpu));
                    thread::yield_now();
                    lanes.put(lane);
                }
            })
        });
        lanes.release();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // There is at most one lane for each GPU, with two bytes.
        assert!(lanes.release() <= 4);
        assert_eq!(lanes.release(), 0);
        let [one, other] = [0, 1].map(|gpu| lanes.take(Place::Device(gpu)).unwrap());
        let host = lanes.try_take_for_host().expect("no GPU has the lane of the host");
        [one, other, host].into_iter().for_each(|lane| lanes.put(lane));
        // Another GPU leaves the lanes of these as they are.
        lanes.put(lanes.take(Place::Device(2)).unwrap());
        assert_eq!(lanes.release(), 8);
    });
}
