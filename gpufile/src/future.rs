//! Reads and writes that go on while the caller does something else.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use cufile::{IoBuf, IoBufMut};

use crate::engine::{Cutting, Entries, IoRange, Job, Side, Transfer};
use crate::error::{Error, Result};
use crate::file::{File, READ, WRITE};
use crate::memory::Memory;
use crate::write_plan::WritePlan;

/// A transfer under way, which owns its buffer. It needs no runtime: [`wait`](Self::wait) for it, or `.await` it.
///
/// It ends by itself whether it is polled or not. Dropping it waits for its end; `mem::forget` leaks the buffer. The
/// output is the count of bytes, as [`File::read_at`] returns it, or all for a write, and the buffer.
#[must_use = "dropping it waits for the transfer"]
pub struct IoFuture<B> {
    /// On the heap, at one place, because workers refer to it; `None` when the output was taken.
    pending: Option<NonNull<Pending<B>>>,
}

struct Pending<B> {
    buffer: B,
    file: File,
    range: [IoRange; 1],
    /// Why it did not begin.
    refused: Option<Error>,
    write: Option<WritePlan>,
    job: Option<Arc<Job>>,
}

// SAFETY: an owning pointer; what workers use of it is the memory of the buffer, as an `IoBuf` allows.
unsafe impl<B: Send> Send for IoFuture<B> {}
// SAFETY: `&IoFuture` gives no access to the buffer.
unsafe impl<B: Send> Sync for IoFuture<B> {}

impl File {
    /// Begins to read into the whole buffer from `offset` in bytes, as [`read_at`](Self::read_at), and returns at once.
    ///
    /// # Errors
    /// The output carries them, as [`read_at`](Self::read_at) says.
    pub fn read_at_async<B: IoBufMut + Send + 'static>(&self, buffer: B, offset: u64) -> IoFuture<B> {
        IoFuture::start(self, buffer, |file, buffer| {
            let memory = file.memory_mut(buffer, offset)?;
            let range = file.range(READ, offset, memory.len_bytes)?;
            Ok((memory, range, file.read_cutting(&memory, offset), None))
        })
    }

    /// Begins to write the whole buffer to `offset` in bytes, as [`write_all_at`](Self::write_all_at), and returns at
    /// once.
    ///
    /// # Errors
    /// The output carries them, as [`write_all_at`](Self::write_all_at) says.
    pub fn write_all_at_async<B: IoBuf + Send + 'static>(&self, buffer: B, offset: u64) -> IoFuture<B> {
        IoFuture::start(self, buffer, |file, buffer| {
            let memory = file.memory(buffer, offset)?;
            let range = file.range(WRITE, offset, memory.len_bytes)?;
            let plan = WritePlan::of_range(file, &memory, offset);
            Ok((memory, range, plan.cutting, Some(plan)))
        })
    }
}

type Prepared = (Memory, IoRange, Cutting, Option<WritePlan>);

impl<B: IoBuf> IoFuture<B> {
    fn start(file: &File, buffer: B, prepare: impl FnOnce(&File, &mut B) -> Result<Prepared>) -> Self {
        let range = [IoRange { file_offset: 0, buffer_offset: 0, len_bytes: 0 }];
        let pending = Pending { buffer, file: file.clone(), range, refused: None, write: None, job: None };
        let place = NonNull::from(Box::leak(Box::new(pending)));
        // SAFETY: just made, and nothing else refers to it.
        let pending = unsafe { &mut *place.as_ptr() };
        match prepare(&pending.file, &mut pending.buffer) {
            Err(error) => pending.refused = Some(error),
            Ok((memory, range, cutting, write)) => {
                pending.range = [range];
                pending.write = write;
                let side = pending.write.as_ref().map_or(Side::Read, |write| write.side.clone());
                let file = pending.file.open_file();
                let entries = Entries::Ranges { file, memory, ranges: &pending.range };
                // SAFETY: all of it stays until `finish` has waited for the job, or for ever.
                let job = unsafe { file.engine.start_on_worker(&Transfer { side, entries }, cutting) };
                pending.job = Some(job.expect("a single range overlaps no other"));
            }
        }
        Self { pending: Some(place) }
    }
}

impl<B> IoFuture<B> {
    /// Whether the transfer has ended, so that [`wait`](Self::wait) does not wait.
    pub fn is_done(&self) -> bool {
        self.pending().is_none_or(|pending| pending.job.as_ref().is_none_or(|job| job.is_done()))
    }

    /// Waits for the end of the transfer. Returns how many bytes were transferred, and the buffer.
    pub fn wait(mut self) -> (Result<usize>, B) {
        self.finish().expect("the output is taken once")
    }

    fn pending(&self) -> Option<&Pending<B>> {
        // SAFETY: on the heap until `finish` takes it.
        self.pending.map(|place| unsafe { &*place.as_ptr() })
    }

    fn finish(&mut self) -> Option<(Result<usize>, B)> {
        let place = self.pending.take()?;
        // SAFETY: on the heap, and only taken here.
        let job = unsafe { (*place.as_ptr()).job.take() };
        // SAFETY: as above.
        let engine = unsafe { (*place.as_ptr()).file.engine().clone() };
        let stop = job.and_then(|job| engine.finish(job));
        // SAFETY: leaked in `start`; the job is done, so that nobody else refers to it.
        let Pending { buffer, file, range: [range], refused, write, .. } =
            *unsafe { Box::from_raw(place.as_ptr()) };
        if let Some(error) = refused {
            return Some((Err(error), buffer));
        }
        let IoRange { file_offset, len_bytes, .. } = range;
        let done = stop.as_ref().map_or(len_bytes, |stop| stop.done_bytes);
        let Some(plan) = write else {
            let result = match stop.and_then(|stop| stop.cause) {
                None => Ok(done),
                Some(cause) => Err(file.transfer_error(READ, file_offset, len_bytes, done, cause)),
            };
            return Some((result, buffer));
        };
        plan.tidy_up(file.open_file(), file_offset + done as u64, stop.is_some());
        let result = match stop {
            None => Ok(done),
            Some(stop) => {
                let cause = stop.cause.unwrap_or_else(|| io::Error::from(io::ErrorKind::WriteZero).into());
                Err(file.transfer_error(WRITE, file_offset, len_bytes, done, cause))
            }
        };
        Some((result, buffer))
    }
}

impl<B> Future for IoFuture<B> {
    type Output = (Result<usize>, B);

    /// # Panics
    /// If it is polled after it gave its output.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let pending = self.pending().expect("not polled after the output was taken");
        if let Some(job) = &pending.job
            && job.poll(context.waker()).is_pending()
        {
            return Poll::Pending;
        }
        Poll::Ready(self.finish().expect("there was an output"))
    }
}

impl<B> Drop for IoFuture<B> {
    fn drop(&mut self) {
        self.finish();
    }
}

impl<B> fmt::Debug for IoFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoFuture").field("is_done", &self.is_done()).finish()
    }
}
