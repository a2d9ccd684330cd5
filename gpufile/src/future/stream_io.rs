//! Reads and writes ordered with the work of a CUDA stream, without cuFile.

use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::sync::Arc;
use std::task::{Poll, Waker};

use cufile::IoBuf;
use cufile::cuda::{Event, Stream};
use cufile::fork::{self, Generation, Mutex, MutexGuard};

use crate::direction::Direction;
use crate::engine::{Growth, IoRange, OwnedRelay, Transfer, ends_soon, wait_by_looking};
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::future::owned::OF_ANOTHER_PROCESS;
use crate::memory::{Memory, Place};
use crate::open_file::outcome::{EntryStop, Stop};
use crate::route::RoutePolicy;
use crate::route::trace::Request;

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
    Done(Result<Ended>, B),
}

/// A checked transfer that a caller asks for.
#[derive(Clone)]
pub(crate) struct Asked {
    file: File,
    direction: Direction,
    memory: Memory,
    ranges: Arc<[IoRange]>,
    /// True if the caller gave a list. The transfer then is exact, and an error has the number of a range.
    is_list: bool,
}

/// The end of a transfer.
struct Ended {
    asked: Asked,
    /// The stop of a range, if one stopped.
    stop: Option<EntryStop>,
}

// SAFETY: `&InStream` gives no access to the buffer.
unsafe impl<B: Send> Sync for InStream<B> {}

/// A transfer that the stream will reach, and all that it uses.
struct Submitted<B> {
    relay: OwnedRelay,
    /// The event that the stream reaches after the transfer.
    passed: Arc<Passed>,
    buffer: B,
    asked: Asked,
    /// The process that submitted it.
    generation: Generation,
}

impl<B> InStream<B> {
    /// Submits the transfer to the stream. Runs it now if the stream cannot wait for it.
    ///
    /// # Safety
    /// The memory must belong to the buffer. For reads, the buffer must be an [`IoBufMut`].
    pub unsafe fn start(stream: &Stream, asked: Result<Asked>, buffer: B) -> Self {
        // Leaked if a panic prevents the end.
        let buffer = ManuallyDrop::new(buffer);
        // SAFETY: the caller's promise; the buffer stays until the transfer has ended, or for ever.
        let began = asked.and_then(|asked| unsafe { submit(asked, stream) });
        let buffer = ManuallyDrop::into_inner(buffer);
        let phase = match began {
            Ok(Began::InStream(asked, relay, passed)) => Phase::Submitted(ManuallyDrop::new(Submitted {
                relay,
                passed: Arc::new(Passed { event: passed, watch: Mutex::default() }),
                buffer,
                asked,
                generation: Generation::current(),
            })),
            Ok(Began::Ended(ended)) => Phase::Done(Ok(ended), buffer),
            Err(error) => Phase::Done(Err(error), buffer),
        };
        Self { phase: Some(phase) }
    }

    /// Begins the span of the transfer, if the stream carries it out.
    pub fn request(&self) -> Option<Request> {
        match &self.phase {
            Some(Phase::Submitted(submitted)) => Some(submitted.asked.transfer().request()),
            _ => None,
        }
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
            Phase::Submitted(submitted) => submitted.asked.memory.ptr,
            Phase::Done(_, buffer) => buffer.as_ptr(),
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
        let (ended, buffer) = match self.phase.take().expect("taken here only") {
            Phase::Submitted(submitted) => {
                let (ended, buffer) = Submitted::end(submitted);
                (Ok(ended), buffer)
            }
            Phase::Done(ended, buffer) => (ended, buffer),
        };
        (ended.and_then(|ended| ended.result(is_exact)), buffer)
    }
}

impl Asked {
    /// Returns a transfer of one range.
    pub fn of_range(file: &File, direction: Direction, memory: Memory, range: IoRange) -> Self {
        Self { file: file.clone(), direction, memory, ranges: Arc::new([range]), is_list: false }
    }

    /// Returns a transfer of a list of ranges, which were checked.
    pub fn of_list(file: &File, direction: Direction, memory: Memory, ranges: &[IoRange]) -> Self {
        Self { file: file.clone(), direction, memory, ranges: ranges.into(), is_list: true }
    }

    fn total_bytes(&self) -> usize {
        self.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.len_bytes))
    }

    fn transfer(&self) -> Transfer<'_> {
        self.file.transfer(self.direction, self.memory, &self.ranges, Growth::MayAllocate)
    }

    /// Returns the error of a range that stopped.
    fn error(&self, stop: EntryStop) -> Error {
        let Transfer { direction, entries, .. } = self.transfer();
        match self.is_list {
            true => entries.error_of_list(direction, stop),
            false => entries.error(direction, stop),
        }
    }

    /// Fills what a read has left out with zeros: the rest of the range that stopped, and the other ranges, any of which may
    /// have been read or not.
    fn clear_unread(&self, stop: &EntryStop) -> Result<()> {
        let cuda = self.file.engine().gpus().cuda().map_err(|error| self.refused(error))?;
        for (number, range) in self.ranges.iter().enumerate() {
            let read_bytes = if number == stop.entry { stop.stop.done_bytes } else { 0 };
            let start = self.memory.ptr.wrapping_add(range.buffer_offset + read_bytes);
            let mut rest = self.memory.part(start, range.len_bytes - read_bytes);
            cuda.fill(&mut rest, 0).map_err(|error| self.refused(error))?;
        }
        Ok(())
    }

    /// Returns the error of a transfer that failed before its first byte.
    fn refused(&self, cause: impl Into<Cause>) -> Error {
        match self.ranges.is_empty() {
            true => self.file.refused(self.direction, 0, 0, cause),
            false => self.error(EntryStop::refused(0, cause.into())),
        }
    }
}

