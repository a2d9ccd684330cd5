//! Reads and writes ordered with the work of a CUDA stream, without cuFile.

use std::mem::{self, ManuallyDrop};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::{ptr, thread};

use cufile::IoBuf;
use cufile::cuda::{Event, Stream};
use cufile::fork::Generation;

use crate::direction::Direction;
use crate::engine::{OwnedRelay, ends_soon, wait_by_looking};
use crate::error::{Cause, Result};
use crate::file::File;
use crate::future::owned::OF_ANOTHER_PROCESS;
use crate::memory::{Memory, Place};
use crate::open_file::outcome::{Outcome, Stop};
use crate::route::RoutePolicy;

/// A transfer that is part of a stream's work, and owns its buffer.
///
/// Dropping it waits for its end. If that takes longer than 30 seconds, dropping leaks the buffer, the file and all
/// else that the transfer uses. The stream still carries out the transfer later.
pub(crate) struct InStream<B> {
    /// `None` after the output was taken.
    phase: Option<Phase<B>>,
}

enum Phase<B> {
    /// Leaked as a whole if the stream may still reach the transfer.
    Submitted(ManuallyDrop<Submitted<B>>),
    /// With the range of the file.
    Done(Result<usize>, B, FileRange),
}

/// The range of a transfer in its file.
#[derive(Clone)]
struct FileRange {
    file: File,
    direction: Direction,
    offset: u64,
    len_bytes: usize,
}

// SAFETY: `&InStream` gives no access to the buffer.
unsafe impl<B: Send> Sync for InStream<B> {}

/// A transfer that the stream will reach, and all that it uses.
struct Submitted<B> {
    relay: OwnedRelay,
    /// The event that the stream reaches after the transfer.
    passed: Arc<Passed>,
    buffer: B,
    range: FileRange,
    /// The process that submitted it.
    generation: Generation,
}

impl<B> InStream<B> {
    /// Submits the transfer to the stream. Runs it now if the stream cannot wait for it.
    ///
    /// # Safety
    /// The memory must belong to the buffer. For reads, the buffer must be an [`IoBufMut`].
    pub unsafe fn start(
        file: &File,
        direction: Direction,
        stream: &Stream,
        (memory, buffer): (Result<Memory>, B),
        offset: u64,
    ) -> Self {
        let checked = memory.and_then(|memory| {
            file.check_offset(direction, offset, memory.len_bytes)?;
            Ok(memory)
        });
        let len_bytes = checked.as_ref().map_or(0, |memory| memory.len_bytes);
        let range = FileRange { file: file.clone(), direction, offset, len_bytes };
        // Leaked if a panic prevents the end.
        let buffer = ManuallyDrop::new(buffer);
        // SAFETY: the caller's promise; the buffer stays until the transfer has ended, or for ever.
        let submitted = checked.and_then(|memory| unsafe { submit(file, direction, stream, memory, offset) });
        let phase = match submitted {
            Ok(Began::InStream(relay, passed)) => Phase::Submitted(ManuallyDrop::new(Submitted {
                relay,
                passed: Arc::new(Passed { event: passed, watch: Mutex::default() }),
                buffer: ManuallyDrop::into_inner(buffer),
                range,
                generation: Generation::current(),
            })),
            Ok(Began::Not(memory)) => {
                // SAFETY: as above.
                let result = unsafe { run_now(file, direction, stream, memory, offset) };
                Phase::Done(result, ManuallyDrop::into_inner(buffer), range)
            }
            Err(error) => Phase::Done(Err(error), ManuallyDrop::into_inner(buffer), range),
        };
        Self { phase: Some(phase) }
    }

    /// Returns whether the transfer has ended or its stream has failed, so that [`wait`](Self::wait) does not
    /// wait.
    pub fn is_done(&self) -> bool {
        match &self.phase {
            Some(Phase::Submitted(submitted)) => submitted.is_done(),
            _ => true,
        }
    }

    /// Returns the buffer's address, which later work of the stream may use. A thread that reads the buffer
    /// before the transfer has ended races with the workers.
    pub fn buffer_ptr(&self) -> *const u8
    where
        B: IoBuf,
    {
        match self.phase.as_ref().expect("taken by `wait` only") {
            Phase::Submitted(submitted) => submitted.relay.memory().ptr,
            Phase::Done(_, buffer, _) => buffer.as_ptr(),
        }
    }

    /// Returns whether the transfer has ended. If it has not, a thread that waits for the stream will wake `waker`.
    pub fn poll(&self, waker: &Waker) -> Poll<()> {
        match &self.phase {
            Some(Phase::Submitted(submitted)) if !submitted.is_done() => submitted.passed.poll(waker),
            _ => Poll::Ready(()),
        }
    }

