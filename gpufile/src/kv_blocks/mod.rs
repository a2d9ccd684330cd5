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
//! | [`BlockStore`] | the folder. [`store`](BlockStore::store), [`fetch`](BlockStore::fetch), [`remove`](BlockStore::remove), eviction |
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
//! let outcomes = store.store(&[Block { key: 77, pieces: &page_3, deadline: None }]).wait(); // or .await
//! assert!(matches!(outcomes[..], [Ok(())]));
//!
//! let deadline = Some(Instant::now() + Duration::from_secs(5));
//! let blocks = [
//!     Block { key: 77, pieces: &page_5, deadline },
//!     Block { key: 78, pieces: &page_3, deadline },
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
//! # The folder
//!
//! The store believes what its folder has. So it opens a folder only if it belongs to the user of the process, if no other
//! user may write to it, and if it is not a symbolic link. The same holds for the files in it, which must be regular. Other
//! files may be there only if no other user can read the folder. Files named `blocks-00000` without an index are not of a
//! store, and the store does not open beside them.
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
//! `store` has the calls, which take memory (`held`, `region`, `leases`) and give a task to a thread (`pool`). `task` takes
//! slots (`slots`), moves bytes (`files`, and the lists of [`File`](crate::File)), and keeps the index true (`index`, `entry`).
//! `call` has the outcomes, and `timer` ends blocks at their deadlines.

mod call;
mod entry;
mod error;
mod files;
mod held;
mod index;
mod leases;
mod pool;
mod region;
mod slots;
mod store;
mod task;
mod timer;

pub use call::BlockTransfer;
pub use error::BlockError;
pub use region::{Piece, Region};
pub use store::{Block, BlockStore, BlockStoreBuilder, Recovery};
