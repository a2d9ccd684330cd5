//! The method by which the file's side of a transfer moves the bytes.

use std::sync::Arc;

use super::mapping::Mapping;

/// The direction of a transfer, and the method by which the file's side moves its bytes.
#[derive(Clone)]
pub(crate) enum Method {
    /// From the file, by system calls or cuFile.
    Read,
    /// From a mapping of the only file, by copying.
    ReadMapping(Arc<Mapping>),
    /// To the file, by system calls or cuFile.
    Write,
    /// To a mapping of the only file where that works, except for the last chunk.
    WriteMapping(Arc<Mapping>),
}

impl Method {
    pub fn is_read(&self) -> bool {
        matches!(self, Method::Read | Method::ReadMapping(_))
    }
}
