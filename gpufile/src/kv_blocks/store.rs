//! Stores of blocks: opening and closing them, and the calls that start transfers.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cufile::fork::Generation;

use crate::error::{Cause, Error, Result};
use crate::file::options::OpenOptions;
use crate::future::owned::OF_ANOTHER_PROCESS;
use crate::kv_blocks::call::{BlockTransfer, Call};
use crate::kv_blocks::entry::{Entry, Found, Header};
use crate::kv_blocks::error::BlockError;
use crate::kv_blocks::files::{Files, Layout, is_ours, require_none};
use crate::kv_blocks::held::{Held, covered, end};
use crate::kv_blocks::index::Index;
use crate::kv_blocks::pool::Pool;
use crate::kv_blocks::region::Piece;
use crate::kv_blocks::slots::{Slot, Slots};
use crate::kv_blocks::task::{Asked, Parts, Task, lost};
use crate::kv_blocks::timer::Timer;
use crate::local_path;
use crate::trusted::PrivateFolder;

/// The pieces of the first task of a call. Each further task has four times as many. So the engine begins soon, while the
/// caller takes the memory of later blocks.
const FIRST_PIECES: usize = 1 << 10;

/// The length of files unless the caller chooses another, in bytes.
const FILE_BYTES: u64 = 4 << 30;

/// A store of fixed-size blocks in the files of a folder, which finds each block by its key.
///
/// [The guide](crate::kv_blocks) has an example. Methods take `&self`, so threads can share a store. Calls do not wait for the storage,
/// except [`open`](BlockStoreBuilder::open) and [`close`](Self::close).
///
/// Dropping the store does not wait. Calls that have begun continue, and the folder can be opened again when the last of them
/// has ended. In a forked child, each block of a call fails, and the store has no keys.
pub struct BlockStore {
    parts: Arc<Parts>,
    pool: Arc<Pool>,
    timer: Arc<Timer>,
    recovery: Recovery,
    generation: Generation,
}

/// A block to store or to fetch.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    /// The key, which the caller chooses: usually a hash of the tokens up to the block, and of the model.
    pub key: u128,
    /// The memory of the block. For a store, the pieces cover the first bytes of the block without gaps, in any order. For a
    /// fetch, they may be any parts of it, for example those of one layer.
    pub pieces: &'a [Piece<'a>],
    /// The time at which the block ends with [`BlockError::Deadline`] if it has not ended by then.
    pub deadline: Option<Instant>,
}

/// The blocks that a store found in its folder when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// The blocks that are whole, and that the store has.
    pub whole: usize,
    /// The entries of the index that were damaged, or whose block is not in its file.
    pub damaged: usize,
    /// The blocks that may not have reached the disk before the machine stopped.
    pub unsynced: usize,
}

/// The properties of a store. [`BlockStore::builder`] makes one.
#[derive(Debug, Clone)]
#[must_use = "`open` opens the store"]
pub struct BlockStoreBuilder {
    block_bytes: usize,
    limit_bytes: u64,
    blocks_per_file: Option<u32>,
    has_checksums: bool,
    is_durable: bool,
    files: OpenOptions,
}

impl BlockStoreBuilder {
    /// Sets the most bytes that the files may have: 64 GiB by default. A further block evicts the least recently used one. The
    /// files are sparse until blocks fill them.
    pub fn limit_bytes(self, limit_bytes: u64) -> Self {
        Self { limit_bytes, ..self }
    }

    /// Sets the number of blocks in each file. By default, a file has up to 4 GiB. A store keeps its files open.
    pub fn blocks_per_file(self, blocks_per_file: u32) -> Self {
        Self { blocks_per_file: Some(blocks_per_file), ..self }
    }

    /// Chooses whether each block gets a CRC-32C, which a fetch compares. It is that of the bytes in the file: the store reads
    /// each block again after it was written, and each fetch reads it twice, the second time to the host. So it finds bytes
    /// that changed in the file, and not those that changed between the file and the memory. The default is false.
    pub fn checksums(self, has_checksums: bool) -> Self {
        Self { has_checksums, ..self }
    }

