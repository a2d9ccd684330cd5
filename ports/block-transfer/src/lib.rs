//! A block-transfer plugin on cuFile, for the cache of an inference server. It cuts GPU memory into blocks and
//! registers it once. A transfer loads or stores a list of blocks while the server goes on.
//!
//! In C, the user promises not to touch memory before a transfer is over. Here a block in flight belongs to its
//! transfer. Asking for it is an error, and dropping a value early frees no memory that cuFile still uses.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use cufile::cuda::DeviceBuffer;
use cufile::{
    Batch, Completion, Driver, Entry, Error, Failed, FileHandle, IoBuf, OwnedPart, RegisterFlags,
    RegisteredBuffer, Result,
};

/// The most blocks of a batch in cuFile's default configuration.
const BATCH_LEN: usize = 128;

/// A block of GPU memory, part of one registered allocation.
type Block = OwnedPart<RegisteredBuffer<DeviceBuffer>>;

/// Finished entries, even if an error came before all of them had finished.
type Ended = Result<Vec<Completion<Block>>, Failed<Vec<Completion<Block>>>>;

/// The direction of the bytes: from the file to the GPU, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Load,
    Store,
}

/// The number of a block, and its place in a file that [`Agent::add_file`] has numbered, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    pub block: usize,
    pub file: usize,
    pub offset: u64,
}

/// The reasons to refuse a transfer.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("block {0} does not exist, or is part of another transfer; finish that first")]
    Block(usize),
    #[error("file {0} does not exist; Agent::add_file returns the numbers of files")]
    File(usize),
    #[error(transparent)]
    Cufile(#[from] Error),
}

/// The number of bytes moved, by the number of the block. At the end of a file it is smaller than the block.
pub type Outcomes = BTreeMap<usize, Result<usize>>;

/// A transfer in flight. Dropping it waits for its blocks and drops them; [`Agent::finish`] gives them back.
#[derive(Debug)]
#[must_use = "dropping it drops its blocks"]
pub struct Transfer {
    batches: Vec<Batch<Block>>,
    outcomes: Outcomes,
}

/// The blocks and files of one GPU.
pub struct Agent {
    driver: Driver,
    files: Vec<Arc<FileHandle>>,
    /// The blocks by number; `None` while a block is in flight.
    blocks: Vec<Option<Block>>,
    /// Batches that are set up and idle.
    idle: Vec<Batch<Block>>,
}

impl Agent {
    /// Makes and registers `count` blocks of `block_bytes` bytes on a GPU.
    pub fn new(gpu: u32, block_bytes: usize, count: usize) -> Result<Self> {
        let driver = Driver::open()?;
        let memory = driver.cuda().device(gpu)?.alloc(block_bytes * count)?;
        let memory = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?;
        let blocks = OwnedPart::split(memory, block_bytes).into_iter().map(Some).collect();
        Ok(Self { driver, files: Vec::new(), blocks, idle: Vec::new() })
    }

    /// Registers a file and returns its number.
    pub fn add_file(&mut self, file: File) -> Result<usize> {
        self.files.push(Arc::new(FileHandle::register(&self.driver, file)?));
        Ok(self.files.len() - 1)
    }

    /// Copies host bytes into a block that is not in flight.
    pub fn fill(&mut self, number: usize, bytes: &[u8]) -> Result<(), Refused> {
        let block = self.blocks.get_mut(number).and_then(Option::as_mut).ok_or(Refused::Block(number))?;
        Ok(self.driver.cuda().copy(bytes, block)?)
    }

    /// Copies a block that is not in flight to host memory.
    pub fn contents(&self, number: usize) -> Result<Vec<u8>, Refused> {
        let block = self.blocks.get(number).and_then(Option::as_ref).ok_or(Refused::Block(number))?;
        let mut bytes = vec![0; block.len_bytes()];
        self.driver.cuda().copy(block, &mut bytes)?;
        Ok(bytes)
    }

    /// Starts a transfer. On failure it cancels entries that have begun, and takes all blocks back.
    pub fn start(&mut self, direction: Direction, list: &[Descriptor]) -> Result<Transfer, Refused> {
        let mut transfer = Transfer { batches: Vec::new(), outcomes: Outcomes::new() };
        for part in list.chunks(BATCH_LEN) {
            if let Err(refused) = self.submit(direction, part, &mut transfer) {
                self.finish(transfer)?;
                return Err(refused);
            }
        }
        Ok(transfer)
    }

    fn submit(
        &mut self,
        direction: Direction,
        list: &[Descriptor],
        transfer: &mut Transfer,
    ) -> Result<(), Refused> {
        let mut batch = self.idle.pop().map_or_else(|| Batch::new(&self.driver, BATCH_LEN), Ok)?;
        let mut entries = Vec::with_capacity(list.len());
        let entered = list.iter().try_for_each(|at| {
            let file = self.files.get(at.file).ok_or(Refused::File(at.file))?;
            let block = self.blocks.get_mut(at.block).and_then(Option::take);
            let block = block.ok_or(Refused::Block(at.block))?;
            let entry = match direction {
                Direction::Load => Entry::read(file, block, at.offset),
                Direction::Store => Entry::write(file, block, at.offset),
            };
            entries.push(entry.id(at.block as u64));
            Ok(())
        });
        let (result, left) = match entered {
            Err(refused) => (Err(refused), entries),
            Ok(()) => match batch.submit(entries) {
                Ok(()) => (Ok(()), Vec::new()),
                Err(failed) => {
                    let (error, entries) = failed.into_parts();
                    (Err(error.into()), entries)
                }
            },
        };
        // Entries are in the order of the list.
        for (at, entry) in list.iter().zip(left) {
            self.blocks[at.block] = Some(entry.into_buffer());
        }
        transfer.batches.push(batch);
        result
    }

    /// Waits for all blocks of a batch, but no longer than `timeout`, and takes finished blocks back. Returns
    /// whether all blocks are done.
    pub fn poll(&mut self, transfer: &mut Transfer, timeout: Duration) -> Result<bool> {
        for batch in &mut transfer.batches {
            take_back(&mut self.blocks, &mut transfer.outcomes, batch.wait_all_timeout(timeout))?;
        }
        Ok(transfer.batches.iter().all(|batch| batch.in_flight() == 0))
    }

    /// Ends a transfer and cancels its unfinished entries. Takes all blocks back, unless cuFile can neither
    /// cancel nor report.
    pub fn finish(&mut self, transfer: Transfer) -> Result<Outcomes> {
        let Transfer { batches, mut outcomes } = transfer;
        let mut result = Ok(());
        // A batch keeps the blocks of failed entries until it is destroyed.
        let is_clean = outcomes.values().all(Result::is_ok);
        for batch in batches {
            if is_clean && batch.in_flight() == 0 {
                self.idle.push(batch);
                continue;
            }
            result = result.and(take_back(&mut self.blocks, &mut outcomes, batch.cancel()));
        }
        result.map(|()| outcomes)
    }
}

/// Puts blocks back in their places. The block of a failed entry comes later, with the same number.
fn take_back(blocks: &mut [Option<Block>], outcomes: &mut Outcomes, ended: Ended) -> Result<()> {
    let (result, completions) = match ended {
        Ok(completions) => (Ok(()), completions),
        Err(failed) => {
            let (error, completions) = failed.into_parts();
            (Err(error), completions)
        }
    };
    for Completion { id, result, buffer, .. } in completions {
        outcomes.entry(id as usize).or_insert(result);
        if buffer.is_some() {
            blocks[id as usize] = buffer;
        }
    }
    result
}
