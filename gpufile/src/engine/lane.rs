//! Two bounce buffers. While the GPU copies one of them, the file's side works on the other.

use std::ops::Range;
use std::sync::Arc;
use std::{iter, ptr, slice};

use cufile::cuda::{Device, Event, Stream};

use super::buffers::{Buffers, Contents};
use super::job::Claim;
use super::queue::Reports;
use super::submitter::Submitter;
use super::transfer::Segment;
use crate::bounce::Bounce;
use crate::gpus::Gpus;
use crate::memory::Place;
use crate::open_file::{Mapping, Method, OpenFile, Span, read_cufile};
use crate::outcome::{Outcome, Stop, done_bytes};

/// Two bounce buffers, used in turn, and the streams that copy between them and one GPU. For host memory
/// there are no streams, and a bounce buffer only where `O_DIRECT` needs one.
pub(crate) struct Lane {
    place: Place,
    streams: Option<LaneStreams>,
    slots: [Slot; 2],
    /// The slot to be used next, which is the one used longest ago.
    next: usize,
}

/// The streams of a lane for device memory.
struct LaneStreams {
    /// For writes, and for small reads, which thus wait for no other lane's copies.
    own: Stream,
    /// For reads. All lanes of the GPU share it.
    shared: Arc<Submitter>,
}

impl LaneStreams {
    /// Waits for all work in these streams, which may be that of other lanes.
    fn synchronize(&self) -> cufile::Result<()> {
        self.own.synchronize().and(self.shared.streams.synchronize())
    }
}

struct Slot {
    buffers: Arc<Buffers>,
    pending: Option<Pending>,
    /// The writes to files that are due when the copies are done.
    writes: Vec<Write>,
}

/// A chunk whose copies are in flight.
struct Pending {
    claim: Claim,
    /// The outcome of the work at the beginning of the chunk.
    outcome: Outcome,
}

/// A range of an entry's file whose bytes lie in a bounce buffer.
struct Write {
    entry: usize,
    offset: u64,
    bounce: Range<usize>,
    /// The number of bytes of the chunk before this range.
    before_bytes: usize,
}

impl Lane {
    pub fn on_host(gpus: Arc<Gpus>, bounces: [Bounce; 2]) -> Self {
        Self::new(Place::Host, None, gpus, [None, None], bounces)
    }

