//! Reads and writes ordered with the work of a CUDA stream, without cuFile.
//!
//! A host function on the stream lets the workers begin when the stream has come that far; then the stream waits for a
//! word in pinned memory, which is set when all bytes have arrived. No thread of the caller waits.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use cufile::cuda::{Event, Stream};
use cufile::{IoBuf, IoBufMut};

use crate::engine::{Word, on_worker};
use crate::error::Result;
use crate::file::File;
use crate::owned::Owned;
use crate::write_plan::Growth;

/// A transfer that is part of a stream's work. It owns its buffer; what comes later in the stream finds it done.
///
/// Dropping it waits for its end; `mem::forget` leaks the buffer.
#[must_use = "dropping it waits for the transfer"]
pub struct StreamIo<B> {
    owned: Option<Owned<B>>,
    /// Behind the transfer in the stream; `None` if it was carried out before the call returned.
    passed: Option<Event>,
    begun: Arc<AtomicBool>,
}

impl File {
    /// Reads into the whole buffer from `offset` in bytes, when the stream's work so far is done; work that is submitted
    /// to the stream later waits for it. The call itself does not wait.
    ///
    /// The GPU holds a stream back without cost, but only few at once: past [`HELD_STREAMS`] streams with such
    /// transfers, and where the driver cannot hold a stream back, the call waits for the stream and for the transfer.
    /// Programs that let streams wait for the host by other means should know that a GPU that has eight such streams
    /// copies nothing for anyone.
    ///
    /// Until the transfer is done, no thread may call what makes CUDA wait for all streams, such as `cudaFree` (which
    /// dropping a [`DeviceBuffer`](cufile::cuda::DeviceBuffer) calls): CUDA would keep the workers out while it waits for
    /// what they do.
    ///
    /// # Errors
    /// [`StreamIo::wait`] carries them, as [`read_at`](Self::read_at) says. The stream goes on after a failure.
    pub fn read_at_on_stream<B: IoBufMut + Send + 'static>(
        &self,
        stream: &Stream,
        buffer: B,
        offset: u64,
    ) -> StreamIo<B> {
        StreamIo::start(stream, Owned::read(self, buffer, offset))
    }

    /// Writes the whole buffer to `offset` in bytes, when the stream's work so far is done; work that is submitted to
    /// the stream later waits for it. Otherwise as [`read_at_on_stream`](Self::read_at_on_stream).
    ///
    /// # Errors
    /// [`StreamIo::wait`] carries them, as [`write_all_at`](Self::write_all_at) says. The stream goes on after a failure.
    pub fn write_all_at_on_stream<B: IoBuf + Send + 'static>(
        &self,
        stream: &Stream,
        buffer: B,
        offset: u64,
    ) -> StreamIo<B> {
        StreamIo::start(stream, Owned::write(self, buffer, offset, Growth::AsWritten))
    }
}

impl<B> StreamIo<B> {
    fn start(stream: &Stream, owned: Owned<B>) -> Self {
        let begun = Arc::new(AtomicBool::new(false));
        let mut passed = None;
        if let Some((job, chunks)) = owned.job() {
            let engine = owned.file().engine();
            let held = Held::new(stream).and_then(|held| Some((held, engine.word(stream.device())?)));
            let submitter = engine.submitter(owned.file().open_file().device);
            if let (Some((held, word)), Some(submitter)) = (held, submitter) {
                let release = Arc::new(Release { word, _held: held });
                let _ = job.poll(&Waker::from(release.clone()));
                let (job, begun) = (job.clone(), begun.clone());
                let on_host = stream.call_on_host(move || {
                    begun.store(true, Ordering::Release);
                    submitter.submit(&job, chunks);
                });
                if on_host.is_ok() {
                    // SAFETY: the word stays until the engine goes, which this value keeps until the stream has passed.
                    let waits =
                        unsafe { stream.wait_for_word(release.word.as_ptr(), release.word.awaited()) };
                    passed = waits.and_then(|()| stream.record()).ok();
                }
            }
            if passed.is_none() {
                run_now(stream, &owned, &begun);
            }
        }
        Self { owned: Some(owned), passed, begun }
    }

