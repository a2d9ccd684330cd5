//! The reads and copies of a load to several GPUs, in flight while the next ones are planned.

use std::collections::VecDeque;
use std::mem;
use std::ops::ControlFlow;

use cufile::OwnedPart;

use super::arrange::{Arrangement, Move, Parts};
use super::files::ModelFiles;
use super::links::Links;
use super::load::Progress;
use crate::cuda::{Device, DeviceBuffer};
use crate::formats::error::of_entry;
use crate::formats::memory::allocate;
use crate::formats::{Error, Result};
use crate::{IoFuture, OwnedRequest};

/// The callback of a load.
pub(super) type Watcher<'a> = Box<dyn FnMut(Progress) -> ControlFlow<()> + 'a>;

/// The buffer of a GPU while it is filled, from its start to its end.
pub(super) struct Filling {
    /// The bytes behind those that were taken. This part keeps the buffer alive.
    rest: Option<OwnedPart<DeviceBuffer>>,
    /// The start of the rest in the buffer, in bytes.
    taken: usize,
    /// The address of the buffer.
    start: *mut u8,
}

// SAFETY: the address is used only by CUDA, which any thread may call.
unsafe impl Send for Filling {}

impl Filling {
    /// Allocates a buffer for each GPU.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn allocate(model: &ModelFiles, devices: &[Device], arrangement: &Arrangement) -> Result<Vec<Self>> {
        let one = |(device, parts): (&Device, &Parts)| {
            let mut buffer = allocate(&model.path, device, parts.len_bytes)?;
            let start = buffer.as_mut_ptr();
            Ok(Self { rest: Some(OwnedPart::new(buffer)), taken: 0, start })
        };
        devices.iter().zip(&arrangement.gpus).map(one).collect()
    }

    /// Takes the bytes from `at` to `at + len_bytes`, which lie behind those taken before.
    fn take(&mut self, at: usize, len_bytes: usize) -> OwnedPart<DeviceBuffer> {
        let rest = self.rest.take().expect("each call leaves a rest");
        let (_, rest) = rest.split_at(at - self.taken);
        let (taken, rest) = rest.split_at(len_bytes);
        (self.rest, self.taken) = (Some(rest), at + len_bytes);
        taken
    }

    /// Returns the buffer when all reads into it have ended.
    pub fn into_buffer(self) -> DeviceBuffer {
        let rest = self.rest.expect("each call leaves a rest");
        rest.into_whole().expect("ended reads gave their parts back")
    }
}

/// A copy to another GPU. The GPUs are positions in the list.
struct PeerCopy {
    from: (usize, *const u8),
    to: (usize, *mut u8),
    len_bytes: usize,
}

// SAFETY: the addresses are used only by CUDA, which any thread may call.
unsafe impl Send for PeerCopy {}

/// Reads of several GPUs, and the copies of what they read.
#[derive(Default)]
struct Batch {
    requests: Vec<OwnedRequest<OwnedPart<DeviceBuffer>>>,
    copies: Vec<PeerCopy>,
    /// The number of bytes that each GPU reads.
    loads: Vec<usize>,
}

/// A batch in flight.
struct Started {
    future: IoFuture<Vec<OwnedRequest<OwnedPart<DeviceBuffer>>>>,
    copies: Vec<PeerCopy>,
    len_bytes: u64,
}

/// The reads and copies of a load. A batch is read while those before it are copied to other GPUs, and the next one
/// waits behind it for the workers.
///
/// Dropping it ends the reads, and waits for those that workers have begun and for the copies.
pub(super) struct Flow<'a> {
    model: &'a ModelFiles,
    in_flight: VecDeque<Started>,
    pub links: Links,
    watch: Option<Watcher<'a>>,
    progress: Progress,
    /// The numbers of batches that were started, and that were read.
    started: u64,
    read: u64,
}

impl<'a> Flow<'a> {
    /// The most bytes of a batch for each GPU, except for one more read.
    const BATCH_BYTES: usize = 256 << 20;
    /// The most reads of a batch. Each takes about 200 bytes of host memory.
    const BATCH_READS: usize = 1 << 18;
    /// The most batches in flight.
    const AT_ONCE: usize = 2;

