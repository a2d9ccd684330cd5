//! A bounce buffer and its staging buffer, and the copies of one chunk between them and a GPU.

use std::mem;
use std::sync::Arc;

use cufile::cuda::{Device, Event, Stream};

use super::super::sync::{AtomicBool, Mutex, MutexGuard, Ordering};
use super::copies::{Copies, wait_by_looking, wait_until};
use super::staging::Staging;
use super::staging_memory::StagingMemory;
use super::streams::Streams;
use crate::gpu::bounce::Bounce;
use crate::gpu::gpus::Gpus;

/// The buffers of one chunk at a time. A lane fills and empties them; another thread may submit their copies.
pub(crate) struct Buffers {
    contents: Mutex<Contents>,
    /// False while copies wait to be submitted.
    is_submitted: Arc<AtomicBool>,
}

pub(crate) struct Contents {
    pub bounce: Bounce,
    pub copies: Copies,
    staging: Staging,
    /// Marks the end of the copies; none for host memory.
    copied: Option<Event>,
    /// The outcome of submitting the copies.
    submitted: cufile::Result<()>,
    /// The place in the bounce buffer of the word for a damaged group of a packed tensor.
    status_at: Option<usize>,
}

// SAFETY: only pointers keep the contents from being `Send`: those of the copies, which any thread may submit, and
// those of buffers that belong to the contents.
unsafe impl Send for Contents {}

impl Contents {
    /// Prepares what takes long, so that a thread that submits for others need not.
    pub fn prepare(&mut self, device: &Device) {
        let Self { bounce, copies, staging, .. } = self;
        if copies.prepare(bounce) {
            staging.prepare(device, bounce);
        }
    }

    pub fn take_damaged(&mut self) -> Option<u32> {
        let word = self.bounce.part(self.status_at.take()?, size_of::<u32>()).ok()?;
        // SAFETY: the word lies in the bounce buffer, which nothing writes any more.
        let number = unsafe { word.cast::<u32>().read_volatile() };
        (number > 0).then_some(number)
    }

    /// As [`Copies::demote`].
    pub fn demote(&mut self) {
        self.copies.demote(&mut self.bounce);
    }
}

impl Buffers {
    pub fn new(
        bounce: Bounce,
        gpus: Arc<Gpus>,
        available: Arc<StagingMemory>,
        copied: Option<Event>,
    ) -> Self {
        let (copies, staging) = (Copies::default(), Staging::new(gpus, available));
        let contents = Contents { bounce, copies, staging, copied, submitted: Ok(()), status_at: None };
        Self { contents: Mutex::new(contents), is_submitted: Arc::new(AtomicBool::new(true)) }
    }

    pub fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock_unless_forked().expect("a forked child uses no buffers of its parent")
    }

    pub fn bounce_bytes(&self) -> usize {
        self.lock().bounce.allocated_bytes()
    }

    /// Notes that a thread will submit the copies, for which [`wait`](Self::wait) then waits.
    pub fn will_be_submitted(&self) {
        self.is_submitted.store(false, Ordering::Release);
    }

    /// Submits the noted copies from the bounce buffer to the device.
    ///
    /// # Safety
    /// Until [`wait`](Self::wait) has returned, the device memory must be valid, nothing else may use it, and nothing
    /// may change the contents.
    pub unsafe fn submit_to_device(self: Arc<Self>, streams: &Streams) {
        // SAFETY: the caller's promise.
        self.submit(|Contents { bounce, copies, staging, .. }| unsafe {
            copies.issue_to_device(streams, staging, bounce)
        });
        let is_submitted = self.is_submitted.clone();
        // The lane may free the buffers as soon as it has waited.
        drop(self);
        is_submitted.store(true, Ordering::Release);
    }

    /// Submits the noted copies from the device to the bounce buffer.
    ///
    /// # Safety
    /// As for [`submit_to_device`](Self::submit_to_device).
    pub unsafe fn submit_to_host(&self, stream: &Stream) {
        // SAFETY: the caller's promise.
        self.submit(|Contents { bounce, copies, staging, .. }| unsafe {
            copies.issue_to_host(stream, staging, bounce)
        });
    }

    /// Submits copies by `issue`, which returns the stream whose work comes last.
    fn submit<'s>(&self, issue: impl FnOnce(&mut Contents) -> cufile::Result<&'s Stream>) {
        let mut contents = self.lock();
        let issued = issue(&mut contents);
        contents.status_at = contents.copies.status_at();
        contents.copies.clear();
        let Some(copied) = &contents.copied else { unreachable!("copies of a device have an event") };
        contents.submitted = issued.and_then(|last| last.record_into(copied));
    }

    /// Returns whether the copies were submitted, and CUDA refused them.
    pub fn have_failed(&self) -> bool {
        self.is_submitted.load(Ordering::Acquire) && self.lock().submitted.is_err()
    }

    /// Waits until the copies have ended.
    ///
    /// # Errors
    /// The error that CUDA returned. Some copies may still be in flight then.
    pub fn wait(&self) -> cufile::Result<()> {
        wait_until(|| Ok(self.is_submitted.load(Ordering::Acquire)))?;
        let mut contents = self.lock();
        mem::replace(&mut contents.submitted, Ok(()))?;
        contents.copied.as_ref().map_or(Ok(()), wait_by_looking)
    }
}
