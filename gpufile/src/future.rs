//! Reads and writes that go on while the caller does something else.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use cufile::{IoBuf, IoBufMut};

use crate::error::Result;
use crate::file::File;
use crate::owned::Owned;
use crate::write_plan::Growth;

/// A transfer under way, which owns its buffer. It needs no runtime: [`wait`](Self::wait) for it, or `.await` it.
///
/// It ends by itself whether it is polled or not. The output is the count of bytes, as [`File::read_at`] returns it, or all
/// for a write, and the buffer.
///
/// # Dropping
/// Dropping it does not wait. A write goes on to its end, if the process lasts that long, and its failure is lost. A read
/// ends with the pieces that were begun, a few MiB for each thread. A worker drops the buffer then, and with it the file
/// and the last reference to the engine, if nothing else refers to them. [`cancel`](Self::cancel) gives the buffer back.
/// `mem::forget` leaks it.
#[must_use = "dropping it ends a read, and loses the outcome of a write"]
pub struct IoFuture<B> {
    /// `None` when the output was taken.
    owned: Option<Owned<B>>,
}

// Nothing in it is pinned: what workers refer to is on the heap.
impl<B> Unpin for IoFuture<B> {}

impl File {
    /// Begins to read into the whole buffer from `offset` in bytes, as [`read_at`](Self::read_at), and returns at once.
    ///
    /// # Errors
    /// The output carries them, as [`read_at`](Self::read_at) says.
    pub fn read_at_async<B: IoBufMut + Send + 'static>(&self, buffer: B, offset: u64) -> IoFuture<B> {
        IoFuture::start(Owned::read(self, buffer, offset))
    }

    /// Begins to write the whole buffer to `offset` in bytes, as [`write_all_at`](Self::write_all_at), and
    /// returns at once, except for a file that becomes longer. For such a file the call allocates the new
    /// part, which takes 70 to 90 ms for each GiB on tmpfs, and about 3 on ext4.
    ///
    /// The restrictions on [other writers](Self::write_all_at) hold until the transfer has ended.
    ///
    /// # Errors
    /// The output carries them, as [`write_all_at`](Self::write_all_at) says, which also tells the length of the file
    /// [after a failure](Self::write_all_at).
    pub fn write_all_at_async<B: IoBuf + Send + 'static>(&self, buffer: B, offset: u64) -> IoFuture<B> {
        IoFuture::start(Owned::write(self, buffer, offset, Growth::MayAllocate))
    }
}

impl<B> IoFuture<B> {
    fn start(owned: Owned<B>) -> Self {
        if let Some((job, chunks)) = owned.job() {
            owned.file().engine().submit(owned.file().open_file().device, job, chunks);
        }
        Self { owned: Some(owned) }
    }

    /// Returns whether the transfer has ended, so that [`wait`](Self::wait) does not wait.
    pub fn is_done(&self) -> bool {
        self.owned.as_ref().and_then(Owned::job).is_none_or(|(job, _)| job.is_done())
    }

    /// Waits for the end of the transfer. Returns how many bytes were transferred, and the buffer.
    ///
    /// # Panics
    /// If the output was taken by polling.
    pub fn wait(mut self) -> (Result<usize>, B) {
        self.owned.take().expect("the output was not taken").finish()
    }

    /// Ends the transfer early: begins no more pieces of it, and waits for those that were begun, a few MiB for each
    /// thread. Returns how many bytes were transferred from the beginning without a gap, and the buffer.
    ///
    /// It blocks the calling thread; a task of an executor that must not be blocked drops the future instead.
    ///
    /// # Panics
    /// If the output was taken by polling.
    pub fn cancel(mut self) -> (Result<usize>, B) {
        self.owned.take().expect("the output was not taken").cancel()
    }
}

impl<B> Future for IoFuture<B> {
    type Output = (Result<usize>, B);

    /// # Panics
    /// If it is polled after it gave its output.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let owned = self.owned.take().expect("not polled after the output was taken");
        if let Some((job, _)) = owned.job()
            && job.poll(context.waker()).is_pending()
        {
            self.owned = Some(owned);
            return Poll::Pending;
        }
        Poll::Ready(owned.finish())
    }
}

impl<B> fmt::Debug for IoFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoFuture").field("is_done", &self.is_done()).finish()
    }
}