impl Ended {
    /// Returns the number of bytes. Fails if `is_exact` is set and the file ends within the range.
    fn result(self, is_exact: bool) -> Result<usize> {
        match self.stop {
            None => Ok(self.asked.total_bytes()),
            Some(EntryStop { stop: Stop { done_bytes, cause: None }, .. })
                if !is_exact && !self.asked.is_list =>
            {
                Ok(done_bytes)
            }
            Some(stop) => Err(self.asked.error(stop)),
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
        match fork::spawn("gpufile-stream", move || this.wait_and_wake()) {
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
        self.watch.lock()
    }
}

impl<B> Submitted<B> {
    fn is_done(&self) -> bool {
        // In a forked child, the transfer has no end.
        !self.generation.is_current() || self.relay.has_ended() || self.passed.event.is_done().is_err()
    }

    /// Waits until the stream has passed the transfer, or can never reach it. Returns the end and the buffer.
    fn end(mut this: ManuallyDrop<Self>) -> (Ended, B) {
        if !this.generation.is_current() {
            let forked = EntryStop::refused(0, Cause::Invalid(OF_ANOTHER_PROCESS.to_owned()));
            let ended = Ended { asked: this.asked.clone(), stop: Some(forked) };
            // Only the buffer is the child's too. The rest belongs to threads of the parent.
            // SAFETY: no thread of this process uses the buffer, and `this` is never dropped.
            return (ended, unsafe { ptr::read(&this.buffer) });
        }
        let stop = this.settle();
        let Self { asked, buffer, .. } = ManuallyDrop::into_inner(this);
        (Ended { asked, stop }, buffer)
    }

    fn settle(&mut self) -> Option<EntryStop> {
        let Self { relay, passed, .. } = self;
        match passed.wait() {
            Ok(()) => relay.finish(),
            Err(error) => {
                let stream_is_done = || {
                    // If the stream continues after all, no copy may run once the buffer is returned.
                    let _ = passed.event.wait();
                };
                relay.give_up(|| passed.event.is_done().is_err(), stream_is_done);
                Some(EntryStop::refused(0, error.into()))
            }
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
    InStream(Asked, OwnedRelay, Event),
    /// The stream cannot wait for the transfer, so the call carried it out.
    Ended(Ended),
}

/// Submits the transfer as part of the stream's work. Carries it out if that is not possible.
///
/// # Errors
/// A stream that is being captured for a graph, or the failure to ask for that; the failure of the stream.
///
/// # Safety
/// As for [`OwnedRelay::new`].
unsafe fn submit(asked: Asked, stream: &Stream) -> Result<Began> {
    // A graph runs its work later, and more than once, which a transfer does not support. Waiting for the
    // stream would end the capture.
    match stream.is_capturing() {
        Ok(false) => {}
        Ok(true) => {
            return Err(asked.refused(Cause::Invalid(
                "the stream is being captured for a CUDA graph; wait for the end of the capture".to_owned(),
            )));
        }
        Err(error) => return Err(asked.refused(error)),
    }
    // SAFETY: the caller's promise.
    match unsafe { relay(&asked, stream) } {
        Some((relay, passed)) => Ok(Began::InStream(asked, relay, passed)),
        None => {
            // SAFETY: as above; nothing is in flight.
            let stop = unsafe { run_now(&asked, stream) }?;
            Ok(Began::Ended(Ended { asked, stop }))
        }
    }
}

/// Returns a relay that was submitted to the stream, and the event behind it. Returns `None` if the stream cannot wait
/// for a transfer of this memory; nothing is in flight then.
///
/// # Safety
/// As for [`OwnedRelay::new`].
unsafe fn relay(asked: &Asked, stream: &Stream) -> Option<(OwnedRelay, Event)> {
    let Asked { file, direction, memory, ranges, .. } = asked;
    let total_bytes = asked.total_bytes();
    let is_host = memory.place == Place::Host;
    let needs_cufile = file.open_file().settings.policy == RoutePolicy::RequireCufile && !is_host;
    if total_bytes == 0 || needs_cufile {
        return None;
    }
    let relays = file.engine().relays()?;
    let counters = &file.engine().gpus().counters;
    let ring = relays.rings.take(stream, if is_host { 0 } else { total_bytes }, counters)?;
    let mut turns = ring.turns();
    let of_file = (file.open_file().clone(), file.chunk_bytes());
    let (ranges, thread) = (ranges.clone(), relays.clone());
    // SAFETY: the caller's promise.
    let mut relay =
        unsafe { OwnedRelay::new(of_file, *direction, *memory, ranges, thread, &ring, &mut turns) };
    match relay.submit(stream) {
        Ok(passed) => Some((relay, passed)),
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

/// Waits for the earlier work of the stream, and then carries out the transfer. Returns the stop of a range, if one
/// stopped.
///
/// # Errors
/// The failure of the stream.
///
/// # Safety
/// As for [`Workers::run`](crate::engine::Workers::run).
unsafe fn run_now(asked: &Asked, stream: &Stream) -> Result<Option<EntryStop>> {
    stream.synchronize().map_err(|error| asked.refused(error))?;
    if asked.ranges.is_empty() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let stops = unsafe { asked.file.engine().workers().run(&asked.transfer()) };
    let stop = stops.expect("checked ranges, which do not overlap").into_iter().next();
    if let Some(stop) = &stop
        && asked.direction == Direction::Read
        && asked.memory.place != Place::Host
    {
        asked.clear_unread(stop)?;
    }
    Ok(stop)
}
