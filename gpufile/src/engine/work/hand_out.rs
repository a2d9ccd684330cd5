//! The order in which chunks are handed out.

use std::mem;
use std::ops::Range;

use super::super::plan::schedule::Order;
use crate::memory::Place;

/// The part of a chunk that a claim takes: all of it, or, where each entry has an outcome, the rest behind an entry that
/// stopped.
#[derive(Debug)]
pub(crate) struct Piece {
    pub chunk: usize,
    pub positions: Range<usize>,
}

impl Piece {
    /// Returns the pieces of these positions that are carried out next, after a stop before or at the first.
    ///
    /// Each is at most half as long as the piece that stopped, so none of 16,384 failing entries is carried out more than
    /// 15 times.
    pub fn halves(chunk: usize, Range { start, end }: Range<usize>) -> impl Iterator<Item = Self> {
        let middle = start + (end - start) / 2;
        let halves = [start..middle, middle..end].into_iter().filter(|half| !half.is_empty());
        halves.map(move |positions| Self { chunk, positions })
    }
}

/// The chunks of one place. This only counts, and knows no threads.
#[derive(Debug)]
pub(crate) struct HandOut {
    pub place: Place,
    pub chunks: Range<usize>,
    next: usize,
    /// The number of chunks that are out.
    out: usize,
    /// In a serial order, the worker of the chunk that is out may have the next one too.
    order: Order,
    /// The pieces to be carried out again, before other chunks.
    pub again: Vec<Piece>,
}

impl HandOut {
    pub fn new(place: Place, chunks: Range<usize>, order: Order) -> Self {
        Self { place, next: chunks.start, chunks, out: 0, order, again: Vec::new() }
    }

    /// Returns whether no chunk is out and no more will be handed out.
    pub fn is_done(&self) -> bool {
        self.all_were_out() && self.out == 0
    }

    /// Returns whether every chunk was handed out.
    pub fn all_were_out(&self) -> bool {
        self.next == self.chunks.end && self.again.is_empty()
    }

    pub fn next(&self) -> Option<usize> {
        (self.next < self.chunks.end).then_some(self.next)
    }

    pub fn is_ready(&self) -> bool {
        (self.next < self.ready() || !self.again.is_empty()) && !self.is_full()
    }

    /// Hands out a piece to be carried out again.
    pub fn claim_again(&mut self) -> Option<Piece> {
        let piece = if self.is_full() { None } else { self.again.pop() };
        self.out += usize::from(piece.is_some());
        piece
    }

    pub fn claim(&mut self) -> Option<usize> {
        (self.next < self.ready() && !self.is_full()).then(|| self.hand_out())
    }

    /// Hands out the next chunk of a serial job to the worker that has `chunk`, and must complete it first. So the GPU can
    /// copy one chunk while the worker writes the other.
    pub fn claim_after(&mut self, chunk: usize) -> Option<usize> {
        let follows = self.order == Order::Serial && self.out == 1 && self.next == chunk + 1;
        (follows && self.next < self.ready()).then(|| self.hand_out())
    }

    /// Takes back a completed chunk. Returns whether chunks that were held back can be handed out now.
    pub fn complete(&mut self) -> bool {
        let was_held_back = self.is_full() || self.holds_back_last() && self.next + 1 == self.chunks.end;
        self.out -= 1;
        was_held_back && self.is_ready()
    }

    /// Stops handing out chunks. Returns the rest, and the pieces to be carried out again.
    pub fn stop(&mut self) -> (Range<usize>, Vec<Piece>) {
        let end = self.chunks.end;
        (mem::replace(&mut self.next, end)..end, mem::take(&mut self.again))
    }

    fn hand_out(&mut self) -> usize {
        let chunk = self.next;
        self.next += 1;
        self.out += 1;
        chunk
    }

    fn is_full(&self) -> bool {
        match self.order {
            Order::Any { at_once } => at_once.is_some_and(|most| self.out >= most),
            Order::Serial => self.out >= 1,
            // The pieces of the last chunk are out one by one.
            Order::LastAlone { .. } if self.next == self.chunks.end => self.out >= 1,
            Order::LastAlone { at_once } => at_once.is_some_and(|most| self.out >= most),
        }
    }

    /// Returns the number of chunks that may be out by now, or were.
    fn ready(&self) -> usize {
        let last_is_held_back = self.holds_back_last() && (self.out > 0 || !self.again.is_empty());
        self.chunks.end - usize::from(last_is_held_back)
    }

    fn holds_back_last(&self) -> bool {
        matches!(self.order, Order::LastAlone { .. }) && self.chunks.len() > 1
    }
}
