//! Reads and writes in flight while the caller does other work.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use cufile::{IoBuf, IoBufMut};

use crate::engine::Growth;
use crate::error::Result;
use crate::file::File;
use crate::owned::Owned;

/// A transfer in flight, which owns its buffer. It needs no runtime: call [`wait`](Self::wait), or `.await`
/// it.
///
/// The transfer ends whether the future is polled or not. The output has the number of bytes and the buffer.
/// For a read, the number is that of [`File::read_at`]; for a write, it is the length of the buffer.
///
/// # Dropping
/// Dropping the future does not wait. A write continues to its end, if the process lives that long, and its
/// failure is lost. A read ends with the chunks that workers have claimed, a few MiB for each thread. A
/// worker then drops the buffer. It also drops the file and the last reference to the engine, if nothing else
/// refers to them. [`cancel`](Self::cancel) returns the buffer. `mem::forget` leaks it.
///
/// ```
/// use gpufile::File;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, [7; 100])?;
/// let file = File::open(&path)?;
/// let future = file.read_at_async(vec![0; 100], 0); // or device memory
/// // Other work, while workers read.
/// let (outcome, buffer) = future.wait(); // or future.await
/// assert_eq!(outcome?, 100);
/// assert_eq!(buffer, [7; 100]);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it ends a read, and loses the outcome of a write"]
pub struct IoFuture<B> {
    /// The transfer. `None` after the output was taken.
    owned: Option<Owned<B>>,
}

// Nothing in the future is pinned, because workers refer to the heap only.
impl<B> Unpin for IoFuture<B> {}

impl File {
    /// Starts to read into the whole buffer from `offset` in bytes, as [`read_at`](Self::read_at), and
    /// returns at once.
    ///
    /// # Errors
    /// The output has the errors of [`read_at`](Self::read_at).
    pub fn read_at_async<B: IoBufMut + Send + 'static>(&self, buffer: B, offset: u64) -> IoFuture<B> {
        IoFuture::start(Owned::read(self, buffer, offset))
    }

    /// Starts to write the whole buffer to `offset` in bytes, as [`write_all_at`](Self::write_all_at). The
    /// call returns at once, except for a file that becomes longer. For such a file, the call allocates the
    /// new blocks. This takes 70 to 90 ms for each GiB on tmpfs, and about 3 ms on ext4.
    ///
    /// The restrictions on [other writers](Self::write_all_at) hold until the transfer has ended.
    ///
    /// # Errors
    /// The output has the errors of [`write_all_at`](Self::write_all_at), whose docs also state the length of
    /// the file after a failure.
    pub fn write_all_at_async<B: IoBuf + Send + 'static>(&self, buffer: B, offset: u64) -> IoFuture<B> {
        IoFuture::start(Owned::write(self, buffer, offset, Growth::MayAllocate))
    }
}

impl<B> IoFuture<B> {
    fn start(owned: Owned<B>) -> Self {
        if let Some((job, chunks)) = owned.job() {
            let file = owned.file();
            file.engine().workers().submit(file.open_file().block_device, job, chunks);
        }
        Self { owned: Some(owned) }
    }

    /// Returns whether the transfer has ended, so that [`wait`](Self::wait) does not wait.
    pub fn is_done(&self) -> bool {
        self.owned.as_ref().and_then(Owned::job).is_none_or(|(job, _)| job.is_done())
    }

    /// Waits for the end of the transfer. Returns the number of bytes that were transferred, and the buffer.
    ///
    /// # Panics
    /// If the output was taken by polling.
    pub fn wait(mut self) -> (Result<usize>, B) {
        self.owned.take().expect("the output was not taken").finish()
    }

    /// Ends the transfer early. Workers claim no more of its chunks. The call waits for the claimed ones, a
    /// few MiB for each thread. Returns the number of bytes that were transferred from the start without a
    /// gap, and the buffer.
    ///
    /// The call blocks its thread. An executor's task that must not block drops the future instead.
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
    /// If the future is polled after it returned its output.
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
