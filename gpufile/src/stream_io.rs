//! Reads and writes ordered with the work of a CUDA stream, without cuFile.

use std::sync::Arc;
use std::{fmt, mem};

use cufile::cuda::{Event, Stream};
use cufile::{IoBuf, IoBufMut};

use crate::engine::{Direction, Ring, Staged, ends_soon, wait_by_looking};
use crate::error::{Cause, Result};
use crate::file::{File, READ, WRITE};
use crate::memory::{Memory, Place};
use crate::route::RoutePolicy;

/// A transfer that is part of a stream's work. It owns its buffer; what comes later in the stream finds it done.
///
/// Dropping it waits for its end, but leaks the buffer if that takes longer than 30 seconds; `mem::forget` leaks it.
#[must_use = "dropping it waits for the transfer"]
pub struct StreamIo<B> {
    /// At one place, where workers find it.
    file: Arc<File>,
    direction: Direction,
    offset: u64,
    state: State,
    /// `None` when it was taken.
    buffer: Option<B>,
}

enum State {
    /// The stream will come to it, and then to the event.
    Submitted {
        staged: Arc<Staged>,
        passed: Event,
        /// The ring that the transfer refers to.
        _ring: Arc<Ring>,
    },
    Done(Result<usize>),
}

impl File {
    /// Reads into the whole buffer from `offset` in bytes, when the stream's work so far is done; work that is submitted
    /// to the stream later waits for it. The call itself does not wait: it takes some microseconds, and 3 for each 48 MiB,
    /// but 5 to 30 ms when pinned memory is first allocated.
    ///
    /// The bytes go through up to 114 MiB of pinned memory for each stream, 400 MiB for all. Past that, and where the
    /// driver cannot make streams wait for words in memory, the call waits for the stream and for the transfer.
    /// [`Engine::release_buffers`](crate::Engine::release_buffers) frees what is not in use. Files for which
    /// [cuFile is required](RoutePolicy::RequireCufile) are read while the call waits;
    /// [`cufile::RegisteredStream::read_at`] is cuFile's own way.
    ///
    /// If the file ends earlier, zeros fill the rest of a buffer on the GPU.
    ///
    /// A stream that waits takes one of the GPU's hardware queues, of which there are 8 by default
    /// (`CUDA_DEVICE_MAX_CONNECTIONS`): while 8 streams have such transfers under way, other streams may have to wait for
    /// these.
    ///
    /// # Errors
    /// [`StreamIo::wait`] carries them, as [`read_at`](Self::read_at) says. The stream goes on after a failure. A stream
    /// that is captured for a CUDA graph is refused.
    pub fn read_at_on_stream<B: IoBufMut + Send + 'static>(
        &self,
        stream: &Stream,
        mut buffer: B,
        offset: u64,
    ) -> StreamIo<B> {
        let memory = self.memory_mut(&mut buffer, offset);
        // SAFETY: the memory is the buffer's, which may be written.
        unsafe { StreamIo::start(self, Direction::Read, stream, (memory, buffer), offset) }
    }

    /// Writes the whole buffer to `offset` in bytes, when the stream's work so far is done; work that is submitted to
    /// the stream later waits for it. Otherwise as [`read_at_on_stream`](Self::read_at_on_stream). What
    /// [other writers](Self::write_all_at) must not do holds until the transfer has ended.
    ///
    /// # Errors
    /// [`StreamIo::wait`] carries them, as [`write_all_at`](Self::write_all_at) says, which also tells the length of the
    /// file [after a failure](Self::write_all_at). The stream goes on after a failure.
    pub fn write_all_at_on_stream<B: IoBuf + Send + 'static>(
        &self,
        stream: &Stream,
        buffer: B,
        offset: u64,
    ) -> StreamIo<B> {
        let memory = self.memory(&buffer, offset);
        // SAFETY: the memory is the buffer's.
        unsafe { StreamIo::start(self, Direction::Write, stream, (memory, buffer), offset) }
    }
}

impl<B> StreamIo<B> {
    /// # Safety
    /// The memory must be the buffer's, of an [`IoBufMut`] for reads.
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

