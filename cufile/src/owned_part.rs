//! Parts that own their buffer together.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use crate::memory::{IoBuf, IoBufMut, Location};
use crate::slice::{Part, part_of_a_buffer};

/// A part of a buffer. The parts own the buffer together, for many entries of a [`Batch`](crate::Batch) or transfers
/// of a [`RegisteredStream`](crate::RegisteredStream), which take ownership of buffers.
///
/// They are disjoint, so each may be read into while others are in use. Parts of a
/// [`RegisteredBuffer`](crate::RegisteredBuffer) use its registration.
///
/// The last part drops the buffer, on its thread. Only then is the memory deregistered and freed, unless
/// [`into_whole`](Self::into_whole) returns the buffer.
///
/// ```
/// use cufile::{IoBuf, OwnedPart};
///
/// let mut parts = OwnedPart::split(vec![0u8; 10_000], 4096);
/// assert_eq!(parts.iter().map(IoBuf::len_bytes).collect::<Vec<_>>(), [4096, 4096, 1808]);
/// // Reads into them, and then:
/// let last = parts.pop().expect("three parts");
/// drop(parts);
/// let buffer = last.into_whole().expect("the last part");
/// assert_eq!(buffer.len(), 10_000);
/// ```
pub struct OwnedPart<B> {
    part: Part,
    whole: Arc<Whole<B>>,
}

/// The buffer, to which no reference exists until its end, because even a reference could invalidate the pointers
/// of the parts.
struct Whole<B>(B);

// SAFETY: a shared reference gives no access to the buffer, which only the last owner takes out or drops.
unsafe impl<B: Send> Sync for Whole<B> {}

impl<B: IoBufMut> OwnedPart<B> {
    /// Returns the bytes of a buffer in `range` as one part, which owns the buffer.
    ///
    /// ```
    /// use cufile::{IoBuf, OwnedPart};
    ///
    /// let part = OwnedPart::new(vec![0u8; 100], 60..);
    /// assert_eq!(part.len_bytes(), 40);
    /// let buffer = part.into_whole().expect("the only part");
    /// assert_eq!(buffer.len(), 100);
    /// ```
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as for a slice.
    pub fn new(buffer: B, range: impl RangeBounds<usize>) -> Self {
        let (part, whole) = shared(buffer);
        Self { part: part.part(range), whole }
    }

    /// Returns the parts of a buffer in these ranges, in bytes, in any order. No part covers the bytes between
    /// them.
    ///
    /// ```
    /// use cufile::{IoBuf, OwnedPart};
    ///
    /// let parts = OwnedPart::ranges(vec![0u8; 100], [60..100, 0..7]);
    /// assert_eq!(parts.iter().map(IoBuf::len_bytes).collect::<Vec<_>>(), [40, 7]);
    /// ```
    ///
    /// # Panics
    /// If a range goes beyond the buffer, or two of them overlap.
    pub fn ranges(buffer: B, ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<Self> {
        let ranges: Vec<_> = ranges.into_iter().collect();
        let mut in_order: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).collect();
        in_order.sort_by_key(|range| range.start);
        for pair in in_order.windows(2) {
            assert!(pair[0].end <= pair[1].start, "the ranges {:?} and {:?} overlap", pair[0], pair[1]);
        }
        let (part, whole) = shared(buffer);
        ranges.into_iter().map(|range| Self { part: part.part(range), whole: Arc::clone(&whole) }).collect()
    }

    /// Splits a buffer into disjoint parts of `len_bytes` each, of which the last may be shorter. An empty buffer has
    /// no parts, and is dropped.
    ///
    /// # Panics
    /// If `len_bytes` is 0.
    pub fn split(buffer: B, len_bytes: usize) -> Vec<Self> {
        let (part, whole) = shared(buffer);
        part.chunks(len_bytes).map(|part| Self { part, whole: Arc::clone(&whole) }).collect()
    }
}

fn shared<B: IoBufMut>(buffer: B) -> (Part, Arc<Whole<B>>) {
    let mut whole = Arc::new(Whole(buffer));
    // Only now does the buffer stay in its place: moving a boxed one invalidates earlier pointers into it.
    let Whole(buffer) = Arc::get_mut(&mut whole).expect("no other reference yet");
    (Part::whole_mut(buffer), whole)
}

impl<B> OwnedPart<B> {
    /// Splits the part in two: its first `mid_bytes` bytes, and the rest.
    ///
    /// # Panics
    /// If the part has fewer bytes.
    pub fn split_at(self, mid_bytes: usize) -> (Self, Self) {
        let Self { part, whole } = self;
        let first = Self { part: part.part(..mid_bytes), whole: Arc::clone(&whole) };
        (first, Self { part: part.part(mid_bytes..), whole })
    }

    /// Returns the whole buffer, if this is the last part that exists.
    ///
    /// # Errors
    /// This part, if others exist. If two threads call this at the same time with the last two parts, both may fail.
    pub fn into_whole(self) -> Result<B, Self> {
        let Self { part, whole } = self;
        match Arc::try_unwrap(whole) {
            Ok(Whole(buffer)) => Ok(buffer),
            Err(whole) => Err(Self { part, whole }),
        }
    }
}

