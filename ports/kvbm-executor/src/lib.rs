//! The transfer executor of dynamo's KV block manager (KVBM), for its disk tier: blocks move between files and GPU or host memory.
//!
//! KVBM numbers the blocks of a memory, and a layout says where the parts of each block lie. The disk has blocks by key, the
//! hash of their tokens. [`Executor::offload`] and [`Executor::onboard`] take numbers and keys.
//!
//! ```text
//!  Layout                         Memory                    Executor
//!  block 3, layers 0..4  ──────►  registered addresses ───► gpufile::kv_blocks
//!         Descriptor: address, length, offset               key → slot of a file
//! ```
//!
//! ```
//! use kvbm_executor::{Dimensions, Executor, Layout, Options};
//! use gpufile::kv_blocks::BlockStore;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path().join("disk");
//! let dimensions =
//!     Dimensions { num_blocks: 8, num_layers: 4, outer_dim: 2, page_size: 16, inner_dim: 128, dtype_width_bytes: 2 };
//! let store = BlockStore::builder(dimensions.block_bytes()?).limit_bytes(1 << 30).open(&folder)?;
//! let executor = Executor::new(store);
//! let base = executor.memory().register(vec![7_u8; dimensions.memory_bytes()?])?; // or device memory
//! let layout = Layout::fully_contiguous(dimensions, base)?;
//!
//! executor.offload(&layout, &[3, 5], &[0xa1, 0xa2], Options::default())?.wait()?; // or .await
//! executor.onboard(&[0xa2], &layout, &[0], Options::default())?.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! The store has capacity, eviction and restart. [`Executor::store`] gives access to it.

#![forbid(unsafe_code)]

mod executor;
mod layout;
mod memory;
mod notification;

pub use executor::{Executor, Options, Refused};
pub use layout::{BlockDimension, Descriptor, Dimensions, Layout, LayoutError};
pub use memory::{Memory, RegisterError};
pub use notification::{FailedBlock, Notification, TransferError};

/// The number of a block in a layout.
pub type BlockId = usize;

/// The key of a block on disk: the hash of its tokens and of all before them.
pub type Key = u128;
