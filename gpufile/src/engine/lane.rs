//! Two bounce buffers and a stream: while the GPU copies one, the file's side works on the other.

use std::ops::Range;
use std::slice;
use std::sync::Arc;

use cufile::cuda::{Device, Event, Stream};

use super::bounce::Bounce;
use super::copies::{Copies, wait_by_looking};
use super::job::Job;
use super::plan::{Plan, Segment};
use super::pool::Reports;
use super::transfer::{Side, Transfer};
use crate::error::Cause;
use crate::memory::Place;
use crate::open_file::{OpenFile, Outcome, read_cufile};

/// Two bounce buffers, used in turn, and the stream that copies between them and one GPU. For host memory there is no
/// stream, and a bounce buffer only where `O_DIRECT` needs one.
pub(crate) struct Lane {
    place: Place,
    stream: Option<Stream>,
    slots: [Slot; 2],
    /// The slot to be used next, which is the one used longest ago.
    next: usize,
    copies: Copies,
    segments: Vec<Segment<'static>>,
}

// SAFETY: what keeps a lane from being sent by itself are pointers in `copies` and `segments`, which are empty between
// calls, and those of buffers that belong to the lane.
unsafe impl Send for Lane {}

struct Slot {
    bounce: Bounce,
    /// Marks the end of the copies from or to the bounce buffer.
    copied: Option<Event>,
    pending: Option<Pending>,
    /// The writes to files that are due when the copies are done.
    writes: Vec<Write>,
}

struct Pending {
    job: Arc<Job>,
    chunk: usize,
    stop: ChunkStop,
}

/// The number of bytes of a chunk that were transferred and what failed, if not all were; see
/// [`Job::complete`].
type ChunkStop = Option<(usize, Option<Cause>)>;

/// A range of a file whose bytes lie in a bounce buffer.
struct Write {
    file: *const OpenFile,
    offset: u64,
    bounce: Range<usize>,
    /// The number of bytes of the chunk before this range.
    before_bytes: usize,
}

impl Lane {
    pub fn on_host(bounces: [Bounce; 2]) -> Self {
        Self::new(Place::Host, None, [None, None], bounces)
    }

    /// # Errors
    /// The error that CUDA returned.
    pub fn on_device(device: &Device, bounces: [Bounce; 2]) -> cufile::Result<Self> {
        let place = Place::Device(device.ordinal());
        let events = [Some(device.event()?), Some(device.event()?)];
        Ok(Self::new(place, Some(device.stream()?), events, bounces))
    }

    fn new(
        place: Place,
        stream: Option<Stream>,
        events: [Option<Event>; 2],
        [one, other]: [Bounce; 2],
    ) -> Self {
        let [first, second] = events;
        let slots = [(one, first), (other, second)].map(|(bounce, copied)| Slot {
            bounce,
            copied,
            pending: None,
            writes: Vec::new(),
        });
        Self { place, stream, slots, next: 0, copies: Copies::default(), segments: Vec::new() }
    }

    /// The bounce buffers, for a lane of another place.
    pub fn into_bounces(self) -> [Bounce; 2] {
        debug_assert!(!self.is_busy(), "a lane is finished before it goes");
        self.slots.map(|slot| slot.bounce)
    }

    pub fn place(&self) -> Place {
        self.place
    }

