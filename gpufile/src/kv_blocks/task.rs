//! The work of a store's thread for blocks of a call: it finds or takes slots, moves the bytes, and keeps the index true.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::{io, mem};

use cufile::fork::Mutex;

use crate::direction::Direction;
use crate::engine::{Entry, IoRange};
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::kv_blocks::call::{Call, Outcome};
use crate::kv_blocks::entry;
use crate::kv_blocks::error::BlockError;
use crate::kv_blocks::files::{Files, Layout};
use crate::kv_blocks::held::{Held, HeldPiece, invalid};
use crate::kv_blocks::index::Index;
use crate::kv_blocks::region::RegionMemory;
use crate::kv_blocks::slots::{Slot, Slots};
use crate::kv_blocks::sums::Part;
use crate::memory::Memory;

/// The callback of a store for the keys of evicted blocks.
pub type OnEvict = Arc<dyn Fn(&[u128]) + Send + Sync>;

/// The parts of a store that its tasks use.
pub struct Parts {
    pub index: Index,
    /// Those of the further folders, which stay locked.
    _others: Vec<Index>,
    pub files: Files,
    slots: Mutex<Slots>,
    pub has_checksums: bool,
    pub is_durable: bool,
    on_evict: Option<OnEvict>,
    /// True if a later store may take entries of the index for those of blocks that the disk has. Then the disk must have a
    /// cleared entry before the bytes of its slot change.
    has_durable: bool,
}

/// A block of a call whose memory was taken.
pub struct Asked {
    /// The number of the block in the call.
    pub number: usize,
    pub key: u128,
    /// Its pieces, in the list of the call.
    pub pieces: Range<usize>,
    /// The end of the pieces in the block, in bytes.
    pub end: u64,
}

/// Blocks of a call that follow each other. Dropping it ends them.
pub struct Task {
    pub call: Arc<Call>,
    pub held: Held,
    pub blocks: Vec<Asked>,
    /// The numbers of the blocks in the call. Those that are not in the list have ended.
    pub numbers: Range<usize>,
}

/// A block, and the slot that it comes from or goes to.
pub struct Placed {
    pub block: Asked,
    pub slot: Slot,
    pub outcome: Outcome,
}

impl Parts {
    /// Returns the parts of a store with the index of each of its folders.
    pub fn new(
        mut indexes: Vec<Index>,
        files: Files,
        slots: Slots,
        [has_checksums, is_durable]: [bool; 2],
        on_evict: Option<OnEvict>,
    ) -> Self {
        let has_durable = is_durable || slots.has_durable();
        let (index, _others) = (indexes.remove(0), indexes);
        let slots = Mutex::new(slots);
        Self { index, _others, files, slots, has_checksums, is_durable, on_evict, has_durable }
    }

    /// Tells the caller which blocks were evicted. No lock is held.
    fn evicted(&self, keys: &[u128]) {
        if let Some(on_evict) = self.on_evict.as_ref().filter(|_| !keys.is_empty()) {
            // A panic of the caller's code must not end the task. Its payload is forgotten, as its drop may panic too.
            mem::forget(catch_unwind(AssertUnwindSafe(|| on_evict(keys))));
        }
    }

    /// Returns the slots. No caller keeps them during I/O.
    pub fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }

    /// Clears the entries of removed slots, and frees the slots. If that fails, their next use clears the entries.
    pub fn clear(&self, mut retired: Vec<Slot>) {
        retired.sort_unstable();
        let entries: Vec<_> = retired.iter().map(|slot| (*slot, None)).collect();
        let failed = self.clear_entries(&entries).is_err();
        let mut slots = self.slots();
        retired.into_iter().for_each(|slot| slots.cleared(slot, failed));
    }

    /// Clears entries whose slots are used for other bytes next.
    fn clear_entries(&self, cleared: &[(Slot, Option<entry::Entry>)]) -> Result<()> {
        self.index.write(cleared)?;
        if self.has_durable { self.index.sync() } else { Ok(()) }
    }
}

