//! Reads and writes ordered with the work of a CUDA stream, without cuFile.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;

use cufile::cuda::{Event, Stream};
use cufile::fork::Generation;
use cufile::{IoBuf, IoBufMut};

use crate::engine::{Direction, OwnedRelay, ends_soon, wait_by_looking};
use crate::error::{Cause, READ, Result, WRITE};
use crate::file::File;
use crate::future::owned::OF_ANOTHER_PROCESS;
use crate::memory::{Memory, Place};
use crate::outcome::{Outcome, Stop};
use crate::route::RoutePolicy;

/// A transfer that is part of a stream's work. It owns its buffer. Later work of the stream starts after the
/// transfer.
///
/// Dropping it waits for its end. If that takes longer than 30 seconds, dropping leaks the buffer, the file and all
/// else that the transfer uses. The stream still carries out the transfer later. `mem::forget` leaks the same. Do not
/// drop it in a function that a stream calls, because CUDA permits no waiting there.
///
/// In a forked child, nothing waits: [`wait`](Self::wait) returns an error and the buffer, dropping leaks.
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
    /// `None` after the output was taken.
    state: Option<State<B>>,
}

enum State<B> {
    /// Leaked as a whole if the stream may still reach the transfer.
    Submitted(ManuallyDrop<Submitted<B>>),
    Done(Result<usize>, B),
}

/// A transfer that the stream will reach, and all that it uses.
struct Submitted<B> {
    relay: OwnedRelay,
    /// The event that the stream reaches after the transfer.
    passed: Event,
    buffer: B,
    file: File,
    direction: Direction,
    offset: u64,
    /// The process that submitted it.
    generation: Generation,
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

    /// Writes the whole buffer to `offset` in bytes, after all earlier work of the stream. Work that is submitted to
    /// the stream later waits for the write. In all other respects, it works like
    /// [`read_at_on_stream`](Self::read_at_on_stream). The restrictions on [other writers](Self::write_all_at) hold
    /// until the transfer has ended.
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
        let checked = memory.and_then(|memory| {
            file.check_offset(operation(direction), offset, memory.len_bytes)?;
            Ok(memory)
        });
        // Leaked if a panic prevents the end.
        let buffer = ManuallyDrop::new(buffer);
        // SAFETY: the caller's promise; the buffer stays until the transfer has ended, or for ever.
        let submitted = checked.and_then(|memory| unsafe { submit(file, direction, stream, memory, offset) });
        let state = match submitted {
            Ok(Began::InStream(relay, passed)) => State::Submitted(ManuallyDrop::new(Submitted {
                relay,
                passed,
                buffer: ManuallyDrop::into_inner(buffer),
                file: file.clone(),
                direction,
                offset,
                generation: Generation::current(),
            })),
            Ok(Began::Not(memory)) => {
                // SAFETY: as above.
                let result = unsafe { run_now(file, direction, stream, memory, offset) };
                State::Done(result, ManuallyDrop::into_inner(buffer))
            }
            Err(error) => State::Done(Err(error), ManuallyDrop::into_inner(buffer)),
        };
        Self { state: Some(state) }
    }

    /// Returns whether the transfer has ended or its stream has failed, so that [`wait`](Self::wait) does not
    /// wait.
    pub fn is_done(&self) -> bool {
        match &self.state {
            Some(State::Submitted(submitted)) => submitted.is_done(),
            _ => true,
        }
    }

    /// Returns the buffer's address, which later work of the stream may use. A thread that reads the buffer
    /// before the transfer has ended races with the workers.
    pub fn buffer_ptr(&self) -> *const u8
    where
        B: IoBuf,
    {
        match self.state.as_ref().expect("taken by `wait` only") {
            State::Submitted(submitted) => submitted.relay.memory().ptr,
            State::Done(_, buffer) => buffer.as_ptr(),
        }
    }

    /// Waits for the end of the transfer and of the stream's work before it. Returns the number of bytes that
    /// were transferred, and the buffer.
    pub fn wait(mut self) -> (Result<usize>, B) {
        match self.state.take().expect("taken here only") {
            State::Submitted(submitted) => Submitted::end(submitted),
            State::Done(result, buffer) => (result, buffer),
        }
    }
}

impl<B> Submitted<B> {
    fn is_done(&self) -> bool {
        // In a forked child, the transfer has no end.
        !self.generation.is_current() || self.relay.has_ended() || self.passed.is_done().is_err()
    }

