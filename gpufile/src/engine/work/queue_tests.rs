//! Jobs that take turns, without threads and lanes.

use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::{iter, slice};

use super::super::plan::chunks::Chunks;
use super::super::plan::schedule::{Order, Plan, Schedule};
use super::super::plan::transfer::{Entries, IoRange, Transfer};
use super::job::{Claim, Job};
use super::queue::{Queue, Reports};
use crate::direction::Direction;
use crate::memory::{Memory, Place};
use crate::open_file::{Method, OpenFile};
use crate::settings::Settings;

const CHUNK: usize = 4096;
const APART: u64 = 1 << 20;

fn with_jobs(counts: &[usize], order: Order, test: impl FnOnce(&[Arc<Job>])) {
    let file = OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default());
    // The test reads nothing from this address.
    let memory = Memory::on_host(without_provenance_mut(1 << 32), APART as usize);
    let range = |(number, count): (u64, &usize)| IoRange {
        file_offset: number * APART,
        buffer_offset: 0,
        len_bytes: count * CHUNK,
    };
    let ranges: Vec<IoRange> = (0..).zip(counts).map(range).collect();
    let jobs: Vec<Arc<Job>> = iter::repeat_with(Arc::default).take(counts.len()).collect();
    for (job, (range, count)) in jobs.iter().zip(ranges.iter().zip(counts)) {
        let ranges = slice::from_ref(range);
        let entries = Entries::Ranges { file: &file, memory, ranges };
        let schedule = Schedule { chunk_bytes: CHUNK, ..Schedule::default() };
        let transfer = Transfer::for_test(Direction::Read, entries);
        let plan = Plan { method: Method::Calls, schedule, order };
        let cut = |chunks: &mut Chunks| chunks.cut_anew(&transfer, &plan).map(|()| plan.clone());
        // SAFETY: no chunk is carried out, and everything stays until the end of the test.
        let cut = unsafe { job.set_up(&transfer, cut, false) };
        assert_eq!(cut.unwrap(), *count);
    }
    test(&jobs);
}

fn claim(queue: &Queue) -> Option<((usize, usize), Claim)> {
    let claim = queue.claim()?;
    let offset = claim.segments().next().unwrap().offset;
    Some((((offset / APART) as usize, (offset % APART) as usize / CHUNK), claim))
}

/// Claims and completes chunks until there are no more.
fn claimed(queue: &Queue) -> Vec<(usize, usize)> {
    iter::from_fn(|| {
        let (chunk, claim) = claim(queue)?;
        Reports::to(queue).completed(claim, Ok(()));
        Some(chunk)
    })
    .collect()
}

#[test]
fn calls_take_turns() {
    with_jobs(&[2, 3, 1], Order::ANY, |jobs| {
        let queue = Queue::new(Place::Host);
        jobs.iter().for_each(|job| queue.submit(job, 3, None));
        assert_eq!(claimed(&queue), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (1, 2)]);
    });
}

#[test]
fn jobs_of_one_call_follow_each_other_in_its_turns() {
    with_jobs(&[2, 2, 4, 1], Order::ANY, |jobs| {
        let queue = Queue::new(Place::Host);
        let [first, second, other, third] = jobs else { unreachable!("four jobs") };
        queue.submit(first, 2, None);
        queue.submit(other, 4, None);
        queue.submit(second, 2, Some(first));
        queue.submit(third, 1, Some(second));
        let expected = [(0, 0), (2, 0), (0, 1), (2, 1), (1, 0), (2, 2), (1, 1), (2, 3), (3, 0)];
        assert_eq!(claimed(&queue), expected);
    });
}

#[test]
fn a_job_behind_one_that_has_gone_gets_a_turn() {
    with_jobs(&[1, 2, 2], Order::ANY, |jobs| {
        let queue = Queue::new(Place::Host);
        queue.submit(&jobs[0], 1, None);
        assert_eq!(claimed(&queue), [(0, 0)]);
        queue.submit(&jobs[1], 2, None);
        queue.submit(&jobs[2], 2, Some(&jobs[0]));
        assert_eq!(claimed(&queue), [(1, 0), (2, 0), (1, 1), (2, 1)]);
    });
}

#[test]
fn a_job_that_is_held_back_keeps_no_other_waiting() {
    let serial = Order::Serial;
    with_jobs(&[2, 2], serial, |jobs| {
        let queue = Queue::new(Place::Host);
        queue.submit(&jobs[0], 2, None);
        queue.submit(&jobs[1], 2, Some(&jobs[0]));
        let [(one, first), (other, second)] = [(); 2].map(|()| claim(&queue).unwrap());
        assert_eq!(((one, other), claimed(&queue)), (((0, 0), (1, 0)), vec![]));
        let mut reports = Reports::to(&queue);
        [second, first].into_iter().for_each(|claim| reports.completed(claim, Ok(())));
        assert_eq!(claimed(&queue), [(1, 1), (0, 1)]);
    });
}

#[test]
fn random_calls_keep_their_order_and_share_the_turns() {
    const CALLS: usize = 3;
    for seed in 0..300 {
        let mut random: u64 = seed;
        let mut below = |most: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % most
        };
        // Job `number` belongs to call `number % CALLS`.
        let counts: Vec<usize> = (0..CALLS * 4).map(|_| 1 + below(4)).collect();
        with_jobs(&counts, Order::ANY, |jobs| {
            let queue = Queue::new(Place::Host);
            let (mut submitted, mut left, mut last) = ([0; CALLS], [0; CALLS], None);
            let mut seen = [(); CALLS].map(|()| Vec::new());
            while left.iter().sum::<usize>() > 0 || submitted.iter().any(|count| *count < 4) {
                let call = below(CALLS);
                if submitted[call] < 4 && below(2) == 0 {
                    let number = call + CALLS * submitted[call];
                    let before = number.checked_sub(CALLS).map(|before| &jobs[before]);
                    queue.submit(&jobs[number], counts[number], before);
                    submitted[call] += 1;
                    left[call] += counts[number];
                    // Other calls that come now may be behind this one, which was alone.
                    last = None;
                } else if let Some((chunk, claim)) = claim(&queue) {
                    let call = chunk.0 % CALLS;
                    let is_alone = (0..CALLS).all(|other| other == call || left[other] == 0);
                    assert!(is_alone || last != Some(call), "call {call} has two turns, seed {seed}");
                    seen[call].push(chunk);
                    left[call] -= 1;
                    last = Some(call);
                    Reports::to(&queue).completed(claim, Ok(()));
                }
            }
            for (call, seen) in seen.iter().enumerate() {
                let chunks = |number: usize| (0..counts[number]).map(move |chunk| (number, chunk));
                let numbers = (0..4).map(|at| call + CALLS * at);
                let expected: Vec<_> =
                    numbers.flat_map(|number| chunks(number).collect::<Vec<_>>()).collect();
                assert_eq!(*seen, expected, "call {call}, seed {seed}");
            }
        });
    }
}