impl Task {
    /// Fetches the blocks.
    pub fn fetch(mut self, parts: Arc<Parts>) {
        let mut entries = Vec::new();
        let mut placed = Vec::new();
        let mut refused: Vec<(usize, Outcome)> = Vec::new();
        {
            let blocks = self.pending();
            let mut slots = parts.slots();
            for block in blocks {
                match slots.begin_read(block.key) {
                    None => refused.push((block.number, Err(BlockError::Missing))),
                    Some((slot, entry)) if block.end > entry.len_bytes => {
                        slots.end_read(slot);
                        let why = format!(
                            "its pieces end at byte {}, and {} are stored",
                            block.end, entry.len_bytes
                        );
                        refused.push((block.number, Err(invalid(why))));
                    }
                    Some((slot, entry)) => {
                        entries.push((slot, entry));
                        placed.push(Placed { block, slot, outcome: Ok(()) });
                    }
                }
            }
        }
        if placed.is_empty() {
            return self.refuse(refused, parts);
        }
        // Before the others, which the storage may hold up.
        self.call.resolve(refused);
        // In the order of the files.
        entries.sort_by_key(|(slot, _)| *slot);
        placed.sort_by_key(|placed| placed.slot);
        let entries: Vec<_> = entries.into_iter().map(|(_, entry)| entry).collect();
        self.read(&parts.files, &mut placed, &entries, parts.has_checksums);
        let mut corrupt = Vec::new();
        {
            let mut slots = parts.slots();
            for Placed { block, slot, outcome } in &placed {
                if matches!(outcome, Err(BlockError::Corrupt)) {
                    corrupt.extend(slots.remove_from(*slot, block.key));
                }
                if outcome.is_ok() {
                    slots.stats.bytes_fetched += self.bytes_of(block);
                }
                slots.end_read(*slot);
            }
        }
        if !corrupt.is_empty() {
            parts.clear(corrupt);
        }
        drop(parts);
        self.end(placed);
    }

    /// Stores the blocks.
    pub fn store(mut self, parts: Arc<Parts>) {
        let blocks = self.pending();
        let (taken, evicted) = {
            let mut slots = parts.slots();
            let mut taken: Vec<_> = blocks.iter().map_while(|_| slots.begin_write()).collect();
            taken.sort_unstable();
            (taken, slots.take_evicted())
        };
        parts.evicted(&evicted);
        let mut blocks = blocks.into_iter();
        let place = |(slot, _): &(Slot, bool)| Placed {
            block: blocks.next().expect("a slot for each block at most"),
            slot: *slot,
            outcome: Ok(()),
        };
        let mut placed: Vec<_> = taken.iter().map(place).collect();
        let refused = blocks.map(|block| (block.number, Err(BlockError::NoRoom))).collect();
        if placed.is_empty() {
            return self.refuse(refused, parts);
        }
        // Before the others, which the storage may hold up.
        self.call.resolve(refused);

        // No entry names a slot while its bytes change.
        let stale: Vec<_> =
            taken.iter().filter(|(_, has_entry)| *has_entry).map(|(slot, _)| (*slot, None)).collect();
        if !stale.is_empty() {
            match parts.clear_entries(&stale) {
                Ok(()) => {
                    let mut slots = parts.slots();
                    stale.iter().for_each(|(slot, _)| slots.set_has_entry(*slot, false));
                }
                Err(error) => {
                    for (placed, _) in placed.iter_mut().zip(&taken).filter(|(_, (_, has_entry))| *has_entry)
                    {
                        placed.outcome = Err(BlockError::Failed(same(&error)));
                    }
                }
            }
        }
        self.transfer(&parts.files, Direction::Write, &mut placed);
        let mut checksums = vec![None; placed.len()];
        if parts.has_checksums {
            let written: Vec<_> = (0..placed.len()).filter(|at| placed[*at].outcome.is_ok()).collect();
            let blocks: Vec<_> = written.iter().map(|at| (&placed[*at], placed[*at].block.end)).collect();
            let found = self.sums(&parts.files, Direction::Write, &blocks);
            for (at, found) in written.into_iter().zip(found) {
                match found {
                    Ok(found) => checksums[at] = Some(found),
                    Err(error) => placed[at].outcome = Err(BlockError::Failed(error)),
                }
            }
        }
        if parts.is_durable {
            let written = placed.iter().filter(|placed| placed.outcome.is_ok()).map(|placed| placed.slot);
            if let Err(error) = parts.files.sync(written) {
                fail_all(&mut placed, &error);
            }
        }
        publish(&parts, &mut placed, &checksums);
        drop(parts);
        self.end(placed);
    }

