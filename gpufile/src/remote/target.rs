//! The memory that the bytes of a range go to.

use std::ptr;

use crate::open_file::Span;

/// The most spans that one call of the kernel fills.
const MOST_AT_ONCE: usize = 64;

/// Spans of memory that follow each other in an object, and the number of bytes that arrived, without a gap.
pub(super) struct Target<'a> {
    spans: &'a [Span],
    /// The number of bytes of the first span that arrived.
    done_of_first: usize,
    done_bytes: usize,
    /// The memory of the next call.
    list: Vec<libc::iovec>,
}

impl<'a> Target<'a> {
    /// # Safety
    /// The memory of the spans must be valid for writes as long as the target is used, and nothing else may use it.
    pub unsafe fn new(spans: &'a [Span]) -> Self {
        let mut target = Self { spans, done_of_first: 0, done_bytes: 0, list: Vec::new() };
        target.advance(0);
        target
    }

    /// Returns the number of bytes that arrived.
    pub fn done_bytes(&self) -> usize {
        self.done_bytes
    }

    /// Returns memory for the next bytes, of which at most `len_bytes` are coming: that of several spans. Without
    /// memory for a byte, the list is empty.
    pub fn memory(&mut self, len_bytes: usize) -> &[libc::iovec] {
        let (mut left, mut skipped) = (len_bytes, self.done_of_first);
        self.list.clear();
        for span in self.spans.iter().take(MOST_AT_ONCE) {
            let iov_len = (span.len_bytes - skipped).min(left);
            self.list.push(libc::iovec { iov_base: span.ptr.wrapping_add(skipped).cast(), iov_len });
            (left, skipped) = (left - iov_len, 0);
            if left == 0 {
                break;
            }
        }
        &self.list
    }

    /// Notes that so many bytes arrived in the memory. The first span that is left then has room, because empty ones are
    /// skipped.
    pub fn advance(&mut self, count: usize) {
        self.done_bytes += count;
        self.done_of_first += count;
        while let [first, rest @ ..] = self.spans
            && self.done_of_first >= first.len_bytes
        {
            self.done_of_first -= first.len_bytes;
            self.spans = rest;
        }
    }

    /// Copies bytes that arrived elsewhere. There must be memory for them.
    pub fn copy_from(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let libc::iovec { iov_base, iov_len } = self.memory(bytes.len())[0];
            // SAFETY: the creator of the target promised that the memory is valid, and no other code has it.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), iov_base.cast(), iov_len) };
            self.advance(iov_len);
            bytes = &bytes[iov_len..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns spans of these lengths, which lie behind each other in memory in reverse order.
    fn spans(memory: &mut [u8], lens: &[usize]) -> Vec<Span> {
        let (mut offset, mut end) = (7, memory.len());
        let next = |len_bytes: &usize| {
            end -= len_bytes;
            offset += *len_bytes as u64;
            Span {
                offset: offset - *len_bytes as u64,
                len_bytes: *len_bytes,
                ptr: memory[end..].as_mut_ptr(),
            }
        };
        lens.iter().map(next).collect()
    }

    #[test]
    fn bytes_fill_the_spans_in_order() {
        let mut memory = [0; 10];
        let spans = spans(&mut memory, &[0, 3, 0, 5, 2, 0]);
        // SAFETY: only the target uses the memory.
        let mut target = unsafe { Target::new(&spans) };
        let lens = |target: &mut Target<'_>, len| -> Vec<_> {
            target.memory(len).iter().map(|part| part.iov_len).collect()
        };
        assert_eq!(lens(&mut target, 100), [3, 0, 5, 2, 0]);
        assert_eq!(lens(&mut target, 4), [3, 0, 1]);
        target.copy_from(&[1, 2]);
        assert_eq!(lens(&mut target, 4), [1, 0, 3]);
        target.copy_from(&[3, 4, 5, 6, 7, 8, 9]);
        assert_eq!((target.done_bytes(), lens(&mut target, 9)), (9, vec![1, 0]));
        target.copy_from(&[10]);
        assert!(target.done_bytes() == 10 && lens(&mut target, 1).is_empty());
        assert_eq!(memory, [9, 10, 4, 5, 6, 7, 8, 1, 2, 3]);
    }

    #[test]
    fn one_call_fills_a_limited_number_of_spans() {
        let mut memory = [0; 1000];
        let spans = spans(&mut memory, &[10; 100]);
        // SAFETY: only the target uses the memory.
        let mut target = unsafe { Target::new(&spans) };
        assert_eq!(target.memory(1000).len(), MOST_AT_ONCE);
        target.advance(995);
        assert_eq!((target.memory(5).len(), target.done_bytes()), (1, 995));
    }
}
