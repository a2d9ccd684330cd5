//! The ranges of one read, and the memory that their bytes go to.

use std::ops::Range;
use std::ptr;

use crate::storage::Span;

/// The most parts of memory that one call of the kernel fills.
const MOST_AT_ONCE: usize = 64;
const CUT_ALIGNMENT: u64 = 4096;

/// A span of the object, or a gap that is received, too.
#[derive(Debug)]
struct Piece {
    offset: u64,
    len_bytes: usize,
    /// The memory of the span. `None` for a gap.
    ptr: Option<*mut u8>,
    /// The end, in the object, of the run of adjacent pieces.
    run_end: u64,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.len_bytes as u64
    }
}

/// The next byte in a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    piece: usize,
    within: usize,
    /// The number of bytes before the place, gaps included.
    pub before: u64,
}

/// Spans of memory, in the order of receiving.
pub(super) struct Batch {
    pieces: Vec<Piece>,
    got: Place,
    /// The number of bytes of spans that arrived, without a gap.
    done_bytes: usize,
    list: Vec<libc::iovec>,
    /// The memory for bytes of gaps.
    dropped: Vec<u8>,
}

impl Batch {
    /// Takes spans, none of which is empty. Gaps of at most `gap_bytes` between two are received, too.
    ///
    /// # Safety
    /// As long as the batch is used, the memory of the spans must be valid for writes, and nothing else may use it.
    pub unsafe fn new(spans: impl IntoIterator<Item = Span>, gap_bytes: usize) -> Self {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut longest_gap = 0;
        for Span { offset, len_bytes, ptr } in spans {
            let behind = pieces.last().map_or(offset, Piece::end);
            if let Some(gap @ 1..) = offset.checked_sub(behind)
                && gap <= gap_bytes as u64
            {
                let len_bytes = gap as usize;
                longest_gap = longest_gap.max(len_bytes);
                pieces.push(Piece { offset: behind, len_bytes, ptr: None, run_end: 0 });
            }
            pieces.push(Piece { offset, len_bytes, ptr: Some(ptr), run_end: 0 });
        }
        let mut next: Option<(u64, u64)> = None;
        for piece in pieces.iter_mut().rev() {
            piece.run_end = match next {
                Some((start, run_end)) if start == piece.end() => run_end,
                _ => piece.end(),
            };
            next = Some((piece.offset, piece.run_end));
        }
        let dropped = vec![0; longest_gap];
        Self { pieces, got: Place::default(), done_bytes: 0, list: Vec::new(), dropped }
    }

    pub fn done_bytes(&self) -> usize {
        self.done_bytes
    }

    pub fn is_done(&self) -> bool {
        self.got.piece == self.pieces.len()
    }

    /// Returns the place of the next byte.
    pub fn place(&self) -> Place {
        self.got
    }

    /// Goes on behind a gap, if one comes next.
    pub fn skip_gap(&mut self) {
        self.got = self.behind_gap(self.got);
    }

    fn behind_gap(&self, place: Place) -> Place {
        match self.pieces.get(place.piece) {
            Some(Piece { ptr: None, len_bytes, .. }) => {
                let before = place.before + (len_bytes - place.within) as u64;
                Place { piece: place.piece + 1, within: 0, before }
            }
            _ => place,
        }
    }

    /// Returns the range of the next request, of at most `most_bytes`, and its place. Advances `from` behind it.
    /// Returns `None` at the end.
    pub fn next_request(&self, from: &mut Place, most_bytes: u64) -> Option<(Range<u64>, Place)> {
        let start = self.behind_gap(*from);
        let piece = self.pieces.get(start.piece)?;
        let offset = piece.offset + start.within as u64;
        let left = piece.run_end - offset;
        // Equal parts, of which none is short.
        let share = left.div_ceil(left.div_ceil(most_bytes.max(1)));
        let len_bytes = share.next_multiple_of(CUT_ALIGNMENT).min(most_bytes.max(1)).min(left);
        *from = self.behind(start, len_bytes);
        Some((offset..offset + len_bytes, start))
    }

    /// Returns the place that many bytes behind another.
    fn behind(&self, mut place: Place, len_bytes: u64) -> Place {
        place.before += len_bytes;
        place.within += len_bytes as usize;
        while let Some(piece) = self.pieces.get(place.piece)
            && place.within >= piece.len_bytes
        {
            place.within -= piece.len_bytes;
            place.piece += 1;
        }
        place
    }

    /// Returns memory of several pieces, for up to `len_bytes` next bytes. Without memory for a byte, the list is
    /// empty.
    pub fn memory(&mut self, len_bytes: usize) -> &[libc::iovec] {
        let (mut left, mut skipped) = (len_bytes, self.got.within);
        self.list.clear();
        for piece in self.pieces[self.got.piece..].iter().take(MOST_AT_ONCE) {
            let iov_len = (piece.len_bytes - skipped).min(left);
            let iov_base = match piece.ptr {
                Some(ptr) => ptr.wrapping_add(skipped),
                None => self.dropped.as_mut_ptr(),
            };
            self.list.push(libc::iovec { iov_base: iov_base.cast(), iov_len });
            (left, skipped) = (left - iov_len, 0);
            if left == 0 {
                break;
            }
        }
        &self.list
    }

