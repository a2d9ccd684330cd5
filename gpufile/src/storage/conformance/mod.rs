//! The contracts of [`Storage`] and of [`Destination`], checked on any of them.
//!
//! A test of a storage makes one with known contents, and expects no breach:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use gpufile::storage::conformance::{Rule, breaches};
//! use gpufile::storage::{Error, Spans, Storage};
//!
//! /// Reads one range, and forgets the others.
//! #[derive(Debug)]
//! struct Hasty(Vec<u8>);
//!
//! impl Storage for Hasty {
//!     fn len_bytes(&self) -> u64 {
//!         self.0.len() as u64
//!     }
//!
//!     fn read(&self, spans: &mut Spans<'_>) -> Result<(), Error> {
//!         let range = spans.next_range().expect("no read is empty");
//!         spans.put(&self.0[range.start as usize..range.end as usize])?;
//!         Ok(())
//!     }
//! }
//!
//! let contents: Vec<u8> = (0..10_000).map(|number| number as u8).collect();
//! let found = breaches(Arc::new(Hasty(contents.clone())), &contents, Duration::from_secs(10));
//! assert!(found.iter().any(|breach| breach.rule == Rule::ShortReads));
//! ```
//!
//! The suite cannot make a source fail. How a storage reports that its source failed or changed needs tests of its own.

mod reads;
mod rule;
mod writes;

#[cfg(doc)]
use super::{Destination, Storage};
pub use reads::breaches;
pub use rule::{Breach, Rule};
pub use writes::destination_breaches;
