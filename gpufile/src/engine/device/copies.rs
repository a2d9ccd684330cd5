//! Copies between the GPU and a bounce buffer: one by one, or many by a kernel.

use std::slice;
use std::time::Duration;

use cufile::cuda::{Event, Stream};

use super::super::sync::{Instant, sleep};
use super::staging::{OneCopy, Packed, Staging};
use super::streams::Streams;
use super::unpacker::GroupTable;
use crate::gpu::bounce::Bounce;
use crate::gpu::unpack::PackedGroup;
use crate::memory::Memory;

/// Copies between device memory and a bounce buffer. Neighbours on both sides count as one copy if they lie in one
/// allocation. CUDA may refuse a copy that crosses into another allocation.
#[derive(Default)]
pub(crate) struct Copies {
    list: Vec<OneCopy>,
    total_bytes: usize,
    last_base: usize,
    /// Set if kernels cannot use the device memory of a copy.
    has_foreign: bool,
    /// The table for a kernel; none for copies one by one.
    packed: Option<Packed>,
    /// The groups of packed tensors that a kernel decodes, and the end of their blocks in the bounce buffer.
    groups: Vec<PackedGroup>,
    groups_end: usize,
    group_table: Option<GroupTable>,
}

/// The mean length in bytes from which on copies one by one are as fast as a kernel.
pub(super) const LONG_BYTES: usize = 1 << 20;

/// The most copies that take no more calls of CUDA than a kernel, and no memory for a staging buffer.
pub(super) const FEW: usize = 4;

/// The longest chunk, in bytes, that is mostly still in a processor's own cache when the GPU copies it.
const MOST_DEMOTED_BYTES: usize = 1 << 20;

impl Copies {
    /// Adds a copy of `len_bytes` between a part of this memory, at `device`, and the bounce buffer, at `host`.
    pub fn push(&mut self, memory: &Memory, device: *mut u8, host: *mut u8, len_bytes: usize) {
        if len_bytes == 0 {
            return;
        }
        let is_same_base = self.last_base == memory.base();
        self.last_base = memory.base();
        self.total_bytes += len_bytes;
        self.has_foreign |= !memory.is_in_primary_context;
        match self.list.last_mut() {
            Some(last)
                if is_same_base
                    && last.device.wrapping_add(last.len_bytes) == device
                    && last.host.wrapping_add(last.len_bytes) == host =>
            {
                last.len_bytes += len_bytes;
            }
            _ => self.list.push(OneCopy { device, host, len_bytes }),
        }
    }

    /// Notes the groups of packed tensors of a chunk, whose bytes end at `end` in the bounce buffer. Copies are then done one
    /// by one.
    pub fn unpack(&mut self, groups: Vec<PackedGroup>, end: usize) {
        (self.groups, self.groups_end) = (groups, end);
    }

    /// Returns the place in the bounce buffer of the word for a damaged group.
    pub fn status_at(&self) -> Option<usize> {
        self.group_table.map(|table| table.status_at)
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.groups.is_empty()
    }

    pub fn clear(&mut self) {
        self.list.clear();
        (self.total_bytes, self.has_foreign, self.packed) = (0, false, None);
        self.groups.clear();
        (self.groups_end, self.group_table) = (0, None);
    }

    /// Moves the bytes of short copies out of the processor's own cache, from where the GPU copies slowly. Those of long
    /// copies have left it by then.
    pub fn demote(&self, bounce: &mut Bounce) {
        let ends = self.list.iter().map(|copy| copy.host.addr() + copy.len_bytes);
        if let Some(end) = ends.max()
            && self.total_bytes <= MOST_DEMOTED_BYTES
        {
            let start = bounce.ptr().addr();
            bounce.demote(end - start);
        }
    }