    /// Whether the transfer has ended and the stream gone on, so that [`wait`](Self::wait) does not wait.
    pub fn is_done(&self) -> bool {
        let job_is_done = self.owned.as_ref().and_then(Owned::job).is_none_or(|(job, _)| job.is_done());
        job_is_done && self.passed.as_ref().is_none_or(|passed| passed.is_done().unwrap_or(true))
    }

    /// The buffer, for its address: later work of the stream may use it.
    pub fn buffer(&self) -> &B {
        self.owned.as_ref().expect("taken by `wait` only").buffer()
    }

    /// Waits for the end of the transfer, and for what was in the stream before it. Returns how many bytes were
    /// transferred, and the buffer.
    pub fn wait(mut self) -> (Result<usize>, B) {
        self.settle();
        self.owned.take().expect("taken here only").finish()
    }

    /// Waits until the stream has gone on behind the transfer, or for ever will not come to it.
    fn settle(&mut self) {
        let Some(passed) = self.passed.take() else { return };
        if let Some(owned) = &self.owned
            && let Some((job, _)) = owned.job()
        {
            // Does something on a worker only, of which one must not wait for the others.
            while on_worker()
                && !self.begun.load(Ordering::Acquire)
                && passed.is_done().is_ok_and(|done| !done)
            {
                std::thread::sleep(Duration::from_micros(50));
            }
            if self.begun.load(Ordering::Acquire) {
                owned.file().engine().help(job);
            }
        }
        let Err(error) = passed.wait() else { return };
        if let Some((job, _)) = self.owned.as_ref().and_then(Owned::job)
            && !self.begun.load(Ordering::Acquire)
        {
            // A stream that failed calls no host function any more.
            job.give_up(error.into());
        }
    }
}

impl<B> Drop for StreamIo<B> {
    fn drop(&mut self) {
        self.settle();
    }
}

impl<B> fmt::Debug for StreamIo<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamIo").field("is_done", &self.is_done()).finish()
    }
}

/// Carries out a transfer whose stream cannot be made to wait for it.
fn run_now<B>(stream: &Stream, owned: &Owned<B>, begun: &AtomicBool) {
    let Some((job, chunks)) = owned.job() else { return };
    match stream.synchronize() {
        // The host function may have been submitted.
        Ok(()) if !begun.swap(true, Ordering::AcqRel) => {
            owned.file().engine().submit(owned.file().open_file().device, job, chunks)
        }
        Ok(()) => {}
        Err(error) => job.give_up(error.into()),
    }
    job.wait();
}

/// How many streams may be held back at once, in a process and by one GPU.
///
/// A stream that waits takes a hardware queue of the GPU, of which there are eight by default
/// (`CUDA_DEVICE_MAX_CONNECTIONS`). Measured on an H200: with four such streams all others go on, with five some stop,
/// with eight all do, and then nobody can copy what they wait for.
pub const HELD_STREAMS: usize = 3;

/// One operation of a stream that is held back; counts as long as it lives.
struct Held {
    stream: (u32, usize),
}

/// The streams that are held back, by device and handle, once for each operation.
static HELD: Mutex<Vec<(u32, usize)>> = Mutex::new(Vec::new());

impl Held {
    /// `None` if as many other streams are held back as may be.
    fn new(stream: &Stream) -> Option<Self> {
        let stream = (stream.device().ordinal(), stream.as_raw().addr());
        let mut held = Self::all();
        let mut others: Vec<_> =
            held.iter().filter(|other| other.0 == stream.0 && other.1 != stream.1).collect();
        others.sort_unstable();
        others.dedup();
        if others.len() >= HELD_STREAMS {
            return None;
        }
        held.push(stream);
        Some(Self { stream })
    }

    fn all() -> MutexGuard<'static, Vec<(u32, usize)>> {
        HELD.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = Self::all();
        if let Some(at) = held.iter().position(|stream| *stream == self.stream) {
            held.swap_remove(at);
        }
    }
}

/// Lets a stream go on when its transfer is done.
struct Release {
    word: Word,
    _held: Held,
}

impl Wake for Release {
    fn wake(self: Arc<Self>) {
        self.word.set();
    }
}
