//! The ranges of one read, and the memory that their bytes go to.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::{ptr, slice};

/// A range of a file, and the memory that its bytes go to or come from.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// The offset of the first byte in the file, in bytes.
    pub offset: u64,
    /// The length of the range and the memory, in bytes.
    pub len_bytes: usize,
    /// The address of the memory.
    pub ptr: *mut u8,
}

impl Span {
    /// Returns the offset behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len_bytes as u64
    }
}

/// The ranges that one read of a [`Storage`](super::Storage) is to fill, in this order, with their memory.
///
/// It knows the bytes that are missing: from the first that was not yet given to the end of the last span.
///
/// | the bytes are | use | copies |
/// |---|---|---|
/// | in memory, such as a body that a client collected | [`put`](Self::put) | one |
/// | what a reader writes to a `&mut [u8]` | [`fill`](Self::fill) | none |
/// | what a library or the kernel writes to addresses | [`as_raw`](Self::as_raw) and [`advance`](Self::advance), which is unsafe | none |
///
/// ```
/// use std::fs;
/// use std::os::unix::fs::FileExt;
/// use std::sync::Arc;
///
/// use gpufile::storage::{Error, Spans, Storage};
///
/// #[derive(Debug)]
/// struct Disk {
///     file: fs::File,
///     len_bytes: u64,
/// }
///
/// impl Storage for Disk {
///     fn len_bytes(&self) -> u64 {
///         self.len_bytes
///     }
///
///     fn read(&self, spans: &mut Spans<'_>) -> Result<(), Error> {
///         while let Some(range) = spans.next_range() {
///             if spans.fill(|memory| self.file.read_at(memory, range.start))? == 0 {
///                 return Err("the file became shorter".into());
///             }
///         }
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = fs::File::open("Cargo.toml")?;
/// let len_bytes = file.metadata()?.len();
/// let file = gpufile::File::from_storage("Cargo.toml", Arc::new(Disk { file, len_bytes }))?;
/// let mut buffer = vec![0; 9]; // or device memory
/// file.read_exact_at(&mut buffer, 0)?;
/// assert_eq!(buffer, b"[package]");
/// # Ok(())
/// # }
/// ```
pub struct Spans<'a> {
    /// None of them is empty.
    spans: &'a [Span],
    len_bytes: usize,
    /// The span of the next missing byte, and the number of its given bytes.
    at: usize,
    within: usize,
    filled_bytes: usize,
    /// The bytes at the start of the span that may be shown to safe code.
    initialised: usize,
    are_initialised: bool,
    is_cancelled: &'a dyn Fn() -> bool,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Spans<'a> {
    /// Takes spans, none of which is empty. `are_initialised` is true if all of their memory is.
    ///
    /// # Safety
    /// The memory of the spans must be valid for writes as long as the value exists, and nothing else may use it.
    pub(crate) unsafe fn new(
        spans: &'a [Span],
        are_initialised: bool,
        is_cancelled: &'a dyn Fn() -> bool,
    ) -> Self {
        debug_assert!(spans.iter().all(|span| span.len_bytes > 0));
        let memory = PhantomData;
        Self {
            spans,
            len_bytes: spans.iter().map(|span| span.len_bytes).sum(),
            at: 0,
            within: 0,
            filled_bytes: 0,
            initialised: 0,
            are_initialised,
            is_cancelled,
            memory,
        }
    }

    /// Returns the number of bytes of all spans.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the number of bytes that were given, from the start of the first span.
    pub fn filled_bytes(&self) -> usize {
        self.filled_bytes
    }

    /// Returns whether no byte is missing.
    pub fn is_full(&self) -> bool {
        self.at == self.spans.len()
    }

    /// Returns whether nobody waits for the bytes any more. The read then returns soon, with any result.
    pub fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }

    /// Returns the first of the missing [ranges](Self::ranges), or `None` if no byte is missing.
    pub fn next_range(&self) -> Option<Range<u64>> {
        self.ranges().next()
    }

    /// Returns the missing ranges of the storage. Spans that follow each other without a gap are one range.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + use<'a> {
        let mut rest = self.missing().peekable();
        std::iter::from_fn(move || {
            let first = rest.next()?;
            let mut end = first.end();
            while let Some(next) = rest.next_if(|next| next.offset == end) {
                end = next.end();
            }
            Some(first.offset..end)
        })
    }

    /// Copies the next missing bytes from here. They may go to several spans.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if fewer bytes are missing. Then none is copied.
    pub fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let left = self.len_bytes - self.filled_bytes;
        if bytes.len() > left {
            return Err(more_than(left, bytes.len()));
        }
        while !bytes.is_empty() {
            let span = self.spans[self.at];
            let count = bytes.len().min(span.len_bytes - self.within);
            // SAFETY: the creator promised that the memory is valid, and the bytes stay within the span.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), span.ptr.add(self.within), count) };
            self.go_on(count);
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Calls `read` with the memory for the next missing bytes, up to the end of their span. It returns the number of bytes that it
    /// wrote, which this function returns too. If no byte is missing, returns 0.
    ///
    /// The memory has unspecified contents. Host memory that may not be initialised is filled with zeros before.
    ///
    /// # Errors
    /// Those of `read`, and [`InvalidData`](io::ErrorKind::InvalidData) if it returns more than the length of the memory.
    pub fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let Some(span) = self.spans.get(self.at) else { return Ok(0) };
        let start = self.initialised.max(self.within);
        if !self.are_initialised && start < span.len_bytes {
            // SAFETY: the creator promised that the memory is valid for writes.
            unsafe { span.ptr.add(start).write_bytes(0, span.len_bytes - start) };
            self.initialised = span.len_bytes;
        }
        let left = span.len_bytes - self.within;
        // SAFETY: as above; the memory is initialised, and nothing else uses it.
        let count = read(unsafe { slice::from_raw_parts_mut(span.ptr.add(self.within), left) })?;
        if count > left {
            let problem = format!("a reader returned {count} bytes for memory of {left}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        self.go_on(count);
        Ok(count)
    }

    /// Returns the memory of the missing bytes, for [`advance`](Self::advance).
    ///
    /// When [`Storage::read`](super::Storage::read) returns, nothing may still write to these addresses: see
    /// [Memory](super::Storage#memory).
    pub fn as_raw(&mut self) -> impl Iterator<Item = Span> + use<'a> {
        self.missing()
    }

    /// Notes that the next `count` missing bytes were written through [`as_raw`](Self::as_raw).
    ///
    /// # Safety
    /// These bytes must have been written.
    ///
    /// # Panics
    /// If fewer bytes are missing.
    pub unsafe fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let span = self.spans.get(self.at).expect("as many bytes are missing");
            let some = count.min(span.len_bytes - self.within);
            self.go_on(some);
            count -= some;
        }
    }

    fn missing(&self) -> impl Iterator<Item = Span> + use<'a> {
        let within = self.within;
        self.spans[self.at..].iter().enumerate().map(move |(number, span)| match number {
            0 => Span {
                offset: span.offset + within as u64,
                len_bytes: span.len_bytes - within,
                ptr: span.ptr.wrapping_add(within),
            },
            _ => *span,
        })
    }

    /// Goes on behind `count` bytes of the span of the next missing byte.
    fn go_on(&mut self, count: usize) {
        self.filled_bytes += count;
        self.within += count;
        if self.within == self.spans[self.at].len_bytes {
            (self.at, self.within, self.initialised) = (self.at + 1, 0, 0);
        }
    }
}

