//! Readers: other processes that fetch the blocks of a store while it stores and evicts.
//!
//! A reader has no lock, so nothing waits for it. It believes a block only if the entry of its slot is the same after the
//! bytes were read. The store clears the entry before the bytes of a slot change, and no two entries have one generation.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use cufile::fork::Mutex;

use crate::error::Result;
use crate::file::options::OpenOptions;
use crate::kv_blocks::call::BlockTransfer;
use crate::kv_blocks::calls::{Block, Calls, Kind};
use crate::kv_blocks::entry::{Entry, Found, Header};
use crate::kv_blocks::error::BlockError;
use crate::kv_blocks::files::{Files, Folder, Layout};
use crate::kv_blocks::folders::Folders;
use crate::kv_blocks::held::{end, invalid};
use crate::kv_blocks::index::{Index, boot};
use crate::kv_blocks::slots::{Slot, Stats};
use crate::kv_blocks::task::{Placed, Task, fail_all, same};

/// The most times that a fetch reads a block which the store replaces in the meantime.
const TRIES: usize = 8;

/// A reader of a store that another process has open, or none. [`BlockStoreBuilder::open_reader`](super::BlockStoreBuilder::open_reader) opens one.
///
/// It fetches blocks while the store stores, evicts and removes others, and changes nothing. The store does not know of it: a
/// reader keeps no block from being evicted, and does not count as its use. A block that is evicted while it is read ends with
/// [`BlockError::Missing`].
///
/// Each fetch of a key that the reader has not seen yet reads the index again: 64 bytes for each slot of the store. A reader
/// gets the blocks that the store had when the fetch began; of a block that is being replaced, the old or the new one.
///
/// This holds for processes of one machine. If the store writes to a network file system from another one, give both
/// [checksums](super::BlockStoreBuilder::checksums).
///
/// ```
/// use gpufile::kv_blocks::{Block, BlockStore, Region};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path().join("cache");
/// let store = BlockStore::builder(4096).limit_bytes(1 << 20).open(&folder)?;
/// let memory = Region::new(vec![7; 8192]);
/// let (from, to) = ([memory.piece(0, 4096, 0)], [memory.piece(4096, 4096, 0)]);
/// for outcome in store.store(&[Block::new(77, &from)]).wait() {
///     outcome?;
/// }
///
/// // In another process:
/// let reader = BlockStore::builder(4096).open_reader([&folder])?;
/// for outcome in reader.fetch(&[Block::new(77, &to)]).wait() {
///     outcome?;
/// }
/// assert_eq!(reader.keys()?, [77]);
/// assert_eq!(reader.stats().hits, 1);
/// # Ok(())
/// # }
/// ```
pub struct BlockReader {
    parts: Arc<Parts>,
    calls: Calls,
}

