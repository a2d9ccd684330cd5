//! Requests: the elements of a list of transfers of several files or buffers.

use std::borrow::Borrow;

use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::Entry;
use crate::error::{Error, Result};
use crate::file::File;
use crate::memory::Memory;

/// A buffer, and the range of a file that its bytes come from or go to, for
/// [`Engine::read_many`](crate::Engine::read_many) and the calls around it.
///
/// Calls that wait take a borrowed buffer or an owned one, and a [`File`] or a reference to one. A buffer to read into
/// is borrowed mutably. Transfers in flight own both.
///
/// The buffers of a list have one type. For buffers of several types, take [`BufSliceMut`](crate::BufSliceMut) or
/// [`BufSlice`](crate::BufSlice), or `Box<dyn IoBufMut + Send>` for transfers in flight. For owned parts of one buffer,
/// take [`OwnedPart`](crate::OwnedPart).
///
/// ```
/// use gpufile::{Engine, File, Request};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = |name| folder.path().join(name);
/// # std::fs::write(path("a.bin"), "aaaa")?;
/// # std::fs::write(path("b.bin"), "bbbb")?;
/// let (a, b) = (File::open(path("a.bin"))?, File::open(path("b.bin"))?);
/// let (mut head, mut tail) = (vec![0; 4], vec![0; 2]); // or device memory
/// let mut requests = [
///     Request { file: &a, buffer: &mut head, offset: 0 },
///     Request { file: &b, buffer: &mut tail, offset: 2 },
/// ];
/// Engine::global().read_many(&mut requests)?;
/// assert_eq!((head, tail), (b"aaaa".to_vec(), b"bb".to_vec()));
///
/// let request = |file, buffer| Request { file, buffer, offset: 1 };
/// let future = Engine::global().read_many_async(vec![request(a, vec![0; 3]), request(b, vec![0; 2])]);
/// // Other work, while workers read.
/// let (outcome, requests) = future.wait(); // or future.await
/// assert_eq!((outcome?, &requests[1].buffer[..]), (5, b"bb".as_slice()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Request<B, F = File> {
    /// The file.
    pub file: F,
    /// The memory.
    pub buffer: B,
    /// The start of the range in the file, in bytes. The range is as long as the buffer.
    pub offset: u64,
}

impl<B, F: Borrow<File>> Request<B, F> {
    /// Returns the entry of each request, or the reason why it cannot be begun.
    pub(crate) fn to_read(requests: &mut [Self]) -> impl Iterator<Item = Result<Entry<'_>>>
    where
        B: IoBufMut,
    {
        requests.iter_mut().map(|Self { file, buffer, offset }| {
            let file = (*file).borrow();
            entry(Direction::Read, file, file.memory_mut(buffer, *offset)?, *offset)
        })
    }

    /// As [`to_read`](Self::to_read), for writes.
    pub(crate) fn to_write(requests: &[Self]) -> impl Iterator<Item = Result<Entry<'_>>>
    where
        B: IoBuf,
    {
        requests.iter().map(|Self { file, buffer, offset }| {
            let file = file.borrow();
            entry(Direction::Write, file, file.memory(buffer, *offset)?, *offset)
        })
    }
}

fn entry<'f>(direction: Direction, file: &'f File, memory: Memory, offset: u64) -> Result<Entry<'f>> {
    file.check_offset(direction, offset, memory.len_bytes)?;
    Ok(Entry { file: file.open_file(), offset, memory })
}

/// Returns all entries.
///
/// # Errors
/// [`Error::Entry`] with the number of the first that cannot be begun.
pub(crate) fn all<'e>(entries: impl Iterator<Item = Result<Entry<'e>>>) -> Result<Vec<Entry<'e>>> {
    let numbered = |(entry, made): (usize, Result<_>)| {
        made.map_err(|error| Error::Entry { entry, error: Box::new(error) })
    };
    entries.enumerate().map(numbered).collect()
}
