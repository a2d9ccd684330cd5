//! Reads and writes in flight while the caller does other work.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use cufile::cuda::Stream;
use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::Growth;
use crate::error::Result;
use crate::file::File;
use crate::future::owned::{Ended, Owned};
use crate::future::stream_io::{Asked, InStream};
use crate::route::trace::Request;

/// A transfer in flight, which owns its buffer, or its list of ranges and buffers. It needs no runtime: call
/// [`wait`](Self::wait), or `.await` it.
///
/// The transfer ends whether the future is polled or not. The output has the number of bytes and the `T` that
/// the transfer owned: the buffer or the list. For a read of one range, the number is that of
/// [`File::read_at`]; otherwise it is the length of all ranges. The futures of
/// [`File::read_many_each_async`] and of the calls around it have the outcome of each range in place of the number.
///
/// Names elsewhere: `StreamFuture` (KvikIO).
///
/// # Dropping
/// Dropping the future does not wait. A write continues to its end, if the process lives that long, and its
/// failure is lost. A read ends with the chunks that workers have claimed, a few MiB for each thread. A
/// worker then drops the buffers. It also drops the files and the last reference to the engine, if nothing
/// else refers to them. [`cancel`](Self::cancel) returns the buffers. `mem::forget` leaks them.
///
/// Dropping a stream-ordered transfer waits for its end. If that takes longer than 30 seconds, dropping leaks the buffer,
/// the file and all else that the transfer uses. The stream still carries out the transfer later. `mem::forget` leaks the
/// same. Do not drop it in a function that a stream calls, because CUDA permits no waiting there.
///
/// In a forked child, a future of the parent has ended: its output is an error and the buffers, unless it had ended before
/// the call that made it returned. Dropping it leaks them.
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
pub struct IoFuture<T, O = usize> {
    /// `None` after the output was taken.
    transfer: Option<InFlight<T>>,
    is_exact: bool,
    /// Returns what the caller learns about the end.
    outcome: fn(Ended) -> Result<O>,
    /// The span, which ends when the outcome is taken or the future dropped. `None` for one that was refused.
    _request: Option<Request>,
}

/// A transfer, and where it is carried out.
enum InFlight<T> {
    OnWorkers(Owned<T>),
    InStream(InStream<T>),
    /// A read that had ended before the future was there, with this number of bytes.
    Ended(usize, Apart<T>),
}

/// The buffer of a shared future. The future gives only its address, and only if the buffer is `Sync`.
struct Apart<T>(T);

// SAFETY: of the methods that take a shared future, only `buffer_ptr` uses the buffer, which is `Sync` there.
unsafe impl<T: Send> Sync for Apart<T> {}

// Nothing in the future is pinned, because workers refer to the heap only.
impl<T, O> Unpin for IoFuture<T, O> {}