    /// Submits the copies from the bounce buffer to the device. Returns the stream whose work comes last.
    ///
    /// # Errors
    /// The error that CUDA returned. Some copies may be in flight then.
    ///
    /// # Safety
    /// The device memory must be valid until the copies are done, and nothing else may use it.
    pub unsafe fn issue_to_device<'a>(
        &self,
        streams: &'a Streams,
        staging: &mut Staging,
        bounce: &mut Bounce,
    ) -> cufile::Result<&'a Stream> {
        if let Some(packed) = self.packed
            // SAFETY: the caller's promise; nothing else uses the bounce buffer and its staging buffer.
            && let Some(last) = unsafe { staging.scatter(streams, bounce, packed) }?
        {
            return Ok(last);
        }
        for OneCopy { device, host, len_bytes } in &self.list {
            // SAFETY: the caller's promise; the bounce buffer has as many bytes.
            unsafe { streams.copies.copy_to_device(*device, slice::from_raw_parts(*host, *len_bytes)) }?;
        }
        let Some(table) = self.group_table else { return Ok(&streams.copies) };
        let Some(unpacker) = streams.unpacker(bounce.len_bytes()) else {
            unreachable!("groups are read for a GPU that decodes them")
        };
        // SAFETY: the caller's promise; the copies above come before in their stream.
        unsafe { unpacker.submit([&streams.copies, &streams.kernels], bounce, table) }
    }

    /// Submits the copies from the device to the bounce buffer.
    ///
    /// # Errors
    /// As [`issue_to_device`](Self::issue_to_device).
    ///
    /// # Safety
    /// As for [`issue_to_device`](Self::issue_to_device).
    pub unsafe fn issue_to_host<'a>(
        &self,
        stream: &'a Stream,
        staging: &mut Staging,
        bounce: &mut Bounce,
    ) -> cufile::Result<&'a Stream> {
        if let Some(packed) = self.packed
            // SAFETY: the caller's promise; nothing else uses the bounce buffer and its staging buffer.
            && unsafe { staging.gather(stream, bounce, packed) }?
        {
            return Ok(stream);
        }
        for OneCopy { device, host, len_bytes } in &self.list {
            // SAFETY: the caller's promise; the bounce buffer has room for as many bytes.
            unsafe { stream.copy_from_device(slice::from_raw_parts_mut(*host, *len_bytes), *device) }?;
        }
        Ok(stream)
    }

    /// Prepares the bounce buffer for a kernel, if one is to do the copies. Returns whether one is.
    pub fn prepare(&mut self, bounce: &mut Bounce) -> bool {
        if !self.groups.is_empty() {
            self.group_table = GroupTable::write(&self.groups, self.groups_end, bounce);
            assert!(self.group_table.is_some(), "what was read left room for the table");
            return false;
        }
        // Kernels read the table, and often the bytes, from the bounce buffer itself.
        self.packed = if bounce.is_pinned() { self.pack(bounce) } else { None };
        self.packed.is_some()
    }

    /// Writes a table for a kernel. Returns `None` if CUDA is to do the copies one by one.
    pub(super) fn pack(&self, bounce: &mut Bounce) -> Option<Packed> {
        let is_scattered = self.list.len() > FEW && self.total_bytes / self.list.len() < LONG_BYTES;
        if self.has_foreign || !is_scattered {
            return None;
        }
        Packed::write(&self.list, bounce)
    }
}

/// Polls until copies have ended. Keeps the processor at first, because small copies take microseconds. Then it sleeps
/// between questions, ever longer, so that waiting workers do not occupy a processor each.
pub(crate) fn wait_by_looking(event: &Event) -> cufile::Result<()> {
    wait_until(|| event.is_done())
}

/// Waits until `is_done` returns true, in the same way.
pub(crate) fn wait_until(is_done: impl Fn() -> cufile::Result<bool>) -> cufile::Result<()> {
    let start = Instant::now();
    while !is_done()? {
        if let Some(pause) = pause_after(start.elapsed()) {
            sleep(pause);
        }
    }
    Ok(())
}

/// Returns the time to sleep after a wait of `waited`; `None` for no sleep.
fn pause_after(waited: Duration) -> Option<Duration> {
    match waited.as_micros() {
        ..20 => None,
        20..200 => Some(Duration::from_micros(10)),
        200.. => Some(Duration::from_micros(20)),
    }
}

/// Waits up to about 30 seconds. Returns whether it has ended.
pub(crate) fn ends_soon(has_ended: impl Fn() -> bool) -> bool {
    const PAUSE: Duration = Duration::from_millis(1);
    // The pauses are counted, so that a process that was suspended still gets its time.
    for _ in 0..30_000 {
        if has_ended() {
            return true;
        }
        sleep(PAUSE);
    }
    has_ended()
}

#[cfg(test)]
mod tests {
    use std::ptr::without_provenance_mut as at;

    use super::*;

    #[test]
    fn pauses_grow_with_the_time_waited() {
        for (waited, pause) in [(0, None), (19, None), (20, Some(10)), (199, Some(10)), (200, Some(20))] {
            let found = pause_after(Duration::from_micros(waited));
            assert_eq!(found, pause.map(Duration::from_micros), "{waited}");
        }
    }

    #[test]
    fn neighbours_within_one_allocation_are_copied_together() {
        let mut copies = Copies::default();
        for (base, device, host, len_bytes) in [
            (4096, 4096, 100, 50),
            (4096, 4146, 150, 50),
            // These continue no other: apart on the device, apart on the host, and in another allocation.
            (4096, 4200, 200, 8),
            (4096, 4208, 300, 0),
            (4096, 4208, 300, 8),
            (4216, 4216, 308, 8),
            (4216, 4224, 316, 8),
        ] {
            copies.push(&Memory::on_host(at(base), 1000), at(device), at(host), len_bytes);
        }
        let copy = |device, host, len_bytes| OneCopy { device: at(device), host: at(host), len_bytes };
        let expected = [copy(4096, 100, 100), copy(4200, 200, 8), copy(4208, 300, 8), copy(4216, 308, 16)];
        assert_eq!(copies.list, expected);
        assert!(!copies.is_empty());
        copies.clear();
        assert!(copies.is_empty());
    }
}
