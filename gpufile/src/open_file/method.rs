//! The method by which the file's side of a transfer moves the bytes.

use std::sync::Arc;

use super::mapping::Mapping;

/// The direction of the bytes, and how the file's side moves them.
#[derive(Clone)]
pub(crate) enum Method {
    /// From the file, by system calls or cuFile.
    Read,
    /// From a mapping of the one file, by copying.
    ReadMapping(Arc<Mapping>),
    /// To the file, by system calls or cuFile.
    Write,
    /// To a mapping of the one file where that works, all but the last chunk.
    WriteMapping(Arc<Mapping>),
}

impl Method {
    pub fn is_read(&self) -> bool {
        matches!(self, Method::Read | Method::ReadMapping(_))
    }
}