    /// Returns whether chunks were begun and not completed.
    pub fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| slot.pending.is_some())
    }

    /// Returns the number of bytes of memory that the bounce buffers take.
    pub fn bounce_bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.bounce.allocated_bytes()).sum()
    }

    /// Reads a small range to device memory, and returns when it is there. Nothing may be under way.
    ///
    /// # Safety
    /// `target` must be `len_bytes` of this lane's device that nothing else uses; no more than a bounce buffer has.
    pub unsafe fn read_small(
        &mut self,
        file: &OpenFile,
        target: *mut u8,
        len_bytes: usize,
        offset: u64,
    ) -> Outcome {
        debug_assert!(!self.is_busy());
        let bounce = &mut self.slots[self.next].bounce;
        let Some(stream) = &self.stream else { unreachable!("a lane on a device") };
        if let Err(error) = bounce.pin(stream.device()) {
            return (0, Some(error.into()));
        }
        // SAFETY: the bounce buffer is long enough, and nothing uses it.
        let (done, cause) = unsafe { file.read_rest(bounce.ptr(), len_bytes, offset, 0) };
        if done == 0 {
            return (done, cause);
        }
        // SAFETY: as many bytes were read.
        let source = unsafe { slice::from_raw_parts(bounce.ptr(), done) };
        // SAFETY: the caller's promise, until the stream has been waited for.
        let copied = unsafe { stream.copy_to_device(target, source) };
        match stream.synchronize().and(copied) {
            Ok(()) => (done, cause),
            Err(error) => (0, Some(error.into())),
        }
    }

    /// Begins a chunk that was handed out, after completing what used the same bounce buffer.
    pub fn start(&mut self, job: &Arc<Job>, chunk: usize, reports: &mut Reports<'_>) {
        let slot = self.next;
        self.finish(slot, reports);
        // SAFETY: the chunk was handed out and is completed below or in `finish`.
        let (transfer, plan) = unsafe { job.work() };
        let stop = match (&self.stream, transfer.is_read()) {
            (None, true) => self.read_host(slot, transfer, plan, chunk),
            (None, false) => self.write_host(slot, transfer, plan, chunk),
            (Some(_), true) => self.fill(slot, transfer, plan, chunk),
            (Some(_), false) => self.fetch(slot, transfer, plan, chunk),
        };
        self.copies.clear();
        match stop {
            Started::Done(stop) => {
                reports.completed(job, chunk, stop);
                // Its copies, which began before this chunk, have most likely ended.
                self.finish(1 - slot, reports);
            }
            Started::Copying(stop) => {
                self.slots[slot].pending = Some(Pending { job: job.clone(), chunk, stop });
                self.next = 1 - slot;
            }
        }
    }

    /// Takes the next chunk of a serial job of which the lane has the one before under way.
    pub fn take_next(&self) -> Option<(Arc<Job>, usize)> {
        let Pending { job, chunk, .. } = self.slots[1 - self.next].pending.as_ref()?;
        Some((job.clone(), job.take_after(*chunk)?))
    }

    /// Completes the chunk that was begun first of those under way.
    pub fn finish_oldest(&mut self, reports: &mut Reports<'_>) {
        let slot = if self.slots[self.next].pending.is_some() { self.next } else { 1 - self.next };
        self.finish(slot, reports);
    }

    pub fn finish_all(&mut self, reports: &mut Reports<'_>) {
        while self.is_busy() {
            self.finish_oldest(reports);
        }
    }

    fn finish(&mut self, slot: usize, reports: &mut Reports<'_>) {
        let Some(Pending { job, chunk, stop }) = self.slots[slot].pending.take() else { return };
        let copied = self.wait_for_copies(slot);
        let stop = match copied {
            Err(error) => Some((0, Some(error.into()))),
            Ok(()) if job.is_stopped_before(chunk) => None,
            Ok(()) => {
                // SAFETY: the chunk is completed at the end.
                let (transfer, plan) = unsafe { job.work() };
                let last = chunk + 1 == plan.chunks();
                // What is left to write comes before what stopped the chunk when it was begun.
                write_out(&mut self.slots[slot], &transfer.side, last).or(stop)
            }
        };
        self.slots[slot].writes.clear();
        reports.completed(&job, chunk, stop);
    }

    fn wait_for_copies(&self, slot: usize) -> cufile::Result<()> {
        let Some(copied) = &self.slots[slot].copied else { return Ok(()) };
        let waited = wait_by_looking(copied);
        if let (Err(_), Some(stream)) = (&waited, &self.stream) {
            // Whatever failed: no copy may go on when the memory goes back to its owner.
            let _ = stream.synchronize();
        }
        waited
    }

    /// Reads a chunk into the bounce buffer and lets the GPU copy it to where it belongs.
    fn fill(&mut self, slot: usize, transfer: &Transfer<'_>, plan: &Plan, chunk: usize) -> Started {
        let Lane { stream, slots, copies, segments, .. } = self;
        let Slot { bounce, copied, .. } = &mut slots[slot];
        let (Some(stream), Some(copied)) = (stream, copied) else { unreachable!("a lane on a device") };
        let stop = match &transfer.side {
            Side::ReadMapping(mapping) => {
                if let Err(error) = bounce.pin(stream.device()) {
                    return Started::Done(Some((0, Some(error.into()))));
                }
                let (mut at, base) = (0, transfer.entries.memory(0).base());
                let place = |segment: &Segment<'_>| {
                    // SAFETY: a chunk has no more bytes than a bounce buffer, which nothing uses now.
                    let target = unsafe { bounce.ptr().add(at) };
                    copies.push(base, segment.ptr, target, segment.len_bytes);
                    at += segment.len_bytes;
                    target
                };
                // SAFETY: as above; the ranges were checked against the mapping.
                unsafe { mapping.read(|| plan.segments(transfer, chunk), place) };
                None
            }
            _ => read_segments(transfer, plan, chunk, segments, (bounce, stream.device()), copies),
        };
        if copies.is_empty() {
            return Started::Done(stop);
        }
        // SAFETY: the transfer holds its memory alone until the chunk is completed, which is after the event.
        let issued = unsafe { copies.issue_to_device(stream) }.and_then(|()| stream.record_into(copied));
        issued_or_stopped(issued, stop, stream)
    }

    /// Lets the GPU copy a chunk into the bounce buffer, from where [`finish`](Self::finish) writes it.
    fn fetch(&mut self, slot: usize, transfer: &Transfer<'_>, plan: &Plan, chunk: usize) -> Started {
        let Lane { stream, slots, copies, segments, .. } = self;
        let Slot { bounce, copied, writes, .. } = &mut slots[slot];
        let (Some(stream), Some(copied)) = (stream, copied) else { unreachable!("a lane on a device") };
        collect(transfer, plan, chunk, segments);
        let (mut end, mut bytes, mut stop) = (0, 0, None);
        let mut behind_bytes = run_bytes(segments);
        'runs: for run in runs(segments) {
            let (file, offset, len_bytes) = (run[0].file, run[0].offset, run_bytes(run));
            behind_bytes -= len_bytes;
            if let Some(handle) = file.cufile(len_bytes) {
                for segment in run {
                    let memory = transfer.entries.memory(segment.entry).part(segment.ptr, segment.len_bytes);
                    let (done, cause) = file.write_cufile(handle, &memory, segment.offset);
                    bytes += done;
                    if done < segment.len_bytes {
                        stop = Some((bytes, cause));
                        break 'runs;
                    }
                }
                continue;
            }
            if let Err(error) = bounce.pin(stream.device()) {
                stop = Some((bytes, Some(error.into())));
                break;
            }
            let start = file.place_for_write(end, offset, len_bytes, bounce.len_bytes() - behind_bytes);
            end = start + len_bytes;
            let mut at = start;
            for segment in run {
                let base = transfer.entries.memory(segment.entry).base();
                // SAFETY: the bounce buffer has room for a chunk and the gaps that alignment takes.
                copies.push(base, segment.ptr, unsafe { bounce.ptr().add(at) }, segment.len_bytes);
                at += segment.len_bytes;
            }
            writes.push(Write { file, offset, bounce: start..end, before_bytes: bytes });
            bytes += len_bytes;
        }
        segments.clear();
        if copies.is_empty() {
            return Started::Done(stop);
        }
        // SAFETY: the transfer holds its memory until the chunk is completed, which is after the event.
        let issued = unsafe { copies.issue_to_host(stream) }.and_then(|()| stream.record_into(copied));
        if issued.is_err() {
            writes.clear();
        }
        issued_or_stopped(issued, stop, stream)
    }

    fn read_host(&mut self, slot: usize, transfer: &Transfer<'_>, plan: &Plan, chunk: usize) -> Started {
        if let Side::ReadMapping(mapping) = &transfer.side {
            // SAFETY: the ranges were checked against the mapping; the memory is the transfer's.
            unsafe { mapping.read(|| plan.segments(transfer, chunk), |segment| segment.ptr) };
            return Started::Done(None);
        }
        let bounce = &mut self.slots[slot].bounce;
        let mut bytes = 0;
        for segment in plan.segments(transfer, chunk) {
            // SAFETY: host memory that the transfer holds alone.
            let (done, cause) =
                unsafe { segment.file.read_host(segment.ptr, segment.len_bytes, segment.offset, bounce) };
            bytes += done;
            if done < segment.len_bytes {
                return Started::Done(Some((bytes, cause)));
            }
        }
        Started::Done(None)
    }

    fn write_host(&mut self, slot: usize, transfer: &Transfer<'_>, plan: &Plan, chunk: usize) -> Started {
        let bounce = &mut self.slots[slot].bounce;
        let last = chunk + 1 == plan.chunks();
        let mut bytes = 0;
        for segment in plan.segments(transfer, chunk) {
            let (ptr, len_bytes) = (segment.ptr.cast_const(), segment.len_bytes);
            // SAFETY: host memory that the transfer holds.
            let (done, cause) = unsafe {
                segment.file.write_host(&transfer.side, last, ptr, len_bytes, segment.offset, bounce)
            };
            bytes += done;
            if done < len_bytes {
                return Started::Done(Some((bytes, cause)));
            }
        }
        Started::Done(None)
    }
}

