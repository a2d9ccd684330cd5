//! Packing tensors in the memory of a GPU, from which the engine writes their blocks.

use std::mem;

use cufile::cuda::DeviceBuffer;
use cufile::{BufSlice, IoBuf};

use crate::formats::packed::{Coder, Entry, GROUP, UNIT};
use crate::gpu::gpus::Gpus;
use crate::gpu::pack::{PackJob, Packer};
use crate::memory::Place;

/// The bytes of a tensor that are packed at a time. There are at most three pieces: one is packed, one waits, one is written.
pub const AT_ONCE: u64 = 16 << 20;
/// The groups of as many values of one byte.
const MOST_GROUPS: usize = AT_ONCE as usize / GROUP;
/// Blocks are no longer than their values, but begin at multiples of a unit.
const PIECE_BYTES: usize = AT_ONCE as usize + UNIT;

/// The kernels of the last tensor's GPU. `None` if that GPU does not pack.
#[derive(Default)]
pub struct OnGpu(Option<(u32, Option<Packer>)>);

/// Blocks in the memory of a GPU.
pub struct Packed {
    pub blocks: DeviceBuffer,
    pub len_bytes: usize,
    /// Their ends count from the first block.
    pub entries: Vec<Entry>,
}

impl OnGpu {
    /// Packs at most [`AT_ONCE`] bytes of a tensor into `spare`, if it is of the same GPU, or into new memory. Returns `None` if the
    /// host has to do it. If the GPU has failed for good, the host's copies of its memory fail, too.
    pub fn pack(
        &mut self,
        gpus: &Gpus,
        coder: &Coder,
        values: &BufSlice<'_>,
        mut spare: impl FnMut() -> Option<DeviceBuffer>,
    ) -> Option<Packed> {
        let value_bytes = coder.kind().value_bytes();
        let memory = gpus.memory_of(values).ok()?;
        let is_aligned = memory.ptr.addr().is_multiple_of(value_bytes);
        let Place::Device(ordinal) = memory.place else { return None };
        if !memory.is_in_primary_context || !is_aligned {
            return None;
        }
        let device = gpus.device(ordinal).ok()?;
        if self.0.as_ref().is_none_or(|(of, _)| *of != ordinal) {
            self.0 = Some((ordinal, Packer::new(&device, MOST_GROUPS).ok()));
        }
        let Some((_, Some(packer))) = &mut self.0 else { return None };
        let of_gpu = std::iter::from_fn(&mut spare).find(|spare| spare.device().ordinal() == ordinal);
        let mut blocks = of_gpu.or_else(|| device.alloc(PIECE_BYTES).ok())?;

        let count = values.len_bytes() / value_bytes;
        let tables = coder.tables();
        let job = PackJob {
            values: memory.ptr.addr() as u64,
            count: count as u64,
            kind: coder.kind().number().into(),
            reserved: 0,
            common: tables.common,
            rare: tables.rare,
        };
        let mut end = 0;
        let place = |entries: &mut [[u8; 16]]| {
            for (group, bytes) in entries.iter_mut().enumerate() {
                let values = (count - group * GROUP).min(GROUP);
                let entry = Entry::of_bytes(bytes);
                end += entry.block_bytes(coder.kind(), values);
                *bytes = Entry { end: (end / UNIT) as u32, ..entry }.to_bytes();
            }
            assert!(end <= PIECE_BYTES, "blocks are no longer than their values");
        };
        // SAFETY: the slice has these values, in memory of the primary context, and keeps them. `place` compares the end of the
        // blocks with the length of their memory.
        let packed = unsafe { packer.pack(job, count.div_ceil(GROUP), place, &mut blocks) };
        if let Ok(entries) = packed {
            let entries = entries.iter().map(Entry::of_bytes).collect();
            return Some(Packed { blocks, len_bytes: end, entries });
        }
        // The GPU may still use both.
        mem::forget((blocks, self.0.replace((ordinal, None))));
        None
    }
}