impl<B> OwnedPart<B> {
    /// Returns the buffer in exchange for all of its parts, in any order.
    ///
    /// ```
    /// use cufile::{IoBuf, OwnedPart};
    ///
    /// let parts = OwnedPart::split(vec![7u8; 10_000], 4096);
    /// // Reads into them, and then:
    /// let buffer = OwnedPart::join(parts).expect("all parts");
    /// assert_eq!(buffer.len(), 10_000);
    /// ```
    ///
    /// # Errors
    /// Returns the parts if the list is empty, if a part is missing, or if one belongs to another buffer.
    pub fn join(mut parts: Vec<Self>) -> Result<B, Vec<Self>> {
        let Some(last) = parts.pop() else { return Err(parts) };
        let is_whole = parts.iter().all(|part| Arc::ptr_eq(&part.whole, &last.whole))
            && Arc::strong_count(&last.whole) == parts.len() + 1;
        match is_whole {
            // Only parts make new parts, and all of them are here.
            true => {
                drop(parts);
                last.into_whole().map_err(|last| vec![last])
            }
            false => {
                parts.push(last);
                Err(parts)
            }
        }
    }
}

part_of_a_buffer!(OwnedPart<B>, owns B);

// SAFETY: parts are disjoint, nothing else uses the buffer while they exist, and the pointer was made by the buffer's
// `as_mut_ptr`.
unsafe impl<B> IoBufMut for OwnedPart<B> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.part.ptr
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn written<B: IoBufMut + Send + fmt::Debug + 'static>(buffer: B) -> B {
        let parts = OwnedPart::split(buffer, 4).into_iter().zip(1..);
        let threads = parts.map(|(mut part, number)| {
            thread::spawn(move || {
                // SAFETY: the part's own bytes, in host memory.
                unsafe { part.as_mut_ptr().write_bytes(number, part.len_bytes()) };
                part
            })
        });
        let threads: Vec<_> = threads.collect();
        let parts: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        let [first, second, third] = <[_; 3]>::try_from(parts).expect("three parts");
        drop(first);
        let second = second.into_whole().expect_err("there is a third part");
        drop(third);
        second.into_whole().expect("the last part")
    }

    #[test]
    fn parts_of_unequal_lengths_are_disjoint() {
        let (first, rest) = OwnedPart::new((0..10).collect::<Vec<u8>>(), ..).split_at(3);
        let (middle, last) = rest.split_at(0);
        let places = [&first, &middle, &last].map(|part| (part.location().base_offset, part.len_bytes()));
        assert_eq!(places, [(0, 3), (3, 0), (3, 7)]);
        let parts = OwnedPart::ranges(vec![0u8; 10], [8..10, 0..0, 2..5, 5..8]);
        let places: Vec<_> =
            parts.iter().map(|part| (part.location().base_offset, part.len_bytes())).collect();
        assert_eq!(places, [(8, 2), (0, 0), (2, 3), (5, 3)]);
    }

    #[test]
    fn overlapping_or_long_ranges_panic() {
        let ranges = |ranges: [Range<usize>; 2]| {
            std::panic::catch_unwind(|| OwnedPart::ranges(vec![0u8; 10], ranges).len()).is_err()
        };
        assert!(!ranges([4..10, 0..4]));
        assert!(ranges([0..5, 4..10]) && ranges([4..10, 0..5]) && ranges([0..10, 3..4]));
        assert!(ranges([0..4, 4..11]) && ranges([11..11, 0..4]));
        assert!(
            std::panic::catch_unwind(|| OwnedPart::new(vec![0u8; 10], ..).split_at(11).0.len_bytes())
                .is_err()
        );
    }

    #[test]
    fn only_all_parts_of_one_buffer_join() {
        let split = || OwnedPart::split(vec![7u8; 10], 4);
        let (mut parts, mut others) = (split(), split());
        let last = parts.pop().expect("three parts");
        let mut parts = OwnedPart::join(parts).expect_err("one is missing");
        parts.push(others.swap_remove(0));
        let mut parts = OwnedPart::join(parts).expect_err("one is of another buffer");
        assert_eq!(parts.len(), 3);
        drop(parts.pop());
        parts.insert(0, last);
        assert_eq!(OwnedPart::join(parts).expect("all parts"), [7; 10]);
        assert!(OwnedPart::join(Vec::<OwnedPart<Vec<u8>>>::new()).is_err());
    }

    #[test]
    fn writes_to_parts_reach_the_whole() {
        let expected = [1, 1, 1, 1, 2, 2, 2, 2, 3, 3];
        assert_eq!(written(vec![0; 10]), expected);
        assert_eq!(*written(vec![0; 10].into_boxed_slice()), expected);
        assert_eq!(*written(Box::new(vec![0; 10])), expected);
    }
}
