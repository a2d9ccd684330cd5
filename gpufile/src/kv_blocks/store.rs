//! Stores of blocks: opening and closing them, and the calls that start transfers.

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Cause, Error, Result};
use crate::file::options::OpenOptions;
use crate::kv_blocks::call::BlockTransfer;
use crate::kv_blocks::calls::{Block, Calls, Kind};
use crate::kv_blocks::entry::{Entry, Found, Header};
use crate::kv_blocks::files::{Files, Layout};
use crate::kv_blocks::folders::{self, Folders};
use crate::kv_blocks::held::{covered, end};
use crate::kv_blocks::index::{Index, boot};
use crate::kv_blocks::reader::BlockReader;
use crate::kv_blocks::slots::{Slot, Slots, Stats};
use crate::kv_blocks::task::{OnEvict, Parts, Task};

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
    calls: Calls,
    recovery: Recovery,
    /// The header that the index has until it is closed.
    header: Header,
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
#[derive(Clone)]
#[must_use = "`open` opens the store"]
pub struct BlockStoreBuilder {
    block_bytes: usize,
    limit_bytes: u64,
    blocks_per_file: Option<u32>,
    has_checksums: bool,
    is_durable: bool,
    evicts: bool,
    on_evict: Option<OnEvict>,
    files: OpenOptions,
}

impl fmt::Debug for BlockStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block_bytes, limit_bytes, blocks_per_file, has_checksums, is_durable, .. } = self;
        f.debug_struct("BlockStoreBuilder")
            .field("block_bytes", block_bytes)
            .field("limit_bytes", limit_bytes)
            .field("blocks_per_file", blocks_per_file)
            .field("checksums", has_checksums)
            .field("durable", is_durable)
            .field("evicts", &self.evicts)
            .finish_non_exhaustive()
    }
}

impl BlockStoreBuilder {
    /// Sets the most bytes that the files may have: 64 GiB by default. [`evicts`](Self::evicts) chooses what a further block
    /// does. The files are sparse until blocks fill them.
    pub fn limit_bytes(self, limit_bytes: u64) -> Self {
        Self { limit_bytes, ..self }
    }

    /// Sets the number of blocks in each file. By default, a file has up to 4 GiB. A store keeps its files open.
    pub fn blocks_per_file(self, blocks_per_file: u32) -> Self {
        Self { blocks_per_file: Some(blocks_per_file), ..self }
    }

    /// Chooses whether each block gets a checksum of 64 bits, which a fetch compares. It is that of the bytes in memory, so it
    /// finds what changed anywhere between the store and the fetch. A GPU sums its own memory. A fetch of some of a block's bytes
    /// reads all of it to the host for that, and so does one into memory that no kernel of gpufile can use. The default is false.
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

    /// Sets what a full store does. With `true`, the default, a further block evicts the least recently used one that
    /// is not pinned and that no call is reading. With `false`, it ends with
    /// [`BlockError::NoRoom`](super::BlockError::NoRoom), also if it would replace a block, until
    /// [`remove`](BlockStore::remove) frees a slot.
    pub fn evicts(self, evicts: bool) -> Self {
        Self { evicts, ..self }
    }

