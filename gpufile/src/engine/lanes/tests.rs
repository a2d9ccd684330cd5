//! Lanes for host memory, which need no GPU.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::lane::Lane;
use super::lanes::Lanes;
use crate::bounce::Bounce;
use crate::gpus::Gpus;
use crate::memory::Place;

const BOUNCE: usize = 4096;

fn lanes(limit: usize) -> Lanes {
    Lanes::new(Arc::new(Gpus::default()), BOUNCE, limit * 2 * Bounce::bytes_for(BOUNCE))
}

fn take(lanes: &Lanes) -> Lane {
    lanes.take(Place::Host).unwrap()
}

/// Returns a lane whose first bounce buffer has memory, and the address of that memory.
fn allocated(lanes: &Lanes) -> (Lane, usize) {
    let [mut first, second] = take(lanes).into_bounces();
    let address = first.ptr().addr();
    (Lane::on_host(Arc::default(), [first, second]), address)
}

fn address(lane: Lane) -> usize {
    let [mut first, _] = lane.into_bounces();
    first.ptr().addr()
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
    let ((one, first), (other, second)) = (allocated(&lanes), allocated(&lanes));
    lanes.put(one);
    lanes.put(other);
    let again = take(&lanes);
    assert_eq!(again.place(), Place::Host);
    assert_eq!([address(again), address(take(&lanes))], [second, first]);
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
            while lanes.waiting() <= number {
                thread::yield_now();
            }
        }
        assert!(lanes.are_wanted());
        lanes.put(lent);
        // This thread has had its turn, so others come first.
        lanes.put(take(&lanes));
        order.lock().unwrap().push(4);
    });
    assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4]);
    assert!(!lanes.are_wanted());
}

#[test]
fn free_lanes_are_released_with_their_memory() {
    let lanes = lanes(2);
    let ((lent, _), (free, _)) = (allocated(&lanes), allocated(&lanes));
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
    if lanes.take(Place::Device(1000)).is_ok() {
        return eprintln!("skipped: there are a thousand GPUs");
    }
    assert!(lanes.try_take_for_host().is_some());
}
