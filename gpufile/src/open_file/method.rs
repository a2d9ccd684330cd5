//! The method by which the file's side of a transfer moves the bytes.

use std::sync::Arc;

use super::fill::Fill;
use super::mapping::Mapping;

/// The method by which the file's side of a transfer moves the bytes.
#[derive(Clone)]
pub(crate) enum Method {
    /// System calls or cuFile.
    Calls,
    /// Copies from or to a mapping of the only file. The last chunk of a write goes by a system call, and so do writes
    /// that the mapping does not take.
    Mapping(Arc<Mapping>),
    /// Copies to new pages of the only file, which is on tmpfs. The last chunk goes by a system call, and so do writes that
    /// the kernel does not take.
    Fill(Arc<Fill>),
}
