//! Files without a descriptor, whose bytes another program sends.

use std::fmt;

use super::mapping::Span;
use super::outcome::Outcome;

/// The contents of a file without a descriptor, such as an object of a web server. They have the same length as long as
/// the file is open, and are only read. Several threads read at once, each waiting for its own call.
pub(crate) trait Object: fmt::Debug + Send + Sync {
    /// Returns the length of the contents in bytes.
    fn len_bytes(&self) -> u64;

    /// Returns the most bytes of each part of a long read, if longer parts would arrive more slowly.
    fn most_part_bytes(&self) -> Option<usize>;

    /// Reads spans, best in the order of the file, in few requests where possible. Returns when all bytes have arrived, or
    /// soon after `is_cancelled` returned true. The outcome has the bytes of the spans before the first one that did not
    /// arrive; those behind it are unspecified. It has no cause after the end of the contents, and the errno `ECANCELED` after
    /// cancelling.
    ///
    /// # Safety
    /// The memory of the spans must be valid for writes, and nothing else may use it during the call.
    unsafe fn read(&self, spans: &[Span], is_cancelled: &dyn Fn() -> bool) -> Outcome;
}
