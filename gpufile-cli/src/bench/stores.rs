//! The blocks of a KV cache in a [`BlockStore`], with an outcome and a deadline for each.
//!
//! Places and sizes are those in `blocks`. The store is a folder beside FILE. The cases compare every piece.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, process};

use gpufile::cuda::DeviceBuffer;
use gpufile::kv_blocks::{Block, BlockStore, BlockTransfer, Piece, Region};

use super::blocks::{IN_ONE_FILE, Layout};
use super::case::{Case, DEFAULT};
use super::memory::{DeviceMemory, POISON, Random};
use super::timing::{Measured, timed};
use super::{Bench, KIB, MIB, Result};

pub const CASES: &[Case] = &[
    Case::device(
        "kv-module-fetch-16k",
        "kv-fetch-16k from a BlockStore",
        DEFAULT,
        fetch::<16, IN_ONE_FILE, false>,
    ),
    Case::device(
        "kv-module-fetch-64k",
        "kv-fetch-64k from a BlockStore",
        DEFAULT,
        fetch::<64, IN_ONE_FILE, false>,
    ),
    Case::device(
        "kv-module-fetch-256k",
        "kv-fetch-256k from a BlockStore",
        DEFAULT,
        fetch::<256, IN_ONE_FILE, false>,
    ),
    Case::device(
        "kv-module-files-fetch-64k",
        "kv-files-fetch-64k from a BlockStore",
        DEFAULT,
        fetch::<64, 16, false>,
    ),
    Case::device(
        "kv-module-checked-fetch-64k",
        "kv-fetch-64k from a BlockStore with checksums",
        DEFAULT,
        fetch::<64, IN_ONE_FILE, true>,
    ),
    Case::device(
        "kv-module-store-16k",
        "kv-store-16k to a BlockStore",
        DEFAULT,
        store::<16, IN_ONE_FILE, false>,
    ),
    Case::device(
        "kv-module-store-64k",
        "kv-store-64k to a BlockStore",
        DEFAULT,
        store::<64, IN_ONE_FILE, false>,
    ),
    Case::device(
        "kv-module-store-256k",
        "kv-store-256k to a BlockStore",
        DEFAULT,
        store::<256, IN_ONE_FILE, false>,
    ),
    Case::device(
        "kv-module-files-store-64k",
        "kv-files-store-64k to a BlockStore",
        DEFAULT,
        store::<64, 16, false>,
    ),
    Case::device(
        "kv-module-checked-store-64k",
        "kv-store-64k to a BlockStore with checksums",
        DEFAULT,
        store::<64, IN_ONE_FILE, true>,
    ),
];

/// The time that each block has. No storage that is measured needs as much.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fetches blocks, with pieces of this many KiB.
fn fetch<const PIECE_KIB: usize, const BLOCKS_PER_FILE: usize, const CHECKSUMS: bool>(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
) -> Result<Measured> {
    let layout = Layout::of_blocks(memory.len_bytes(), PIECE_KIB * KIB, BLOCKS_PER_FILE);
    let kept = Kept::new(bench, memory, threads, &layout, CHECKSUMS)?;
    kept.store_and_wait(0)?;
    let laps = bench.warm_laps(|| {
        kept.poison()?;
        let pieces = kept.pieces(0);
        let blocks = kept.blocks(0, &pieces);
        timed(|| require_all(kept.store.fetch(&blocks)))
    })?;
    kept.compare(0, 0)?;
    Ok(layout.measured(laps))
}

