//! Checks the lists of a call, and turns its blocks into those of the store.

use std::collections::HashSet;
use std::hash::Hash;
use std::ops::Range;
use std::time::Instant;

use gpufile::kv_blocks::{Block, BlockStore, BlockTransfer, Piece};

use crate::layout::{Descriptor, Layout};
use crate::memory::{Memory, Registered, piece};
use crate::notification::Notification;
use crate::{BlockId, Key};

/// Moves blocks between a store on disk and registered memory. Threads can share it.
#[derive(Debug)]
pub struct Executor {
    memory: Memory,
    store: BlockStore,
}

/// The choices of a transfer.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The layers to move: all by default. An offload moves all layers, because a block on disk is whole or absent.
    pub layers: Option<Range<usize>>,
    /// The time at which blocks that are still in flight fail.
    pub deadline: Option<Instant>,
}

/// The reasons to refuse a transfer as a whole. Nothing was moved then.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    #[error("the lists have {blocks} blocks and {keys} keys")]
    Counts { blocks: usize, keys: usize },
    #[error("there is no block {block} among {blocks}")]
    Block { block: BlockId, blocks: usize },
    #[error("block {0} is twice in the list")]
    BlockTwice(BlockId),
    #[error("key {0:#x} is twice in the list")]
    KeyTwice(Key),
    #[error("there are no layers {layers:?} among {of}")]
    Layers { layers: Range<usize>, of: usize },
    #[error("layers {layers:?} of {of} cannot be offloaded alone: a block on disk has all layers")]
    PartOfBlock { layers: Range<usize>, of: usize },
    #[error(
        "{len_bytes} bytes at address {address:#x} of block {block} are not registered; Memory::register does that"
    )]
    Unregistered { block: BlockId, address: usize, len_bytes: usize },
}

impl Executor {
    /// Makes an executor for a store, whose blocks are at least as long as those of the layouts.
    pub fn new(store: BlockStore) -> Self {
        Self { memory: Memory::default(), store }
    }

    /// Returns the memory that transfers may use.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the store, which knows the keys on disk and removes blocks.
    pub fn store(&self) -> &BlockStore {
        &self.store
    }

    /// Gives the store back, for example to close it. Transfers in flight continue.
    pub fn into_store(self) -> BlockStore {
        self.store
    }

    /// Writes blocks of memory to disk, each with its key. A key that is there is replaced when the new block is whole.
    ///
    /// # Errors
    /// If a number, a key or a layer is wrong or twice in a list, or if memory is not registered.
    pub fn offload(
        &self,
        from: &Layout,
        blocks: &[BlockId],
        keys: &[Key],
        options: Options,
    ) -> Result<Notification, Refused> {
        let of = from.dimensions().num_layers;
        match &options.layers {
            Some(layers) if *layers != (0..of) => {
                return Err(Refused::PartOfBlock { layers: layers.clone(), of });
            }
            _ => {}
        }
        if let Some(key) = twice(keys) {
            return Err(Refused::KeyTwice(key));
        }
        self.start(from, blocks, keys, options, BlockStore::store)
    }

    /// Reads blocks from disk into memory. One key may be read into several blocks.
    ///
    /// # Errors
    /// If a number or a layer is wrong, if a number is twice in the list, or if memory is not registered.
    pub fn onboard(
        &self,
        keys: &[Key],
        to: &Layout,
        blocks: &[BlockId],
        options: Options,
    ) -> Result<Notification, Refused> {
        self.start(to, blocks, keys, options, BlockStore::fetch)
    }

    fn start(
        &self,
        layout: &Layout,
        blocks: &[BlockId],
        keys: &[Key],
        Options { layers, deadline }: Options,
        run: fn(&BlockStore, &[Block<'_>]) -> BlockTransfer,
    ) -> Result<Notification, Refused> {
        if blocks.len() != keys.len() {
            return Err(Refused::Counts { blocks: blocks.len(), keys: keys.len() });
        }
        if let Some(block) = twice(blocks) {
            return Err(Refused::BlockTwice(block));
        }
        let layers = layers.unwrap_or(0..layout.dimensions().num_layers);
        let regions = self.memory.read();
        let pieces = blocks.iter().map(|block| pieces(&regions, layout, *block, layers.clone()));
        let pieces: Vec<_> = pieces.collect::<Result<_, _>>()?;
        let block = |(key, pieces)| Block::new(key, pieces).until(deadline);
        let list: Vec<_> = keys.iter().copied().zip(pieces.iter().map(Vec::as_slice)).map(block).collect();
        let transfer = run(&self.store, &list);
        Ok(Notification::new(transfer, blocks.iter().copied().zip(keys.iter().copied()).collect()))
    }
}

fn pieces<'a>(
    regions: &'a Registered,
    layout: &Layout,
    block: BlockId,
    layers: Range<usize>,
) -> Result<Vec<Piece<'a>>, Refused> {
    let dimensions = layout.dimensions();
    let descriptors = layout.descriptors(block, layers.clone()).ok_or(match block {
        _ if block >= dimensions.num_blocks => Refused::Block { block, blocks: dimensions.num_blocks },
        _ => Refused::Layers { layers, of: dimensions.num_layers },
    })?;
    let found = |descriptor: &Descriptor| {
        let Descriptor { address, len_bytes, .. } = *descriptor;
        piece(regions, descriptor).ok_or(Refused::Unregistered { block, address, len_bytes })
    };
    descriptors.iter().map(found).collect()
}

fn twice<T: Copy + Eq + Hash>(list: &[T]) -> Option<T> {
    let mut seen = HashSet::with_capacity(list.len());
    list.iter().copied().find(|value| !seen.insert(*value))
}
