//! The reads and copies of a load to several GPUs, in flight while the next ones are planned.

use std::collections::VecDeque;
use std::iter;
use std::mem;
use std::ops::{ControlFlow, Range};

use cufile::{IoBuf, IoBufMut, OwnedPart};

use super::super::open::files::ModelFiles;
use super::arrange::{Arrangement, Move, read_bytes};
use super::layout::Layout;
use super::links::{Links, Use};
use super::placement::Share;
use super::plan::Plan;
use super::target::Target;
use crate::cuda::{Device, DeviceBuffer};
use crate::formats::error::of_entry;
use crate::formats::memory::allocate;
use crate::formats::progress::{Controller, Progress};
use crate::formats::{Error, Result};
use crate::{IoFuture, IoRange, RouteKind};

/// The buffer of a GPU while it is filled, from its start to its end.
pub(super) struct Filling {
    /// The bytes behind those that were taken. This part keeps the buffer alive.
    rest: Option<OwnedPart<DeviceBuffer>>,
    /// The start of the rest in the buffer, in bytes.
    taken: usize,
    start: *mut u8,
}

// SAFETY: the address is used only by CUDA, which any thread may call.
unsafe impl Send for Filling {}

impl Filling {
    /// Allocates a buffer for each GPU, or takes one of `reused` that is large enough. Frees the rest of them first.
    pub fn allocate<'l>(
        model: &ModelFiles,
        gpus: impl Iterator<Item = (&'l Device, &'l Layout)>,
        mut reused: Vec<DeviceBuffer>,
    ) -> Result<Vec<Self>> {
        let mut taken = Vec::new();
        for (device, layout) in gpus {
            let fits = |buffer: &DeviceBuffer| {
                buffer.device().ordinal() == device.ordinal() && buffer.len_bytes() >= layout.len_bytes
            };
            let found = reused.iter().position(fits).map(|place| reused.remove(place));
            taken.push((device, layout, found));
        }
        drop(reused);
        let filling = |(device, layout, found): (_, &Layout, Option<_>)| {
            let buffer = found.map_or_else(|| allocate(&model.path, device, layout.len_bytes), Ok)?;
            Ok(Self::new(buffer))
        };
        taken.into_iter().map(filling).collect()
    }

    fn new(mut buffer: DeviceBuffer) -> Self {
        let start = buffer.as_mut_ptr();
        Self { rest: Some(OwnedPart::new(buffer, ..)), taken: 0, start }
    }

    pub fn address(&self, at: usize) -> *mut u8 {
        self.start.wrapping_add(at)
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

/// Ranges of one file that one GPU reads, in the order of the file.
struct List {
    file: u32,
    by: usize,
    parts: Vec<Part>,
    /// Buffer offsets are addresses until the reads start.
    ranges: Vec<IoRange>,
}

struct Part {
    gpu: usize,
    place: Range<usize>,
}

/// Reads for several GPUs, and the copies of what they read.
#[derive(Default)]
pub(super) struct Batch {
    lists: Vec<List>,
    copies: Vec<PeerCopy>,
    pub ranges: usize,
    loads: Vec<usize>,
    /// The list with the last part of the buffer of each GPU.
    last: Vec<Option<usize>>,
}

impl Batch {
    pub fn new(gpus: usize) -> Self {
        Self { loads: vec![0; gpus], last: vec![None; gpus], ..Self::default() }
    }

    fn is_full(&self) -> bool {
        /// The most bytes for each GPU.
        const MOST_BYTES: usize = 256 << 20;
        const MOST_RANGES: usize = 1 << 18;
        self.ranges >= MOST_RANGES || self.loads.iter().any(|load| *load >= MOST_BYTES)
    }

    /// Adds a read by one GPU of a range of a file to the place `at` in the buffer of another, or its own. The places in a
    /// buffer come in order.
    pub fn push(
        &mut self,
        (file, file_offset): (u32, u64),
        by: usize,
        (gpu, at): (usize, usize),
        len_bytes: usize,
        buffers: &[Filling],
    ) {
        self.ranges += 1;
        self.loads[by] += len_bytes;
        let last =
            self.lists.iter().rposition(|list| list.by == by).filter(|last| self.lists[*last].file == file);
        let number = last.unwrap_or(self.lists.len());
        if last.is_none() {
            self.lists.push(List { file, by, parts: Vec::new(), ranges: Vec::new() });
        }
        let List { parts, ranges, .. } = &mut self.lists[number];
        let buffer_offset = buffers[gpu].address(at).addr();
        ranges.push(IoRange { file_offset, buffer_offset, len_bytes });
        let has_last = self.last[gpu].replace(number) == Some(number);
        match parts.iter_mut().rev().find(|part| part.gpu == gpu).filter(|_| has_last) {
            Some(part) => part.place.end = at + len_bytes,
            None => parts.push(Part { gpu, place: at..at + len_bytes }),
        }
    }

    pub fn start(self, model: &ModelFiles, buffers: &mut [Filling], devices: &[Device]) -> Started {
        let mut targets: Vec<_> = self.lists.iter().map(|_| Vec::new()).collect();
        let numbered = self.lists.iter().enumerate().flat_map(|(number, list)| {
            list.parts.iter().map(move |part| (part.gpu, part.place.start, part.place.len(), number))
        });
        let mut parts: Vec<_> = numbered.collect();
        parts.sort_unstable();
        for (gpu, at, len_bytes, number) in parts {
            targets[number].push(buffers[gpu].take(at, len_bytes));
        }
        let read = |(List { file, by, mut ranges, .. }, parts): (List, Vec<_>)| {
            let target = Target::new(parts, &devices[by]);
            let start = target.as_ptr().addr();
            ranges.iter_mut().for_each(|range| range.buffer_offset -= start);
            model.files[file as usize].read_many_async(target, ranges)
        };
        let reads = iter::zip(self.lists, targets).map(read).collect();
        let len_bytes = self.loads.iter().map(|load| *load as u64).sum();
        Started { reads, copies: self.copies, len_bytes }
    }
}

/// A batch in flight. Dropping it ends its reads, and waits for those that workers have begun.
pub(super) struct Started {
    reads: Vec<IoFuture<(Target, Vec<IoRange>)>>,
    copies: Vec<PeerCopy>,
    pub len_bytes: u64,
}

impl Started {
    /// Waits for the reads. After an error, others may be in flight.
    pub fn finish_reads(&mut self) -> Result<()> {
        while let Some(read) = self.reads.pop() {
            let (outcome, parts) = read.wait();
            drop(parts);
            outcome.map_err(of_entry)?;
        }
        Ok(())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for read in self.reads.drain(..) {
            // The caller has the error of an earlier read, or does not want the rest.
            let _ = read.cancel();
        }
    }
}

/// The reads and copies of a load. A batch is read while those before it are copied to other GPUs, and the next one
/// waits behind it for the workers.
///
/// Dropping it ends the reads, and waits for those that workers have begun and for the copies.
pub(super) struct Flow<'a> {
    model: &'a ModelFiles,
    in_flight: VecDeque<Started>,
    pub links: Links,
    watch: Option<Controller<'a>>,
    progress: Progress,
    /// The numbers of batches that were started, and that were read.
    started: u64,
    read: u64,
}

