//! Transfers of many small pieces between scattered places: the blocks of a KV cache, and gathered writes.
//!
//! The pieces of a block are scattered in device memory, because each layer of a model has two tensors. In a file, a
//! block is one slot with all its pieces in order. The files are in the folder of FILE and have random bytes. The
//! cases compare every piece.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fs, io};

use gpufile::{File, IoRange, Request};

use super::case::{Case, DEFAULT};
use super::fresh::Fresh;
use super::memory::{DeviceMemory, Random, compare_each};
use super::timing::{Lap, Measured, timed};
use super::{Bench, GIB, KIB, MIB, Result};

pub const CASES: &[Case] = &[
    Case::device(
        "kv-fetch-16k",
        "KV blocks from one file: 32 pieces of 16 KiB",
        DEFAULT,
        fetch_blocks::<16, IN_ONE_FILE>,
    ),
    Case::device(
        "kv-fetch-64k",
        "KV blocks from one file: 32 pieces of 64 KiB",
        DEFAULT,
        fetch_blocks::<64, IN_ONE_FILE>,
    ),
    Case::device(
        "kv-fetch-256k",
        "KV blocks from one file: 32 pieces of 256 KiB",
        DEFAULT,
        fetch_blocks::<256, IN_ONE_FILE>,
    ),
    Case::device(
        "kv-files-fetch-64k",
        "kv-fetch-64k from a file for every 16 blocks",
        DEFAULT,
        fetch_blocks::<64, 16>,
    ),
    Case::device(
        "kv-store-16k",
        "KV blocks over those of one file: 32 pieces of 16 KiB",
        DEFAULT,
        store_blocks::<16, IN_ONE_FILE>,
    ),
    Case::device(
        "kv-store-64k",
        "KV blocks over those of one file: 32 pieces of 64 KiB",
        DEFAULT,
        store_blocks::<64, IN_ONE_FILE>,
    ),
    Case::device(
        "kv-store-256k",
        "KV blocks over those of one file: 32 pieces of 256 KiB",
        DEFAULT,
        store_blocks::<256, IN_ONE_FILE>,
    ),
    Case::device(
        "kv-files-store-64k",
        "kv-store-64k to a file for every 16 blocks",
        DEFAULT,
        store_blocks::<64, 16>,
    ),
    Case::device(
        "gather-4k",
        "Scattered pieces of 4 KiB to random places of a file",
        DEFAULT,
        gather::<4, 65_536>,
    ),
    Case::device(
        "gather-64k",
        "Scattered pieces of 64 KiB to random places of a file",
        DEFAULT,
        gather::<64, 16_384>,
    ),
];

const LAYERS: usize = 16;
/// Keys and values in each layer.
const PIECES: usize = 2 * LAYERS;

/// The number of blocks per file with which one file has all blocks.
pub const IN_ONE_FILE: usize = usize::MAX;

/// Reads blocks, with pieces of this many KiB.
fn fetch_blocks<const PIECE_KIB: usize, const BLOCKS_PER_FILE: usize>(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
) -> Result<Measured> {
    let layout = Layout::of_blocks(memory.len_bytes(), PIECE_KIB * KIB, BLOCKS_PER_FILE);
    fetch(bench, memory, threads, &layout)
}

/// Writes blocks of a KV cache over existing ones. Each piece has this many KiB.
fn store_blocks<const PIECE_KIB: usize, const BLOCKS_PER_FILE: usize>(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
) -> Result<Measured> {
    let layout = Layout::of_blocks(memory.len_bytes(), PIECE_KIB * KIB, BLOCKS_PER_FILE);
    store(bench, memory, threads, &layout)
}

/// Writes scattered pieces to random places of an existing file. Each piece has this many KiB.
fn gather<const PIECE_KIB: usize, const MOST: usize>(
    bench: &Bench,
    memory: &mut DeviceMemory,
    threads: usize,
) -> Result<Measured> {
    let layout = Layout::scattered(memory.len_bytes(), PIECE_KIB * KIB, MOST);
    store(bench, memory, threads, &layout)
}

pub struct Layout {
    piece_bytes: usize,
    pub memory_bytes: usize,
    file_bytes: Vec<usize>,
    /// The pieces of each file, in two versions: both for the same places of the files, and for different memory. A
    /// repetition that moves nothing therefore leaves wrong bytes.
    pub versions: [Vec<Vec<IoRange>>; 2],
}

