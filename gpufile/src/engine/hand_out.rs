//! The order in which a job hands out its chunks. This module only counts; it has no threads.

use super::schedule::Schedule;

/// The counts of a job's chunks: those still to be handed out, and those that are out.
#[derive(Debug, Default)]
pub(crate) struct HandOut {
    chunks: usize,
    /// The chunk to be handed out next.
    next: usize,
    /// The number of chunks that are out.
    out: usize,
    /// True if the chunks are carried out in order. One chunk is out at a time, except that its worker may
    /// have the next one too.
    is_serial: bool,
    /// True if the last chunk is handed out only when the others are completed.
    last_alone: bool,
    /// The most chunks that may be out at a time; `None` for no limit.
    at_once: Option<usize>,
}

impl HandOut {
    pub fn new(chunks: usize, schedule: &Schedule) -> Self {
        let Schedule { is_serial, at_once, last_bytes, .. } = *schedule;
        Self { chunks, next: 0, out: 0, is_serial, last_alone: last_bytes > 0 && chunks > 1, at_once }
    }

    /// Returns whether no chunk is out and no more will be handed out.
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

    /// Returns whether a chunk can be handed out now.
    pub fn is_ready(&self) -> bool {
        self.next < self.ready() && !self.is_full()
    }

    /// Hands out a chunk, if one is ready.
    pub fn take(&mut self) -> Option<usize> {
        self.is_ready().then(|| self.hand_out())
    }

    /// Hands out the next chunk of a serial job to the worker that has `chunk`. That worker must complete
    /// `chunk` first. So the GPU can copy one chunk while the worker writes the other.
    pub fn take_after(&mut self, chunk: usize) -> Option<usize> {
        let follows = self.is_serial && self.out == 1 && self.next == chunk + 1;
        (follows && self.next < self.ready()).then(|| self.hand_out())
    }

    /// Takes back a completed chunk. Returns whether chunks that were held back can be handed out now.
    pub fn complete(&mut self) -> bool {
        let was_held_back = self.is_full() || self.last_alone && self.next + 1 == self.chunks;
        self.out -= 1;
        was_held_back && self.is_ready()
    }

    /// Stops handing out chunks.
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

    /// Returns the number of chunks that may be handed out by now, including those that already were.
    fn ready(&self) -> usize {
        let last_is_held_back = self.last_alone && self.out > 0;
        self.chunks - usize::from(last_is_held_back)
    }
}
