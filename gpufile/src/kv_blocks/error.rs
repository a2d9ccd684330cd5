//! The reasons why blocks are not stored or fetched.

use crate::error::Error;

/// The reason why a block was not stored or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The store does not have the block.
    #[error("the store does not have the block")]
    Missing,
    /// The bytes of the block changed in its file, or the file ends before them. The store has removed the block. A
    /// [`BlockReader`](super::BlockReader) removes nothing.
    #[error("the block is corrupt; a store has removed it")]
    Corrupt,
    /// No slot is free, and no block can be evicted: all are [pinned](super::BlockStore::pin), or being read or written. Or the
    /// store does not [evict](super::BlockStoreBuilder::evicts).
    #[error(
        "the store has no room: all its blocks are pinned, or being read or written, or it does not evict"
    )]
    NoRoom,
    /// Another transfer uses some of the block's memory, or [`Region::access`](super::Region::access) does.
    #[error("some of the block's memory is in use by another transfer")]
    InUse,
    /// The deadline of the block has passed. Its memory may be in use for longer, and it may be stored after all.
    #[error("the deadline of the block has passed")]
    Deadline,
    /// The caller cancelled the transfer. The memory may be in use for longer, and the block may be stored after all.
    #[error("the transfer of the block was cancelled")]
    Cancelled,
    /// The transfer failed, or its arguments are wrong.
    #[error(transparent)]
    Failed(#[from] Error),
}
