//! The device memory through which scattered ranges pass, and the table that tells a kernel their places.

use std::slice;
use std::sync::Arc;

use cufile::cuda::{Device, Event, Stream};

use super::staging_memory::{StagingBuffer, StagingMemory};
use super::streams::Streams;
use crate::gpu::bounce::Bounce;
use crate::gpu::gpus::Gpus;
use crate::gpu::kernels::{Kernels, Table, TableEntry};

/// The most bytes of a table entry. A warp copies an entry alone, so longer ranges have several.
const MOST_ENTRY_BYTES: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OneCopy {
    pub device: *mut u8,
    pub host: *mut u8,
    pub len_bytes: usize,
}

/// The staging buffer of a bounce buffer, allocated when scattered ranges first pass through both.
///
/// The bytes of a chunk and the table of their places go there in one copy. A kernel then copies each range to its
/// place. Writes go the other way.
pub(crate) struct Staging {
    gpus: Arc<Gpus>,
    available: Arc<StagingMemory>,
    readiness: Readiness,
}

enum Readiness {
    Unused,
    Ready(Ready),
    /// The kernels could not be loaded, or not be launched.
    Unavailable,
}

struct Ready {
    kernels: Arc<Kernels>,
    /// Without memory, the kernels use the bounce buffer itself, which is slower.
    memory: Option<StagingBuffer>,
    /// Marks the end of the copy to the staging buffer, for which a kernel in another stream waits.
    staged: Event,
}

/// A part of a bounce buffer: the bytes of a chunk, and behind them the table of their places.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    table_at: usize,
    count: u32,
}

impl Packed {
    /// Writes the table of these copies behind their bytes in the bounce buffer. Returns `None` if there is no
    /// room.
    pub fn write(copies: &[OneCopy], bounce: &mut Bounce) -> Option<Self> {
        let start = bounce.ptr();
        let offset = |copy: &OneCopy| copy.host.addr() - start.addr();
        let end = copies.iter().map(|copy| offset(copy) + copy.len_bytes).max()?;
        let table_at = end.next_multiple_of(align_of::<TableEntry>());
        let most = bounce.len_bytes().saturating_sub(table_at) / size_of::<TableEntry>();
        let count: usize = copies.iter().map(|copy| copy.len_bytes.div_ceil(MOST_ENTRY_BYTES)).sum();
        if count > most {
            return None;
        }
        // SAFETY: the entries lie in the bounce buffer behind the bytes, and are aligned like its start.
        let table = unsafe { start.add(table_at) }.cast::<TableEntry>();
        let entries = copies.iter().flat_map(|copy| {
            (0..copy.len_bytes).step_by(MOST_ENTRY_BYTES).map(move |done| TableEntry {
                address: copy.device.addr() as u64 + done as u64,
                offset: (offset(copy) + done) as u32,
                len_bytes: (copy.len_bytes - done).min(MOST_ENTRY_BYTES) as u32,
            })
        });
        for (number, entry) in entries.enumerate() {
            // SAFETY: there is room for `count` entries, as computed above.
            unsafe { table.add(number).write(entry) };
        }
        Some(Self { table_at, count: u32::try_from(count).ok()? })
    }

    fn len_bytes(self) -> usize {
        self.table_at + self.count as usize * size_of::<TableEntry>()
    }

    pub fn table(self, start: *const u8) -> Table {
        Table { entries: start.wrapping_add(self.table_at), count: self.count }
    }
}

impl Staging {
    pub fn new(gpus: Arc<Gpus>, available: Arc<StagingMemory>) -> Self {
        Self { gpus, available, readiness: Readiness::Unused }
    }

    /// Loads the kernels and allocates the staging buffer, if possible.
    pub fn prepare(&mut self, device: &Device, bounce: &Bounce) {
        if let Readiness::Unused = self.readiness {
            self.readiness = match (self.gpus.kernels(device), device.event()) {
                (Ok(kernels), Ok(staged)) => {
                    let memory = self.available.take(device, bounce.len_bytes());
                    Readiness::Ready(Ready { kernels, memory, staged })
                }
                _ => Readiness::Unavailable,
            };
        }
    }

    /// Submits the copies of a packed bounce buffer to their places in device memory, and returns the stream whose
    /// work comes last. Returns `None` if this GPU cannot run the kernels.
    ///
    /// # Errors
    /// The error that CUDA returned for the copy to the staging buffer.
    ///
    /// # Safety
    /// All work with these buffers must have ended. Until the streams have done the work, the bounce buffer must
    /// not change, and nothing else may use the staging buffer and the device memory of the copies.
    pub unsafe fn scatter<'a>(
        &mut self,
        streams: &'a Streams,
        bounce: &mut Bounce,
        packed: Packed,
    ) -> cufile::Result<Option<&'a Stream>> {
        let Streams { copies, kernels: stream, .. } = streams;
        let Readiness::Ready(Ready { kernels, memory, staged }) = &mut self.readiness else {
            return Ok(None);
        };
        let start = bounce.ptr();
        let launched = match memory {
            // SAFETY: `packed` lies in the bounce buffer, and the staging buffer is as long. The kernel comes after
            // the copy. The rest is the caller's promise.
            Some(memory) => unsafe {
                let memory = memory.as_mut_ptr();
                copies.copy_to_device(memory, slice::from_raw_parts(start, packed.len_bytes()))?;
                copies.record_into(staged)?;
                stream.wait_event(staged)?;
                kernels.scatter(stream, packed.table(memory), memory)
            },
            // SAFETY: all GPUs can use pinned memory; the caller's promise.
            None => unsafe { kernels.scatter(stream, packed.table(start), start) },
        };
        Ok(self.settle(launched).then_some(stream))
    }

    /// Does the opposite of [`scatter`](Self::scatter). Returns false if this GPU cannot run the kernels.
    ///
    /// # Errors
    /// The error that CUDA returned for the copy from the staging buffer. The kernel may be in flight then.
    ///
    /// # Safety
    /// All work with these buffers must have ended. Until the stream has done the work, nothing else may use them,
    /// and nothing may write the device memory of the copies.
    pub unsafe fn gather(
        &mut self,
        stream: &Stream,
        bounce: &mut Bounce,
        packed: Packed,
    ) -> cufile::Result<bool> {
        let Readiness::Ready(Ready { kernels, memory, .. }) = &mut self.readiness else { return Ok(false) };
        let (start, memory) = (bounce.ptr(), memory.as_mut().map(StagingBuffer::as_mut_ptr));
        // All GPUs can read the table in pinned memory.
        let table = packed.table(start);
        // SAFETY: as in `scatter`; the kernel writes the bytes before the table only.
        let launched = unsafe { kernels.gather(stream, table, memory.unwrap_or(start)) };
        if let (Ok(()), Some(memory)) = (&launched, memory) {
            // SAFETY: the staging buffer is as long as the bounce buffer; the caller's promise.
            unsafe { stream.copy_from_device(slice::from_raw_parts_mut(start, packed.table_at), memory) }?;
        }
        Ok(self.settle(launched))
    }

    /// Tries no other launch if this one failed. Returns whether it succeeded.
    fn settle(&mut self, launched: cufile::Result<()>) -> bool {
        if launched.is_err() {
            self.readiness = Readiness::Unavailable;
        }
        launched.is_ok()
    }
}