    pub fn new(model: &'a ModelFiles, links: Links, watch: Option<Watcher<'a>>) -> Self {
        let progress = Progress { done_bytes: 0, total_bytes: 0 };
        Self { model, in_flight: VecDeque::new(), links, watch, progress, started: 0, read: 0 }
    }

    /// Adds to the number of bytes to read that the callback gets.
    pub fn expect(&mut self, len_bytes: u64) {
        self.progress.total_bytes += len_bytes;
    }

    /// Starts the reads of an arrangement. Returns the number of batches started so far, for [`finish`](Self::finish).
    ///
    /// # Errors
    /// The errors of [`finish`](Self::finish), for earlier batches.
    pub fn start(&mut self, arrangement: &Arrangement, buffers: &mut [Filling]) -> Result<u64> {
        let gpus = buffers.len();
        let fresh = || Batch { loads: vec![0; gpus], ..Batch::default() };
        let mut batch = fresh();
        let (catalog, groups) = (self.model.catalog.clone(), self.links.groups.clone());
        arrangement.moves(&catalog, &groups, |step| {
            match step {
                Move::Read { file, offset, gpu, at, len } => {
                    // The copies of the last read belong to the same batch.
                    if batch.requests.len() >= Self::BATCH_READS
                        || batch.loads.iter().any(|load| *load >= Self::BATCH_BYTES)
                    {
                        self.submit(mem::replace(&mut batch, fresh()))?;
                    }
                    let file = self.model.files[file as usize].clone();
                    batch.requests.push(OwnedRequest { file, offset, buffer: buffers[gpu].take(at, len) });
                    batch.loads[gpu] += len;
                }
                Move::Copy { from, to, len } => batch.copies.push(PeerCopy {
                    from: (from.0, buffers[from.0].start.wrapping_add(from.1)),
                    to: (to.0, buffers[to.0].start.wrapping_add(to.1)),
                    len_bytes: len,
                }),
            }
            Ok::<(), Error>(())
        })?;
        self.submit(batch)?;
        Ok(self.started)
    }

    /// Waits until the first `batches` batches are read and copied.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::PeerCopy`], [`Error::Cancelled`].
    pub fn finish(&mut self, batches: u64) -> Result<()> {
        while self.read < batches {
            self.finish_oldest()?;
        }
        self.links.wait(&self.model.path)
    }

    fn submit(&mut self, Batch { requests, copies, loads }: Batch) -> Result<()> {
        let Some(first) = requests.first() else { return Ok(()) };
        while self.in_flight.len() >= Self::AT_ONCE {
            self.finish_oldest()?;
        }
        let engine = first.file.engine().clone();
        let len_bytes = loads.iter().map(|load| *load as u64).sum();
        let future = engine.read_many_async(requests);
        self.in_flight.push_back(Started { future, copies, len_bytes });
        self.started += 1;
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<()> {
        let Some(Started { future, copies, len_bytes }) = self.in_flight.pop_front() else { return Ok(()) };
        let (outcome, requests) = future.wait();
        drop(requests);
        outcome.map_err(of_entry)?;
        self.read += 1;
        for PeerCopy { from, to, len_bytes } in copies {
            // SAFETY: the source was read, and nothing writes it again. The target lies between the parts that were
            // taken from its buffer, so no read has it. The buffers outlive the flow or a call of `finish`, whichever
            // ends first, and both wait for the copy.
            unsafe { self.links.copy(&self.model.path, from, to, len_bytes) }?;
        }
        self.progress.done_bytes += len_bytes;
        match self.watch.as_mut().map(|watch| watch(self.progress)) {
            Some(ControlFlow::Break(())) => Err(Error::Cancelled { path: self.model.path.clone() }),
            _ => Ok(()),
        }
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        for batch in self.in_flight.drain(..) {
            // The caller has the error of an earlier batch, or does not want the rest.
            let _ = batch.future.cancel();
        }
    }
}