    /// Waits until the stream has passed the transfer, or can never reach it. Returns the result and the buffer.
    fn end(mut this: ManuallyDrop<Self>) -> (Result<usize>, B) {
        if !this.generation.is_current() {
            let forked = Cause::Invalid(OF_ANOTHER_PROCESS.to_owned());
            let result = this.result(Err(Stop::failed(0, forked)));
            // Only the buffer is the child's too. The rest belongs to threads of the parent.
            // SAFETY: no thread of this process uses the buffer, and `this` is never dropped.
            return (result, unsafe { ptr::read(&this.buffer) });
        }
        let outcome = this.settle();
        let result = this.result(outcome);
        (result, ManuallyDrop::into_inner(this).buffer)
    }

    fn settle(&mut self) -> Outcome {
        let Self { relay, passed, .. } = self;
        // A failed wait need not mean that the stream failed. A stream that works continues to use the
        // buffer.
        let waited = passed.wait().or_else(|_| wait_by_looking(passed));
        match waited {
            Ok(()) => relay.finish(),
            Err(error) => {
                let stream_is_done = || {
                    // If the stream continues after all, no copy may run once the buffer is returned.
                    let _ = passed.wait();
                };
                relay.give_up(|| passed.is_done().is_err(), stream_is_done);
                Err(Stop::failed(0, error))
            }
        }
    }

    fn result(&self, outcome: Outcome) -> Result<usize> {
        let len_bytes = self.relay.memory().len_bytes;
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
        if let Some(State::Submitted(submitted)) = &self.state
            && (!submitted.generation.is_current() || !ends_soon(|| submitted.is_done()))
        {
            // The stream may reach the transfer at any time. In a forked child, it is the parent's.
            return;
        }
        if let Some(State::Submitted(submitted)) = self.state.take() {
            drop(Submitted::end(submitted));
        }
    }
}

impl<B> fmt::Debug for StreamIo<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamIo").field("is_done", &self.is_done()).finish()
    }
}

/// The beginning of a transfer.
enum Began {
    /// The stream will reach the transfer, and then the event.
    InStream(OwnedRelay, Event),
    /// The stream cannot wait for a transfer of this memory; nothing is in flight.
    Not(Memory),
}

/// Submits the transfer as part of the stream's work, if that is possible.
///
/// # Errors
/// A stream that is being captured for a graph, or the failure to ask for that.
///
/// # Safety
/// As for [`OwnedRelay::new`].
unsafe fn submit(
    file: &File,
    direction: Direction,
    stream: &Stream,
    memory: Memory,
    offset: u64,
) -> Result<Began> {
    let failed = |cause| file.transfer_error(operation(direction), offset, memory.len_bytes, 0, cause);
    let needs_cufile =
        file.open_file().settings.policy == RoutePolicy::RequireCufile && memory.place != Place::Host;
    // A graph runs its work later, and more than once, which a transfer does not support. Waiting for the
    // stream would end the capture.
    match stream.is_capturing() {
        Ok(false) => {}
        Ok(true) => {
            return Err(failed(Cause::Invalid(
                "the stream is being captured for a CUDA graph; wait for the end of the capture".to_owned(),
            )));
        }
        Err(error) => return Err(failed(error.into())),
    }
    if memory.len_bytes == 0 || needs_cufile {
        return Ok(Began::Not(memory));
    }
    let Some(relays) = file.engine().relays() else { return Ok(Began::Not(memory)) };
    let slot_bytes = if memory.place == Place::Host { 0 } else { memory.len_bytes };
    let counters = &file.engine().gpus().counters;
    let Some(ring) = relays.rings.take(stream, slot_bytes, counters) else { return Ok(Began::Not(memory)) };
    let mut turns = ring.turns();
    let target = (file.open_file().clone(), file.chunk_bytes());
    // SAFETY: the caller's promise.
    let mut relay =
        unsafe { OwnedRelay::new(target, direction, memory, offset, relays.clone(), &ring, &mut turns) };
    match relay.submit(stream) {
        Ok(passed) => Ok(Began::InStream(relay, passed)),
        Err(_) => {
            let stream_is_done = || {
                // All submitted work is done then. The next call on the stream returns its error.
                let _ = stream.synchronize();
            };
            relay.give_up(|| stream.is_idle().is_err(), stream_is_done);
            Ok(Began::Not(memory))
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
        Direction::Read => unsafe { file.read_memory(memory, offset) },
        // SAFETY: the caller's promise.
        Direction::Write => unsafe { file.write_memory(memory, offset) }.map(|()| len),
    }
}

fn operation(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => READ,
        Direction::Write => WRITE,
    }
}
