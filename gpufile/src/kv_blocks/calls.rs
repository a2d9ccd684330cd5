//! The start of calls of a store or a reader: takes the memory of their blocks, and gives tasks to threads.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use cufile::fork::Generation;

use crate::error::{Cause, Error};
use crate::future::owned::OF_ANOTHER_PROCESS;
use crate::kv_blocks::call::{BlockTransfer, Call};
use crate::kv_blocks::error::BlockError;
use crate::kv_blocks::held::Held;
use crate::kv_blocks::pool::Pool;
use crate::kv_blocks::region::Piece;
use crate::kv_blocks::task::{Asked, Task, lost};
use crate::kv_blocks::timer::Timer;

/// The number of pieces in the first task of a call. Each further task has four times as many as the one before. So
/// the engine begins soon, while the caller takes the memory of later blocks.
const FIRST_PIECES: usize = 1 << 10;

/// A block to store or to fetch.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use gpufile::kv_blocks::{Block, Region};
///
/// let region = Region::new(vec![0; 8192]);
/// let pieces = [region.piece(0, 8192, 0)];
/// let block = Block::new(77, &pieces).until(Instant::now() + Duration::from_secs(5));
/// assert_eq!(block.key, 77);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Block<'a> {
    /// The key, which the caller chooses: usually a hash of the tokens up to the block, and of the model.
    pub key: u128,
    /// The memory of the block. For a store, the pieces cover the first bytes of the block without gaps, in any order. For a
    /// fetch, they may be any parts of it, for example those of one layer.
    pub pieces: &'a [Piece<'a>],
    /// The time at which the block ends with [`BlockError::Deadline`] if it has not ended by then.
    pub deadline: Option<Instant>,
}

impl<'a> Block<'a> {
    /// Returns a block without a deadline.
    pub fn new(key: u128, pieces: &'a [Piece<'a>]) -> Self {
        Self { key, pieces, deadline: None }
    }

    /// Sets the deadline.
    #[must_use]
    pub fn until(self, deadline: impl Into<Option<Instant>>) -> Self {
        Self { deadline: deadline.into(), ..self }
    }
}

/// The threads of a store or a reader. Dropping it lets them end when no task is left.
pub struct Calls {
    pub pool: Arc<Pool>,
    timer: Arc<Timer>,
    pub generation: Generation,
}

/// One kind of call.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Checks the pieces of a block whose length is at most the second argument, and returns their end in the block.
    pub check: fn(&[Piece<'_>], u64) -> Result<u64, BlockError>,
    pub is_fetch: bool,
    /// The most bytes of a block.
    pub block_bytes: u64,
    /// True if several tasks may carry out one call.
    pub is_cut: bool,
}

impl Calls {
    pub fn new() -> Self {
        Self { pool: Arc::default(), timer: Arc::default(), generation: Generation::current() }
    }

    /// Starts a call, whose tasks `run` carries out.
    pub fn start(
        &self,
        blocks: &[Block<'_>],
        kind: Kind,
        run: impl FnOnce(Task) + Clone + Send + 'static,
    ) -> BlockTransfer {
        let call = Arc::new(Call::new(blocks.iter().map(|block| block.deadline).collect()));
        let transfer = BlockTransfer::new(call.clone(), blocks.len(), kind.is_fetch);
        let all = 0..blocks.len();
        if !self.generation.is_current() {
            let cause = || Cause::Invalid(OF_ANOTHER_PROCESS.to_owned());
            call.resolve_rest(all, || BlockError::Failed(Error::Cufile { cause: cause() }));
            return transfer;
        }
        let has_deadlines = blocks.iter().any(|block| block.deadline.is_some());
        if let Some(deadline) = has_deadlines.then(|| call.expire(Instant::now())).flatten()
            && self.timer.watch(deadline, &call).is_err()
        {
            call.resolve_rest(all, lost);
            return transfer;
        }
        let mut left = all;
        let mut most_pieces = if kind.is_cut { FIRST_PIECES } else { usize::MAX };
        while !left.is_empty() {
            let task = task_of(&call, blocks, left, kind, most_pieces);
            left = task.numbers.end..blocks.len();
            most_pieces = most_pieces.saturating_mul(4);
            if !task.blocks.is_empty() {
                let run = run.clone();
                // A task that is dropped ends its blocks.
                let _ = self.pool.submit(Box::new(move || run(task)));
            }
        }
        transfer
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if self.generation.is_current() {
            self.pool.close();
            self.timer.close();
        }
    }
}

/// Takes the memory of the first of these blocks, with at least `most_pieces` pieces if they have as many. Ends those
/// that are described wrongly, or whose memory is in use.
fn task_of(
    call: &Arc<Call>,
    blocks: &[Block<'_>],
    mut numbers: Range<usize>,
    kind: Kind,
    most_pieces: usize,
) -> Task {
    let mut held = Held::default();
    let (mut asked, mut refused) = (Vec::new(), Vec::new());
    for number in numbers.clone() {
        let Block { key, pieces, .. } = blocks[number];
        match (kind.check)(pieces, kind.block_bytes).and_then(|end| Ok((end, held.take(pieces)?))) {
            Ok((end, pieces)) => asked.push(Asked { number, key, pieces, end }),
            Err(error) => refused.push((number, Err(error))),
        }
        if held.pieces.len() >= most_pieces {
            numbers.end = number + 1;
            break;
        }
    }
    call.resolve(refused);
    Task { call: call.clone(), held, blocks: asked, numbers }
}
