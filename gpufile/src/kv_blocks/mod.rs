//! A store of the blocks of a KV cache: fixed-size blocks, scattered in paged memory and adjacent in files.
//!
//! An inference server keeps the keys and values of its tokens in paged memory, on the GPU or the host. Each layer of the model
//! has a tensor of keys and one of values, and a block of tokens has a piece in each of them. In a file, a block is one slot
//! with all its pieces.
//!
//! ```text
//!  paged memory: Regions               BlockStore: a folder
//!  layer 0  │ ▒ │ █ │   │ ▒ │          blocks-00000  │ █ █ █ │ ▒ ▒ ▒ │       │   slots, adjacent
//!  layer 1  │ ▒ │ █ │   │ ▒ │  ──────  blocks-00001  │       │       │       │
//!  layer 2  │ ▒ │ █ │   │ ▒ │          index         key → slot, length, checksum
//!            Pieces of Blocks
//! ```
//!
//! | type | stands for |
//! |---|---|
//! | [`BlockStore`] | the folder. [`store`](BlockStore::store), [`fetch`](BlockStore::fetch), [`remove`](BlockStore::remove), [`pin`](BlockStore::pin), eviction |
//! | [`BlockReader`] | the folder in another process, which only fetches |
//! | [`Region`] | memory that transfers may use, which it owns |
//! | [`Piece`] | a descriptor: offset and length in a region, and offset in the block |
//! | [`Block`] | a key, pieces, and a deadline |
//! | [`BlockTransfer`] | a call in flight: wait, await, callback or cancel. It has an outcome for each block |
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use gpufile::kv_blocks::{Block, BlockError, BlockStore, Region};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path().join("cache");
//! const LAYERS: usize = 4;
//! const PIECE: usize = 4096;
//! const PAGES: usize = 8;
//! let store = BlockStore::builder(LAYERS * PIECE).limit_bytes(1 << 30).open(&folder)?;
//! let cache = Region::new(vec![7; LAYERS * PAGES * PIECE]); // or device memory
//! let pieces = |page| (0..LAYERS).map(move |layer| (layer * PAGES + page) * PIECE);
//! let pieces = |page| -> Vec<_> {
//!     pieces(page).enumerate().map(|(layer, at)| cache.piece(at, PIECE, layer * PIECE)).collect()
//! };
//! let (page_3, page_5) = (pieces(3), pieces(5));
//!
//! let outcomes = store.store(&[Block::new(77, &page_3)]).wait(); // or .await
//! assert!(matches!(outcomes[..], [Ok(())]));
//!
//! let deadline = Some(Instant::now() + Duration::from_secs(5));
//! let blocks = [
//!     Block::new(77, &page_5).until(deadline),
//!     Block::new(78, &page_3).until(deadline),
//! ];
//! let outcomes = store.fetch(&blocks).wait();
//! assert!(matches!(outcomes[..], [Ok(()), Err(BlockError::Missing)]));
//! # Ok(())
//! # }
//! ```
//!
//! # A storage that does not answer
//!
//! No call waits for the storage: threads of the store do. A block ends at its deadline whatever the storage does, and
//! [`BlockTransfer::cancel`] returns at once. The memory of such a block stays with the transfer until the storage has answered,
//! and so does its slot. [`Region::bytes_in_use`] shows that. When the storage answers after all, both are free again.
//!
//! # A store that is full
//!
//! A block that needs a slot evicts the least recently used one, unless all are pinned, or being read or written. Then it ends
//! with [`BlockError::NoRoom`], as all blocks do in a store that does not [evict](BlockStoreBuilder::evicts).
//! [`on_evict`](BlockStoreBuilder::on_evict) tells the keys, and [`stats`](BlockStore::stats) counts. Whoever keeps a table of
//! keys starts with [`keys`](BlockStore::keys), adds what ends with `Ok`, and takes away what is evicted, removed or corrupt.
//!
//! # The folder
//!
//! The store believes what its folder has. So it opens a folder only if it belongs to the user of the process, if no other
//! user may write to it, and if it is not a symbolic link. The same holds for the files in it, which must be regular. Other
//! files may be there only if no other user can read the folder. Files named `blocks-00000` without an index are not of a
//! store, and the store does not open beside them.
//!
//! A store in [several folders](BlockStoreBuilder::open_striped) has slots 0, N, 2 N… in the first of N, 1, N + 1… in the second.
//! The index of the first has all entries. That of each other one has the store and the number of the folder, so folders of
//! two stores never open as one.
//!
//! # Other processes
//!
//! One process has the store open, and any number of others read it as a [`BlockReader`]. A reader has no lock and leaves no
//! trace, so either may be killed at any moment. It reads the entry of a slot again after the bytes, and takes them only if the
//! entry is the same. No entry comes back with other bytes, because the header counts the openings of the store, and each
//! has generations of its own.
//!
//! # After a crash
//!
//! The index has an entry for each slot. It is cleared before the bytes of the slot change, and written when they have. So a
//! killed process, at whatever moment, leaves entries only for whole blocks, and the next
//! [`open`](BlockStoreBuilder::open) finds these. Blocks whose store had not ended may be among them.
//!
//! If the machine stops, the disk may have an entry without the bytes of its block. The index has the boot of the machine,
//! and the next store leaves out all blocks of an earlier boot, except those for which one of these holds:
//!
//! - the store was [closed](BlockStore::close), and not opened again
//! - the store was [durable](BlockStoreBuilder::durable). A block has then ended with `Ok` only when the disk had it
//! - both stores have [checksums](BlockStoreBuilder::checksums), which find blocks that did not reach the disk
//!
//! This holds for file systems whose page cache belongs to this machine. A network file system whose server stops, or that
//! carries out a write after its process was killed, needs checksums.
//!
//! # What lives here
//!
//! `store` opens stores, in their `folders`, and `reader` opens readers. `calls` starts calls, which take memory (`held`,
//! `region`, `leases`) and give tasks to threads (`pool`). `task` takes slots (`slots`), moves bytes (`files`, and the lists of [`File`](crate::File)), and keeps the index true (`index`, `entry`).
//! `sums` has the checksums of blocks in memory.
//! `call` has the outcomes, and `timer` ends blocks at their deadlines.

mod call;
mod calls;
mod entry;
mod error;
mod files;
mod folders;
mod held;
mod index;
mod leases;
mod pool;
mod reader;
mod region;
mod slots;
mod store;
mod sum;
mod sums;
mod task;
mod timer;

pub use call::BlockTransfer;
pub use calls::Block;
pub use error::BlockError;
pub use reader::BlockReader;
pub use region::{Piece, Region};
pub use slots::Stats;
pub use store::{BlockStore, BlockStoreBuilder, Recovery};