impl File {
    /// Starts a read into the whole buffer from `offset` in bytes, like [`read_at`](Self::read_at), and returns at
    /// once. Up to 16 KiB that the page cache has are in a buffer of the host before the call returns, because that takes no
    /// longer than to wake a worker.
    ///
    /// Names elsewhere: `pread` (KvikIO).
    ///
    /// # Errors
    /// The output has the errors of [`read_at`](Self::read_at).
    #[doc(alias = "pread")]
    pub fn read_at_async<B: IoBufMut + Send + 'static>(&self, mut buffer: B, offset: u64) -> IoFuture<B> {
        let memory = self.memory_mut(&mut buffer, offset).ok();
        let request = memory.as_ref().map(|memory| self.open_file().request_to_read(memory));
        let at_once = memory.filter(|memory| {
            // SAFETY: the memory is that of the buffer, which this function owns.
            unsafe { self.read_at_once(memory, offset) }
        });
        let transfer = match at_once {
            Some(memory) => InFlight::Ended(memory.len_bytes, Apart(buffer)),
            None => {
                let owned = Owned::read(self, buffer, offset);
                owned.submit();
                InFlight::OnWorkers(owned)
            }
        };
        IoFuture::new(transfer, request)
    }

    /// Starts a write of the whole buffer to `offset` in bytes, like [`write_all_at`](Self::write_all_at). The call
    /// returns at once, except for a file that becomes longer. For such a file, the call allocates the new blocks.
    /// This takes 70 to 90 ms for each GiB on tmpfs, and about 3 ms on ext4.
    ///
    /// The restrictions on [other writers](Self::write_all_at) hold until the transfer has ended.
    ///
    /// Names elsewhere: `pwrite` (KvikIO).
    ///
    /// # Errors
    /// The output has the errors of [`write_all_at`](Self::write_all_at), whose docs also state the length of
    /// the file after a failure.
    #[doc(alias = "pwrite")]
    pub fn write_all_at_async<B: IoBuf + Send + 'static>(&self, buffer: B, offset: u64) -> IoFuture<B> {
        IoFuture::start(Owned::write(self, buffer, offset, Growth::MayAllocate))
    }

    /// Reads into the whole buffer from `offset` in bytes, after all earlier work of the stream. Work that is
    /// submitted to the stream later waits for the read. The call itself does not wait. It takes some
    /// microseconds, and 3 more for each 48 MiB. The first allocation of pinned memory takes 5 to 30 ms.
    ///
    /// The bytes go through up to 114 MiB of pinned memory for each stream, and 400 MiB for all streams.
    /// Beyond that, the call waits for the stream and for the transfer. It does the same where the driver
    /// cannot make streams wait for words in memory, and for files that [require
    /// cuFile](crate::RoutePolicy::RequireCufile). [`Engine::release_buffers`](crate::Engine::release_buffers) frees
    /// the pinned memory that is not in use. cuFile's own stream-ordered read is
    /// [`cufile::RegisteredStream::read_at`].
    ///
    /// If the file ends earlier, zeros fill the rest of a buffer on the GPU.
    ///
    /// A waiting stream takes one of the GPU's hardware queues, of which there are 8 by default
    /// (`CUDA_DEVICE_MAX_CONNECTIONS`). While 8 streams have such transfers in flight, other streams may have
    /// to wait for them.
    ///
    /// ```no_run
    /// use gpufile::{Engine, File};
    ///
    /// let device = Engine::global().cuda()?.device(0)?;
    /// let stream = device.stream()?;
    /// let file = File::open("batch.bin")?;
    /// let read = file.read_at_on_stream(&stream, device.alloc(256 << 20)?, 0);
    /// // Kernels that are launched on the stream here find the bytes at `read.buffer_ptr()`.
    /// let (outcome, batch) = read.wait();
    /// outcome?;
    /// // The write starts when those kernels have ended.
    /// let write = File::create("result.bin")?.write_all_at_on_stream(&stream, batch, 0);
    /// write.wait().0?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Names elsewhere: `read_async`, `validate_compat_mode_for_async` (KvikIO).
    ///
    /// # Errors
    /// The output has the errors of [`read_at`](Self::read_at). The stream continues after a
    /// failure. A stream that is captured for a CUDA graph is refused.
    #[doc(alias = "read_async")]
    #[doc(alias = "validate_compat_mode_for_async")]
    pub fn read_at_on_stream<B: IoBufMut + Send + 'static>(
        &self,
        stream: &Stream,
        mut buffer: B,
        offset: u64,
    ) -> IoFuture<B> {
        let asked = self.memory_mut(&mut buffer, offset).and_then(|memory| {
            let range = self.range(Direction::Read, offset, memory.len_bytes)?;
            Ok(Asked::of_range(self, Direction::Read, memory, range))
        });
        // SAFETY: the memory belongs to the buffer, which may be written.
        IoFuture::in_stream(unsafe { InStream::start(stream, asked, buffer) })
    }

    /// Writes the whole buffer to `offset` in bytes, after all earlier work of the stream. Work that is submitted to
    /// the stream later waits for the write. In all other respects, it works like
    /// [`read_at_on_stream`](Self::read_at_on_stream). The restrictions on [other writers](Self::write_all_at) hold
    /// until the transfer has ended.
    ///
    /// Names elsewhere: `write_async` (KvikIO).
    ///
    /// # Errors
    /// The output has the errors of [`write_all_at`](Self::write_all_at), whose docs also state
    /// the length of the file after a failure. The stream continues after a failure. A stream that is
    /// captured for a CUDA graph is refused.
    #[doc(alias = "write_async")]
    pub fn write_all_at_on_stream<B: IoBuf + Send + 'static>(
        &self,
        stream: &Stream,
        buffer: B,
        offset: u64,
    ) -> IoFuture<B> {
        let asked = self.memory(&buffer, offset).and_then(|memory| {
            let range = self.range(Direction::Write, offset, memory.len_bytes)?;
            Ok(Asked::of_range(self, Direction::Write, memory, range))
        });
        // SAFETY: the memory belongs to the buffer.
        IoFuture::in_stream(unsafe { InStream::start(stream, asked, buffer) })
    }
}

impl<T> IoFuture<T> {
    pub(crate) fn start(owned: Owned<T>) -> Self {
        let request = owned.request();
        owned.submit();
        Self::new(InFlight::OnWorkers(owned), request)
    }

    pub(crate) fn in_stream(io: InStream<T>) -> Self {
        let request = io.request();
        Self::new(InFlight::InStream(io), request)
    }

    fn new(transfer: InFlight<T>, request: Option<Request>) -> Self {
        let outcome = |ended: Ended| ended.result;
        Self { transfer: Some(transfer), is_exact: false, outcome, _request: request }
    }

    /// Returns the same transfer, which fails if the file ends before the buffer is full, as
    /// [`read_exact_at`](File::read_exact_at) does. Writes and lists are exact anyway.
    pub fn exact(self) -> Self {
        Self { is_exact: true, ..self }
    }
}

