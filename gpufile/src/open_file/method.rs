//! The method by which the file's side of a transfer moves the bytes.

use std::sync::Arc;

use super::fill::Fill;
use super::mapping::Mapping;

#[derive(Clone)]
pub(crate) enum Method {
    /// System calls or cuFile.
    Calls,
    /// Copies from or to a mapping of the only file. System calls do the last chunk of a write, and what the mapping does
    /// not take.
    Mapping(Arc<Mapping>),
    /// Copies to new pages of the only file, on tmpfs, likewise.
    Fill(Arc<Fill>),
}