    /// Returns the blocks that have no outcome yet.
    pub fn pending(&mut self) -> Vec<Asked> {
        let ended = self.call.ended();
        let mut blocks = mem::take(&mut self.blocks);
        blocks.retain(|block| !ended[block.number]);
        blocks
    }

    /// Ends the call, all of whose blocks are refused. The store may be opened again when a caller sees that.
    fn refuse(&mut self, refused: Vec<(usize, Outcome)>, parts: Arc<Parts>) {
        drop(parts);
        self.held = Held::default();
        self.call.resolve(refused);
    }

    /// Ends the call. The memory is no longer in use before a caller sees that.
    pub fn end(&mut self, placed: Vec<Placed>) {
        self.held = Held::default();
        self.call.resolve(placed.into_iter().map(|placed| (placed.block.number, placed.outcome)));
    }

    /// Returns the bytes of the pieces of a block.
    pub fn bytes_of(&self, block: &Asked) -> u64 {
        self.held.pieces[block.pieces.clone()].iter().map(|piece| piece.len_bytes as u64).sum()
    }

    /// Reads the bytes of all blocks, and compares them with their checksums.
    pub fn read(&self, files: &Files, placed: &mut [Placed], entries: &[entry::Entry], is_checked: bool) {
        self.transfer(files, Direction::Read, placed);
        if !is_checked {
            return;
        }
        let read = placed.iter().zip(entries).enumerate().filter(|(_, (placed, _))| placed.outcome.is_ok());
        let checked: Vec<_> =
            read.filter_map(|(at, (_, entry))| Some((at, entry.checksum?, entry.len_bytes))).collect();
        let blocks: Vec<_> = checked.iter().map(|(at, _, len_bytes)| (&placed[*at], *len_bytes)).collect();
        let found = self.sums(files, Direction::Read, &blocks);
        for ((at, checksum, _), found) in checked.into_iter().zip(found) {
            placed[at].outcome = match found {
                Ok(found) if found == checksum => Ok(()),
                Ok(_) => Err(BlockError::Corrupt),
                Err(error) => Err(BlockError::Failed(error)),
            };
        }
    }

    /// Returns the sum of each of these blocks, of so many bytes: of the bytes in memory. If the pieces are not all of the block, or
    /// are on a GPU that does not sum, it is that of the bytes in the file.
    fn sums(&self, files: &Files, direction: Direction, blocks: &[(&Placed, u64)]) -> Vec<Result<u64>> {
        let mut parts = Vec::with_capacity(self.held.pieces.len());
        let mut gpus = None;
        let in_memory: Vec<_> = (blocks.iter().enumerate())
            .map(|(block, (placed, len_bytes))| {
                let pieces = &self.held.pieces[placed.block.pieces.clone()];
                let file = files.get(placed.slot).ok().filter(|_| are_all(pieces, *len_bytes))?;
                let start = parts.len();
                for piece in pieces {
                    match memory(&file, direction, self.held.memory(piece)) {
                        Ok(region) => parts.push(Part {
                            block,
                            memory: region.part(region.ptr.wrapping_add(piece.offset), piece.len_bytes),
                            start: piece.block_offset,
                        }),
                        Err(_) => {
                            parts.truncate(start);
                            return None;
                        }
                    }
                }
                gpus.get_or_insert_with(|| file.engine().gpus().clone());
                Some(block)
            })
            .collect();
        // SAFETY: `held` keeps the memory. No transfer of these pieces is left, and no other one has them.
        let of_memory = gpus.map(|gpus| unsafe { files.of_memory.of(&gpus, &parts, blocks.len()) });
        let sum = |block: Option<usize>| of_memory.as_ref()?[block?];
        let mut sums: Vec<_> = in_memory.into_iter().map(sum).collect();
        let left = (sums.iter().zip(blocks)).filter(|(sum, _)| sum.is_none());
        let slots: Vec<_> = left.map(|(_, (placed, len_bytes))| (placed.slot, *len_bytes)).collect();
        let mut of_files = files.sums(&slots).into_iter();
        sums.iter_mut().map(|sum| sum.map_or_else(|| of_files.next().expect("of each slot"), Ok)).collect()
    }

