//! The lane: the work of the file's side and the GPU on two bounce buffers.

use std::slice;
use std::sync::Arc;

use cufile::cuda::{Device, Event, Stream};

use super::super::device::buffers::Buffers;
use super::super::device::submitter::Submitter;
use super::file_side::{Write, note_writes, read_to_bounce, read_to_host, write_from_host, write_out};
use super::job::Claim;
use super::queue::Reports;
use crate::direction::Direction;
use crate::error::Cause;
use crate::gpu::bounce::Bounce;
use crate::gpu::gpus::Gpus;
use crate::gpu::nvtx;
use crate::memory::Place;
use crate::open_file::OpenFile;
use crate::open_file::outcome::{Outcome, Stop, done_bytes};
use crate::route::Way;

/// Two bounce buffers, used in turn, and the streams that copy between them and one GPU. Host memory needs no streams, and a
/// bounce buffer only for `O_DIRECT`.
pub(crate) struct Lane {
    place: Place,
    /// The way that transfers of host memory count as.
    host_way: Way,
    streams: Option<LaneStreams>,
    slots: [Slot; 2],
    /// The slot used longest ago.
    next: usize,
    /// True if a failed wait may have left work in flight.
    is_unsettled: bool,
}

struct LaneStreams {
    device: Device,
    /// For writes and small reads, which wait for no other lane's copies. Created when first used.
    own: Option<Stream>,
    /// For reads.
    shared: Arc<Submitter>,
}

impl LaneStreams {
    fn own(&mut self) -> cufile::Result<&Stream> {
        let own = match self.own.take() {
            Some(own) => own,
            None => self.device.stream()?,
        };
        Ok(self.own.insert(own))
    }

    /// Waits for all work in these streams, which may be that of other lanes.
    fn synchronize(&self) -> cufile::Result<()> {
        let own = self.own.as_ref().map_or(Ok(()), Stream::synchronize);
        own.and(self.shared.streams.synchronize())
    }
}

struct Slot {
    buffers: Arc<Buffers>,
    pending: Option<Pending>,
    /// The writes that are due after the copies.
    writes: Vec<Write>,
}

struct Pending {
    claim: Claim,
    /// The outcome of the work at the beginning of the chunk.
    outcome: Outcome,
}

impl Lane {
    pub fn on_host(way: Way, gpus: Arc<Gpus>, bounces: [Bounce; 2]) -> Self {
        Self { host_way: way, ..Self::new(Place::Host, None, gpus, [None, None], bounces) }
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
        let events = [Some(shared.event(device)?), Some(shared.event(device)?)];
        let streams = LaneStreams { device: device.clone(), own: None, shared };
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
        let staging = streams.as_ref().map(|streams| streams.shared.staging.clone()).unwrap_or_default();
        let slots = [(one, first), (other, second)].map(|(bounce, copied)| Slot {
            buffers: Arc::new(Buffers::new(bounce, gpus.clone(), staging.clone(), copied)),
            pending: None,
            writes: Vec::new(),
        });
        Self { place, host_way: Way::Host, streams, slots, next: 0, is_unsettled: false }
    }

    pub fn place(&self) -> Place {
        self.place
    }

