//! Lanes for host memory, which need no GPU, and lanes of a GPU that others reset.

use std::iter;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cufile::Driver;
use testkit::bed::Bed;

use super::super::plan::transfer::{Entries, IoRange, Transfer};
use super::job::Job;
use super::lane::Lane;
use super::lanes::Lanes;
use super::queue::Reports;
use super::workers::Workers;
use crate::direction::Direction;
use crate::gpu::bounce::Bounce;
use crate::gpu::gpus::Gpus;
use crate::memory::Place;
use crate::open_file::OpenFile;
use crate::settings::Settings;

const BOUNCE: usize = 4096;

fn lanes(limit: usize) -> Lanes {
    Lanes::new(Arc::new(Gpus::default()), BOUNCE, limit * 2 * Bounce::bytes_for(BOUNCE))
}

fn take(lanes: &Lanes) -> Lane {
    lanes.take(Place::Host).unwrap()
}

/// Returns a lane in place of one of `lanes`. This many of its bounce buffers have memory.
fn allocated(lanes: &Lanes, buffers: usize) -> Lane {
    let mut bounces = [0; 2].map(|_| Bounce::new(BOUNCE));
    for bounce in &mut bounces[..buffers] {
        bounce.ptr();
    }
    drop(take(lanes));
    Lane::on_host(crate::route::Way::Host, Arc::default(), bounces)
}

#[test]
fn memory_limits_the_number_of_lanes() {
    let two = 2 * Bounce::bytes_for(BOUNCE);
    for (memory_bytes, limit) in [(0, 1), (two, 1), (2 * two - 1, 1), (2 * two, 2), (7 * two, 7)] {
        assert_eq!(Lanes::new(Arc::default(), BOUNCE, memory_bytes).limit(), limit);
    }
}

#[test]
fn the_last_returned_lane_is_lent_first() {
    let lanes = lanes(2);
    let lent = [1, 2].map(|buffers| allocated(&lanes, buffers));
    lent.into_iter().for_each(|lane| lanes.put(lane));
    let again = [(); 2].map(|()| take(&lanes));
    assert_eq!(again.each_ref().map(Lane::place), [Place::Host; 2]);
    assert_eq!(again.map(|lane| lane.bounce_bytes() / Bounce::bytes_for(BOUNCE)), [2, 1]);
}

#[test]
fn lent_lanes_respect_the_limit() {
    let lanes = lanes(2);
    let (first, second) = (lanes.try_take_for_host().unwrap(), take(&lanes));
    assert!(lanes.try_take_for_host().is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| drop(take(&lanes)));
        thread::sleep(Duration::from_millis(30));
        assert!(!waits.is_finished());
        lanes.put(first);
        waits.join().unwrap();
    });
    lanes.put(second);
    assert!(lanes.try_take_for_host().is_some());
}

#[test]
fn lanes_are_lent_in_request_order() {
    let lanes = lanes(1);
    let lent = take(&lanes);
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..4 {
            let (lanes, order) = (&lanes, &order);
            scope.spawn(move || {
                let lane = take(lanes);
                order.lock().unwrap().push(number);
                lanes.put(lane);
            });
            // Waits until the thread waits, so that the next one comes later.
            while lanes.waiting(Place::Host) <= number {
                thread::yield_now();
            }
        }
        assert!(lanes.are_wanted(Place::Host));
        lanes.put(lent);
        // This thread has had its turn, so others come first.
        lanes.put(take(&lanes));
        order.lock().unwrap().push(4);
    });
    assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4]);
    assert!(!lanes.are_wanted(Place::Host));
}

#[test]
fn free_lanes_are_released_with_their_memory() {
    let lanes = lanes(2);
    let [lent, free] = [1, 1].map(|buffers| allocated(&lanes, buffers));
    assert_eq!(lanes.release(), 0, "none is free");
    lanes.put(free);
    assert_eq!(lanes.release(), Bounce::bytes_for(BOUNCE), "of one buffer, the other had none");
    assert_eq!(lanes.release(), 0);
    // One lane may be made in its place, and no more.
    let another = lanes.try_take_for_host().unwrap();
    assert!(lanes.try_take_for_host().is_none());
    lanes.put(another);
    lanes.put(lent);
}

#[test]
fn failed_lane_creation_leaves_room_for_another_lane() {
    let lanes = lanes(1);
    let gpu = Place::Device(1000);
    // Without room left after the first failure, the second call would wait for ever.
    for _ in 0..2 {
        if lanes.take(gpu).is_ok() {
            return eprintln!("skipped: there are a thousand GPUs");
        }
    }
    assert!(!lanes.are_wanted(gpu));
}

