//! Reads and writes ordered with the work of a CUDA stream, without cuFile.

use std::sync::Arc;
use std::{fmt, mem};

use cufile::cuda::{Event, Stream};
use cufile::{IoBuf, IoBufMut};

use crate::engine::{Direction, Relay, Ring, ends_soon, wait_by_looking};
use crate::error::{Cause, READ, Result, WRITE};
use crate::file::File;
use crate::memory::{Memory, Place};
use crate::outcome::{Outcome, Stop};
use crate::route::RoutePolicy;

/// A transfer that is part of a stream's work. It owns its buffer. Later work of the stream starts after the
/// transfer.
///
/// Dropping it waits for its end. If that takes longer than 30 seconds, dropping leaks the buffer.
/// `mem::forget` leaks it too.
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
#[must_use = "dropping it waits for the transfer"]
pub struct StreamIo<B> {
    /// The file, at a fixed address while workers use it.
    file: Arc<File>,
    direction: Direction,
    offset: u64,
    state: State,
    /// The buffer. `None` after it was taken.
    buffer: Option<B>,
}

enum State {
    /// The stream will reach the transfer, and then the event.
    Submitted {
        relay: Arc<Relay>,
        passed: Event,
        /// The ring that the transfer uses.
        _ring: Arc<Ring>,
    },
    Done(Result<usize>),
}

impl File {
    /// Reads into the whole buffer from `offset` in bytes, after all earlier work of the stream. Work that is
    /// submitted to the stream later waits for the read. The call itself does not wait. It takes some
    /// microseconds, and 3 more for each 48 MiB. The first allocation of pinned memory takes 5 to 30 ms.
    ///
    /// The bytes go through up to 114 MiB of pinned memory for each stream, and 400 MiB for all streams.
    /// Beyond that, the call waits for the stream and for the transfer. It does the same where the driver
    /// cannot make streams wait for words in memory, and for files that [require
    /// cuFile](RoutePolicy::RequireCufile). [`Engine::release_buffers`](crate::Engine::release_buffers) frees
    /// the pinned memory that is not in use. cuFile's own stream-ordered read is
    /// [`cufile::RegisteredStream::read_at`].
    ///
    /// If the file ends earlier, zeros fill the rest of a buffer on the GPU.
    ///
    /// A waiting stream takes one of the GPU's hardware queues, of which there are 8 by default
    /// (`CUDA_DEVICE_MAX_CONNECTIONS`). While 8 streams have such transfers in flight, other streams may have
    /// to wait for them.
    ///
    /// # Errors
    /// [`StreamIo::wait`] returns the errors of [`read_at`](Self::read_at). The stream continues after a
    /// failure. A stream that is captured for a CUDA graph is refused.
    pub fn read_at_on_stream<B: IoBufMut + Send + 'static>(
        &self,
        stream: &Stream,
        mut buffer: B,
        offset: u64,
    ) -> StreamIo<B> {
        let memory = self.memory_mut(&mut buffer, offset);
        // SAFETY: the memory belongs to the buffer, which may be written.
        unsafe { StreamIo::start(self, Direction::Read, stream, (memory, buffer), offset) }
    }

    /// Writes the whole buffer to `offset` in bytes, after all earlier work of the stream. Work that is
    /// submitted to the stream later waits for the write. Otherwise this is as
    /// [`read_at_on_stream`](Self::read_at_on_stream). The restrictions on [other
    /// writers](Self::write_all_at) hold until the transfer has ended.
    ///
    /// # Errors
    /// [`StreamIo::wait`] returns the errors of [`write_all_at`](Self::write_all_at), whose docs also state
    /// the length of the file after a failure. The stream continues after a failure. A stream that is
    /// captured for a CUDA graph is refused.
    pub fn write_all_at_on_stream<B: IoBuf + Send + 'static>(
        &self,
        stream: &Stream,
        buffer: B,
        offset: u64,
    ) -> StreamIo<B> {
        let memory = self.memory(&buffer, offset);
        // SAFETY: the memory belongs to the buffer.
        unsafe { StreamIo::start(self, Direction::Write, stream, (memory, buffer), offset) }
    }
}

impl<B> StreamIo<B> {
    /// Submits the transfer to the stream. Runs it now if the stream cannot wait for it.
    ///
    /// # Safety
    /// The memory must belong to the buffer. For reads, the buffer must be an [`IoBufMut`].
    unsafe fn start(
        file: &File,
        direction: Direction,
        stream: &Stream,
        (memory, buffer): (Result<Memory>, B),
        offset: u64,
    ) -> Self {
        let file = Arc::new(file.clone());
        let checked = memory.and_then(|memory| {
            file.check_offset(operation(direction), offset, memory.len_bytes)?;
            Ok(memory)
        });
        let state = match checked {
            Err(error) => State::Done(Err(error)),
            // SAFETY: the caller's promise; the buffer stays until the transfer has ended, or for ever.
            Ok(memory) => unsafe { submit(&file, direction, stream, memory, offset) }
                // SAFETY: as above.
                .unwrap_or_else(|| State::Done(unsafe { run_now(&file, direction, stream, memory, offset) })),
        };
        Self { file, direction, offset, state, buffer: Some(buffer) }
    }

