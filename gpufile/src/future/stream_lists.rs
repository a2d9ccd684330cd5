//! Reads and writes of many ranges, ordered with the work of a CUDA stream.

use cufile::cuda::Stream;
use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::{Engine, Growth, IoRange};
use crate::error::Result;
use crate::file::File;
use crate::future::io_future::IoFuture;
use crate::future::stream_io::{Asked, InStream};
use crate::memory::Memory;

impl File {
    /// Reads many ranges of the file into one buffer, like [`read_many`](Self::read_many), after all earlier work of the
    /// stream. Work that is submitted to the stream later waits for the read. The call itself waits in the cases that
    /// [`read_at_on_stream`](Self::read_at_on_stream) lists, and uses the same memory.
    ///
    /// The stream copies each range to its place on the GPU on its own, and the call submits these copies. Ranges
    /// that follow each other in the list and in the buffer are copied together. A stream has room for about a thousand
    /// copies. For more, the call waits until the stream has begun the first ones. For lists of many thousand ranges, read
    /// into staging memory, in which the ranges follow each other, and scatter them with a kernel.
    ///
    /// ```no_run
    /// use gpufile::{Engine, File, IoRange};
    ///
    /// let device = Engine::global().cuda()?.device(0)?;
    /// let stream = device.stream()?;
    /// let row = |number: u64, place: usize| IoRange {
    ///     file_offset: number * 4096,
    ///     buffer_offset: place * 4096,
    ///     len_bytes: 4096,
    /// };
    /// let rows = [row(17, 0), row(3, 1), row(4, 2)];
    /// let file = File::open("table.bin")?;
    /// let read = file.read_many_on_stream(&stream, device.alloc(3 * 4096)?, &rows);
    /// // Kernels that are launched on the stream here find the rows at `read.buffer_ptr()`.
    /// let (outcome, batch) = read.wait();
    /// assert_eq!(outcome?, 3 * 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The output has the errors of [`read_many`](Self::read_many). The ranges on a GPU then hold bytes of the file, or
    /// zeros, also where [`Error::bytes_done`](crate::Error::bytes_done) counts bytes that were read. The stream continues after a failure. A stream that is captured for a CUDA graph is refused.
    pub fn read_many_on_stream<B: IoBufMut + Send + 'static>(
        &self,
        stream: &Stream,
        mut buffer: B,
        ranges: &[IoRange],
    ) -> IoFuture<B> {
        let memory = self.memory_mut(&mut buffer, 0);
        let asked = memory.and_then(|memory| self.checked_list(Direction::Read, memory, ranges));
        // SAFETY: the memory belongs to the buffer, which may be written.
        IoFuture::in_stream(unsafe { InStream::start(stream, asked, buffer) })
    }

    /// Writes one buffer to many ranges of the file, like [`write_many`](Self::write_many), after all earlier work of the
    /// stream. Work that is submitted to the stream later waits for the write. In all other respects, it works like
    /// [`read_many_on_stream`](Self::read_many_on_stream). The restrictions on [other writers](Self::write_all_at) hold
    /// until the transfer has ended.
    ///
    /// # Errors
    /// The output has the errors of [`write_many`](Self::write_many). The stream continues after a failure. A stream that
    /// is captured for a CUDA graph is refused.
    pub fn write_many_on_stream<B: IoBuf + Send + 'static>(
        &self,
        stream: &Stream,
        buffer: B,
        ranges: &[IoRange],
    ) -> IoFuture<B> {
        let memory = self.memory(&buffer, 0);
        let asked = memory.and_then(|memory| self.checked_list(Direction::Write, memory, ranges));
        // SAFETY: the memory belongs to the buffer.
        IoFuture::in_stream(unsafe { InStream::start(stream, asked, buffer) })
    }

    fn checked_list(&self, direction: Direction, memory: Memory, ranges: &[IoRange]) -> Result<Asked> {
        let transfer = self.transfer(direction, memory, ranges, Growth::MayAllocate);
        Engine::check(&transfer).map_err(|stop| transfer.entries.error_of_list(direction, stop))?;
        Ok(Asked::of_list(self, direction, memory, ranges))
    }
}