    /// Chooses whether a block is stored only when the disk has it. The default is false.
    pub fn durable(self, is_durable: bool) -> Self {
        Self { is_durable, ..self }
    }

    /// Sets the engine, the route and the other options with which files are opened. A storage that does not answer occupies
    /// the workers of its engine. So give it an engine of its own if the process uses others.
    pub fn files(self, files: &OpenOptions) -> Self {
        Self { files: files.clone(), ..self }
    }

    /// Opens the store in a folder, which it creates if there is none. Waits for the storage.
    ///
    /// The blocks of an earlier store are there again if its blocks had the same length. If the limit is lower than it was,
    /// those beyond it are gone.
    ///
    /// Blocks tell what users wrote, so the folder has the mode 0700, and its files have 0600. A store that earlier versions
    /// made readable gets these modes. [The guide](crate::kv_blocks#the-folder) has the conditions for an existing folder.
    ///
    /// # Errors
    /// If another process has the store open, if its index is damaged or that of blocks of another length, or if the storage
    /// fails. [`Cause::Invalid`] if the limit has no room for a block, or if other users could have written to the folder.
    pub fn open(self, folder: impl AsRef<Path>) -> Result<BlockStore> {
        let path = folder.as_ref();
        local_path::check(path)?;
        let layout = self.layout().map_err(|why| Error::File {
            operation: "open",
            path: path.to_owned(),
            cause: Cause::Invalid(why),
        })?;
        let folder = PrivateFolder::open(path, false, is_ours)
            .map_err(|cause| Error::Open { path: path.to_owned(), cause })?;
        if !Index::is_in(&folder)? {
            require_none(&folder)?;
        }
        let (index, header) = Index::open(&folder)?;
        if header.is_none() {
            require_none(&folder)?;
        }
        let files = Files::new(folder, index.inode()?, &self.files, layout);
        let boot = boot();
        let (slots, recovery) = match header {
            None => (Slots::new(layout.slots), Recovery::default()),
            Some(header) => self.recover(&index, &files, header, boot)?,
        };
        files.make_private()?;
        index.make_private()?;
        let Layout { block_bytes, blocks_per_file, .. } = layout;
        let boot = boot.unwrap_or_default();
        index.set_header(Header { block_bytes, blocks_per_file, is_clean: false, boot })?;
        index.sync()?;
        files.sync_folder()?;
        Ok(BlockStore {
            parts: Arc::new(Parts::new(index, files, slots, self.has_checksums, self.is_durable)),
            pool: Arc::default(),
            timer: Arc::default(),
            recovery,
            generation: Generation::current(),
        })
    }

    fn layout(&self) -> Result<Layout, String> {
        let block_bytes = self.block_bytes as u64;
        let slot_bytes =
            Layout::slot_bytes(block_bytes).filter(|bytes| *bytes > 0).ok_or("blocks have a length")?;
        let slots = u32::try_from(self.limit_bytes / slot_bytes).unwrap_or(u32::MAX - 1).min(u32::MAX - 1);
        if slots == 0 {
            return Err(format!(
                "a limit of {} bytes has no room for a block of {slot_bytes}",
                self.limit_bytes
            ));
        }
        let usual = u32::try_from(FILE_BYTES / slot_bytes).unwrap_or(u32::MAX).max(1);
        match self.blocks_per_file.unwrap_or(usual) {
            0 => Err("files have at least one block".to_owned()),
            blocks_per_file => Ok(Layout { block_bytes, blocks_per_file, slots }),
        }
    }

