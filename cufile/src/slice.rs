//! Parts of buffers.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::context::Context;
use crate::memory::{IoBuf, IoBufMut, Location};

/// A part of a buffer, for transfers like those of the whole.
///
/// cuFile sees the whole buffer's address and an offset, so a part uses the registration of a
/// [`RegisteredBuffer`](crate::RegisteredBuffer).
#[derive(Clone, Copy)]
pub struct BufSlice<'a> {
    part: Part,
    buffer: PhantomData<&'a [u8]>,
}

/// A part of a buffer that may be written. Parts that exist at the same time are disjoint, so each may be used on its
/// own thread.
pub struct BufSliceMut<'a> {
    part: Part,
    buffer: PhantomData<&'a mut [u8]>,
}

#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub ptr: *mut u8,
    pub len_bytes: usize,
    pub location: Location,
}

impl Part {
    pub fn whole(buffer: &(impl IoBuf + ?Sized)) -> Self {
        Self { ptr: buffer.as_ptr().cast_mut(), len_bytes: buffer.len_bytes(), location: buffer.location() }
    }

    pub fn whole_mut(buffer: &mut (impl IoBufMut + ?Sized)) -> Self {
        let part = Self::whole(buffer);
        Self { ptr: buffer.as_mut_ptr(), ..part }
    }

    fn foreign(context: Context, ptr: *mut u8, len_bytes: usize) -> Self {
        Self { ptr, len_bytes, location: Location::device(context) }
    }

    /// # Panics
    /// If the range goes beyond this part.
    pub fn part(self, range: impl RangeBounds<usize>) -> Self {
        let (start, len_bytes) = resolve(range, self.len_bytes);
        let base_offset = self.location.base_offset + start;
        Self {
            ptr: self.ptr.wrapping_add(start),
            len_bytes,
            location: Location { base_offset, ..self.location },
        }
    }

    /// Returns disjoint parts of `len_bytes` each; the last one may be shorter.
    ///
    /// # Panics
    /// If `len_bytes` is 0.
    pub fn chunks(self, len_bytes: usize) -> impl Iterator<Item = Self> {
        assert!(len_bytes > 0, "chunks of 0 bytes");
        (0..self.len_bytes).step_by(len_bytes).map(move |start| {
            let end = self.len_bytes.min(start.saturating_add(len_bytes));
            self.part(start..end)
        })
    }
}

impl<'a, B: IoBuf + ?Sized> From<&'a B> for BufSlice<'a> {
    fn from(buffer: &'a B) -> Self {
        Self::new(buffer, ..)
    }
}

impl<'a, B: IoBufMut + ?Sized> From<&'a mut B> for BufSliceMut<'a> {
    fn from(buffer: &'a mut B) -> Self {
        Self::new(buffer, ..)
    }
}

impl<'a> BufSlice<'a> {
    /// Returns the bytes of `buffer` in `range`.
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as for a slice.
    pub fn new(buffer: &'a (impl IoBuf + ?Sized), range: impl RangeBounds<usize>) -> Self {
        Self { part: Part::whole(buffer).part(range), buffer: PhantomData }
    }

    /// # Safety
    /// As for [`from_device`](Self::from_device), by whose rules the lifetime is chosen.
    pub(crate) unsafe fn foreign(context: Context, ptr: *const u8, len_bytes: usize) -> Self {
        Self { part: Part::foreign(context, ptr.cast_mut(), len_bytes), buffer: PhantomData }
    }

    /// Returns the bytes of this part in `range`.
    ///
    /// # Panics
    /// If the range goes beyond the part, as for a slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> BufSlice<'a> {
        Self { part: self.part.part(range), ..*self }
    }
}

impl<'a> BufSliceMut<'a> {
    /// Returns the bytes of `buffer` in `range`.
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as for a slice.
    pub fn new(buffer: &'a mut (impl IoBufMut + ?Sized), range: impl RangeBounds<usize>) -> Self {
        Self { part: Part::whole_mut(buffer).part(range), buffer: PhantomData }
    }

    /// # Safety
    /// As for [`from_device`](Self::from_device), by whose rules the lifetime is chosen.
    pub(crate) unsafe fn foreign(context: Context, ptr: *mut u8, len_bytes: usize) -> Self {
        Self { part: Part::foreign(context, ptr, len_bytes), buffer: PhantomData }
    }