    /// Sets a callback for the keys of evicted blocks. A call of the store gets each key once for each eviction, before the store
    /// that evicted it ends. It does not get the keys that are [removed](BlockStore::remove), replaced, corrupt, or gone since
    /// the store was last open, which [`keys`](BlockStore::keys) tells then.
    ///
    /// Threads of the store call it, also at the same time. They have no lock, so it may use the store, but not wait for a
    /// transfer, which may need its thread. The key may have been stored again by then; [`contains`](BlockStore::contains)
    /// tells. A panic of it ends nothing.
    pub fn on_evict(self, on_evict: impl Fn(&[u128]) + Send + Sync + 'static) -> Self {
        Self { on_evict: Some(Arc::new(on_evict)), ..self }
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
    /// If another process has the store open, if its index is damaged or that of blocks of another length, if an earlier version
    /// with another form of the index made it, or if the storage fails. [`Cause::Invalid`] if the limit has no room for a block,
    /// or if other users could have written to the folder.
    pub fn open(self, folder: impl AsRef<Path>) -> Result<BlockStore> {
        self.open_striped([folder])
    }

    /// Opens the store in several folders, for example one for each disk. The blocks take turns on them, and the limit is that
    /// of all together. The first has the index.
    ///
    /// A later store needs the same folders, in any order.
    ///
    /// # Errors
    /// Those of [`open`](Self::open). [`Cause::Invalid`] if a folder is missing, or belongs to another store.
    pub fn open_striped<P: AsRef<Path>>(self, folders: impl IntoIterator<Item = P>) -> Result<BlockStore> {
        let paths: Vec<_> = folders.into_iter().map(|path| path.as_ref().to_owned()).collect();
        folders::check(&paths)?;
        let layout = self.layout(&paths)?;
        let Folders { folders, indexes, header } = Folders::open(&paths)?;
        let files = Files::new(folders, &self.files, layout, true);
        let boot = boot();
        let Layout { block_bytes, blocks_per_file, folders, .. } = layout;
        let (mut slots, recovery, opened, store) = match header {
            None => (Slots::new(layout.slots, self.evicts), Recovery::default(), 1, id()?),
            Some(header) => {
                let (slots, recovery) = self.recover(&indexes[0], &files, header, boot)?;
                (slots, recovery, header.opened.saturating_add(1), header.store)
            }
        };
        files.make_private()?;
        indexes.iter().try_for_each(Index::make_private)?;
        let written = Header {
            block_bytes,
            blocks_per_file,
            is_clean: false,
            boot: boot.unwrap_or_default(),
            opened,
            store,
            folder: 0,
            folders: folders as u16,
        };
        // The first comes last: without it, the folders have no store.
        for (folder, index) in (0..).zip(&indexes).skip(1).filter(|_| header.is_none()) {
            index.set_header(Header { folder, ..written })?;
            index.sync()?;
        }
        files.sync_folders()?;
        indexes[0].set_header(written)?;
        indexes[0].sync()?;
        slots.begin_generations(written.first_generation());
        let choices = [self.has_checksums, self.is_durable];
        let parts = Parts::new(indexes, files, slots, choices, self.on_evict);
        Ok(BlockStore { parts: Arc::new(parts), calls: Calls::new(), recovery, header: written })
    }

    /// Opens the folders of a store to read its blocks, while another process may have it open. Needs the length of blocks, and
    /// [`files`](Self::files); uses [`checksums`](Self::checksums), and ignores the other properties.
    ///
    /// # Errors
    /// If there is no store, if its blocks have another length, or if these are not all its folders.
    pub fn open_reader<P: AsRef<Path>>(self, folders: impl IntoIterator<Item = P>) -> Result<BlockReader> {
        let paths: Vec<_> = folders.into_iter().map(|path| path.as_ref().to_owned()).collect();
        folders::check(&paths)?;
        let layout = self.layout(&paths)?;
        BlockReader::open(&paths, self.files, layout, self.has_checksums)
    }

    /// Returns the places of blocks in these folders.
    fn layout(&self, paths: &[PathBuf]) -> Result<Layout> {
        self.layout_of(paths.len() as u32).map_err(|why| Error::File {
            operation: "open",
            path: paths[0].clone(),
            cause: Cause::Invalid(why),
        })
    }

    fn layout_of(&self, folders: u32) -> Result<Layout, String> {
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
            blocks_per_file => Ok(Layout { block_bytes, blocks_per_file, folders, slots }),
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
        // Readers must not find entries of files that are cut.
        index.truncate(layout.slots)?;
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
                    let is_synced = entry.is_believed(has_all, self.has_checksums);
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
        let mut slots = Slots::new(layout.slots, self.evicts);
        let superseded = slots.restore(&entries);
        cleared.extend(superseded.iter().map(|slot| (*slot, None)));
        cleared.sort_unstable_by_key(|(slot, _)| *slot);
        index.write(&cleared)?;
        superseded.into_iter().for_each(|slot| slots.set_has_entry(slot, false));
        recovery.whole = slots.len();
        Ok((slots, recovery))
    }
}

/// Returns random bytes for a new store.
fn id() -> Result<[u8; 12]> {
    let mut bytes = [0; 12];
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    let path = || PathBuf::from("/dev/urandom");
    read.map_err(|error| Error::File { operation: "read", path: path(), cause: error.into() })?;
    Ok(bytes)
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
            evicts: true,
            on_evict: None,
            files: OpenOptions::new(),
        }
    }

    /// Stores blocks. A block whose key the store has replaces that one. Fetches get it when it has ended with `Ok`.
    ///
    /// If there is no free slot, it evicts the least recently used block that is not pinned and that no call is reading, if the
    /// store [evicts](BlockStoreBuilder::evicts). Of two blocks in one call with the same key, either may stay.
    pub fn store(&self, blocks: &[Block<'_>]) -> BlockTransfer {
        // Each task of a store syncs its files, and may evict the blocks of the others if there are too few slots.
        let Parts { is_durable, files, .. } = &*self.parts;
        let Layout { block_bytes, slots, .. } = files.layout;
        let is_cut = !is_durable && blocks.len() <= slots as usize;
        self.start(blocks, Kind { check: covered, is_fetch: false, block_bytes, is_cut }, Task::store)
    }

    /// Fetches blocks into memory. Those that the store does not have end with
    /// [`BlockError::Missing`](super::BlockError::Missing).
    ///
    /// The memory of a block that does not end with `Ok` has unspecified bytes.
    pub fn fetch(&self, blocks: &[Block<'_>]) -> BlockTransfer {
        let Layout { block_bytes, .. } = self.parts.files.layout;
        self.start(blocks, Kind { check: end, is_fetch: true, block_bytes, is_cut: true }, Task::fetch)
    }

    fn start(&self, blocks: &[Block<'_>], kind: Kind, run: fn(Task, Arc<Parts>)) -> BlockTransfer {
        let parts = self.parts.clone();
        self.calls.start(blocks, kind, move |task| run(task, parts))
    }

    /// Keeps a block from being evicted until [`unpin`](Self::unpin) is called as often, for example while a request
    /// uses its prefix. Returns false if the store does not have it.
    ///
    /// A block that replaces a pinned one is pinned. [`remove`](Self::remove) and corruption end all pins, and so does the end of
    /// the store. If all blocks are pinned, further ones end with [`BlockError::NoRoom`](super::BlockError::NoRoom).
    pub fn pin(&self, key: u128) -> bool {
        self.parts.slots().pin(key)
    }

    /// Ends one call of [`pin`](Self::pin). After the last, the block is the most recently used. Returns false if it is not pinned.
    pub fn unpin(&self, key: u128) -> bool {
        self.parts.slots().unpin(key)
    }

    /// Returns the counts since the store was opened.
    pub fn stats(&self) -> Stats {
        self.parts.slots().stats
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
        if !self.calls.generation.is_current() {
            return 0;
        }
        let retired: Vec<_> = {
            let mut slots = self.parts.slots();
            keys.iter().filter_map(|key| slots.remove(*key)).collect()
        };
        let (count, parts) = (retired.len(), self.parts.clone());
        if count > 0 {
            let later = retired.clone();
            let submitted = self.calls.pool.submit(Box::new(move || parts.clear(later)));
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
        if !self.calls.generation.is_current() {
            return Ok(());
        }
        let Parts { index, files, .. } = &*self.parts;
        if !self.calls.pool.end() {
            let why = "a callback of a transfer cannot wait for the end of all transfers";
            return Err(index.invalid("close", why.to_owned()));
        }
        files.sync_all()?;
        index.sync()?;
        index.set_header(Header { is_clean: true, ..self.header })?;
        index.sync()
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { block_bytes, slots, .. } = self.parts.files.layout;
        f.debug_struct("BlockStore").field("block_bytes", &block_bytes).field("slots", &slots).finish()
    }
}
