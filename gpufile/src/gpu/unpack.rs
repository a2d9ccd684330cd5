//! The kernel that decodes packed tensors in the memory of a GPU. `docs/packed.md` has their format.

use cufile::cuda::{Device, Kernel, KernelArgument, Stream};

use super::compiled::compiled;

/// The threads of a block, as the kernel requires.
const THREADS: u32 = 256;
/// The most blocks of a launch.
const MOST_BLOCKS: u32 = 1024;

/// The kernel, loaded on one GPU.
#[derive(Debug)]
pub(crate) struct Unpack(Kernel);

/// A group of a packed tensor in a staging buffer, and its wanted values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct PackedGroup {
    /// The place of the first wanted value.
    pub address: u64,
    /// The address of a word that gets `number` if the block is damaged.
    pub status: u64,
    pub sum: u64,
    /// The start of the block in the staging buffer, in bytes: a multiple of 16.
    pub offset: u32,
    pub len_bytes: u32,
    /// The wanted values, and the number of all values of the group.
    pub from: u32,
    pub to: u32,
    pub values: u32,
    /// The number of the group in its tensor, from 1 on.
    pub number: u32,
    /// The number of the type in the format.
    pub kind: u32,
    pub escapes: u16,
    pub patches: u16,
    pub common: [u8; 8],
    pub rare: [u8; 16],
}

// The kernel's own assertion has the same number.
const _: () = assert!(size_of::<PackedGroup>() == 80);

impl Unpack {
    /// Loads the kernel.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn load(device: &Device) -> cufile::Result<Self> {
        compiled!("unpack").load(device, |module| module.kernel(c"gpufile_unpack")).map(Self)
    }

    /// Decodes groups from the staging buffer to their addresses, after the work already in the stream. `groups` is the
    /// address of `count` of them in memory that the GPU can read, aligned to 8 bytes.
    ///
    /// # Errors
    /// The error that CUDA returned. The kernel was not launched then.
    ///
    /// # Safety
    /// The GPU must be able to use the table, the blocks, the words and the wanted places until the kernel has ended. Nothing
    /// else may use the places until then, or write the table and the staging buffer. The kernel must stay loaded.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        groups: *const u8,
        count: u32,
        staging: *const u8,
    ) -> cufile::Result<()> {
        let arguments =
            [KernelArgument::Pointer(groups), KernelArgument::U32(count), KernelArgument::Pointer(staging)];
        // SAFETY: the kernel takes these arguments; the rest is the caller's promise.
        unsafe { stream.launch(&self.0, count.clamp(1, MOST_BLOCKS), THREADS, arguments) }
    }
}