    pub fn advance(&mut self, count: usize) {
        let before = self.got;
        self.got = self.behind(before, count as u64);
        let passed = |number: usize| {
            let start = if number == before.piece { before.within } else { 0 };
            let end = if number == self.got.piece { self.got.within } else { self.pieces[number].len_bytes };
            if self.pieces[number].ptr.is_some() { end - start } else { 0 }
        };
        let last = self.pieces.len().min(self.got.piece + 1);
        self.done_bytes += (before.piece..last).map(passed).sum::<usize>();
    }

    /// Copies bytes that arrived elsewhere. There must be memory for them.
    pub fn copy_from(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let libc::iovec { iov_base, iov_len } = self.memory(bytes.len())[0];
            // SAFETY: the creator of the batch promised that the memory is valid, and no other code has it.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), iov_base.cast(), iov_len) };
            self.advance(iov_len);
            bytes = &bytes[iov_len..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns spans of these offsets and lengths, which lie behind each other in memory in reverse order.
    fn spans(memory: &mut [u8], ranges: &[(u64, usize)]) -> Vec<Span> {
        let mut end = memory.len();
        let next = |(offset, len_bytes): &(u64, usize)| {
            end -= len_bytes;
            Span { offset: *offset, len_bytes: *len_bytes, ptr: memory[end..].as_mut_ptr() }
        };
        ranges.iter().map(next).collect()
    }

    fn batch(spans: &[Span], gap_bytes: usize) -> Batch {
        // SAFETY: only the batch uses the memory.
        unsafe { Batch::new(spans.iter().copied(), gap_bytes) }
    }

    fn requests(batch: &Batch, from: Place, most_bytes: u64) -> Vec<Range<u64>> {
        let mut from = from;
        std::iter::from_fn(|| batch.next_request(&mut from, most_bytes).map(|(range, _)| range)).collect()
    }

    #[test]
    fn bytes_fill_the_spans_in_order() {
        let mut memory = [0; 10];
        let spans = spans(&mut memory, &[(7, 3), (10, 5), (15, 2)]);
        let mut batch = batch(&spans, 0);
        let lens = |batch: &mut Batch, len| -> Vec<_> {
            batch.memory(len).iter().map(|part| part.iov_len).collect()
        };
        assert_eq!(lens(&mut batch, 100), [3, 5, 2]);
        assert_eq!(lens(&mut batch, 4), [3, 1]);
        batch.copy_from(&[1, 2]);
        assert_eq!(lens(&mut batch, 4), [1, 3]);
        batch.copy_from(&[3, 4, 5, 6, 7, 8, 9]);
        assert_eq!((batch.done_bytes(), lens(&mut batch, 9)), (9, vec![1]));
        assert!(!batch.is_done());
        batch.copy_from(&[10]);
        assert!(batch.done_bytes() == 10 && lens(&mut batch, 1).is_empty() && batch.is_done());
        assert_eq!(memory, [9, 10, 4, 5, 6, 7, 8, 1, 2, 3]);
    }

    #[test]
    fn bytes_of_gaps_are_dropped() {
        let mut memory = [0; 6];
        let spans = spans(&mut memory, &[(10, 2), (15, 2), (30, 2)]);
        let mut batch = batch(&spans, 3);
        assert_eq!(requests(&batch, Place::default(), 100), [10..17, 30..32]);
        batch.copy_from(&[1, 2, 99, 99]);
        assert_eq!(batch.done_bytes(), 2);
        // Another try leaves out the rest of the gap.
        assert_eq!(requests(&batch, batch.place(), 100), [15..17, 30..32]);
        batch.skip_gap();
        assert_eq!(batch.memory(1)[0].iov_len, 1);
        batch.copy_from(&[3]);
        assert_eq!(requests(&batch, batch.place(), 100), [16..17, 30..32]);
        batch.copy_from(&[4, 5, 6]);
        assert!(batch.is_done() && batch.done_bytes() == 6);
        assert_eq!(memory, [5, 6, 3, 4, 1, 2]);
    }

    #[test]
    fn ranges_that_are_not_ascending_are_requested_singly() {
        let mut memory = [0; 30];
        let spans = spans(&mut memory, &[(20, 10), (10, 10), (15, 10)]);
        let batch = batch(&spans, 100);
        assert_eq!(requests(&batch, Place::default(), 100), [20..30, 10..20, 15..25]);
    }

    #[test]
    fn long_ranges_are_split_into_equal_parts() {
        const KIB: u64 = 1 << 10;
        let mut memory = vec![0; 3584 << 10];
        let spans = spans(&mut memory, &[(1, 1000), (1001, (3584 << 10) - 1000)]);
        let batch = batch(&spans, 0);
        let lens = |most_bytes| -> Vec<_> {
            requests(&batch, Place::default(), most_bytes)
                .iter()
                .map(|range| range.end - range.start)
                .collect()
        };
        assert_eq!(lens(1 << 20), [896 * KIB; 4]);
        assert_eq!(lens(u64::MAX), [3584 * KIB]);
        assert_eq!(lens(2500 * KIB), [1792 * KIB; 2]);
        assert_eq!(lens(1000 * KIB)[..3], [896 * KIB; 3]);
        assert_eq!(lens(1001).len(), 3667);
    }

    #[test]
    fn one_call_fills_a_limited_number_of_spans() {
        let mut memory = [0; 1000];
        let ranges: Vec<_> = (0..100).map(|number| (10 * number, 10)).collect();
        let spans = spans(&mut memory, &ranges);
        let mut batch = batch(&spans, 0);
        assert_eq!(batch.memory(1000).len(), MOST_AT_ONCE);
        batch.advance(995);
        assert_eq!((batch.memory(5).len(), batch.done_bytes()), (1, 995));
    }
}
