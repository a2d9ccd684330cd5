//! Stores blocks of a KV cache in a folder, and fetches them into other blocks.
//!
//! usage: kv_blocks [--cufile|--posix] FOLDER [GPU] [PIECE]
//!
//! An inference server keeps the keys and values of its tokens in paged memory. Each layer of the model has a tensor of
//! keys and one of values, and a block of tokens has one piece in each of them. A [`BlockStore`] keeps blocks by their keys,
//! however scattered their pieces are.
//!
//! PIECE is the size of a piece, 64KiB by default. The example creates the store in FOLDER, opens it a second time, and compares
//! all of the memory with a model on the host. It needs a GPU.

mod common;

use std::fs;
use std::io::Read;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{KIB, Result, require_same};
use gpufile::cuda::DeviceBuffer;
use gpufile::kv_blocks::{Block, BlockError, BlockStore, BlockTransfer, Piece, Region};

const LAYERS: usize = 8;
/// The pieces of a block: its keys and its values in each layer.
const PIECES: usize = 2 * LAYERS;
const BLOCKS: usize = 24;
/// The number of blocks that each call moves.
const MOVED: usize = BLOCKS / 2;
const PATIENCE: Duration = Duration::from_secs(20);
const POISON: u8 = 0x5a;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] FOLDER [GPU] [PIECE]", |arguments| {
        let (folder, piece_bytes) = (arguments.path(0)?, arguments.size(2, 64 * KIB)?);
        let mut original = vec![0; BLOCKS * PIECES * piece_bytes];
        fs::File::open("/dev/urandom")?.read_exact(&mut original)?;
        let mut memory = arguments.device(1)?.alloc(original.len())?;
        memory.copy_from_host(0, &original)?;
        let cache = Cache { piece_bytes, region: Region::new(memory), original };
        let open = || {
            let builder = BlockStore::builder(PIECES * piece_bytes).limit_bytes(1 << 30).blocks_per_file(5);
            builder.checksums(true).files(&arguments.options()).open(folder)
        };

        // Two halves of the cache, each in an order of its own. A server takes hashes of tokens as keys.
        let half = |first| (first..first + MOVED).map(|i| i * 7 % BLOCKS).collect::<Vec<_>>();
        let (some, others) = (half(0), half(MOVED));
        let store = open()?;
        cache.call("stored", &some, |blocks| store.store(blocks))?;
        store.close()?;

        let store = open()?;
        println!("found {} blocks", store.recovery().whole);
        cache.access(|memory| memory.fill(POISON))?;
        cache.call("fetched", &others, |blocks| store.fetch(blocks))?;
        cache.require_moved(&some, &others)?;

        let pieces = cache.pieces(some[0]);
        match &store.fetch(&[cache.block(MOVED, &pieces)]).wait()[0] {
            Err(BlockError::Missing) => println!("block {MOVED} was never stored"),
            other => return Err(format!("a block that was never stored: {other:?}").into()),
        }
        store.close()?;
        println!("contents match");
        Ok(())
    })
}

/// The paged memory on the GPU, and the bytes that it had at first.
struct Cache {
    piece_bytes: usize,
    region: Region<DeviceBuffer>,
    original: Vec<u8>,
}

impl Cache {
    /// Returns the pieces of a block of the memory, one for each tensor.
    fn pieces(&self, block: usize) -> Vec<Piece<'_>> {
        let place = |piece| (piece * BLOCKS + block) * self.piece_bytes;
        let piece = |piece| self.region.piece(place(piece), self.piece_bytes, piece * self.piece_bytes);
        (0..PIECES).map(piece).collect()
    }

    fn block<'p>(&self, key: usize, pieces: &'p [Piece<'p>]) -> Block<'p> {
        Block::new(key as u128, pieces).until(Instant::now() + PATIENCE)
    }

    /// Moves these blocks of the memory, which get the keys from 0 on. Fails unless all of them end well.
    fn call(&self, done: &str, blocks: &[usize], start: impl Fn(&[Block<'_>]) -> BlockTransfer) -> Result {
        let pieces: Vec<_> = blocks.iter().map(|block| self.pieces(*block)).collect();
        let blocks: Vec<_> = pieces.iter().enumerate().map(|(key, pieces)| self.block(key, pieces)).collect();
        let began = Instant::now();
        // Other work, while the blocks move; or a callback, or `.await`.
        for (key, outcome) in start(&blocks).wait().into_iter().enumerate() {
            outcome.map_err(|error| format!("block {key}: {error}"))?;
        }
        let gb = (blocks.len() * PIECES * self.piece_bytes) as f64 / 1e9;
        println!("{done} {} blocks: {:.2} GB/s", blocks.len(), gb / began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Calls `access` with the memory, which no transfer uses.
    fn access<R>(&self, access: impl FnOnce(&mut DeviceBuffer) -> gpufile::cufile::Result<R>) -> Result<R> {
        Ok(self.region.access(access).ok_or("the memory is in use")??)
    }

    /// Fails unless each block of `to` has the bytes that the same block of `from` had at first, and all other memory is
    /// poisoned.
    fn require_moved(&self, from: &[usize], to: &[usize]) -> Result {
        let mut expected = vec![POISON; self.original.len()];
        for (from, to) in from.iter().zip(to) {
            for (from, to) in self.pieces(*from).iter().zip(self.pieces(*to)) {
                expected[to.offset..][..to.len_bytes]
                    .copy_from_slice(&self.original[from.offset..][..from.len_bytes]);
            }
        }
        require_same(&self.access(|memory| memory.to_vec())?, &expected, "the memory")
    }
}