impl Layout {
    /// The pieces of a block, which follow each other in a version.
    pub const PIECES: usize = PIECES;

    /// Half the blocks of a KV cache in up to 2 GiB of memory, in random order, and their slots in files.
    pub fn of_blocks(len_bytes: usize, piece_bytes: usize, blocks_per_file: usize) -> Self {
        let block_bytes = PIECES * piece_bytes;
        let memory_blocks = len_bytes.min(2 * GIB) / block_bytes;
        let moved = (memory_blocks / 2).max(1);
        let files = moved.div_ceil(blocks_per_file);
        let start = |file: usize| file * blocks_per_file;
        let slots = |file| moved.min(start(file).saturating_add(blocks_per_file)) - start(file);
        let of_file = |file, version| {
            let pieces = |number| {
                let block = (start(file) + number + version * moved) * 7919 % memory_blocks;
                let slot = number * 6101 % slots(file);
                (0..PIECES).map(move |piece| IoRange {
                    file_offset: ((slot * PIECES + piece) * piece_bytes) as u64,
                    buffer_offset: (piece * memory_blocks + block) * piece_bytes,
                    len_bytes: piece_bytes,
                })
            };
            (0..slots(file)).flat_map(pieces).collect()
        };
        Self {
            piece_bytes,
            memory_bytes: memory_blocks * block_bytes,
            file_bytes: (0..files).map(|file| slots(file) * block_bytes).collect(),
            versions: [0, 1].map(|version| (0..files).map(|file| of_file(file, version)).collect()),
        }
    }

    /// Pieces at random places of the memory and of one file, which have twice as many places.
    fn scattered(len_bytes: usize, piece_bytes: usize, most: usize) -> Self {
        let pieces = most.min(len_bytes / piece_bytes / 2);
        let places = 2 * pieces;
        let piece = |number, version| IoRange {
            file_offset: (number * 6101 % places * piece_bytes) as u64,
            buffer_offset: (number + version * pieces) * 7919 % places * piece_bytes,
            len_bytes: piece_bytes,
        };
        Self {
            piece_bytes,
            memory_bytes: places * piece_bytes,
            file_bytes: vec![places * piece_bytes],
            versions: [0, 1].map(|version| vec![(0..pieces).map(|number| piece(number, version)).collect()]),
        }
    }

    fn make_files(&self, bench: &Bench) -> Result<Vec<Fresh>> {
        let mut random = Random::new(2);
        let make = |(number, &len_bytes)| -> Result<Fresh> {
            let fresh = Fresh::beside(&bench.path, number);
            drop(fresh.create(&File::options().write(true))?);
            fill(&fresh.path, len_bytes, &mut random)?;
            Ok(fresh)
        };
        self.file_bytes.iter().enumerate().map(make).collect()
    }

    fn compare(&self, files: &[Fresh], memory: &DeviceMemory, version: usize) -> Result {
        let ranges = &self.versions[version];
        let memory = memory.to_host(ranges.iter().flatten())?;
        files.iter().zip(ranges).try_for_each(|(file, ranges)| compare_each(&file.path, &memory, ranges))
    }

    pub fn block_bytes(&self) -> usize {
        PIECES * self.piece_bytes
    }

    pub fn measured(&self, laps: Vec<Lap>) -> Measured {
        let ops = self.versions[0].iter().map(Vec::len).sum();
        Measured { size: self.piece_bytes, ops, laps }
    }
}

fn fill(path: &Path, len_bytes: usize, random: &mut Random) -> io::Result<()> {
    let file = fs::File::options().write(true).open(path)?;
    let mut bytes = vec![0; len_bytes.min(16 * MIB)];
    for offset in (0..len_bytes).step_by(bytes.len()) {
        let part = &mut bytes[..(16 * MIB).min(len_bytes - offset)];
        random.fill(part);
        file.write_all_at(part, offset as u64)?;
    }
    file.sync_all()
}