    /// Returns whether the transfer has ended or its stream has failed, so that [`wait`](Self::wait) does not
    /// wait.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Submitted { relay, passed, .. } => relay.has_ended() || passed.is_done().is_err(),
            State::Done(_) => true,
        }
    }

    /// Returns the buffer's address, which later work of the stream may use. A thread that reads the buffer
    /// before the transfer has ended races with the workers.
    pub fn buffer_ptr(&self) -> *const u8
    where
        B: IoBuf,
    {
        match &self.state {
            State::Submitted { relay, .. } => relay.memory().ptr,
            State::Done(_) => self.buffer.as_ref().expect("taken by `wait` only").as_ptr(),
        }
    }

    /// Waits for the end of the transfer and of the stream's work before it. Returns the number of bytes that
    /// were transferred, and the buffer.
    pub fn wait(mut self) -> (Result<usize>, B) {
        self.settle();
        let state = mem::replace(&mut self.state, State::Done(Ok(0)));
        let State::Done(result) = state else { unreachable!("settled") };
        (result, self.buffer.take().expect("taken here only"))
    }

    /// Waits until the stream has passed the transfer, or can never reach it.
    fn settle(&mut self) {
        let State::Submitted { relay, passed, .. } = &self.state else { return };
        // A failed wait need not mean that the stream failed. A stream that works continues to use the
        // buffer.
        let waited = passed.wait().or_else(|_| wait_by_looking(passed));
        let outcome = match waited {
            Ok(()) => relay.finish(),
            Err(error) => {
                let stream_is_done = || {
                    // If the stream continues after all, no copy may run once the buffer is returned.
                    let _ = passed.wait();
                };
                relay.give_up(|| passed.is_done().is_err(), stream_is_done);
                Err(Stop::failed(0, error))
            }
        };
        self.state = State::Done(self.result(outcome));
    }

    fn result(&self, outcome: Outcome) -> Result<usize> {
        let State::Submitted { relay, .. } = &self.state else { unreachable!("called once, when it ends") };
        let len_bytes = relay.memory().len_bytes;
        let (done, cause) = match outcome {
            Ok(()) => return Ok(len_bytes),
            Err(Stop { done_bytes, cause: None }) => return Ok(done_bytes),
            Err(Stop { done_bytes, cause: Some(cause) }) => (done_bytes, cause),
        };
        Err(self.file.transfer_error(operation(self.direction), self.offset, len_bytes, done, cause))
    }
}

impl<B> Drop for StreamIo<B> {
    fn drop(&mut self) {
        if ends_soon(|| self.is_done()) {
            self.settle();
        } else {
            // The stream may reach the transfer at any time.
            mem::forget((mem::replace(&mut self.state, State::Done(Ok(0))), self.buffer.take()));
        }
    }
}

impl<B> fmt::Debug for StreamIo<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamIo").field("is_done", &self.is_done()).finish()
    }
}

/// Submits the transfer as part of the stream's work. Returns `None` if that is not possible; nothing is in
/// flight then.
///
/// # Safety
/// As for [`Relay::new`].
unsafe fn submit(
    file: &Arc<File>,
    direction: Direction,
    stream: &Stream,
    memory: Memory,
    offset: u64,
) -> Option<State> {
    let failed = |cause| Err(file.transfer_error(operation(direction), offset, memory.len_bytes, 0, cause));
    let needs_cufile =
        file.open_file().settings.policy() == RoutePolicy::RequireCufile && memory.place != Place::Host;
    // A graph runs its work later, and more than once, which a transfer does not support. Waiting for the
    // stream would end the capture.
    match stream.is_capturing() {
        Ok(false) => {}
        Ok(true) => {
            return Some(State::Done(failed(Cause::Invalid(
                "the stream is captured for a CUDA graph; wait for the end of the capture".to_owned(),
            ))));
        }
        Err(error) => return Some(State::Done(failed(error.into()))),
    }
    if memory.len_bytes == 0 || needs_cufile {
        return None;
    }
    let relays = file.engine().relays()?;
    let slot_bytes = if memory.place == Place::Host { 0 } else { memory.len_bytes };
    let ring = relays.rings.take(stream, slot_bytes)?;
    let mut turns = ring.turns();
    let target = (file.open_file(), file.chunk_bytes());
    // SAFETY: the caller's promise. The ring stays with the state, and until the transfer was given up. The
    // file keeps the engine with its workers.
    let relay = unsafe { Relay::new(target, direction, memory, offset, relays.workers(), &ring, &mut turns) };
    match relay.submit(stream, relays.begin()) {
        Ok(passed) => {
            drop(turns);
            Some(State::Submitted { relay, passed, _ring: ring })
        }
        Err(_) => {
            let stream_is_done = || {
                // All submitted work is done then. The next call on the stream returns its error.
                let _ = stream.synchronize();
            };
            relay.give_up(|| stream.is_idle().is_err(), stream_is_done);
            None
        }
    }
}

/// Waits for the earlier work of the stream, and then carries out the transfer.
///
/// # Safety
/// The memory must fulfil the promises of an [`IoBuf`] (for reads, of an [`IoBufMut`]).
unsafe fn run_now(
    file: &File,
    direction: Direction,
    stream: &Stream,
    memory: Memory,
    offset: u64,
) -> Result<usize> {
    let len = memory.len_bytes;
    stream
        .synchronize()
        .map_err(|error| file.transfer_error(operation(direction), offset, len, 0, error.into()))?;
    match direction {
        // SAFETY: the caller's promise.
        Direction::Read => unsafe { file.read_memory(memory, offset, false) },
        // SAFETY: the caller's promise.
        Direction::Write => unsafe { file.write_memory(memory, offset, false) }.map(|()| len),
    }
}

fn operation(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => READ,
        Direction::Write => WRITE,
    }
}
