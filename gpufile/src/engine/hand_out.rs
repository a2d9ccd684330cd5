//! The order in which the chunks of a job are handed out: counting, without threads.

use super::schedule::Schedule;

/// The chunks of a job that are still to be handed out, and those that are out.
#[derive(Debug, Default)]
pub(crate) struct HandOut {
    chunks: usize,
    /// The chunk to be handed out next.
    next: usize,
    /// The number of chunks that are out.
    out: usize,
    /// The chunks are carried out in order: one is out at a time, except that its worker may have the next one too.
    is_serial: bool,
    /// The last chunk is handed out when the others are done.
    last_alone: bool,
    /// No more chunks are out at a time.
    at_once: Option<usize>,
}

impl HandOut {
    pub fn new(chunks: usize, schedule: &Schedule) -> Self {
        let Schedule { is_serial, at_once, last_bytes, .. } = *schedule;
        Self { chunks, next: 0, out: 0, is_serial, last_alone: last_bytes > 0 && chunks > 1, at_once }
    }

    /// Returns whether all chunks are completed that were or will be handed out.
    pub fn is_done(&self) -> bool {
        self.all_were_out() && self.out == 0
    }

    /// Returns whether no more chunks will be handed out.
    pub fn all_were_out(&self) -> bool {
        self.next == self.chunks
    }

    /// Returns the chunk to be handed out next.
    pub fn next(&self) -> usize {
        self.next
    }

    /// Returns whether a chunk can be had now.
    pub fn is_ready(&self) -> bool {
        self.next < self.ready() && !self.is_full()
    }

    /// Hands out a chunk.
    pub fn take(&mut self) -> Option<usize> {
        self.is_ready().then(|| self.hand_out())
    }

    /// Hands out the next chunk of a serial job to the worker that has `chunk`, which it has to end first. So the GPU can
    /// copy the one while the other is written.
    pub fn take_after(&mut self, chunk: usize) -> Option<usize> {
        let follows = self.is_serial && self.out == 1 && self.next == chunk + 1;
        (follows && self.next < self.ready()).then(|| self.hand_out())
    }

    /// Takes a chunk back. Returns whether chunks that were held back can be had now.
    pub fn complete(&mut self) -> bool {
        let was_held_back = self.is_full() || self.last_alone && self.next + 1 == self.chunks;
        self.out -= 1;
        was_held_back && self.is_ready()
    }

    /// Hands out no more.
    pub fn stop(&mut self) {
        self.next = self.chunks;
    }

    fn hand_out(&mut self) -> usize {
        let chunk = self.next;
        self.next += 1;
        self.out += 1;
        chunk
    }

    /// Returns whether as many chunks are out as are allowed.
    fn is_full(&self) -> bool {
        let most = if self.is_serial { Some(1) } else { self.at_once };
        most.is_some_and(|most| self.out >= most)
    }

    /// Returns the number of chunks that may have been handed out by now.
    fn ready(&self) -> usize {
        let last_is_held_back = self.last_alone && self.out > 0;
        self.chunks - usize::from(last_is_held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes and completes chunks at random, and checks each step against the rules.
    fn check(chunks: usize, schedule: &Schedule, seed: u64) {
        let mut random = seed;
        let mut below = |most: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % most
        };
        let mut hand_out = HandOut::new(chunks, schedule);
        let (mut out, mut taken) = (Vec::new(), 0);
        let last_alone = schedule.last_bytes > 0 && chunks > 1;
        while !hand_out.is_done() {
            let most = if schedule.is_serial { 1 } else { schedule.at_once.unwrap_or(usize::MAX) };
            let may_be_next = taken < chunks && !(last_alone && taken + 1 == chunks && !out.is_empty());
            let expected = (may_be_next && out.len() < most).then_some(taken);
            assert_eq!(hand_out.is_ready(), expected.is_some());
            match below(3) {
                0 | 1 if expected.is_some() => {
                    assert_eq!(hand_out.take(), expected);
                    out.push(taken);
                    taken += 1;
                }
                0 if out.len() == 1 && schedule.is_serial => {
                    let follows = may_be_next.then_some(taken);
                    assert_eq!(hand_out.take_after(out[0] + 1), None, "not the chunk before");
                    assert_eq!(hand_out.take_after(out[0]), follows);
                    if follows.is_some() {
                        out.push(taken);
                        taken += 1;
                    }
                }
                _ if out.is_empty() => assert_eq!(hand_out.take_after(0), None),
                _ => {
                    // The worker that has two chunks of a serial job ends the first one first.
                    out.remove(if schedule.is_serial { 0 } else { below(out.len()) });
                    // Those who found nothing before must be told, and nobody needs to be told twice.
                    assert_eq!(hand_out.complete(), expected.is_none() && hand_out.is_ready());
                }
            }
            assert_eq!((hand_out.next(), hand_out.all_were_out()), (taken, taken == chunks));
        }
        assert!(taken == chunks && out.is_empty());
    }

    #[test]
    fn chunks_are_handed_out_by_the_rules() {
        for chunks in 0..6 {
            for is_serial in [false, true] {
                for at_once in [None, Some(1), Some(2), Some(3)] {
                    for last_bytes in [0, 4096] {
                        let schedule = Schedule { is_serial, at_once, last_bytes, ..Schedule::default() };
                        (0..50).for_each(|seed| check(chunks, &schedule, seed));
                    }
                }
            }
        }
    }

    #[test]
    fn a_stopped_job_hands_out_nothing() {
        let mut hand_out = HandOut::new(3, &Schedule { last_bytes: 1, ..Schedule::default() });
        assert_eq!(hand_out.take(), Some(0));
        hand_out.stop();
        assert_eq!((hand_out.take(), hand_out.is_done()), (None, false));
        assert!(!hand_out.complete() && hand_out.is_done());
    }
}
