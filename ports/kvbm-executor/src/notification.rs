//! The end of a transfer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use gpufile::kv_blocks::{BlockError, BlockTransfer};

use crate::{BlockId, Key};

/// A transfer in flight: wait for it, await it in any runtime, or cancel it.
///
/// Dropping it does not wait. Blocks are still offloaded, and an onboarding is given up.
#[must_use = "it tells which blocks failed"]
#[derive(Debug)]
pub struct Notification {
    transfer: BlockTransfer,
    /// The number of each block in memory, and its key on disk.
    blocks: Vec<(BlockId, Key)>,
}

/// A block that was not moved.
#[derive(Debug)]
pub struct FailedBlock {
    /// The position of the block in the lists of the call.
    pub position: usize,
    pub block: BlockId,
    pub key: Key,
    pub error: BlockError,
}

/// The blocks that were not moved. All others were.
#[derive(Debug, thiserror::Error)]
#[error("{} of {of} blocks were not moved, the first of them block {} with key {:#x}: {}",
    failed.len(), failed[0].block, failed[0].key, failed[0].error)]
pub struct TransferError {
    /// The failed blocks, at least one.
    pub failed: Vec<FailedBlock>,
    /// The number of blocks of the call.
    pub of: usize,
}

impl Notification {
    pub(crate) fn new(transfer: BlockTransfer, blocks: Vec<(BlockId, Key)>) -> Self {
        Self { transfer, blocks }
    }

    /// Returns whether awaiting it may suspend the task.
    pub fn could_yield(&self) -> bool {
        !self.transfer.is_done()
    }

    /// Waits for the end of all blocks, at most until their deadline.
    ///
    /// # Errors
    /// The blocks that were not moved.
    pub fn wait(self) -> Result<(), TransferError> {
        let Self { transfer, blocks } = self;
        outcome(transfer.wait(), &blocks)
    }

    /// Ends the transfer at once. Memory of blocks in flight stays in use until the storage has answered.
    ///
    /// # Errors
    /// The blocks that were not moved before.
    pub fn cancel(self) -> Result<(), TransferError> {
        let Self { transfer, blocks } = self;
        outcome(transfer.cancel(), &blocks)
    }
}

impl Future for Notification {
    type Output = Result<(), TransferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcomes = Pin::new(&mut self.transfer).poll(context);
        outcomes.map(|outcomes| outcome(outcomes, &self.blocks))
    }
}

fn outcome(outcomes: Vec<Result<(), BlockError>>, blocks: &[(BlockId, Key)]) -> Result<(), TransferError> {
    let of = outcomes.len();
    let failed = outcomes.into_iter().zip(blocks).enumerate().filter_map(|(position, (outcome, named))| {
        let (block, key) = *named;
        outcome.err().map(|error| FailedBlock { position, block, key, error })
    });
    let failed: Vec<_> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(TransferError { failed, of }) }
}