    /// Waits for the end of the transfer and of the stream's work before it. Returns the number of bytes that
    /// were transferred, and the buffer.
    pub fn finish(mut self, is_exact: bool) -> (Result<usize>, B) {
        let (result, buffer, range) = match self.phase.take().expect("taken here only") {
            Phase::Submitted(submitted) => {
                let range = submitted.range.clone();
                let (result, buffer) = Submitted::end(submitted);
                (result, buffer, range)
            }
            Phase::Done(result, buffer, range) => (result, buffer, range),
        };
        (if is_exact { range.exact(result) } else { result }, buffer)
    }
}

impl FileRange {
    /// Returns the result of a transfer that fails if the file ends within the range.
    fn exact(&self, result: Result<usize>) -> Result<usize> {
        let Self { file, direction, offset, len_bytes } = self;
        match result {
            Ok(done) if done < *len_bytes => {
                Err(file.open_file().error(*direction, *offset, *len_bytes, Stop::end_of_file(done)))
            }
            result => result,
        }
    }
}

/// The event that a stream reaches after a transfer, and the thread that waits for it, if a task does.
struct Passed {
    event: Event,
    watch: Mutex<Watch>,
}

#[derive(Default)]
enum Watch {
    /// No thread waits.
    #[default]
    None,
    /// A thread waits, and will wake this.
    By(Waker),
    /// The stream has passed the event, or has failed.
    Ended,
}

impl Passed {
    /// Returns whether the stream has passed the event. If it has not, a thread that waits for the stream will wake
    /// `waker`. The first call starts that thread. Waits here if the operating system starts no threads.
    fn poll(self: &Arc<Self>, waker: &Waker) -> Poll<()> {
        // Wakers are foreign code, also when they are cloned or dropped. It runs without the lock.
        let waker = waker.clone();
        let mut watch = self.watch();
        let before = match *watch {
            Watch::Ended => return Poll::Ready(()),
            _ => mem::replace(&mut *watch, Watch::By(waker)),
        };
        drop(watch);
        if let Watch::By(_) = before {
            return Poll::Pending;
        }
        let this = self.clone();
        match thread::Builder::new().name("gpufile-stream".to_owned()).spawn(move || this.wait_and_wake()) {
            Ok(_) => Poll::Pending,
            Err(_) => {
                let _ = self.wait();
                let watch = mem::replace(&mut *self.watch(), Watch::Ended);
                drop(watch);
                Poll::Ready(())
            }
        }
    }

    fn wait_and_wake(&self) {
        // The transfer finds a failure of the stream again when it ends.
        let _ = self.wait();
        // Foreign code runs without the lock.
        let watch = mem::replace(&mut *self.watch(), Watch::Ended);
        if let Watch::By(waker) = watch {
            waker.wake();
        }
    }

    fn wait(&self) -> cufile::Result<()> {
        // A failed wait need not mean that the stream failed. A stream that works continues to use the buffer.
        self.event.wait().or_else(|_| wait_by_looking(&self.event))
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> Submitted<B> {
    fn is_done(&self) -> bool {
        // In a forked child, the transfer has no end.
        !self.generation.is_current() || self.relay.has_ended() || self.passed.event.is_done().is_err()
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
        match passed.wait() {
            Ok(()) => relay.finish(),
            Err(error) => {
                let stream_is_done = || {
                    // If the stream continues after all, no copy may run once the buffer is returned.
                    let _ = passed.event.wait();
                };
                relay.give_up(|| passed.event.is_done().is_err(), stream_is_done);
                Err(Stop::failed(0, error))
            }
        }
    }

    fn result(&self, outcome: Outcome) -> Result<usize> {
        let len_bytes = self.relay.memory().len_bytes;
        let FileRange { file, direction, offset, .. } = &self.range;
        match outcome {
            Ok(()) => Ok(len_bytes),
            Err(Stop { done_bytes, cause: None }) => Ok(done_bytes),
            Err(stop) => Err(file.open_file().error(*direction, *offset, len_bytes, stop)),
        }
    }
}

impl<B> Drop for InStream<B> {
    fn drop(&mut self) {
        if let Some(Phase::Submitted(submitted)) = &self.phase
            && (!submitted.generation.is_current() || !ends_soon(|| submitted.is_done()))
        {
            // The stream may reach the transfer at any time. In a forked child, it is the parent's.
            return;
        }
        if let Some(Phase::Submitted(submitted)) = self.phase.take() {
            drop(Submitted::end(submitted));
        }
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
    let failed = |cause: Cause| file.refused(direction, offset, memory.len_bytes, cause);
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
    let of_file = (file.open_file().clone(), file.chunk_bytes());
    // SAFETY: the caller's promise.
    let mut relay =
        unsafe { OwnedRelay::new(of_file, direction, memory, offset, relays.clone(), &ring, &mut turns) };
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
    stream.synchronize().map_err(|error| file.refused(direction, offset, len, error))?;
    match direction {
        // SAFETY: the caller's promise.
        Direction::Read => unsafe { file.read_memory(memory, offset) },
        // SAFETY: the caller's promise.
        Direction::Write => unsafe { file.write_memory(memory, offset) }.map(|()| len),
    }
}
