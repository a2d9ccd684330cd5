//! A transfer that owns its buffer, so that it can go on while the caller does something else.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use cufile::{IoBuf, IoBufMut};

use crate::engine::{Cutting, IoRange, Job, Side, Transfer};
use crate::error::{Cause, Error, Result};
use crate::file::{File, READ, WRITE};
use crate::memory::Memory;
use crate::write_plan::{Growth, WritePlan};

/// A buffer, a file, and the job that moves bytes between them. Dropping it waits for a write, and for as much of a read
/// as was begun; forgetting it leaks them.
pub(crate) struct Owned<B> {
    /// On the heap, at one place, because workers refer to it.
    place: NonNull<Pending<B>>,
}

struct Pending<B> {
    buffer: B,
    file: File,
    range: [IoRange; 1],
    /// Why there is no job.
    refused: Option<Error>,
    write: Option<WritePlan>,
    job: Option<(Arc<Job>, usize)>,
}

// SAFETY: an owning pointer; what workers use of it is the memory of the buffer, as an `IoBuf` allows.
unsafe impl<B: Send> Send for Owned<B> {}
// SAFETY: `&Owned` gives no access to the buffer.
unsafe impl<B: Send> Sync for Owned<B> {}

type Prepared = (Memory, IoRange, Cutting, Option<WritePlan>);

impl<B: IoBuf> Owned<B> {
    /// Prepares to read into the whole buffer.
    pub fn read(file: &File, buffer: B, offset: u64) -> Self
    where
        B: IoBufMut,
    {
        Self::new(file, buffer, |file, buffer| {
            let memory = file.memory_mut(buffer, offset)?;
            let range = file.range(READ, offset, memory.len_bytes)?;
            Ok((memory, range, file.read_cutting(memory.len_bytes, memory.place, &range), None))
        })
    }

    /// Prepares to write the whole buffer.
    pub fn write(file: &File, buffer: B, offset: u64, growth: Growth) -> Self {
        Self::new(file, buffer, |file, buffer| {
            let memory = file.memory(buffer, offset)?;
            let range = file.range(WRITE, offset, memory.len_bytes)?;
            let plan = WritePlan::of_range(file, &memory, offset, growth);
            Ok((memory, range, plan.cutting, Some(plan)))
        })
    }

    fn new(file: &File, buffer: B, prepare: impl FnOnce(&File, &mut B) -> Result<Prepared>) -> Self {
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
                let entries = pending.file.entries(memory, &pending.range);
                // SAFETY: all of it stays until `finish` has waited for the job, or for ever.
                let job = unsafe { pending.file.engine().prepare(&Transfer { side, entries }, &cutting) };
                pending.job = Some(job.expect("a checked range, which overlaps no other"));
            }
        }
        Self { place }
    }
}

impl<B> Owned<B> {
    /// The job and how many chunks it has; nobody works on it before it is submitted. `None` if it was refused.
    pub fn job(&self) -> Option<(&Arc<Job>, usize)> {
        self.pending().job.as_ref().map(|(job, chunks)| (job, *chunks))
    }

    pub fn file(&self) -> &File {
        &self.pending().file
    }

    fn pending(&self) -> &Pending<B> {
        // SAFETY: on the heap as long as `self`; the job uses it by shared references too.
        unsafe { self.place.as_ref() }
    }

    /// Waits for the job, and returns how many bytes it transferred, and the buffer.
    pub fn finish(self) -> (Result<usize>, B) {
        let place = std::mem::ManuallyDrop::new(self).place;
        // SAFETY: `self` is not dropped.
        unsafe { Self::take(place) }
    }

    /// # Safety
    /// Only once.
    unsafe fn take(place: NonNull<Pending<B>>) -> (Result<usize>, B) {
        // SAFETY: on the heap, and taken only once.
        let pending = unsafe { place.as_ref() };
        let stop = pending.job.as_ref().and_then(|(job, _)| pending.file.engine().finish(job.clone()));
        // SAFETY: leaked in `new`; the job is done, so that nobody else refers to it.
        let pending = *unsafe { Box::from_raw(place.as_ptr()) };
        let Pending { buffer, file, range: [range], refused, write, .. } = pending;
        if let Some(error) = refused {
            return (Err(error), buffer);
        }
        let IoRange { file_offset, len_bytes, .. } = range;
        let done = stop.as_ref().map_or(len_bytes, |stop| stop.done_bytes);
        let (operation, cause): (_, Option<Cause>) = match (write, stop) {
            (None, stop) => (READ, stop.and_then(|stop| stop.cause)),
            (Some(_), None) => (WRITE, None),
            (Some(plan), Some(stop)) => {
                plan.tidy_up(file.open_file(), file_offset + done as u64, true);
                let nothing = || io::Error::from(io::ErrorKind::WriteZero).into();
                (WRITE, Some(stop.cause.unwrap_or_else(nothing)))
            }
        };
        match cause {
            None => (Ok(done), buffer),
            Some(cause) => (Err(file.transfer_error(operation, file_offset, len_bytes, done, cause)), buffer),
        }
    }
}

impl<B> Drop for Owned<B> {
    fn drop(&mut self) {
        if let Pending { write: None, job: Some((job, _)), .. } = self.pending() {
            job.cancel();
        }
        // SAFETY: `finish` keeps this from being called.
        drop(unsafe { Self::take(self.place) });
    }
}
