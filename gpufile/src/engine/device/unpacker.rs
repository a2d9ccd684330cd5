//! The decoding of packed tensors on a GPU: a ring of device memory, through which their blocks pass.

use std::slice;

use cufile::IoBuf;
use cufile::cuda::{Device, DeviceBuffer, Event, Stream};

use super::super::sync::Mutex;
use crate::gpu::bounce::Bounce;
use crate::gpu::unpack::{PackedGroup, Unpack};

/// The most bytes of the ring, and the most bounce buffers in it. The copy into a part waits on the GPU for the kernel that read
/// it last.
const MOST_BYTES: usize = 32 << 20;
const MOST_PARTS: usize = 8;

pub(crate) struct Unpacker {
    kernel: Unpack,
    part_bytes: usize,
    memory: DeviceBuffer,
    parts: Vec<Part>,
    /// The number of submissions. Parts take turns.
    submitted: Mutex<usize>,
}

struct Part {
    /// Marks the end of the copy.
    staged: Event,
    /// Marks the end of the kernel.
    unpacked: Event,
}

/// The table of groups in a bounce buffer, behind their blocks. A word for the status precedes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupTable {
    /// The place of the word, in bytes.
    pub status_at: usize,
    count: u32,
}

/// The bytes from the word of the status to the table.
const TABLE_AFTER: usize = 16;

impl GroupTable {
    /// Writes the table of groups whose blocks end at `end`. Returns `None` if there is no room.
    pub fn write(groups: &[PackedGroup], end: usize, bounce: &mut Bounce) -> Option<Self> {
        let status_at = end.next_multiple_of(TABLE_AFTER);
        let len_bytes = size_of_val(groups);
        let start = bounce.part(status_at, TABLE_AFTER + len_bytes).ok()?;
        // SAFETY: `part` returned the address of as many bytes, aligned to 16, which nothing else uses.
        unsafe {
            start.cast::<u64>().write(0);
            let table = start.add(TABLE_AFTER).cast::<PackedGroup>();
            for (number, group) in groups.iter().enumerate() {
                table.add(number).write(PackedGroup { status: start.addr() as u64, ..*group });
            }
        }
        Some(Self { status_at, count: groups.len() as u32 })
    }

    fn len_bytes(self) -> usize {
        self.status_at + TABLE_AFTER + self.count as usize * size_of::<PackedGroup>()
    }
}

impl Unpacker {
    /// Loads the kernel, and allocates the ring for bounce buffers of `part_bytes`.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn new(device: &Device, part_bytes: usize) -> cufile::Result<Self> {
        let kernel = Unpack::load(device)?;
        let count = (MOST_BYTES / part_bytes).clamp(2, MOST_PARTS);
        let part = |_| Ok(Part { staged: device.event()?, unpacked: device.event()? });
        let parts = (0..count).map(part).collect::<cufile::Result<_>>()?;
        let memory = device.alloc(count * part_bytes)?;
        Ok(Self { kernel, part_bytes, memory, parts, submitted: Mutex::default() })
    }

    pub fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    /// Submits the copy of a bounce buffer to the ring, in the first stream, and the kernel that decodes it, in the second, which
    /// is returned.
    ///
    /// # Errors
    /// The error that CUDA returned. No part of the ring is in use by this submission then, unless the wait for the streams fails
    /// too.
    ///
    /// # Safety
    /// All work with the bounce buffer must have ended. Until the streams have done the work, it must not change, and nothing
    /// else may use the places of the groups.
    pub unsafe fn submit<'a>(
        &self,
        [copies, stream]: [&'a Stream; 2],
        bounce: &mut Bounce,
        table: GroupTable,
    ) -> cufile::Result<&'a Stream> {
        let (start, len_bytes) = (bounce.ptr(), table.len_bytes());
        assert!(len_bytes <= self.part_bytes, "all bounce buffers of a GPU are equally long");
        let submitted = &mut *self.submitted.lock();
        let turn = *submitted % self.parts.len();
        let place = self.memory.as_ptr().cast_mut().wrapping_add(turn * self.part_bytes);
        let part = &self.parts[turn];
        let issue = || {
            if *submitted >= self.parts.len() {
                copies.wait_event(&part.unpacked)?;
            }
            // SAFETY: the bounce buffer has the blocks and the table, and a part of the ring is as long as it is. The copy comes
            // after the last kernel that read the part, and the kernel after the copy. The rest is the caller's promise.
            unsafe {
                copies.copy_to_device(place, slice::from_raw_parts(start, len_bytes))?;
                copies.record_into(&part.staged)?;
                stream.wait_event(&part.staged)?;
                let groups = place.wrapping_add(table.status_at + TABLE_AFTER);
                self.kernel.launch(stream, groups, table.count, place)?;
            }
            stream.record_into(&part.unpacked)
        };
        let issued = issue();
        if issued.is_err() {
            // No event tells the next user of the part when the kernel has read it.
            copies.synchronize().and(stream.synchronize())?;
        }
        *submitted += usize::from(issued.is_ok());
        issued.map(|()| stream)
    }
}