/// Stores blocks in the place of as many others, which it evicts. Each piece has this many KiB.
fn store<const PIECE_KIB: usize, const BLOCKS_PER_FILE: usize, const CHECKSUMS: bool>(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
) -> Result<Measured> {
    let layout = Layout::of_blocks(memory.len_bytes(), PIECE_KIB * KIB, BLOCKS_PER_FILE);
    let kept = Kept::new(bench, memory, threads, &layout, CHECKSUMS)?;
    let mut version = 0;
    kept.store_and_wait(version)?;
    let laps = bench.warm_laps(|| {
        version = 1 - version;
        let pieces = kept.pieces(version);
        let blocks = kept.blocks(version, &pieces);
        timed(|| require_all(kept.store.store(&blocks)))
    })?;
    kept.poison()?;
    let pieces = kept.pieces(1 - version);
    require_all(kept.store.fetch(&kept.blocks(version, &pieces)))?;
    kept.compare(version, 1 - version)?;
    Ok(layout.measured(laps))
}

struct Kept<'a> {
    layout: &'a Layout,
    store: BlockStore,
    region: Region<DeviceBuffer>,
    expected: Vec<u8>,
    _folder: Folder,
}

impl<'a> Kept<'a> {
    fn new(
        bench: &Bench,
        memory: &DeviceMemory,
        threads: usize,
        layout: &'a Layout,
        has_checksums: bool,
    ) -> Result<Self> {
        let mut name = bench.path.clone().into_os_string();
        name.push(format!(".store-{}", process::id()));
        let folder = Folder(name.into());
        fs::create_dir(&folder.0)?;
        let blocks: usize = layout.versions[0].iter().map(Vec::len).sum::<usize>() / Layout::PIECES;
        let in_a_file = layout.versions[0][0].len() / Layout::PIECES;
        let store = BlockStore::builder(layout.block_bytes())
            .limit_bytes((blocks * layout.block_bytes()) as u64)
            .blocks_per_file(u32::try_from(in_a_file)?)
            .checksums(has_checksums)
            .files(&bench.options(threads))
            .open(&folder.0)?;
        let mut expected = vec![0; layout.memory_bytes];
        let mut random = Random::new(3);
        expected.chunks_mut(16 * MIB).for_each(|part| random.fill(part));
        let mut buffer = memory.device().alloc(layout.memory_bytes)?;
        buffer.copy_from_host(0, &expected)?;
        Ok(Self { layout, store, region: Region::new(buffer), expected, _folder: folder })
    }

    fn pieces(&self, version: usize) -> Vec<Piece<'_>> {
        let block_bytes = self.layout.block_bytes() as u64;
        let ranges = self.layout.versions[version].iter().flatten();
        let piece = |range: &gpufile::IoRange| {
            let in_block = (range.file_offset % block_bytes) as usize;
            self.region.piece(range.buffer_offset, range.len_bytes, in_block)
        };
        ranges.map(piece).collect()
    }

    fn blocks<'p>(&self, version: usize, pieces: &'p [Piece<'p>]) -> Vec<Block<'p>> {
        let deadline = Some(Instant::now() + PATIENCE);
        let block = |(number, pieces)| Block::new((number * 2 + version) as u128, pieces).until(deadline);
        pieces.chunks(Layout::PIECES).enumerate().map(block).collect()
    }

    fn store_and_wait(&self, version: usize) -> Result {
        let pieces = self.pieces(version);
        require_all(self.store.store(&self.blocks(version, &pieces)))
    }

    fn poison(&self) -> Result {
        Ok(self.region.access(|buffer| buffer.fill(POISON)).ok_or("the memory is in use")??)
    }

    /// Fails unless the places of version `to` now have the bytes that the places of version `from` had at first.
    fn compare(&self, from: usize, to: usize) -> Result {
        let found = self.region.access(|buffer| buffer.to_vec()).ok_or("the memory is in use")??;
        for (from, to) in self.pieces(from).into_iter().zip(self.pieces(to)) {
            if self.expected[from.offset..][..from.len_bytes] != found[to.offset..][..to.len_bytes] {
                return Err(format!("wrong bytes: {to:?}").into());
            }
        }
        Ok(())
    }
}

fn require_all(transfer: BlockTransfer) -> Result {
    transfer.wait().into_iter().try_for_each(|outcome| Ok(outcome?))
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // The measurement stands, whether or not the folder can be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}