    /// Returns a lane for device memory, whose reads are submitted by `shared`.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn on_device(
        device: &Device,
        shared: Arc<Submitter>,
        gpus: Arc<Gpus>,
        bounces: [Bounce; 2],
    ) -> cufile::Result<Self> {
        let place = Place::Device(device.ordinal());
        let events = [Some(device.event()?), Some(device.event()?)];
        let streams = LaneStreams { own: device.stream()?, shared };
        Ok(Self::new(place, Some(streams), gpus, events, bounces))
    }

    fn new(
        place: Place,
        streams: Option<LaneStreams>,
        gpus: Arc<Gpus>,
        events: [Option<Event>; 2],
        [one, other]: [Bounce; 2],
    ) -> Self {
        let [first, second] = events;
        let slots = [(one, first), (other, second)].map(|(bounce, copied)| Slot {
            buffers: Arc::new(Buffers::new(bounce, gpus.clone(), copied)),
            pending: None,
            writes: Vec::new(),
        });
        Self { place, streams, slots, next: 0 }
    }

    pub fn place(&self) -> Place {
        self.place
    }

    /// Returns whether the lane has chunks that were begun and not completed.
    pub fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| slot.pending.is_some())
    }

    /// Returns the number of bytes of memory that the bounce buffers and the staging buffers take.
    pub fn buffer_bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.buffers.allocated_bytes()).sum()
    }

    /// Reads a small range to device memory, and waits until it is there. The lane must have nothing in
    /// flight.
    ///
    /// # Safety
    /// `target` must point to `len_bytes` bytes of memory on this lane's device, which nothing else uses. A
    /// bounce buffer must have room for as many bytes.
    pub unsafe fn read_small(
        &mut self,
        file: &OpenFile,
        target: *mut u8,
        len_bytes: usize,
        offset: u64,
    ) -> Outcome {
        debug_assert!(!self.is_busy());
        let bounce = &mut self.slots[self.next].buffers.lock().bounce;
        let Some(LaneStreams { own: stream, .. }) = &self.streams else { unreachable!("a lane on a device") };
        bounce.pin(stream.device()).map_err(|error| Stop::failed(0, error))?;
        // SAFETY: the bounce buffer is long enough, and nothing uses it.
        let outcome = unsafe { file.read_rest(bounce.ptr(), len_bytes, offset, 0) };
        let done = done_bytes(&outcome, len_bytes);
        if done == 0 {
            return outcome;
        }
        // SAFETY: the file's side has read as many bytes.
        let source = unsafe { slice::from_raw_parts(bounce.ptr(), done) };
        // SAFETY: the caller promises that the memory is valid and unused. The next line waits for the
        // stream.
        let copied = unsafe { stream.copy_to_device(target, source) };
        stream.synchronize().and(copied).map_err(|error| Stop::failed(0, error))?;
        outcome
    }

    /// Completes the chunk that used the same bounce buffer, and then begins this one.
    pub fn start(&mut self, claim: Claim, reports: &mut Reports<'_>) {
        let slot = self.next;
        self.finish(slot, reports);
        let outcome = match (&self.streams, claim.method().is_read()) {
            (None, true) => self.read_to_host(slot, &claim),
            (None, false) => self.write_from_host(slot, &claim),
            (Some(_), true) => self.read_to_bounce(slot, &claim),
            (Some(_), false) => self.copy_to_bounce(slot, &claim),
        };
        if self.submit_copies(slot, &claim) {
            self.slots[slot].pending = Some(Pending { claim, outcome });
            self.next = 1 - slot;
            if !self.slots[slot].buffers.have_failed() {
                return;
            }
            self.finish(slot, reports);
        } else {
            reports.completed(claim, outcome);
        }
        // The other slot's copies began before this chunk, so they have most likely ended.
        self.finish(1 - slot, reports);
    }

    /// Claims the next chunk of a serial job, if the lane has the chunk before it in flight.
    pub fn claim_next(&self) -> Option<Claim> {
        self.slots[1 - self.next].pending.as_ref()?.claim.next()
    }

    /// Completes the oldest of the chunks in flight.
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
        let Some(Pending { claim, outcome }) = self.slots[slot].pending.take() else { return };
        let outcome = match self.wait_for_copies(slot) {
            Err(error) => Err(Stop::failed(0, error)),
            Ok(()) if claim.is_stopped_before() => Ok(()),
            // If the chunk stopped at its beginning, the bytes in the bounce buffer come before that stop.
            Ok(()) => write_out(&mut self.slots[slot], &claim).and(outcome),
        };
        self.slots[slot].writes.clear();
        reports.completed(claim, outcome);
    }

    fn wait_for_copies(&self, slot: usize) -> cufile::Result<()> {
        let waited = self.slots[slot].buffers.wait();
        if let (Err(_), Some(streams)) = (&waited, &self.streams) {
            // Whatever failed, no copy may still run when the memory goes back to its owner.
            let _ = streams.synchronize();
        }
        waited
    }

    /// Submits the noted copies, or has them submitted. Returns whether there are any.
    fn submit_copies(&mut self, slot: usize, claim: &Claim) -> bool {
        let Lane { streams, slots, .. } = self;
        let buffers = &slots[slot].buffers;
        let mut contents = buffers.lock();
        if contents.copies.is_empty() {
            return false;
        }
        let Some(streams) = streams else { unreachable!("a lane on a device") };
        contents.prepare(streams.own.device());
        let is_read = claim.method().is_read();
        if is_read && is_limited_by_link(claim) {
            contents.demote();
        }
        drop(contents);
        // SAFETY: the claim keeps the transfer's memory until the chunk is completed, which is after the copies. A
        // read has exclusive use of that memory. The lane uses the buffers again only when the copies have ended.
        unsafe {
            match is_read {
                true => streams.shared.submit(buffers),
                false => buffers.submit_to_host(&streams.own),
            }
        }
        true
    }

    /// Reads a chunk into the bounce buffer, and notes the copies from there to the device memory.
    fn read_to_bounce(&mut self, slot: usize, claim: &Claim) -> Outcome {
        let Lane { streams, slots, .. } = self;
        let Contents { bounce, copies, .. } = &mut *slots[slot].buffers.lock();
        let Some(LaneStreams { own: stream, .. }) = streams else { unreachable!("a lane on a device") };
        if let Method::ReadMapping(mapping) = claim.method() {
            bounce.pin(stream.device()).map_err(|error| Stop::failed(0, error))?;
            let start = bounce.ptr();
            let spans = claim.segments().scan(start, |target, segment| {
                let span = Span { ptr: *target, ..segment.span() };
                *target = target.wrapping_add(segment.len_bytes);
                Some(span)
            });
            // SAFETY: a chunk has no more bytes than a bounce buffer, which nothing else uses.
            let outcome = unsafe { read_mapped(mapping, claim, spans) };
            let (mut at, mut left) = (start, done_bytes(&outcome, usize::MAX));
            for segment in claim.segments() {
                let some = segment.len_bytes.min(left);
                copies.push(claim.memory(segment.entry), segment.ptr, at, some);
                (at, left) = (at.wrapping_add(some), left - some);
            }
            return outcome;
        }
        let (mut end, mut bytes) = (0, 0);
        let mut behind_bytes = claim.segments().map(|segment| segment.len_bytes).sum();
        for run in adjacent(claim.segments()) {
            let Run { file, offset, len_bytes, .. } = run;
            behind_bytes -= len_bytes;
            if let Some(handle) = file.cufile(len_bytes) {
                for segment in run.segments() {
                    let mut memory = claim.memory(segment.entry).part(segment.ptr, segment.len_bytes);
                    read_cufile(handle, &mut memory, segment.offset).map_err(|stop| stop.after(bytes))?;
                    bytes += segment.len_bytes;
                }
                continue;
            }
            bounce.pin(stream.device()).map_err(|error| Stop::failed(bytes, error))?;
            let read = file.read_to_bounce(bounce, end, offset, len_bytes, behind_bytes);
            let (mut at, mut left) = (read.start, done_bytes(&read.outcome, len_bytes));
            for segment in run.segments() {
                let some = segment.len_bytes.min(left);
                let memory = claim.memory(segment.entry);
                // SAFETY: `at` lies within the bytes that were read.
                copies.push(memory, segment.ptr, unsafe { bounce.ptr().add(at) }, some);
                (at, left) = (at + some, left - some);
            }
            read.outcome.map_err(|stop| stop.after(bytes))?;
            bytes += len_bytes;
            end = at;
        }
        Ok(())
    }

    /// Notes the copies of a chunk into the bounce buffer. Also notes the writes from there, which
    /// [`finish`](Self::finish) carries out.
    fn copy_to_bounce(&mut self, slot: usize, claim: &Claim) -> Outcome {
        let Lane { streams, slots, .. } = self;
        let Slot { buffers, writes, .. } = &mut slots[slot];
        let Contents { bounce, copies, .. } = &mut *buffers.lock();
        let Some(LaneStreams { own: stream, .. }) = streams else { unreachable!("a lane on a device") };
        let (mut end, mut bytes) = (0, 0);
        let mut behind_bytes: usize = claim.segments().map(|segment| segment.len_bytes).sum();
        for run in adjacent(claim.segments()) {
            let Run { file, entry, offset, len_bytes, .. } = run;
            behind_bytes -= len_bytes;
            if let Some(handle) = file.cufile(len_bytes) {
                for segment in run.segments() {
                    let memory = claim.memory(segment.entry).part(segment.ptr, segment.len_bytes);
                    let outcome = file.write_cufile(handle, &memory, segment.offset);
                    outcome.map_err(|stop| stop.after(bytes))?;
                    bytes += segment.len_bytes;
                }
                continue;
            }
            bounce.pin(stream.device()).map_err(|error| Stop::failed(bytes, error))?;
            let start = file.place_for_write(end, offset, len_bytes, bounce.len_bytes() - behind_bytes);
            end = start + len_bytes;
            let mut at = start;
            for segment in run.segments() {
                let memory = claim.memory(segment.entry);
                // SAFETY: the bounce buffer has room for a chunk and the gaps that alignment takes.
                copies.push(memory, segment.ptr, unsafe { bounce.ptr().add(at) }, segment.len_bytes);
                at += segment.len_bytes;
            }
            writes.push(Write { entry, offset, bounce: start..end, before_bytes: bytes });
            bytes += len_bytes;
        }
        Ok(())
    }

    fn read_to_host(&mut self, slot: usize, claim: &Claim) -> Outcome {
        if let Method::ReadMapping(mapping) = claim.method() {
            let spans = claim.segments().map(|segment| segment.span());
            // SAFETY: this is host memory, of which the transfer has exclusive use.
            return unsafe { read_mapped(mapping, claim, spans) };
        }
        let bounce = &mut self.slots[slot].buffers.lock().bounce;
        let mut bytes = 0;
        for run in adjacent(claim.segments()) {
            let Run { file, offset, ptr, len_bytes, .. } = run;
            let spans = run.segments().map(|segment| segment.span());
            // SAFETY: this is host memory, of which the transfer has exclusive use.
            let outcome = unsafe {
                match run.count {
                    1 => file.read_to_host(ptr, len_bytes, offset, bounce),
                    _ => file.read_adjacent_to_host(spans, len_bytes, offset, bounce),
                }
            };
            outcome.map_err(|stop| stop.after(bytes))?;
            bytes += len_bytes;
        }
        Ok(())
    }

    fn write_from_host(&mut self, slot: usize, claim: &Claim) -> Outcome {
        let bounce = &mut self.slots[slot].buffers.lock().bounce;
        // SAFETY: this is host memory, which the transfer keeps.
        let mut mapped_bytes = unsafe { write_mapped(claim, claim.segments().map(|segment| segment.span())) };
        let mut bytes = mapped_bytes;
        let rest = claim.segments().filter_map(move |segment| {
            let done = mapped_bytes.min(segment.len_bytes);
            mapped_bytes -= done;
            (done < segment.len_bytes).then(|| Segment {
                offset: segment.offset + done as u64,
                ptr: segment.ptr.wrapping_add(done),
                len_bytes: segment.len_bytes - done,
                ..segment
            })
        });
        for run in adjacent(rest) {
            let Run { file, offset, ptr, len_bytes, .. } = run;
            let spans = run.segments().map(|segment| segment.span());
            // SAFETY: as above.
            let outcome = unsafe {
                match run.count {
                    1 => file.write_from_host(ptr, len_bytes, offset, bounce),
                    _ => file.write_adjacent_from_host(spans, len_bytes, offset, bounce),
                }
            };
            outcome.map_err(|stop| stop.after(bytes))?;
            bytes += len_bytes;
        }
        Ok(())
    }
}

