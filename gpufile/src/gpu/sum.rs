//! The kernel that sums bytes of blocks in the memory of a GPU.

use cufile::cuda::{Device, Kernel, KernelArgument, PinnedBuffer, Stream};

use super::compiled::compiled;

/// The threads of a block, as the kernel requires.
const THREADS: u32 = 256;
/// The most blocks of a launch.
const MOST_BLOCKS: u32 = 2048;
/// The most parts of a launch.
const MOST_PARTS: usize = 16 << 10;
const PART_BYTES: usize = size_of::<SumPart>();

/// Adjacent bytes of a block in the memory of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SumPart {
    pub address: u64,
    /// The place of the first byte in the block.
    pub start: u64,
    pub len_bytes: u64,
}

// The kernel's own assertion has the same number.
const _: () = assert!(PART_BYTES == 24);

/// The kernel, loaded on one GPU, with a stream and a table of its own.
pub(crate) struct Summer {
    kernel: Kernel,
    stream: Stream,
    /// The parts, and behind them their sums.
    table: PinnedBuffer,
}

impl Summer {
    /// The most bytes of a part. A block of the kernel sums a part, so long ones would leave other processors idle.
    pub const MOST_BYTES: usize = 256 << 10;

    /// Loads the kernel, and allocates the table.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn new(device: &Device) -> cufile::Result<Self> {
        let kernel = compiled!("sum").load(device, |module| module.kernel(c"gpufile_sum"))?;
        let table = device.alloc_pinned(MOST_PARTS * (PART_BYTES + size_of::<u64>()))?;
        Ok(Self { kernel, stream: device.stream()?, table })
    }

    /// Returns whether other code has freed the table, by a reset of the GPU.
    pub fn is_lost(&self) -> bool {
        !self.table.is_allocated()
    }

    /// Returns the sum of each part.
    ///
    /// # Errors
    /// The error that CUDA returned. The GPU may still use the parts and the table then.
    ///
    /// # Safety
    /// The parts must be memory of this GPU's primary context. Nothing may write them until this returns.
    pub unsafe fn sums(&mut self, parts: &[SumPart]) -> cufile::Result<Vec<u64>> {
        let mut sums = Vec::with_capacity(parts.len());
        for parts in parts.chunks(MOST_PARTS) {
            let (table, results) = self.table.split_at_mut(MOST_PARTS * PART_BYTES);
            for (place, part) in table.as_chunks_mut::<PART_BYTES>().0.iter_mut().zip(parts) {
                place[..8].copy_from_slice(&part.address.to_ne_bytes());
                place[8..16].copy_from_slice(&part.start.to_ne_bytes());
                place[16..].copy_from_slice(&part.len_bytes.to_ne_bytes());
            }
            let count = parts.len() as u32;
            let arguments = [
                KernelArgument::Pointer(table.as_ptr()),
                KernelArgument::U32(count),
                KernelArgument::Pointer(results.as_ptr()),
            ];
            // SAFETY: the kernel takes these arguments. The table has as many parts, and room for their sums. Both stay, and are
            // not used, until the stream is synchronized. The rest is the caller's promise.
            unsafe { self.stream.launch(&self.kernel, count.clamp(1, MOST_BLOCKS), THREADS, arguments)? };
            self.stream.synchronize()?;
            let results = &self.table[MOST_PARTS * PART_BYTES..];
            sums.extend(
                results.as_chunks::<8>().0.iter().take(parts.len()).map(|sum| u64::from_ne_bytes(*sum)),
            );
        }
        Ok(sums)
    }
}