    pub fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| slot.pending.is_some())
    }

    /// Returns whether other code has reset the GPU of an idle lane. Its buffers and streams then must be neither used nor
    /// freed.
    pub fn is_lost(&self) -> bool {
        self.slots.iter().any(|slot| slot.buffers.lock().bounce.is_lost())
    }

    /// Returns the submitter of a lane for device memory.
    pub fn submitter(&self) -> Option<&Arc<Submitter>> {
        self.streams.as_ref().map(|streams| &streams.shared)
    }

    /// Pins the bounce buffers of a lane for device memory.
    pub fn pin(&mut self) {
        let Some(streams) = &self.streams else { return };
        for slot in &self.slots {
            slot.buffers.lock().bounce.pin(&streams.device);
        }
    }

    pub fn pinned_bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.buffers.lock().bounce.pinned_bytes()).sum()
    }

    pub fn bounce_bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.buffers.bounce_bytes()).sum()
    }

    /// Reads a small range to device memory, and waits until it is there. The lane must have nothing in
    /// flight.
    ///
    /// # Safety
    /// `target` must point to `len_bytes` bytes of memory on this lane's device, which nothing else uses.
    pub unsafe fn read_small(
        &mut self,
        file: &OpenFile,
        target: *mut u8,
        len_bytes: usize,
        offset: u64,
    ) -> Outcome {
        assert!(!self.is_busy(), "nothing else uses the lane's buffers");
        self.settle().map_err(|error| Stop::failed(0, error))?;
        let bounce = &mut self.slots[self.next].buffers.lock().bounce;
        let Some(streams) = &mut self.streams else { unreachable!("a lane on a device") };
        let stream = streams.own().map_err(|error| Stop::failed(0, error))?;
        bounce.pin(stream.device());
        let staged = bounce.part(0, len_bytes).map_err(|error| Stop::failed(0, error))?;
        // SAFETY: `part` returned the address of `len_bytes` bytes, which nothing uses.
        let outcome = unsafe { file.read_rest(staged, len_bytes, offset, 0) };
        file.count_read(Way::BOUNCED, len_bytes, &outcome);
        let done = done_bytes(&outcome, len_bytes);
        if done == 0 {
            return outcome;
        }
        // SAFETY: the file's side has read as many bytes.
        let source = unsafe { slice::from_raw_parts(staged, done) };
        // SAFETY: the caller promises that the memory is valid and unused. The next line waits for the
        // stream.
        let copied = unsafe { stream.copy_to_device(target, source) };
        let ended = stream.synchronize();
        self.is_unsettled |= ended.is_err();
        ended.and(copied).map_err(|error| Stop::failed(0, error))?;
        outcome
    }

    /// Completes the chunk that used the same bounce buffer, and then begins this one.
    pub fn start(&mut self, claim: Claim, reports: &mut Reports<'_>) {
        let slot = self.slot_for_next();
        self.finish(slot, reports);
        if let Err(error) = self.settle() {
            return reports.completed(claim, Err(Stop::failed(0, error)));
        }
        let outcome = self.begin(slot, &claim);
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

    /// Returns the slot for the next chunk. While `PINNING` threads pin, takes the other slot if this one is not pinned,
    /// because threads pin one after the other.
    fn slot_for_next(&self) -> usize {
        /// The threads that pin at once: one pins a buffer, while another gets memory for the next.
        const PINNING: usize = 2;
        let [next, other] = [self.next, 1 - self.next].map(|slot| &self.slots[slot]);
        let is_late = next.pending.is_none() && next.buffers.lock().bounce.is_behind(PINNING);
        let has_other = || other.pending.is_some() || other.buffers.lock().bounce.is_pinned();
        if is_late && has_other() { 1 - self.next } else { self.next }
    }

    /// Does the file side's work before the copies, and notes them.
    fn begin(&mut self, slot: usize, claim: &Claim) -> Outcome {
        let _range = nvtx::range(|| text(claim));
        let Self { slots, is_unsettled, .. } = self;
        let Slot { buffers, writes, .. } = &mut slots[slot];
        let contents = &mut *buffers.lock();
        match (&mut self.streams, claim.direction()) {
            (None, Direction::Read) => read_to_host(claim, self.host_way, &mut contents.bounce),
            (None, Direction::Write) => write_from_host(claim, self.host_way, &mut contents.bounce),
            (Some(streams), Direction::Read) => {
                read_to_bounce(claim, &streams.device, contents, &streams.shared.streams, is_unsettled)
            }
            (Some(streams), Direction::Write) => {
                let stream = streams.own().map_err(|error| Stop::failed(0, error))?;
                note_writes(claim, stream.device(), contents, writes)
            }
        }
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
        let waited = self.wait_for_copies(slot);
        let Slot { buffers, writes, .. } = &mut self.slots[slot];
        let damaged = buffers.lock().take_damaged();
        let outcome = match (waited, damaged) {
            (Err(error), _) => Err(Stop::failed(0, error)),
            (Ok(()), Some(number)) => Err(Stop::failed(0, Cause::Invalid(damage(number)))),
            (Ok(()), None) if claim.is_stopped_before() => Ok(()),
            // If the chunk stopped at its beginning, the bytes in the bounce buffer come before that stop.
            // SAFETY: the copies have ended.
            (Ok(()), None) => unsafe { write_out(writes, &claim, &mut buffers.lock().bounce) }.and(outcome),
        };
        writes.clear();
        reports.completed(claim, outcome);
    }

    /// Waits again for work for which waiting has failed.
    ///
    /// # Errors
    /// The error that CUDA returned. The buffers must not be used then.
    fn settle(&mut self) -> cufile::Result<()> {
        if let (true, Some(streams)) = (self.is_unsettled, &self.streams) {
            streams.synchronize()?;
            self.is_unsettled = false;
        }
        Ok(())
    }

    fn wait_for_copies(&mut self, slot: usize) -> cufile::Result<()> {
        let _range = nvtx::range(|| "gpufile: wait for copies".to_owned());
        let waited = self.slots[slot].buffers.wait();
        if let (Err(_), Some(streams)) = (&waited, &self.streams) {
            // Whatever failed, no copy may still run when the memory goes back to its owner.
            self.is_unsettled |= streams.synchronize().is_err();
        }
        waited
    }

    /// Submits the noted copies, or leaves them to another thread. Returns whether there are any.
    fn submit_copies(&mut self, slot: usize, claim: &Claim) -> bool {
        let Lane { streams, slots, .. } = self;
        let buffers = &slots[slot].buffers;
        let mut contents = buffers.lock();
        if contents.copies.is_empty() {
            return false;
        }
        let Some(streams) = streams else { unreachable!("a lane on a device") };
        contents.prepare(&streams.device);
        let direction = claim.direction();
        if direction == Direction::Read && is_limited_by_link(claim) {
            contents.demote();
        }
        drop(contents);
        // SAFETY: the claim keeps the transfer's memory until the chunk is completed, which is after the copies. A
        // read has exclusive use of that memory. The lane uses the buffers again only when the copies have ended.
        unsafe {
            match direction {
                Direction::Read => streams.shared.submit(buffers),
                Direction::Write => {
                    let Some(own) = &streams.own else { unreachable!("`begin` has created it") };
                    buffers.submit_to_host(own);
                }
            }
        }
        true
    }
}

/// Returns the text about a damaged group of a packed tensor.
fn damage(number: u32) -> String {
    format!("a tensor in this range is packed wrongly: the GPU found damage in its group {}", number - 1)
}

fn text(claim: &Claim) -> String {
    let verb = claim.direction().verb();
    let bytes: usize = claim.segments().map(|segment| segment.len_bytes).sum();
    format!("gpufile: {verb} of a chunk of {bytes} bytes")
}

/// Returns whether the copies to the GPU limit the transfer. Otherwise the threads do, and have no time to spare.
fn is_limited_by_link(claim: &Claim) -> bool {
    const FEWEST_THREADS: usize = 12;
    let threads = claim.segments().next().map(|segment| segment.file.settings.threads);
    !claim.is_only() && threads >= Some(FEWEST_THREADS)
}