/// Returns whether so many threads read beside this one that copies to the GPU limit the transfer. Otherwise the
/// threads do, and have no time to spare.
fn is_limited_by_link(claim: &Claim) -> bool {
    const FEWEST_THREADS: usize = 12;
    let threads = claim.segments().next().map(|segment| segment.file.settings.threads());
    !claim.is_only() && threads >= Some(FEWEST_THREADS)
}

/// Reads the spans of a chunk, which were checked against the mapping, from a mapping of its file.
///
/// # Safety
/// As for [`Mapping::read`].
unsafe fn read_mapped(
    mapping: &Mapping,
    claim: &Claim,
    spans: impl Iterator<Item = Span> + Clone,
) -> Outcome {
    let Some(first) = claim.segments().next() else { return Ok(()) };
    // SAFETY: the caller's promise.
    unsafe { first.file.read_mapped(mapping, spans) }
}

/// Writes the spans of a chunk to the mapping of its file, if there is one. The last chunk goes by a system call.
/// Returns the number of bytes written, in order.
///
/// # Safety
/// As for [`Mapping::write`].
unsafe fn write_mapped(claim: &Claim, spans: impl Iterator<Item = Span>) -> usize {
    match claim.method() {
        // SAFETY: the caller's promise.
        Method::WriteMapping(mapping) if !claim.is_last() => unsafe { mapping.write(spans) },
        _ => 0,
    }
}

