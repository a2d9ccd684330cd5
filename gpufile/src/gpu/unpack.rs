//! The kernel that decodes packed tensors in the memory of a GPU. `docs/packed.md` has their format.

use std::ffi::CStr;

use cufile::cuda::{Device, Kernel, KernelArgument, Stream};

use super::kernels::load_binary;

/// `kernels/unpack.cu`, compiled for every GPU that CUDA 11.8 or newer supports.
const PTX: &str = concat!(include_str!("../../kernels/unpack.ptx"), "\0");

/// The same kernel as machine code, for [`load_binary`].
const CUBINS: [((i32, i32), &[u8]); 3] = [
    ((7, 5), include_bytes!("../../kernels/unpack.sm_75.cubin")),
    ((8, 0), include_bytes!("../../kernels/unpack.sm_80.cubin")),
    ((9, 0), include_bytes!("../../kernels/unpack.sm_90.cubin")),
];

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
        const NAME: &CStr = c"gpufile_unpack";
        if let Some(kernel) = load_binary(device, &CUBINS).and_then(|module| module.kernel(NAME).ok()) {
            return Ok(Self(kernel));
        }
        let ptx = CStr::from_bytes_with_nul(PTX.as_bytes()).expect("a text with one NUL, at its end");
        Ok(Self(device.load_module(ptx)?.kernel(NAME)?))
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