impl<'a> Flow<'a> {
    pub fn new(
        model: &'a ModelFiles,
        plan: &Plan,
        devices: &[Device],
        watch: Option<Controller<'a>>,
    ) -> Self {
        let has = |found: fn(&Share) -> bool| plan.tensors.iter().any(|(_, share)| found(share));
        // A slice of the slowest axis is one run, which its GPU reads itself.
        let shared = match has(|share| matches!(share, Share::Slice { axis: 1.., .. })) {
            true => Some(Use::ByKernels),
            false => has(|share| matches!(share, Share::All)).then_some(Use::ByCopies),
        };
        let links = Links::new(devices, shared);
        let total_bytes = read_bytes(&model.catalog, &plan.tensors, links.groups.len());
        let progress = Progress { done_bytes: 0, total_bytes };
        Self { model, in_flight: VecDeque::new(), links, watch, progress, started: 0, read: 0 }
    }

    /// Starts the reads of an arrangement. Returns the number of batches started so far, for [`finish`](Self::finish).
    ///
    /// # Errors
    /// The errors of [`finish`](Self::finish), for earlier batches.
    pub fn start(&mut self, arrangement: &Arrangement, buffers: &mut [Filling]) -> Result<u64> {
        let mut batch = Batch::new(buffers.len());
        let (catalog, groups) = (self.model.catalog.clone(), self.links.groups.clone());
        arrangement.moves(&catalog, &groups, |step| {
            match step {
                Move::Read { file, offset, by, gpu, at, len } => {
                    // The copies of the last read belong to the same batch.
                    if batch.is_full() {
                        let full = mem::replace(&mut batch, Batch::new(buffers.len()));
                        self.submit(full, buffers)?;
                    }
                    // cuFile takes addresses of one GPU.
                    let is_staged = self.model.files[file as usize].route().kind() == RouteKind::Posix;
                    let by = if is_staged { by } else { gpu };
                    batch.push((file, offset), by, (gpu, at), len, buffers);
                }
                Move::Copy { from, to, len } => batch.copies.push(PeerCopy {
                    from: (from.0, buffers[from.0].address(from.1)),
                    to: (to.0, buffers[to.0].address(to.1)),
                    len_bytes: len,
                }),
            }
            Ok::<(), Error>(())
        })?;
        self.submit(batch, buffers)?;
        Ok(self.started)
    }

    /// Waits until the first `batches` batches are read and copied.
    pub fn finish(&mut self, batches: u64) -> Result<()> {
        while self.read < batches {
            self.finish_oldest()?;
        }
        self.links.wait(&self.model.path)
    }

    fn submit(&mut self, batch: Batch, buffers: &mut [Filling]) -> Result<()> {
        const AT_ONCE: usize = 2;
        if batch.lists.is_empty() {
            return Ok(());
        }
        while self.in_flight.len() >= AT_ONCE {
            self.finish_oldest()?;
        }
        self.in_flight.push_back(batch.start(self.model, buffers, &self.links.devices));
        self.started += 1;
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<()> {
        let Some(mut batch) = self.in_flight.pop_front() else { return Ok(()) };
        batch.finish_reads()?;
        self.read += 1;
        for PeerCopy { from, to, len_bytes } in batch.copies.drain(..) {
            // SAFETY: the source was read, and nothing writes it again. No range that is read lies in the target, and no
            // other copy has it. The buffers outlive the flow or a call of `finish`, whichever ends first, and both wait
            // for the copy.
            unsafe { self.links.copy(&self.model.path, from, to, len_bytes) }?;
        }
        self.progress.done_bytes += batch.len_bytes;
        match self.watch.as_mut().map(|watch| watch(self.progress)) {
            Some(ControlFlow::Break(())) => Err(Error::Cancelled { path: self.model.path.clone() }),
            _ => Ok(()),
        }
    }
}
