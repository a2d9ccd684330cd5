//! The kernels that copy many ranges within the memory of a GPU.

use cufile::cuda::{Device, Kernel, KernelArgument, Stream};

use super::compiled::compiled;

/// The threads of a block, which are whole warps.
const THREADS: u32 = 256;
/// The most blocks of a launch. More of them copy no faster.
const MOST_BLOCKS: u32 = 32;

/// The kernels of one GPU.
#[derive(Debug)]
pub(crate) struct Kernels {
    scatter: Kernel,
    gather: Kernel,
}

/// A range in the memory of a GPU, and its place in a staging buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct TableEntry {
    pub address: u64,
    /// The start of the bytes in the staging buffer, in bytes.
    pub offset: u32,
    pub len_bytes: u32,
}

/// A table of ranges, in memory that the GPU can read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    /// Aligned to 8 bytes.
    pub entries: *const u8,
    pub count: u32,
}

impl Kernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// The error that CUDA returned for the PTX.
    pub fn load(device: &Device) -> cufile::Result<Self> {
        compiled!("scatter_gather").load(device, |module| {
            let (scatter, gather) = (module.kernel(c"gpufile_scatter")?, module.kernel(c"gpufile_gather")?);
            Ok(Self { scatter, gather })
        })
    }

    /// Copies each range of the table from the staging buffer to its address, after the work already in the stream.
    ///
    /// # Errors
    /// The error that CUDA returned. The kernel was not launched then.
    ///
    /// # Safety
    /// The GPU must be able to use the table, the ranges and their places in the staging buffer until the
    /// kernel has ended. Nothing else may use the ranges until then, or write the table and the staging buffer.
    /// The ranges must not overlap the table or their places in the staging buffer. They may overlap each other:
    /// each byte then comes from one of the entries. The kernels must stay loaded until then.
    pub unsafe fn scatter(&self, stream: &Stream, table: Table, staging: *const u8) -> cufile::Result<()> {
        // SAFETY: the kernel takes these arguments, and copies what the table names; the rest is the caller's
        // promise.
        unsafe { launch(stream, &self.scatter, table, staging) }
    }

    /// Copies each range of the table from its address to the staging buffer, after the work already in the stream.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter).
    ///
    /// # Safety
    /// As for [`scatter`](Self::scatter), except that nothing else may use the staging buffer, nothing may
    /// write the ranges, and the places in the staging buffer must not overlap.
    pub unsafe fn gather(&self, stream: &Stream, table: Table, staging: *const u8) -> cufile::Result<()> {
        // SAFETY: as in `scatter`.
        unsafe { launch(stream, &self.gather, table, staging) }
    }
}

/// Launches a kernel with a warp for each entry, up to a limit.
unsafe fn launch(stream: &Stream, kernel: &Kernel, table: Table, staging: *const u8) -> cufile::Result<()> {
    const WARP: u32 = 32;
    let blocks = table.count.div_ceil(THREADS / WARP).clamp(1, MOST_BLOCKS);
    let arguments = [
        KernelArgument::Pointer(table.entries),
        KernelArgument::U32(table.count),
        KernelArgument::Pointer(staging),
    ];
    // SAFETY: the caller's promise.
    unsafe { stream.launch(kernel, blocks, THREADS, arguments) }
}