    /// Moves the bytes of all blocks that have not failed.
    pub fn transfer(&self, open: &Files, direction: Direction, placed: &mut [Placed]) {
        let layout = open.layout;
        let (mut files, mut blocks) = (Vec::new(), Vec::new());
        let mut number = None;
        let mut placed: Vec<_> = placed.iter_mut().filter(|placed| placed.outcome.is_ok()).collect();
        if layout.folders > 1 {
            placed.sort_by_key(|placed| layout.file_of(placed.slot));
        }
        for placed in placed {
            // Blocks of one file follow each other.
            let of_block = Some(layout.file_of(placed.slot));
            if number != of_block {
                match open.get(placed.slot) {
                    Ok(file) => files.push(file),
                    Err(error) => {
                        placed.outcome = Err(BlockError::Failed(error));
                        continue;
                    }
                }
                number = of_block;
            }
            blocks.push((files.len() - 1, placed));
        }
        let memory = match &files[..] {
            [] => return,
            [file] => self.held.only_memory().and_then(|region| memory(file, direction, region).ok()),
            _ => None,
        };
        let incomplete = match memory {
            Some(memory) => self.ranges(layout, direction, &files[0], &blocks, memory),
            None => self.entries(layout, direction, &files, &blocks),
        };
        let mut incomplete = incomplete.into_iter().peekable();
        let mut end = 0;
        for (_, placed) in blocks {
            end += placed.block.pieces.len();
            while let Some((_, outcome)) = incomplete.next_if(|(piece, _)| *piece < end) {
                // The first piece of a block that failed counts.
                if placed.outcome.is_ok() {
                    placed.outcome = Err(outcome.map_or_else(BlockError::Failed, |_| BlockError::Corrupt));
                }
            }
        }
    }

    /// Moves blocks between one file and one region. Returns the pieces that were not moved as a whole: the number of each
    /// among the pieces of these blocks, and its outcome.
    fn ranges(
        &self,
        layout: Layout,
        direction: Direction,
        file: &File,
        blocks: &[(usize, &mut Placed)],
        memory: Memory,
    ) -> Vec<(usize, Result<usize>)> {
        let mut ranges = Vec::with_capacity(self.held.pieces.len());
        for (_, placed) in blocks {
            ranges.extend(self.pieces_of(layout, placed).map(|(piece, offset)| IoRange {
                file_offset: offset,
                buffer_offset: piece.offset,
                len_bytes: piece.len_bytes,
            }));
        }
        // SAFETY: `held` keeps the memory, and no other transfer has these pieces.
        unsafe { file.incomplete_ranges(direction, memory, &ranges) }
    }

    /// Moves blocks between files, each named by its place in `files`, and any regions. Returns the same as
    /// [`ranges`](Self::ranges).
    fn entries(
        &self,
        layout: Layout,
        direction: Direction,
        files: &[File],
        blocks: &[(usize, &mut Placed)],
    ) -> Vec<(usize, Result<usize>)> {
        let entries = blocks.iter().flat_map(|(file, placed)| {
            let file = &files[*file];
            self.pieces_of(layout, placed).map(move |(piece, offset)| {
                let region = memory(file, direction, self.held.memory(piece))?;
                file.check_offset(direction, offset, piece.len_bytes)?;
                let memory = region.part(region.ptr.wrapping_add(piece.offset), piece.len_bytes);
                Ok(Entry { file: file.open_file(), offset, memory })
            })
        });
        // SAFETY: `held` keeps the memory, and no other transfer has these pieces.
        let outcomes = unsafe { files[0].engine().each_entry(direction, entries) };
        let pieces = blocks.iter().flat_map(|(_, placed)| &self.held.pieces[placed.block.pieces.clone()]);
        let outcomes = outcomes.into_iter().zip(pieces).enumerate();
        let incomplete = outcomes
            .filter(|(_, (outcome, piece))| !outcome.as_ref().is_ok_and(|done| *done == piece.len_bytes));
        incomplete.map(|(at, (outcome, _))| (at, outcome)).collect()
    }