/// The state of a chunk that was begun.
enum Started {
    /// The chunk is completed.
    Done(ChunkStop),
    /// The chunk will be completed when the copies are done.
    Copying(ChunkStop),
}

fn issued_or_stopped(issued: cufile::Result<()>, stop: ChunkStop, stream: &Stream) -> Started {
    match issued {
        Ok(()) => Started::Copying(stop),
        Err(error) => {
            // Some of the copies may be under way.
            let _ = stream.synchronize();
            Started::Done(Some((0, Some(error.into()))))
        }
    }
}

/// Reads a chunk into the bounce buffer, neighbours of the file together, and notes what is to be copied where. What
/// cuFile moves itself needs no copy.
fn read_segments(
    transfer: &Transfer<'_>,
    plan: &Plan,
    chunk: usize,
    segments: &mut Vec<Segment<'static>>,
    (bounce, device): (&mut Bounce, &Device),
    copies: &mut Copies,
) -> ChunkStop {
    collect(transfer, plan, chunk, segments);
    let (mut end, mut bytes, mut stop) = (0, 0, None);
    let mut behind_bytes = run_bytes(segments);
    'runs: for run in runs(segments) {
        let (file, offset, len_bytes) = (run[0].file, run[0].offset, run_bytes(run));
        behind_bytes -= len_bytes;
        if let Some(handle) = file.cufile(len_bytes) {
            for segment in run {
                let mut memory = transfer.entries.memory(segment.entry).part(segment.ptr, segment.len_bytes);
                let (done, cause) = read_cufile(handle, &mut memory, segment.offset);
                bytes += done;
                if done < segment.len_bytes {
                    stop = Some((bytes, cause));
                    break 'runs;
                }
            }
            continue;
        }
        if let Err(error) = bounce.pin(device) {
            stop = Some((bytes, Some(error.into())));
            break;
        }
        let read = file.read_staged(bounce, end, offset, len_bytes, behind_bytes);
        let (mut at, mut left) = (read.start, read.done);
        for segment in run {
            let some = segment.len_bytes.min(left);
            let base = transfer.entries.memory(segment.entry).base();
            // SAFETY: within what was read.
            copies.push(base, segment.ptr, unsafe { bounce.ptr().add(at) }, some);
            (at, left) = (at + some, left - some);
        }
        bytes += read.done;
        if read.done < len_bytes {
            stop = Some((bytes, read.cause));
            break;
        }
        end = at;
    }
    segments.clear();
    stop
}