    /// Finds the blocks of an earlier store, and clears all other entries.
    fn recover(
        &self,
        index: &Index,
        files: &Files,
        header: Header,
        boot: Option<[u8; 16]>,
    ) -> Result<(Slots, Recovery)> {
        let layout = files.layout;
        let shape = (header.block_bytes, header.blocks_per_file);
        if shape != (layout.block_bytes, layout.blocks_per_file) {
            let why = format!(
                "it is that of files with {} blocks of {} bytes; remove its folder to begin with {} blocks of {} bytes",
                shape.1, shape.0, layout.blocks_per_file, layout.block_bytes
            );
            return Err(index.invalid("use", why));
        }
        // Until the machine stops, its page cache has what a killed process wrote.
        let has_all = header.is_clean || boot == Some(header.boot);
        let lens = files.survey()?;
        let mut recovery = Recovery::default();
        let mut cleared: Vec<(Slot, Option<Entry>)> = Vec::new();
        let found = index.entries(layout.slots, layout.block_bytes)?;
        let mut entries = Vec::with_capacity(found.len());
        for (slot, found) in (0..).zip(found) {
            let entry = match found {
                Found::Free => None,
                Found::Block(entry) => {
                    let is_there = lens
                        .get(layout.file_of(slot) as usize)
                        .is_some_and(|len_bytes| *len_bytes >= layout.offset_of(slot) + entry.len_bytes);
                    let is_checked = self.has_checksums && entry.checksum.is_some();
                    let is_synced = has_all || entry.is_durable || is_checked;
                    recovery.damaged += usize::from(!is_there);
                    recovery.unsynced += usize::from(is_there && !is_synced);
                    (is_there && is_synced).then_some(entry)
                }
                Found::Damaged => {
                    recovery.damaged += 1;
                    None
                }
            };
            if entry.is_none() && found != Found::Free {
                cleared.push((slot, None));
            }
            entries.push(entry);
        }
        let mut slots = Slots::new(layout.slots);
        let superseded = slots.restore(&entries);
        cleared.extend(superseded.iter().map(|slot| (*slot, None)));
        cleared.sort_unstable_by_key(|(slot, _)| *slot);
        index.write(&cleared)?;
        index.truncate(layout.slots)?;
        superseded.into_iter().for_each(|slot| slots.set_has_entry(slot, false));
        recovery.whole = slots.len();
        Ok((slots, recovery))
    }
}

/// Returns the id of this boot of the machine, if the kernel tells it.
fn boot() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_le_bytes)
}

impl BlockStore {
    /// Returns the properties of a store of blocks of up to `block_bytes` bytes.
    pub fn builder(block_bytes: usize) -> BlockStoreBuilder {
        BlockStoreBuilder {
            block_bytes,
            limit_bytes: 64 << 30,
            blocks_per_file: None,
            has_checksums: false,
            is_durable: false,
            files: OpenOptions::new(),
        }
    }