    /// Returns the pieces of a block, with their places in its file.
    fn pieces_of(&self, layout: Layout, placed: &Placed) -> impl Iterator<Item = (&HeldPiece, u64)> {
        let start = layout.offset_of(placed.slot);
        let pieces = self.held.pieces[placed.block.pieces.clone()].iter();
        pieces.map(move |piece| (piece, start + piece.block_offset))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.held = Held::default();
        self.call.resolve_rest(self.numbers.clone(), lost);
    }
}

/// Returns whether pieces are all of a block, each byte once.
fn are_all(pieces: &[HeldPiece], len_bytes: u64) -> bool {
    let mut places: Vec<_> =
        pieces.iter().map(|piece| (piece.block_offset, piece.len_bytes as u64)).collect();
    places.sort_unstable();
    let end = places.iter().try_fold(0, |end, (start, len_bytes)| (*start == end).then_some(end + len_bytes));
    end == Some(len_bytes)
}

/// Returns the error of blocks that no thread carries out.
pub fn lost() -> BlockError {
    let cause = io::Error::other("a thread of the block store failed, or could not be started");
    BlockError::Failed(Error::Cufile { cause: cause.into() })
}

/// Writes the entries of written blocks, and makes these blocks available.
fn publish(parts: &Parts, placed: &mut [Placed], checksums: &[Option<u64>]) {
    let mut entries = Vec::new();
    {
        let mut slots = parts.slots();
        for (placed, checksum) in placed.iter().zip(checksums) {
            let mut entry = || entry::Entry {
                key: placed.block.key,
                generation: slots.next_generation(),
                len_bytes: placed.block.end,
                checksum: *checksum,
                is_durable: parts.is_durable,
            };
            if placed.outcome.is_ok() {
                entries.push((placed.slot, Some(entry())));
            }
        }
    }
    let synced = || if parts.is_durable { parts.index.sync() } else { Ok(()) };
    let noted = parts.index.write(&entries).and_then(|()| synced());
    if let Err(error) = &noted {
        fail_all(placed, error);
    }
    let mut retired = Vec::new();
    {
        let mut slots = parts.slots();
        for (slot, entry) in entries {
            match noted {
                Ok(()) => {
                    let entry = entry.expect("of a block");
                    slots.stats.bytes_stored += entry.len_bytes;
                    retired.extend(slots.publish(slot, entry));
                }
                // The entry may be there, so the next use of the slot clears it.
                Err(_) => slots.set_has_entry(slot, true),
            }
        }
        let failed = placed.iter().filter(|placed| placed.outcome.is_err());
        failed.for_each(|placed| slots.abandon(placed.slot));
    }
    if !retired.is_empty() {
        parts.clear(retired);
    }
}

/// Returns the memory of a region, for a transfer of a file.
fn memory(file: &File, direction: Direction, mut region: RegionMemory) -> Result<Memory> {
    match direction {
        Direction::Read => file.memory_mut(&mut region, 0),
        Direction::Write => file.memory(&region, 0),
    }
}

/// Fails all blocks that have not failed, because of one error.
pub fn fail_all(placed: &mut [Placed], error: &Error) {
    for placed in placed.iter_mut().filter(|placed| placed.outcome.is_ok()) {
        placed.outcome = Err(BlockError::Failed(same(error)));
    }
}

/// Returns the same error for another block.
pub fn same(error: &Error) -> Error {
    let cause = |error: &Error| match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(error.kind(), error.cause().to_string()),
    };
    match error {
        Error::File { operation, path, .. } => {
            Error::File { operation, path: path.clone(), cause: cause(error).into() }
        }
        Error::Open { path, .. } => Error::Open { path: path.clone(), cause: cause(error).into() },
        _ => Error::Cufile { cause: Cause::Io(io::Error::new(error.kind(), error.to_string())) },
    }
}