#[test]
fn host_memory_waits_for_no_lane_of_a_gpu() {
    let lanes = lanes(1);
    let lent = take(&lanes);
    assert!(lanes.try_take_for_host().is_none());
    // The call fails without CUDA, and does not wait for the lane of the host.
    drop(lanes.take(Place::Device(1000)));
    assert!(!lanes.are_wanted(Place::Host) && !lanes.are_wanted(Place::Device(1000)));
    lanes.put(lent);
}

#[test]
fn gpus_with_planned_transfers_are_busy_for_a_while() {
    const WHILE: Duration = Duration::from_millis(100);
    let found = || {
        let (lanes, start) = (lanes(1), Instant::now());
        let mut counts = [0, 0b1, 0b10, 0b1010].map(|gpus| lanes.busy_gpus(gpus)).to_vec();
        let host = take(&lanes);
        counts.push(lanes.busy_gpus(0));
        lanes.put(host);
        (lanes, counts, start.elapsed())
    };
    // A busy machine may stop the test for longer than a GPU counts as busy.
    let (lanes, counts, _) = iter::repeat_with(found).find(|(.., took)| *took < WHILE).unwrap();
    assert_eq!(counts, [0, 1, 2, 3, 3], "host memory is no GPU");
    thread::sleep(WHILE + Duration::from_millis(1));
    assert_eq!(lanes.busy_gpus(0b100), 1);
}

const GPU: Place = Place::Device(0);

/// Returns lanes of the emulated GPU, and this many that a reset of it has taken away.
fn lost(bed: &Bed, count: usize) -> (Arc<Lanes>, Vec<Lane>) {
    let gpus = Gpus::new(None, Some(bed.driver.clone()));
    let lanes = Lanes::new(Arc::new(gpus), BOUNCE, count * 2 * Bounce::bytes_for(BOUNCE));
    let lent: Vec<_> = (0..count).map(|_| pinned(lanes.take(GPU).unwrap())).collect();
    // SAFETY: nothing is in flight.
    unsafe { bed.reset() };
    assert!(lent.iter().all(Lane::is_lost));
    (Arc::new(lanes), lent)
}

fn pinned(mut lane: Lane) -> Lane {
    lane.pin();
    lane
}

/// Begins a chunk with a lost lane. Returns the lane that replaces it, which has nothing in flight.
fn replaced(driver: &Driver, lanes: &Arc<Lanes>, lane: Lane) -> Lane {
    let gpus = Gpus::new(None, Some(driver.clone()));
    let mut device = driver.cuda().device(0).unwrap().alloc(1).unwrap();
    let file = &OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default());
    let ranges = &[IoRange { file_offset: 0, buffer_offset: 0, len_bytes: 1 }];
    let entries = Entries::Ranges { file, memory: gpus.memory_of_mut(&mut device).unwrap(), ranges };
    let workers = Workers::new(1, lanes.clone());
    // SAFETY: the chunk ends here.
    let (job, _) = unsafe { workers.prepare(&Transfer::for_test(Direction::Read, entries)) }.unwrap();
    let (claim, _) = Job::claim(&job, job.generation(), None).unwrap();
    let (mut lane, mut reports) = (Some(lane), Reports::default());
    lanes.start(&mut lane, claim, &mut reports);
    let mut lane = lane.unwrap();
    lane.finish_all(&mut reports);
    workers.finish(job);
    lane
}

#[test]
fn waiting_threads_take_the_place_of_a_lost_lane() {
    let bed = Bed::emulated();
    let (lanes, mut lent) = lost(&bed, 1);
    let (ended, has_ended) = channel();
    let others = lanes.clone();
    thread::spawn(move || others.put(others.take(GPU).unwrap()));
    while lanes.waiting(GPU) == 0 {
        thread::yield_now();
    }
    let (lane, driver) = (lent.remove(0), bed.driver.clone());
    thread::spawn(move || {
        let lane = replaced(&driver, &lanes, lane);
        lanes.put(lane);
        ended.send(()).unwrap();
    });
    has_ended.recv_timeout(Duration::from_secs(10)).expect("both threads go on");
}

#[test]
fn lost_lanes_take_no_lane_with_them_that_is_newer() {
    let bed = Bed::emulated();
    let (lanes, lent) = lost(&bed, 2);
    let mut lent = lent.into_iter();
    let new = pinned(replaced(&bed.driver, &lanes, lent.next().unwrap()));
    let pinned_bytes = new.pinned_bytes();
    lanes.put(new);
    let lane = replaced(&bed.driver, &lanes, lent.next().unwrap());
    assert_eq!(lane.pinned_bytes(), pinned_bytes);
    assert!(pinned_bytes > 0);
    lanes.put(lane);
}