    /// Returns whether the transfer has ended, or its stream failed, so that [`wait`](Self::wait) does not
    /// wait.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Submitted { staged, passed, .. } => staged.has_ended() || passed.is_done().is_err(),
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
            State::Submitted { staged, .. } => staged.memory().ptr,
            State::Done(_) => self.buffer.as_ref().expect("taken by `wait` only").as_ptr(),
        }
    }

    /// Waits for the end of the transfer, and for what was in the stream before it. Returns how many bytes were
    /// transferred, and the buffer.
    pub fn wait(mut self) -> (Result<usize>, B) {
        self.settle();
        let state = mem::replace(&mut self.state, State::Done(Ok(0)));
        let State::Done(result) = state else { unreachable!("settled") };
        (result, self.buffer.take().expect("taken here only"))
    }

    /// Waits until the stream has gone on behind the transfer, or for ever will not come to it.
    fn settle(&mut self) {
        let State::Submitted { staged, passed, .. } = &self.state else { return };
        // That waiting failed need not be the stream's failure, which then goes on with the buffer.
        let waited = passed.wait().or_else(|_| wait_by_looking(passed));
        let (done, cause) = match waited {
            Ok(()) => staged.finish(),
            Err(error) => {
                let stream_is_done = || {
                    // If it goes on after all, nothing may copy any more when the buffer goes back.
                    let _ = passed.wait();
                };
                staged.give_up(|| passed.is_done().is_err(), stream_is_done);
                (0, Some(error.into()))
            }
        };
        self.state = State::Done(self.result(done, cause));
    }

    fn result(&self, done: usize, cause: Option<Cause>) -> Result<usize> {
        let Some(cause) = cause else { return Ok(done) };
        let State::Submitted { staged, .. } = &self.state else { unreachable!("called once, when it ends") };
        let len_bytes = staged.memory().len_bytes;
        Err(self.file.transfer_error(operation(self.direction), self.offset, len_bytes, done, cause))
    }
}

impl<B> Drop for StreamIo<B> {
    fn drop(&mut self) {
        if ends_soon(|| self.is_done()) {
            self.settle();
        } else {
            // The stream may come to the transfer at any time.
            mem::forget((mem::replace(&mut self.state, State::Done(Ok(0))), self.buffer.take()));
        }
    }
}

impl<B> fmt::Debug for StreamIo<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamIo").field("is_done", &self.is_done()).finish()
    }
}

/// Makes the transfer a part of the stream's work; `None` if that is not possible, and nothing is under way.
///
/// # Safety
/// As for [`Staged::new`].
unsafe fn submit(
    file: &Arc<File>,
    direction: Direction,
    stream: &Stream,
    memory: Memory,
    offset: u64,
) -> Option<State> {
    let failed = |cause| Err(file.transfer_error(operation(direction), offset, memory.len_bytes, 0, cause));
    let needs_cufile = file.open_file().policy == RoutePolicy::RequireCufile && memory.place != Place::Host;
    // What a graph does later, and more than once, is no transfer. To wait for the stream would end the capture.
    match stream.is_capturing() {
        Ok(false) => {}
        Ok(true) => return Some(State::Done(failed(Cause::Invalid("the stream is captured".to_owned())))),
        Err(error) => return Some(State::Done(failed(error.into()))),
    }
    if memory.len_bytes == 0 || needs_cufile {
        return None;
    }
    let stager = file.engine().stager()?;
    let staged_bytes = if memory.place == Place::Host { 0 } else { memory.len_bytes };
    let ring = stager.rings.take(stream, staged_bytes)?;
    let mut turns = ring.turns();
    // SAFETY: the caller's promise; the ring stays with the state, and until the transfer was given up.
    let staged = unsafe { Staged::new((file, direction), memory, offset, &ring, &mut turns) };
    match staged.submit(stream, &stager.active) {
        Ok(passed) => {
            drop(turns);
            Some(State::Submitted { staged, passed, _ring: ring })
        }
        Err(_) => {
            let stream_is_done = || {
                // What was submitted is done then; what the stream fails of is reported by the one who tries next.
                let _ = stream.synchronize();
            };
            staged.give_up(|| stream.is_idle().is_err(), stream_is_done);
            None
        }
    }
}

/// Carries the transfer out when the stream has come that far.
///
/// # Safety
/// The memory must be as an [`IoBuf`] (for reads, [`IoBufMut`]) promises.
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
