//! The times that the requests of an object took, and what follows from them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cufile::fork::Mutex;

const KEPT: usize = 64;
/// The fewest times from which others can be judged.
const FEWEST: usize = 8;
/// A request is late if it takes this many times as long as most others of its length.
const LATE: u32 = 4;
/// The least time of a late request.
const SOONEST: Duration = Duration::from_millis(50);
/// The latency below which a server is near.
const NEAR: Duration = Duration::from_micros(400);
/// A server that closes a connection with requests left, after fewer answers than this, gets one request at a time.
const FEW_ANSWERS: u32 = 8;

#[derive(Debug)]
pub(crate) struct Times {
    /// The shortest time in nanoseconds from a request to the head of its answer.
    latency: AtomicU64,
    /// True if the server does not answer several requests on one connection.
    one_by_one: AtomicBool,
    /// The times of the last requests, and the bytes of their answers.
    last: Mutex<VecDeque<(Duration, u64)>>,
    requests: AtomicU64,
    second_requests: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            latency: AtomicU64::new(u64::MAX),
            one_by_one: AtomicBool::new(false),
            last: Mutex::default(),
            requests: AtomicU64::new(0),
            second_requests: AtomicU64::new(0),
        }
    }
}

impl Times {
    /// Notes the time from the first request on a connection to the head of its answer.
    pub fn note_latency(&self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency.fetch_min(nanos, Ordering::Relaxed);
    }

    /// Notes that a server closed a connection with requests left.
    pub fn note_closed(&self, answers: u32) {
        if answers < FEW_ANSWERS {
            self.one_by_one.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether an answer began so soon that the server must be near.
    pub fn are_near(&self) -> bool {
        u128::from(self.latency.load(Ordering::Relaxed)) < NEAR.as_nanos()
    }

    /// Returns the most bytes on their way on a connection, if there are several requests.
    pub fn window(&self) -> u64 {
        if self.one_by_one.load(Ordering::Relaxed) { 0 } else { u64::MAX }
    }

    pub fn note(&self, time: Duration, len_bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut last = self.last.lock();
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back((time, len_bytes));
    }

    /// Returns whether a request, which began `since` ago, takes much longer than most others did.
    pub fn is_late(&self, since: Duration, len_bytes: u64) -> bool {
        if since < SOONEST {
            return false;
        }
        let mut times: Vec<_> = {
            let last = self.last.lock();
            let of_this_length = |(time, bytes): &(Duration, u64)| {
                // Shorter answers say how long this one would take at their speed.
                time.mul_f64((len_bytes as f64 / (*bytes).max(1) as f64).max(1.0))
            };
            last.iter().map(of_this_length).collect()
        };
        if times.len() < FEWEST {
            return false;
        }
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        since > *median * LATE
    }

    /// Permits a second request, unless many answers are late, so that the server as a whole is slow.
    pub fn permit_second(&self) -> bool {
        let requests = self.requests.load(Ordering::Relaxed);
        let permitted = 4 + requests / 16;
        self.second_requests
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < permitted).then_some(count + 1)
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use testkit::{Steps, in_threads};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn requests_are_late_beside_others_of_their_length() {
        let times = Times::default();
        let millis = Duration::from_millis;
        assert!(!times.is_late(millis(100_000), MIB), "no other is known");
        (0..KEPT).for_each(|_| times.note(millis(100), MIB));
        assert!(!times.is_late(millis(400), MIB) && times.is_late(millis(401), MIB));
        assert!(times.is_late(millis(401), 1));
        assert!(!times.is_late(millis(800), 2 * MIB) && times.is_late(millis(801), 2 * MIB));
        // The last ones count.
        (0..KEPT).for_each(|_| times.note(Duration::from_micros(10), MIB));
        assert!(!times.is_late(SOONEST - millis(1), MIB) && times.is_late(SOONEST, MIB));
    }

    #[test]
    fn second_requests_are_a_small_part_of_all() {
        let times = Times::default();
        (0..1600).for_each(|_| times.note(Duration::ZERO, 1));
        assert_eq!((0..1000).filter(|_| times.permit_second()).count(), 104);
    }

    #[test]
    fn the_shortest_latency_says_who_is_near() {
        let times = Times::default();
        assert!(!times.are_near(), "none is known");
        times.note_latency(NEAR);
        assert!(!times.are_near());
        times.note_latency(NEAR / 2);
        times.note_latency(NEAR * 2);
        assert!(times.are_near());
    }

    #[test]
    fn threads_note_the_shortest_latency() {
        let (all, steps) = ((0..2000).map(|_| Times::default()).collect::<Vec<_>>(), Steps::default());
        let note = |nanos| {
            let (all, steps) = (&all, &steps);
            move || {
                for times in all {
                    steps.next();
                    times.note_latency(Duration::from_nanos(nanos));
                }
            }
        };
        in_threads([1, 2].map(note));
        assert!(all.iter().all(|times| times.latency.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn servers_that_close_connections_get_single_requests() {
        let times = Times::default();
        times.note_closed(FEW_ANSWERS);
        assert_eq!(times.window(), u64::MAX);
        times.note_closed(FEW_ANSWERS - 1);
        assert_eq!(times.window(), 0);
    }
}