/// Writes the contents of the bounce buffer to their files.
fn write_out(slot: &mut Slot, claim: &Claim) -> Outcome {
    let start = slot.buffers.lock().bounce.ptr();
    let spans = slot.writes.iter().map(|Write { offset, bounce, .. }| Span {
        offset: *offset,
        len_bytes: bounce.len(),
        ptr: start.wrapping_add(bounce.start),
    });
    // SAFETY: the copies into the bounce buffer have ended.
    let mut mapped_bytes = unsafe { write_mapped(claim, spans) };
    for Write { entry, offset, bounce, before_bytes } in &slot.writes {
        // SAFETY: as above.
        let source = unsafe { slice::from_raw_parts(start.add(bounce.start), bounce.len()) };
        let done = mapped_bytes.min(source.len());
        mapped_bytes -= done;
        if done < source.len() {
            let (file, rest) = (claim.entry(*entry).file, *offset + done as u64);
            let outcome = file.write_bytes(&source[done..], rest);
            outcome.map_err(|stop| stop.after(*before_bytes + done))?;
        }
    }
    Ok(())
}

/// A run of segments that follow each other in one file.
struct Run<'a, I> {
    file: &'a OpenFile,
    /// The entry of the first segment.
    entry: usize,
    offset: u64,
    /// The memory of the first segment.
    ptr: *mut u8,
    len_bytes: usize,
    /// The number of segments in the run, which are the first of `segments`.
    count: usize,
    segments: I,
}

impl<'a, I: Iterator<Item = Segment<'a>> + Clone> Run<'a, I> {
    fn segments(&self) -> impl Iterator<Item = Segment<'a>> {
        self.segments.clone().take(self.count)
    }
}

/// Joins segments that follow each other in one file into runs.
fn adjacent<'a, I: Iterator<Item = Segment<'a>> + Clone>(segments: I) -> impl Iterator<Item = Run<'a, I>> {
    let (mut here, mut rest) = (segments.clone(), segments);
    let mut coming = rest.next();
    iter::from_fn(move || {
        let Segment { file, entry, offset, ptr, len_bytes } = coming?;
        let mut run = Run { file, entry, offset, ptr, len_bytes, count: 1, segments: here.clone() };
        loop {
            here = rest.clone();
            coming = rest.next();
            match coming {
                Some(next) if ptr::eq(next.file, file) && next.offset == offset + run.len_bytes as u64 => {
                    run.len_bytes += next.len_bytes;
                    run.count += 1;
                }
                _ => return Some(run),
            }
        }
    })
}