fn more_than(left: usize, given: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{given} bytes were given, but only {left} are missing"),
    )
}

impl fmt::Debug for Spans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").field("ranges", &self.ranges().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `with` on spans of these ranges, whose memory is one behind the other, and returns the memory.
    fn filled(ranges: &[Range<u64>], with: impl FnOnce(&mut Spans<'_>)) -> Vec<u8> {
        let mut memory = vec![0xee; ranges.iter().map(|range| range.end - range.start).sum::<u64>() as usize];
        let mut next = memory.as_mut_ptr();
        let spans: Vec<_> = ranges
            .iter()
            .map(|range| {
                let (len_bytes, ptr) = ((range.end - range.start) as usize, next);
                next = next.wrapping_add(len_bytes);
                Span { offset: range.start, len_bytes, ptr }
            })
            .collect();
        // SAFETY: nothing else uses the memory.
        with(&mut unsafe { Spans::new(&spans, false, &|| false) });
        memory
    }

    #[test]
    fn bytes_fill_the_spans_in_order() {
        let memory = filled(&[3..5, 5..6, 9..12], |spans| {
            assert_eq!(spans.ranges().collect::<Vec<_>>(), [3..6, 9..12]);
            spans.put(&[1]).unwrap();
            assert_eq!((spans.next_range(), spans.filled_bytes()), (Some(4..6), 1));
            spans.put(&[2, 3, 4]).unwrap();
            assert_eq!((spans.next_range(), spans.ranges().count()), (Some(10..12), 1));
            assert_eq!(spans.put(&[0; 3]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(spans.filled_bytes(), 4);
            spans.put(&[5, 6]).unwrap();
            assert!(spans.is_full() && spans.next_range().is_none());
        });
        assert_eq!(memory, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn readers_see_initialised_memory_of_one_span() {
        let memory = filled(&[0..4, 4..6], |spans| {
            let one = |memory: &mut [u8]| {
                assert_eq!(memory, [0; 4]);
                memory[..2].fill(7);
                Ok(1)
            };
            assert_eq!(spans.fill(one).unwrap(), 1);
            // What the reader wrote beyond its count is kept, and not cleared again.
            assert_eq!(spans.fill(|memory| Ok((memory == [7, 0, 0]).into())).unwrap(), 1);
            assert_eq!(spans.fill(|_| Ok(3)).unwrap_err().kind(), io::ErrorKind::InvalidData);
            assert_eq!(spans.fill(|memory| Ok(memory.len())).unwrap(), 2);
            assert_eq!(spans.fill(|memory| Ok(memory.len())).unwrap(), 2);
            assert_eq!(spans.fill(|_| panic!("no byte is missing")).unwrap(), 0);
        });
        assert_eq!(memory, [7, 7, 0, 0, 0, 0]);
    }

    #[test]
    fn raw_memory_is_that_of_the_missing_bytes() {
        let memory = filled(&[0..4, 8..10], |spans| {
            spans.put(&[1]).unwrap();
            let raw: Vec<_> = spans.as_raw().collect();
            assert_eq!(
                raw.iter().map(|span| (span.offset, span.len_bytes)).collect::<Vec<_>>(),
                [(1, 3), (8, 2)]
            );
            // SAFETY: the memory is that of the span.
            unsafe { raw[0].ptr.write_bytes(2, 3) };
            // SAFETY: as above.
            unsafe { raw[1].ptr.write(3) };
            // SAFETY: these bytes were written.
            unsafe { spans.advance(4) };
            assert_eq!((spans.filled_bytes(), spans.next_range()), (5, Some(9..10)));
        });
        assert_eq!(memory, [1, 2, 2, 2, 3, 0xee]);
    }
}