    /// Stores blocks. A block whose key the store has replaces that one. Fetches get it when it has ended with `Ok`.
    ///
    /// If there is no free slot, it evicts the least recently used block that no call is reading. Of two blocks in one call with
    /// the same key, either may stay.
    pub fn store(&self, blocks: &[Block<'_>]) -> BlockTransfer {
        self.start(blocks, covered, false, Task::store)
    }

    /// Fetches blocks into memory. Those that the store does not have end with [`BlockError::Missing`].
    ///
    /// The memory of a block that does not end with `Ok` has unspecified bytes.
    pub fn fetch(&self, blocks: &[Block<'_>]) -> BlockTransfer {
        self.start(blocks, end, true, Task::fetch)
    }

    fn start(
        &self,
        blocks: &[Block<'_>],
        check: fn(&[Piece<'_>], u64) -> Result<u64, BlockError>,
        is_fetch: bool,
        run: fn(Task, Arc<Parts>),
    ) -> BlockTransfer {
        let call = Arc::new(Call::new(blocks.iter().map(|block| block.deadline).collect()));
        let transfer = BlockTransfer::new(call.clone(), blocks.len(), is_fetch);
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
        // Each task of a store syncs its files, and may evict the blocks of the others if there are too few slots. Checksums
        // of one task occupy all processors.
        let Parts { has_checksums, is_durable, files, .. } = &*self.parts;
        let is_cut =
            !has_checksums && (is_fetch || !is_durable && blocks.len() <= files.layout.slots as usize);
        let mut most_pieces = if is_cut { FIRST_PIECES } else { usize::MAX };
        while !left.is_empty() {
            let task = self.task(&call, blocks, left, check, most_pieces);
            left = task.numbers.end..blocks.len();
            most_pieces = most_pieces.saturating_mul(4);
            if !task.blocks.is_empty() {
                let parts = self.parts.clone();
                // A task that is dropped ends its blocks.
                let _ = self.pool.submit(Box::new(move || run(task, parts)));
            }
        }
        transfer
    }

    /// Takes the memory of the first of these blocks, with at least `most_pieces` pieces if they have as many. Ends those
    /// that are described wrongly, or whose memory is in use.
    fn task(
        &self,
        call: &Arc<Call>,
        blocks: &[Block<'_>],
        mut numbers: Range<usize>,
        check: fn(&[Piece<'_>], u64) -> Result<u64, BlockError>,
        most_pieces: usize,
    ) -> Task {
        let most = self.parts.files.layout.block_bytes;
        let mut held = Held::default();
        let (mut asked, mut refused) = (Vec::new(), Vec::new());
        for number in numbers.clone() {
            let Block { key, pieces, .. } = blocks[number];
            match check(pieces, most).and_then(|end| Ok((end, held.take(pieces)?))) {
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

    /// Returns whether the store has a block. Does not change which block is evicted next.
    pub fn contains(&self, key: u128) -> bool {
        self.parts.slots().contains(key)
    }

    /// Returns the keys of all blocks, in no order.
    pub fn keys(&self) -> Vec<u128> {
        self.parts.slots().keys().collect()
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.parts.slots().len()
    }

    /// Returns whether the store has no block.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes blocks. Returns how many of these the store had. Calls that are reading them still get them.
    ///
    /// A block that was removed shortly before the process was killed may be there again afterwards, whole.
    pub fn remove(&self, keys: &[u128]) -> usize {
        if !self.generation.is_current() {
            return 0;
        }
        let retired: Vec<_> = {
            let mut slots = self.parts.slots();
            keys.iter().filter_map(|key| slots.remove(*key)).collect()
        };
        let (count, parts) = (retired.len(), self.parts.clone());
        if count > 0 {
            let later = retired.clone();
            let submitted = self.pool.submit(Box::new(move || parts.clear(later)));
            if submitted.is_err() {
                let mut slots = self.parts.slots();
                retired.into_iter().for_each(|slot| slots.cleared(slot, true));
            }
        }
        count
    }

    /// Returns what the store found in its folder when it was opened.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Waits for all calls, and until the disk has all blocks. They are then there again after a power cut.
    ///
    /// # Errors
    /// The error that the operating system returned. [`Cause::Invalid`] in a callback of one of its transfers, where it would
    /// wait for itself; the store is dropped then.
    pub fn close(self) -> Result<()> {
        if !self.generation.is_current() {
            return Ok(());
        }
        let Parts { index, files, .. } = &*self.parts;
        if !self.pool.end() {
            let why = "a callback of a transfer cannot wait for the end of all transfers";
            return Err(index.invalid("close", why.to_owned()));
        }
        files.sync_all()?;
        index.sync()?;
        let Layout { block_bytes, blocks_per_file, .. } = files.layout;
        let boot = boot().unwrap_or_default();
        index.set_header(Header { block_bytes, blocks_per_file, is_clean: true, boot })?;
        index.sync()
    }
}

impl Drop for BlockStore {
    fn drop(&mut self) {
        if self.generation.is_current() {
            self.pool.close();
            self.timer.close();
        }
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { block_bytes, slots, .. } = self.parts.files.layout;
        f.debug_struct("BlockStore").field("block_bytes", &block_bytes).field("slots", &slots).finish()
    }
}