/// The parts of a reader that its tasks use.
struct Parts {
    indexes: Vec<Index>,
    folders: Arc<[Folder]>,
    options: OpenOptions,
    layout: Layout,
    has_checksums: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None` until the index was read.
    view: Option<Arc<View>>,
    stats: Stats,
}

/// The blocks that a reader has seen.
struct View {
    /// The opening of the store that wrote them. Another one may remove files and make new ones.
    opened: u32,
    files: Arc<Files>,
    known: HashMap<u128, (Slot, Entry)>,
}

impl BlockReader {
    pub(super) fn open(
        paths: &[PathBuf],
        options: OpenOptions,
        layout: Layout,
        has_checksums: bool,
    ) -> Result<Self> {
        let Folders { folders, indexes, header } = Folders::open_to_read(paths)?;
        let header = header.expect("the first of a store has one");
        let layout = Layout { blocks_per_file: header.blocks_per_file, ..layout };
        if header.block_bytes != layout.block_bytes {
            let why = format!("its blocks have {} bytes, not {}", header.block_bytes, layout.block_bytes);
            return Err(indexes[0].invalid("use", why));
        }
        let state = Mutex::new(State::default());
        let parts = Parts { indexes, folders, options, layout, has_checksums, state };
        parts.look()?;
        Ok(Self { parts: Arc::new(parts), calls: Calls::new() })
    }

    /// Fetches blocks into memory, as [`BlockStore::fetch`](super::BlockStore::fetch) does. A block that the store replaces or
    /// evicts again and again while it is read ends with [`BlockError::Missing`].
    pub fn fetch(&self, blocks: &[Block<'_>]) -> BlockTransfer {
        let Layout { block_bytes, .. } = self.parts.layout;
        let kind = Kind { check: end, is_fetch: true, block_bytes, is_cut: true };
        let parts = self.parts.clone();
        self.calls.start(blocks, kind, move |task| fetch(task, &parts))
    }

    /// Reads the index, and returns the keys of all blocks, in no order. In a forked child, there are none.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn keys(&self) -> Result<Vec<u128>> {
        match self.calls.generation.is_current() {
            true => Ok(self.parts.look()?.known.keys().copied().collect()),
            false => Ok(Vec::new()),
        }
    }

    /// Returns the counts since the reader was opened.
    pub fn stats(&self) -> Stats {
        self.parts.state.lock().stats
    }
}

impl fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockReader").field("block_bytes", &self.parts.layout.block_bytes).finish()
    }
}

impl Parts {
    /// Returns what the last look at the index found.
    fn view(&self) -> Result<Arc<View>> {
        let view = self.state.lock().view.clone();
        view.map_or_else(|| self.look(), Ok)
    }

    /// Returns the header of the store.
    fn header(&self) -> Result<Header> {
        let missing = || self.indexes[0].invalid("use", "its header is gone".to_owned());
        self.indexes[0].header()?.ok_or_else(missing)
    }

    /// Reads the index.
    fn look(&self) -> Result<Arc<View>> {
        // The header comes first. If it is that of an opening, all entries of earlier ones are believed there.
        let header = self.header()?;
        let has_all = header.is_clean || boot() == Some(header.boot);
        let mut known: HashMap<u128, (Slot, Entry)> = HashMap::new();
        let found = self.indexes[0].entries(u32::MAX - 1, self.layout.block_bytes)?;
        for (slot, found) in (0..).zip(found) {
            if let Found::Block(entry) = found
                && entry.is_believed(has_all, self.has_checksums)
                && known.get(&entry.key).is_none_or(|(_, other)| other.generation < entry.generation)
            {
                known.insert(entry.key, (slot, entry));
            }
        }
        let mut state = self.state.lock();
        let same = state.view.as_ref().filter(|view| view.opened == header.opened);
        let files = match same {
            Some(view) => view.files.clone(),
            None => Arc::new(Files::new(self.folders.clone(), &self.options, self.layout, false)),
        };
        let view = Arc::new(View { opened: header.opened, files, known });
        state.view = Some(view.clone());
        Ok(view)
    }

    /// Returns whether a slot still has the block whose bytes were read.
    fn is_unchanged(&self, slot: Slot, entry: &Entry) -> Result<bool> {
        Ok(self.indexes[0].entry(slot, self.layout.block_bytes)? == Found::Block(*entry))
    }
}

/// Fetches the blocks of a task.
fn fetch(mut task: Task, parts: &Parts) {
    let mut left = task.pending();
    let mut ended: Vec<Placed> = Vec::new();
    let none = Slot::MAX;
    let mut view = match parts.view() {
        Ok(view) if left.iter().all(|block| view.known.contains_key(&block.key)) => Ok(view),
        _ => parts.look(),
    };
    for _ in 0..TRIES {
        let seen = match &view {
            Ok(view) => view.clone(),
            Err(_) => break,
        };
        let mut placed = Vec::new();
        for block in left.drain(..) {
            match seen.known.get(&block.key) {
                None => ended.push(Placed { block, slot: none, outcome: Err(BlockError::Missing) }),
                Some((_, entry)) if block.end > entry.len_bytes => {
                    let why =
                        format!("its pieces end at byte {}, and {} are stored", block.end, entry.len_bytes);
                    ended.push(Placed { block, slot: none, outcome: Err(invalid(why)) });
                }
                Some((slot, _)) => placed.push(Placed { block, slot: *slot, outcome: Ok(()) }),
            }
        }
        placed.sort_by_key(|placed| placed.slot);
        let entries: Vec<_> = placed.iter().map(|placed| seen.known[&placed.block.key].1).collect();
        task.read(&seen.files, &mut placed, &entries, parts.has_checksums);
        let mut again = Vec::new();
        for (mut placed, entry) in placed.into_iter().zip(entries) {
            match parts.is_unchanged(placed.slot, &entry) {
                Ok(true) => ended.push(placed),
                Ok(false) => again.push(placed),
                Err(error) => {
                    placed.outcome = Err(BlockError::Failed(error));
                    ended.push(placed);
                }
            }
        }
        // Files of an earlier opening may have lost their names, and others have them now.
        let is_of_opening = parts.header().map(|header| header.opened == seen.opened);
        match is_of_opening {
            Ok(true) if again.is_empty() => break,
            Ok(true) => {}
            Ok(false) => again.extend(ended.extract_if(.., |placed| placed.slot != none)),
            Err(error) => {
                fail_all(&mut ended, &error);
                fail_all(&mut again, &error);
                ended.append(&mut again);
                break;
            }
        }
        left.extend(again.into_iter().map(|placed| placed.block));
        view = parts.look();
    }
    let missing = |block| {
        let outcome = match &view {
            Ok(_) => BlockError::Missing,
            Err(error) => BlockError::Failed(same(error)),
        };
        Placed { block, slot: none, outcome: Err(outcome) }
    };
    ended.extend(left.into_iter().map(missing));
    {
        let stats = &mut parts.state.lock().stats;
        for Placed { block, slot, outcome } in &ended {
            stats.hits += u64::from(*slot != none);
            stats.misses += u64::from(matches!(outcome, Err(BlockError::Missing)));
            stats.bytes_fetched += if outcome.is_ok() { task.bytes_of(block) } else { 0 };
        }
    }
    task.end(ended);
}