    /// Returns the bytes of this part in `range`, for reading.
    ///
    /// # Panics
    /// If the range goes beyond the part, as for a slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> BufSlice<'_> {
        BufSlice { part: self.part.part(range), buffer: PhantomData }
    }

    /// Returns the bytes of this part in `range`.
    ///
    /// # Panics
    /// If the range goes beyond the part, as for a slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> BufSliceMut<'_> {
        BufSliceMut { part: self.part.part(range), buffer: PhantomData }
    }

    /// Returns two parts: the first `mid_bytes` bytes, and the rest.
    ///
    /// # Panics
    /// If the part has fewer bytes.
    pub fn split_at(self, mid_bytes: usize) -> (Self, Self) {
        let part = |range: (Bound<usize>, Bound<usize>)| Self { part: self.part.part(range), ..self };
        (
            part((Bound::Unbounded, Bound::Excluded(mid_bytes))),
            part((Bound::Included(mid_bytes), Bound::Unbounded)),
        )
    }

    /// Returns parts of `len_bytes` each; the last one may be shorter.
    ///
    /// # Panics
    /// If `len_bytes` is 0.
    pub fn chunks(self, len_bytes: usize) -> impl Iterator<Item = BufSliceMut<'a>> {
        let Self { part, buffer } = self;
        part.chunks(len_bytes).map(move |part| Self { part, buffer })
    }
}

macro_rules! part_of_a_buffer {
    ($part:ident<$of:tt> $(, owns $buffer:ident)?) => {
        // SAFETY: the bytes are those of an `IoBuf`. It promises that CUDA or the host can access them from any
        // thread, and that nothing else changes them. An owned buffer may end on any thread.
        unsafe impl$(<$buffer: Send>)? Send for $part<$of> {}
        // SAFETY: as above.
        unsafe impl$(<$buffer: Send>)? Sync for $part<$of> {}

        impl$(<$buffer>)? fmt::Debug for $part<$of> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Part { ptr, len_bytes, location: Location { base_offset, .. } } = self.part;
                write!(
                    f,
                    "{}({len_bytes} bytes at {ptr:p}, {base_offset} into its buffer)",
                    stringify!($part)
                )
            }
        }

        // SAFETY: part of a borrowed or owned buffer, which keeps the promise as long. The buffer, or the whole
        // that it is a part of, starts `base_offset` bytes before.
        unsafe impl$(<$buffer>)? IoBuf for $part<$of> {
            #[inline]
            fn as_ptr(&self) -> *const u8 {
                self.part.ptr
            }

            #[inline]
            fn len_bytes(&self) -> usize {
                self.part.len_bytes
            }

            #[inline]
            fn location(&self) -> Location {
                self.part.location
            }
        }
    };
}

pub(crate) use part_of_a_buffer;

part_of_a_buffer!(BufSlice<'_>);
part_of_a_buffer!(BufSliceMut<'_>);

// SAFETY: parts that may be written are disjoint, the buffer is borrowed mutably while they exist, and the pointer was
// made by the buffer's `as_mut_ptr`.
unsafe impl IoBufMut for BufSliceMut<'_> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.part.ptr
    }
}

fn resolve(range: impl RangeBounds<usize>, len_bytes: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.checked_add(1).expect("range start overflows"),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.checked_add(1).expect("range end overflows"),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len_bytes,
    };
    assert!(start <= end && end <= len_bytes, "range {start}..{end} of a buffer of {len_bytes} bytes");
    (start, end - start)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn parts_lie_in_their_buffer_and_name_its_start() {
        let mut buffer = vec![0u8; 100];
        let start = buffer.as_ptr();
        let mut part = BufSliceMut::new(&mut buffer, 10..90);
        let inner = part.slice_mut(5..=9);
        assert_eq!((inner.len_bytes(), inner.location().base_offset), (5, 15));
        assert_eq!(inner.as_ptr(), start.wrapping_add(15));
        let (left, right) = part.split_at(30);
        assert_eq!((left.len_bytes(), right.len_bytes(), right.location().base_offset), (30, 50, 40));
        let chunks: Vec<_> =
            right.chunks(20).map(|part| (part.location().base_offset, part.len_bytes())).collect();
        assert_eq!(chunks, [(40, 20), (60, 20), (80, 10)]);
        assert_eq!(left.slice(..).slice(29..).location().base_offset, 39);
    }

    #[test]
    fn a_range_beyond_the_part_panics() {
        let mut buffer = vec![0u8; 100];
        let mut part = BufSliceMut::new(&mut buffer, 10..90);
        let ranges = [(0, 81), (81, 81), (usize::MAX, usize::MAX), (1, usize::MAX), (1, 0)];
        for (start, end) in ranges {
            let beyond = catch_unwind(AssertUnwindSafe(|| part.slice_mut(start..end).len_bytes()));
            assert!(beyond.is_err(), "{start}..{end}");
        }
        assert!(catch_unwind(AssertUnwindSafe(|| part.slice(0..=usize::MAX).len_bytes())).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| part.split_at(81))).is_err());
    }
}
