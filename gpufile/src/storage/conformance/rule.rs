use std::fmt;

#[cfg(doc)]
use super::super::{Destination, Storage};

/// A heading in the contract of [`Storage`] or of [`Destination`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// [Bytes](Storage#bytes): the length and the bytes are right, and stay so.
    Bytes,
    /// [Short reads](Storage#short-reads): `read` fills all spans or returns an error.
    ShortReads,
    /// [Memory](Storage#memory): `read` writes only to the spans, only until it returns, and counts what it wrote.
    Memory,
    /// [Errors](Storage#errors): a read of bytes that exist succeeds.
    Errors,
    /// [Cancelling](Storage#cancelling): a cancelled read returns soon.
    Cancelling,
    /// [Threads](Storage#threads): any thread may read, and several at once.
    Threads,
    /// [Forks](Storage#forks): in a child, `read` works or returns an error.
    Forks,
    /// [Panics](Storage#panics): nothing panics.
    Panics,
    /// [Whole objects](Destination#whole-objects): an object appears when it is finished, and not before.
    WholeObjects,
    /// [`Destination::remove`]: the object is gone.
    Removal,
}

/// A rule that a storage or a destination broke.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Breach {
    /// The rule.
    pub rule: Rule,
    /// The call, and its result.
    pub found: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.found)
    }
}
