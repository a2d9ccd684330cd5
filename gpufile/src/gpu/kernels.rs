//! The kernels that copy many ranges within the memory of a GPU.

use std::ffi::CStr;

use cuda_rt_sys::driver::CUdevice_attribute;
use cufile::cuda::{Device, Kernel, KernelArgument, Module, Stream};

/// `kernels/scatter_gather.cu`, compiled for every GPU that CUDA 11.8 or newer supports.
const PTX: &str = concat!(include_str!("../../kernels/scatter_gather.ptx"), "\0");

/// The same kernels as machine code, as [`load_binary`] takes it.
const CUBINS: [((i32, i32), &[u8]); 3] = [
    ((7, 5), include_bytes!("../../kernels/scatter_gather.sm_75.cubin")),
    ((8, 0), include_bytes!("../../kernels/scatter_gather.sm_80.cubin")),
    ((9, 0), include_bytes!("../../kernels/scatter_gather.sm_90.cubin")),
];

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
        // CUDA compiles the PTX, which takes 95 to 200 ms on an H100, unless its cache on disk contains the result. A
        // cubin is compiled already. GPUs without a cubin need the PTX.
        let module = load_binary(device, &CUBINS);
        if let Some(kernels) = module.and_then(|module| Self::of_module(&module).ok()) {
            return Ok(kernels);
        }
        let ptx = CStr::from_bytes_with_nul(PTX.as_bytes()).expect("a text with one NUL, at its end");
        Self::of_module(&device.load_module(ptx)?)
    }

    fn of_module(module: &Module) -> cufile::Result<Self> {
        Ok(Self { scatter: module.kernel(c"gpufile_scatter")?, gather: module.kernel(c"gpufile_gather")? })
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

/// Loads the machine code for the GPU: that of its major compute capability, with at most its minor one. Returns `None` if
/// there is none, or if CUDA does not load it.
pub(super) fn load_binary(device: &Device, cubins: &[((i32, i32), &[u8])]) -> Option<Module> {
    let major = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR).ok()?;
    let minor = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR).ok()?;
    let (_, cubin) = cubins.iter().find(|((of, least), _)| *of == major && *least <= minor)?;
    // SAFETY: `cargo xtask regen-kernels` makes the cubins by NVRTC, and checks that they are unchanged.
    unsafe { device.load_binary(cubin) }.ok()
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
