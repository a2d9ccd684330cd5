//! Parts that own their buffer together.

use std::fmt;
use std::sync::Arc;

use crate::cuda::Context;
use crate::memory::{IoBuf, IoBufMut};
use crate::slice::{Part, part_of_a_buffer};

/// A part of a buffer that all its parts own together: one buffer for many entries of a [`Batch`](crate::Batch) or many
/// transfers of a [`RegisteredStream`](crate::RegisteredStream), which take buffers by value.
///
/// The parts are disjoint, so that each may be read into while the others are in use. Parts of a
/// [`RegisteredBuffer`](crate::RegisteredBuffer) use its registration.
///
/// The buffer ends with the last part, on the thread that drops that: only then is its memory deregistered and freed,
/// unless [`into_whole`](Self::into_whole) gives the buffer back.
///
/// ```
/// use cufile::OwnedPart;
///
/// let mut parts = OwnedPart::split(vec![0u8; 10_000], 4096);
/// assert_eq!(parts.iter().map(OwnedPart::len_bytes).collect::<Vec<_>>(), [4096, 4096, 1808]);
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

/// What is kept for its end. Nothing looks at it until then, because even a reference could end the life of the
/// pointers that the parts have.
struct Whole<B>(B);

// SAFETY: a shared reference gives no access to the buffer, which only the last owner takes out or drops.
unsafe impl<B: Send> Sync for Whole<B> {}

impl<B: IoBufMut> OwnedPart<B> {
    /// Splits a buffer into disjoint parts of `len_bytes` each, the last one maybe shorter. An empty buffer has none,
    /// and is dropped.
    ///
    /// # Panics
    /// If `len_bytes` is 0.
    pub fn split(buffer: B, len_bytes: usize) -> Vec<Self> {
        let mut whole = Arc::new(Whole(buffer));
        // Only now that the buffer stays where it is: moving a boxed one ends the life of earlier pointers into it.
        let Whole(buffer) = Arc::get_mut(&mut whole).expect("nobody else has it yet");
        let parts = Part::whole_mut(buffer).chunks(len_bytes);
        parts.map(|part| Self { part, whole: Arc::clone(&whole) }).collect()
    }
}

impl<B> OwnedPart<B> {
    /// The whole buffer, if this is the last part that exists.
    ///
    /// # Errors
    /// This part, if there are others. Two threads that ask at once for the last two parts may both get theirs back.
    pub fn into_whole(self) -> Result<B, Self> {
        let Self { part, whole } = self;
        match Arc::try_unwrap(whole) {
            Ok(Whole(buffer)) => Ok(buffer),
            Err(whole) => Err(Self { part, whole }),
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

    /// Writes to each part from a thread of its own, and gives the buffer back.
    fn written<B: IoBufMut + Send + fmt::Debug + 'static>(buffer: B) -> B {
        let parts = OwnedPart::split(buffer, 4).into_iter().zip(1..);
        let threads = parts.map(|(mut part, number)| {
            thread::spawn(move || {
                // SAFETY: host memory, of which this is the part's own.
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
    fn what_is_written_to_the_parts_is_in_the_whole() {
        let expected = [1, 1, 1, 1, 2, 2, 2, 2, 3, 3];
        assert_eq!(written(vec![0; 10]), expected);
        assert_eq!(*written(vec![0; 10].into_boxed_slice()), expected);
        assert_eq!(*written(Box::new(vec![0; 10])), expected);
    }
}
