//! Files over a storage of your own: an object of another client, a cache, memory, a decoder.
//!
//! A [`Storage`] has contents of a fixed length, and reads ranges of them into given memory. [`File::from_storage`] makes
//! a [`File`] over it, with all calls that read. A [`Folder`] has storages by name, for arrays of Zarr.
//!
//! ```
//! use std::sync::Arc;
//!
//! use gpufile::File;
//! use gpufile::storage::{Error, Spans, Storage};
//!
//! #[derive(Debug)]
//! struct Memory(Vec<u8>);
//!
//! impl Storage for Memory {
//!     fn len_bytes(&self) -> u64 {
//!         self.0.len() as u64
//!     }
//!
//!     fn read(&self, spans: &mut Spans<'_>) -> Result<(), Error> {
//!         while let Some(range) = spans.next_range() {
//!             spans.put(&self.0[range.start as usize..range.end as usize])?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = File::from_storage("numbers", Arc::new(Memory((0..100).collect())))?;
//! let mut buffer = vec![0; 4]; // or device memory
//! file.read_exact_at(&mut buffer, 20)?;
//! assert_eq!(buffer, [20, 21, 22, 23]);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Destination`] takes the objects of a save. [`conformance`] checks storages and destinations against their contracts. With
//! the feature `object_store`, `ObjectStorage` reads any object of the crate of that name, and `ObjectFolder` is a folder and a
//! destination of them.
//!
//! ```text
//!  File ── engine: chunks ── Spans: ranges and their memory ── Storage: yours, a server's object, ObjectStorage
//! ```
//!
//! [`File`]: crate::File
//! [`File::from_storage`]: crate::File::from_storage

pub mod conformance;
mod destination;
#[cfg(feature = "object_store")]
mod object;
#[cfg(feature = "object_store")]
mod object_client;
#[cfg(feature = "object_store")]
mod object_writes;
mod spans;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

pub use destination::{Destination, NewObject};
#[cfg(feature = "object_store")]
pub use object::{ObjectFolder, ObjectStorage};
pub use spans::{Span, Spans};

/// The error of a storage: any error. It becomes the [cause](crate::Cause) of the operation's error.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Contents that are read by ranges. The caller of a [`File`](crate::File) gets the bytes, in device or host memory.
///
/// # Bytes
/// The length and the bytes stay the same as long as the storage exists. If the source may change, the storage notes
/// its version and fails after a change. `read` fills all spans in their order, or returns an error. The spans may be in
/// any order of the storage, overlap, and follow each other without a gap.
///
/// # Short reads
/// If `read` returns `Ok` before all spans are full, the operation fails with
/// [`Cause::EndedEarly`](crate::Cause::EndedEarly). The storage asks a source again that returned fewer bytes.
///
/// # End of the file
/// No span ends beyond [`len_bytes`](Self::len_bytes), and none is empty. The engine cuts ranges that do.
///
/// # Memory
/// The memory of the spans belongs to one read, from the call to its return. It may be the caller's buffer, or pinned
/// host memory that a GPU copies as soon as `read` returns. [`put`](Spans::put) and [`fill`](Spans::fill) write to it
/// without `unsafe`. [`as_raw`](Spans::as_raw) is for storages whose library or kernel writes to addresses. When such a
/// `read` returns, or panics, nothing may still write to the memory: no other thread, no request of io_uring, no network
/// card.
///
/// # Errors
/// Any error ends the operation. The operation's error counts the bytes before the first missing one. The bytes behind
/// it are unspecified. Its [`source`](std::error::Error::source) is the storage's error. Its [kind](crate::Error::kind) is
/// that of the first [`std::io::Error`] among that error and its sources, so `std::io::Error::new(kind, error)` chooses
/// one. The engine repeats no read: the storage tries again where that helps.
///
/// # Cancelling
/// [`Spans::is_cancelled`] becomes true when nobody waits for the bytes any more. `read` then returns soon, with any
/// result. A storage that waits for something asks again at least every 50 ms.
///
/// # Threads
/// Any thread calls `read`: a worker of the engine, or a thread of the caller, which may run a task of an asynchronous
/// runtime. Several call at once, and each waits only for its own call.
///
/// # Forks
/// In a child of the process, the threads of the parent do not exist, and its locks may stay locked. There, `read` works
/// or returns an error. It waits for no thread and no lock of the parent, and does not use the parent's connections. A
/// storage without locks, threads and connections needs nothing. Others note
/// [`Generation::current`](cufile::fork::Generation::current) when they are made.
///
/// # Panics
/// A panic in `read` fails the operation, with its message as the error. The engine uses the storage again after that.
pub trait Storage: fmt::Debug + Send + Sync {
    /// Returns the length of the contents in bytes.
    fn len_bytes(&self) -> u64;

    /// Fills the spans with the bytes of their ranges.
    ///
    /// # Errors
    /// Any error, which ends the operation.
    fn read(&self, spans: &mut Spans<'_>) -> Result<(), Error>;

    /// Returns the most bytes for one call of a long read, if more would arrive more slowly. By default, the engine
    /// chooses.
    fn most_part_bytes(&self) -> Option<usize> {
        None
    }
}

/// Storages by name, such as the objects of a bucket whose keys begin alike.
///
/// Names have parts with `/` between them, none of which is empty, `.` or `..`. Several threads open at once. What
/// [`Storage`] says about forks and panics also holds here.
pub trait Folder: fmt::Debug + Send + Sync {
    /// Returns the storage of this name; `None` if there is none.
    ///
    /// # Errors
    /// Any error, except that there is none.
    fn open(&self, name: &str) -> Result<Option<Arc<dyn Storage>>, Error>;
}

/// Returns the message of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