impl<T> IoFuture<T, Vec<Result<usize>>> {
    pub(crate) fn start_each(owned: Owned<T>) -> Self {
        let _request = owned.request();
        owned.submit();
        let transfer = Some(InFlight::OnWorkers(owned));
        Self { transfer, is_exact: false, outcome: |ended| ended.result.map(|_| ended.each), _request }
    }
}

impl<T, O> IoFuture<T, O> {
    /// Returns the buffer's address, which later work of the stream may use. A thread that reads the buffer
    /// before the transfer has ended races with the workers.
    ///
    /// Names elsewhere: `get_args` (KvikIO).
    ///
    /// # Panics
    /// If the output was taken by polling.
    #[doc(alias = "get_args")]
    pub fn buffer_ptr(&self) -> *const u8
    where
        T: IoBuf + Sync,
    {
        match self.transfer.as_ref().expect("the output was not taken") {
            InFlight::OnWorkers(owned) => owned.value().as_ptr(),
            InFlight::InStream(io) => io.buffer_ptr(),
            InFlight::Ended(_, Apart(buffer)) => buffer.as_ptr(),
        }
    }

    /// Returns whether the transfer has ended. [`wait`](Self::wait) then returns at once.
    ///
    /// Names elsewhere: `is_future_done`, `make_ready_future` (KvikIO).
    #[doc(alias = "is_future_done")]
    #[doc(alias = "make_ready_future")]
    pub fn is_done(&self) -> bool {
        self.transfer.as_ref().is_none_or(|transfer| match transfer {
            InFlight::OnWorkers(owned) => owned.is_done(),
            InFlight::InStream(io) => io.is_done(),
            InFlight::Ended(..) => true,
        })
    }

    /// Waits for the end of the transfer. Returns the number of bytes that were transferred, or the outcome of each range,
    /// and the buffer or the list.
    ///
    /// Names elsewhere: `check_bytes_done` (KvikIO).
    ///
    /// # Panics
    /// If the output was taken by polling.
    #[doc(alias = "check_bytes_done")]
    pub fn wait(mut self) -> (Result<O>, T) {
        let transfer = self.transfer.take().expect("the output was not taken");
        self.output(transfer.finish(self.is_exact))
    }

    /// Stops the transfer early. Workers claim no more of its chunks. The call waits for the chunks already claimed,
    /// a few MiB for each thread. For GPU memory, these end when the GPU has copied them, after copies that were
    /// queued earlier; on a busy GPU or link, that can take seconds. Returns the number of bytes that were
    /// transferred from the start without a gap, and the buffer.
    ///
    /// A list of ranges has no such number. If some of it was not transferred, the result is
    /// [`Error::Entry`](crate::Error::Entry) with the errno `ECANCELED`. If each range has an outcome, it is
    /// this errno for those that were not transferred. The list is returned too.
    ///
    /// A stream-ordered transfer is not stopped, because the stream cannot leave out its work: this waits for its end.
    ///
    /// The call blocks its thread. A task of an executor, which must not block, can drop the future instead.
    ///
    /// # Panics
    /// If the output was taken by polling.
    pub fn cancel(mut self) -> (Result<O>, T) {
        let ended = match self.transfer.take().expect("the output was not taken") {
            InFlight::OnWorkers(owned) => owned.cancel(),
            other => other.finish(self.is_exact),
        };
        self.output(ended)
    }

    fn output(&self, (ended, value): (Ended, T)) -> (Result<O>, T) {
        ((self.outcome)(ended), value)
    }
}

impl<T> InFlight<T> {
    fn poll(&self, waker: &Waker) -> Poll<()> {
        match self {
            InFlight::OnWorkers(owned) => owned.poll(waker),
            InFlight::InStream(io) => io.poll(waker),
            InFlight::Ended(..) => Poll::Ready(()),
        }
    }

    fn finish(self, is_exact: bool) -> (Ended, T) {
        match self {
            InFlight::OnWorkers(owned) => owned.finish(is_exact),
            InFlight::InStream(io) => {
                let (result, value) = io.finish(is_exact);
                (result.into(), value)
            }
            InFlight::Ended(len_bytes, Apart(value)) => (Ok(len_bytes).into(), value),
        }
    }
}

impl<T, O> Future for IoFuture<T, O> {
    type Output = (Result<O>, T);

    /// # Panics
    /// If the future is polled after it returned its output.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let transfer = self.transfer.take().expect("not polled after the output was taken");
        if transfer.poll(context.waker()).is_pending() {
            self.transfer = Some(transfer);
            return Poll::Pending;
        }
        Poll::Ready(self.output(transfer.finish(self.is_exact)))
    }
}

impl<T, O> fmt::Debug for IoFuture<T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoFuture").field("is_done", &self.is_done()).finish()
    }
}
