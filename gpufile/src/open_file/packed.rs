//! Contents in the form that a kernel of the GPU decodes.

use std::fmt;

use super::OpenFile;
use super::outcome::Stop;
use crate::gpu::bounce::Bounce;
use crate::gpu::unpack::PackedGroup;
use crate::storage::Span;

/// Stored contents, some of which have such a form.
pub(crate) trait PackedContents: fmt::Debug + Send + Sync {
    /// Reads spans in such a form to the bounce buffer. Returns `None` if they have none, or if the buffer has no room for it and
    /// the kernel's table: the spans are to be read as they are then. The memory of the spans is on the GPU, and not used.
    fn read(
        &self,
        spans: &[Span],
        bounce: &mut Bounce,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Option<Result<PackedRead, Stop>>;

    /// Returns the file with the packed form, and the offset in that file at which the byte at `offset` is stored.
    fn source(&self, offset: u64) -> (&OpenFile, u64);

    /// Returns the decoded bytes of a chunk that begins at `offset` and takes `stored_bytes` of the file on average.
    /// Returns `None` if the chunk would not be shorter in the file, or would lie in several packed forms.
    fn chunk_bytes(&self, offset: u64, stored_bytes: usize) -> Option<usize>;
}

/// Bytes in a bounce buffer, which a kernel decodes.
#[derive(Default)]
pub(crate) struct PackedRead {
    /// The groups to decode, whose `status` is not set yet.
    pub groups: Vec<PackedGroup>,
    /// Ranges of the bounce buffer whose bytes are those of the spans.
    pub plain: Vec<Plain>,
    /// The end of all in the bounce buffer, in bytes.
    pub end: usize,
}

/// Bytes that are copied as they are.
pub(crate) struct Plain {
    pub span: usize,
    pub device: *mut u8,
    /// The start in the bounce buffer, in bytes.
    pub at: usize,
    pub len_bytes: usize,
}