/// Writes what lies in the bounce buffer to its files.
fn write_out(slot: &mut Slot, side: &Side, last: bool) -> ChunkStop {
    for Write { file, offset, bounce, before_bytes } in &slot.writes {
        // SAFETY: a file lives as long as the job that uses it.
        let file = unsafe { &**file };
        // SAFETY: the copies into the bounce buffer have ended.
        let source = unsafe { slice::from_raw_parts(slot.bounce.ptr().add(bounce.start), bounce.len()) };
        let (done, cause) = file.write_staged(side, last, source, *offset);
        if done < source.len() {
            return Some((before_bytes + done, cause));
        }
    }
    None
}

/// The segments of a chunk, in `segments`, whose lifetime ends when it is cleared.
fn collect(transfer: &Transfer<'_>, plan: &Plan, chunk: usize, segments: &mut Vec<Segment<'static>>) {
    segments.clear();
    segments.extend(plan.segments(transfer, chunk).map(|segment| {
        // SAFETY: only the lifetime changes; the caller clears the list before the chunk is completed.
        unsafe { std::mem::transmute::<Segment<'_>, Segment<'static>>(segment) }
    }));
}

/// Segments that follow each other in one file, together.
fn runs<'s>(segments: &'s [Segment<'static>]) -> impl Iterator<Item = &'s [Segment<'static>]> {
    segments.chunk_by(|one, next| {
        std::ptr::eq(one.file, next.file) && next.offset == one.offset + one.len_bytes as u64
    })
}

fn run_bytes(run: &[Segment<'_>]) -> usize {
    run.iter().map(|segment| segment.len_bytes).sum()
}