/// Reads in one call; with several files, the time includes the making of the requests.
fn fetch(bench: &Bench, memory: &mut DeviceMemory, threads: usize, layout: &Layout) -> Result<Measured> {
    let made = layout.make_files(bench)?;
    let options = bench.options(threads);
    let files = made.iter().map(|made| options.open(&made.path)).collect::<gpufile::Result<Vec<_>>>()?;
    let ranges = &layout.versions[0];
    let laps = bench.warm_laps(|| {
        let mut target = memory.poisoned(layout.memory_bytes)?;
        if let ([file], [ranges]) = (&*files, &**ranges) {
            return timed(|| file.read_many(&mut target, ranges));
        }
        let mut parts: Vec<_> = target.chunks(layout.piece_bytes).map(Some).collect();
        timed(|| -> Result {
            let mut requests = Vec::with_capacity(parts.len());
            for (file, ranges) in files.iter().zip(ranges) {
                for range in ranges {
                    let part = parts[range.buffer_offset / layout.piece_bytes].take();
                    let part = part.ok_or("two ranges have the same memory")?;
                    requests.push(Request { file, buffer: part, offset: range.file_offset });
                }
            }
            Ok(files[0].engine().read_many(&mut requests)?)
        })
    })?;
    layout.compare(&made, memory, 0)?;
    Ok(layout.measured(laps))
}

/// Writes over existing bytes in one call. With several files, the time includes the making of the requests.
fn store(bench: &Bench, memory: &mut DeviceMemory, threads: usize, layout: &Layout) -> Result<Measured> {
    let made = layout.make_files(bench)?;
    memory.load_random(layout.memory_bytes)?;
    let options = bench.options(threads).write(true);
    let files = made.iter().map(|made| options.open(&made.path)).collect::<gpufile::Result<Vec<_>>>()?;
    let mut version = 0;
    let laps = bench.warm_laps(|| {
        version = 1 - version;
        let source = memory.first(layout.memory_bytes);
        let ranges = &layout.versions[version];
        if let ([file], [ranges]) = (&*files, &**ranges) {
            return timed(|| file.write_many(&source, ranges));
        }
        timed(|| -> Result {
            let mut requests = Vec::new();
            for (file, ranges) in files.iter().zip(ranges) {
                for &IoRange { file_offset, buffer_offset, len_bytes } in ranges {
                    let part = source.slice(buffer_offset..buffer_offset + len_bytes);
                    requests.push(Request { file, buffer: part, offset: file_offset });
                }
            }
            Ok(files[0].engine().write_many(&requests)?)
        })
    })?;
    layout.compare(&made, memory, version)?;
    Ok(layout.measured(laps))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted<T: Ord>(ranges: &[IoRange], place: impl Fn(&IoRange) -> T) -> Vec<T> {
        let mut places: Vec<_> = ranges.iter().map(place).collect();
        places.sort_unstable();
        places
    }

    #[test]
    fn pieces_are_disjoint_and_versions_differ() {
        let layouts = |len_bytes| {
            [
                Layout::of_blocks(len_bytes, 16 * KIB, IN_ONE_FILE),
                Layout::of_blocks(len_bytes, 64 * KIB, 16),
                Layout::of_blocks(len_bytes, 64 * KIB, 3),
                Layout::scattered(len_bytes, 4 * KIB, 65_536),
                Layout::scattered(len_bytes, 64 * KIB, 16_384),
            ]
        };
        for layout in [16 * MIB, 48 * MIB, 80 * MIB, 3 * GIB].into_iter().flat_map(layouts) {
            let [one, other] = &layout.versions;
            assert_eq!((one.len(), other.len()), (layout.file_bytes.len(), layout.file_bytes.len()));
            for ((one, other), len_bytes) in one.iter().zip(other).zip(&layout.file_bytes) {
                let places = sorted(one, |range| range.file_offset);
                assert!(places.windows(2).all(|pair| pair[0] + layout.piece_bytes as u64 <= pair[1]));
                assert!(places[places.len() - 1] + layout.piece_bytes as u64 <= *len_bytes as u64);
                assert_eq!(places, sorted(other, |range| range.file_offset));
            }
            let both: Vec<_> = one.iter().chain(other).flatten().copied().collect();
            let places = sorted(&both, |range| range.buffer_offset);
            assert!(places.windows(2).all(|pair| pair[0] + layout.piece_bytes <= pair[1]));
            assert!(places[places.len() - 1] + layout.piece_bytes <= layout.memory_bytes);
        }
    }

    #[test]
    fn random_bytes_do_not_repeat_by_piece() {
        let (mut memory, mut file) = (vec![0; MIB], vec![0; MIB]);
        Random::new(1).fill(&mut memory);
        Random::new(2).fill(&mut file);
        memory.append(&mut file);
        let mut pieces: Vec<_> = memory.chunks(64).collect();
        pieces.sort_unstable();
        pieces.dedup();
        assert_eq!(pieces.len(), 2 * MIB / 64);
    }
}
