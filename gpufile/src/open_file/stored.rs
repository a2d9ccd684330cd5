//! The contents of a file without a descriptor: those of a storage, which may break its contract.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::outcome::{Outcome, Stop};
use super::packed::PackedContents;
use crate::error::Cause;
use crate::storage::{Span, Spans, Storage, text_of};

#[derive(Debug, Clone)]
pub(crate) struct Stored {
    storage: Arc<dyn Storage>,
    len_bytes: u64,
    packed: Option<Arc<dyn PackedContents>>,
}

impl Stored {
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        let len_bytes = storage.len_bytes();
        Self { storage, len_bytes, packed: None }
    }

    /// Adds `packed`, which reads the contents in the form that a kernel decodes.
    #[cfg(feature = "formats")]
    pub fn with_packed(self, packed: Arc<dyn PackedContents>) -> Self {
        Self { packed: Some(packed), ..self }
    }

    pub fn packed(&self) -> Option<&dyn PackedContents> {
        self.packed.as_deref()
    }

    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// As [`Storage::most_part_bytes`].
    pub fn most_part_bytes(&self) -> Option<usize> {
        // A hint, which a worker may ask for.
        let most_bytes = catch_unwind(AssertUnwindSafe(|| self.storage.most_part_bytes())).ok()?;
        most_bytes.map(|bytes| bytes.max(1))
    }

    /// Reads spans, up to the end of the contents. Returns when all bytes have arrived, or soon after `is_cancelled`
    /// returned true, with the errno `ECANCELED`. `are_initialised` is true if all memory is.
    ///
    /// # Safety
    /// The memory of the spans must be valid for writes, and nothing else may use it during the call.
    pub unsafe fn read(
        &self,
        mut spans: Vec<Span>,
        are_initialised: bool,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Outcome {
        let is_cut = cut(&mut spans, self.len_bytes);
        if !spans.is_empty() {
            // SAFETY: the caller's promise.
            let mut request = unsafe { Spans::new(&spans, are_initialised, is_cancelled) };
            // The contract says that a storage can be used after a panic.
            let read = catch_unwind(AssertUnwindSafe(|| self.storage.read(&mut request)));
            let done_bytes = request.filled_bytes();
            let cause = match read {
                Ok(Ok(())) if request.is_full() => None,
                _ if is_cancelled() => Some(io::Error::from_raw_os_error(libc::ECANCELED).into()),
                Ok(Ok(())) => {
                    let at = request.next_range().map_or(self.len_bytes, |range| range.start);
                    Some(Cause::EndedEarly { at, end: self.len_bytes })
                }
                Ok(Err(error)) => Some(Cause::of_storage(error)),
                Err(panic) => {
                    let error = format!("the storage panicked: {}", text_of(&*panic));
                    Some(Cause::of_storage(error.into()))
                }
            };
            if let Some(cause) = cause {
                return Err(Stop::failed(done_bytes, cause));
            }
        }
        match is_cut {
            true => Err(Stop::end_of_file(spans.iter().map(|span| span.len_bytes).sum())),
            false => Ok(()),
        }
    }
}

/// Leaves out everything behind the first missing byte, and empty spans. Returns whether a byte is missing.
fn cut(spans: &mut Vec<Span>, len_bytes: u64) -> bool {
    let mut is_cut = false;
    spans.retain_mut(|span| {
        let there = len_bytes.saturating_sub(span.offset);
        let there = usize::try_from(there).map_or(span.len_bytes, |there| there.min(span.len_bytes));
        let kept = if is_cut { 0 } else { there };
        is_cut |= there < span.len_bytes;
        span.len_bytes = kept;
        kept > 0
    });
    is_cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: u64, len_bytes: usize) -> Span {
        Span { offset, len_bytes, ptr: std::ptr::dangling_mut() }
    }

    #[test]
    fn spans_end_with_the_contents() {
        for (len_bytes, lens, is_cut) in [
            (100, vec![10, 10, 5], false),
            (45, vec![10, 10, 5], false),
            (44, vec![10, 10, 4], true),
            (40, vec![10, 10], true),
            (17, vec![10, 2], true),
            (15, vec![10], true),
            (0, vec![], true),
        ] {
            let mut spans = vec![span(0, 10), span(12, 0), span(15, 10), span(40, 5)];
            assert_eq!(cut(&mut spans, len_bytes), is_cut, "{len_bytes}");
            assert_eq!(spans.iter().map(|span| span.len_bytes).collect::<Vec<_>>(), lens, "{len_bytes}");
        }
        let mut spans = vec![span(20, 10), span(0, 10)];
        assert!(cut(&mut spans, 25) && spans.len() == 1 && spans[0].len_bytes == 5);
        // An empty range behind the end lacks no byte.
        assert!(!cut(&mut vec![span(20, 0)], 10));
    }
}
