//! The kernels that pack tensors in the memory of a GPU. `docs/packed.md` has their format.

use cufile::IoBufMut;
use cufile::cuda::{Device, DeviceBuffer, Kernel, KernelArgument, PinnedBuffer, Stream};

use super::compiled::compiled;

/// The threads of a block, as the kernels require.
const THREADS: u32 = 256;
/// The most blocks of a launch.
const MOST_BLOCKS: u32 = 1024;

/// Values to be packed, of one tensor.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PackJob {
    /// The address of the first, aligned to its length.
    pub values: u64,
    pub count: u64,
    /// The number of the type in the format.
    pub kind: u32,
    pub reserved: u32,
    pub common: [u8; 8],
    pub rare: [u8; 16],
}

const JOB_BYTES: usize = size_of::<PackJob>();
/// The bytes of an entry of the index.
pub(crate) const ENTRY_BYTES: usize = 16;

// The kernels' own assertion has the same number.
const _: () = assert!(JOB_BYTES == 48);

/// The kernels, loaded on one GPU, with a stream and a table of their own.
pub(crate) struct Packer {
    counts: Kernel,
    packs: Kernel,
    stream: Stream,
    /// The job, and behind it the entries of its groups.
    table: PinnedBuffer,
}

impl Packer {
    /// Loads the kernels, and allocates the table for `most_groups` groups.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn new(device: &Device, most_groups: usize) -> cufile::Result<Self> {
        let kernels = compiled!("pack");
        let (counts, packs) = kernels.load(device, |module| {
            Ok((module.kernel(c"gpufile_pack_count")?, module.kernel(c"gpufile_pack")?))
        })?;
        let table = device.alloc_pinned(JOB_BYTES + most_groups * ENTRY_BYTES)?;
        Ok(Self { counts, packs, stream: device.stream()?, table })
    }

    /// Packs the `groups` groups of a job into `out`. `place` gets the entries, of which the kernel has counted the escapes and
    /// the patches, and writes the ends of their blocks. Returns the entries.
    ///
    /// # Errors
    /// The error that CUDA returned. The GPU may still use the values, the table and `out` then.
    ///
    /// # Safety
    /// The values must be memory of this GPU's primary context, as many as the job says and in as many groups. Nothing may write
    /// them until this returns. The blocks must end within `out`.
    pub unsafe fn pack(
        &mut self,
        job: PackJob,
        groups: usize,
        place: impl FnOnce(&mut [[u8; ENTRY_BYTES]]),
        out: &mut DeviceBuffer,
    ) -> cufile::Result<&[[u8; ENTRY_BYTES]]> {
        let (head, entries) = self.table.split_at_mut(JOB_BYTES);
        assert!(groups * ENTRY_BYTES <= entries.len(), "the table has room");
        // SAFETY: the head has as many bytes, and the table begins at a page.
        unsafe { head.as_mut_ptr().cast::<PackJob>().write(job) };
        let arguments = [
            KernelArgument::Pointer(head.as_ptr()),
            KernelArgument::U32(groups as u32),
            KernelArgument::Pointer(out.as_mut_ptr()),
        ];
        let blocks = (groups as u32).clamp(1, MOST_BLOCKS);
        // SAFETY: the kernels take these arguments. Nothing else uses the table until the stream is synchronized. The rest is the
        // caller's promise.
        unsafe { self.stream.launch(&self.counts, blocks, THREADS, arguments)? };
        self.stream.synchronize()?;
        place(&mut entries.as_chunks_mut().0[..groups]);
        // SAFETY: as above.
        unsafe { self.stream.launch(&self.packs, blocks, THREADS, arguments)? };
        self.stream.synchronize()?;
        Ok(&self.table[JOB_BYTES..].as_chunks().0[..groups])
    }
}
