//! Facts about the functions of the CUDA driver, and the items of `cufile::cuda` that call them.

/// Each function with its safe counterparts, none if empty, and its description.
pub const FUNCTIONS: &[(&str, &str, &str)] = &[
    ("cuInit", "Cuda::load", "Starts the driver, before any other call of it; `Flags` is 0."),
    (
        "cuDriverGetVersion",
        "",
        "Writes the newest CUDA that the driver supports, as 1000 × major + 10 × minor. It needs no `cuInit`.",
    ),
    ("cuGetErrorName", "", "Writes a pointer to the name of an error, for example `CUDA_ERROR_NO_DEVICE`."),
    ("cuGetErrorString", "", "Writes a pointer to a description of an error."),
    // devices and primary contexts
    ("cuDeviceGet", "Cuda::device", "Writes the device with a number."),
    ("cuDeviceGetCount", "Cuda::device_count", "Writes the number of visible devices."),
    ("cuDeviceGetName", "Device::name", "Writes the device's name to `len` bytes, with a NUL."),
    ("cuDeviceGetAttribute", "Device::attribute", "Writes a number about a device."),
    ("cuDeviceTotalMem_v2", "", "Writes the size of a device's memory, in bytes."),
    ("cuDeviceGetUuid_v2", "", "Writes the 16 bytes that identify a device, or its MIG instance."),
    (
        "cuDeviceGetPCIBusId",
        "Device::pci_bus_id",
        "Writes the device's PCI address to `len` bytes, with a NUL.",
    ),
    (
        "cuDevicePrimaryCtxRetain",
        "Device::context",
        "Writes the device's primary context, and counts one more use of it.",
    ),
    (
        "cuDevicePrimaryCtxRelease_v2",
        "",
        "Gives up one use of a primary context; giving up the last one destroys it.",
    ),
    ("cuDevicePrimaryCtxGetState", "", "Writes the flags of a primary context, and whether it is in use."),
    ("cuCtxGetCurrent", "", "Writes the calling thread's context, null if it has none."),
    ("cuCtxSetCurrent", "Device::set_current", "Makes a context current on the calling thread."),
    ("cuCtxPushCurrent_v2", "Device::enter", "Makes a context current until it is popped."),
    ("cuCtxPopCurrent_v2", "Entered", "Makes the context before the last push current again."),
    ("cuCtxGetDevice", "Cuda::device_of", "Writes the device of the calling thread's context."),
    ("cuCtxSynchronize", "Device::synchronize", "Waits for all work of the calling thread's context."),
    // memory
    ("cuMemAlloc_v2", "Device::alloc", "Allocates `bytesize` bytes in the calling thread's context."),
    ("cuMemFree_v2", "DeviceBuffer::free", "Frees memory of `cuMemAlloc`."),
    ("cuMemsetD8_v2", "DeviceBuffer::fill", "Sets `N` bytes to `uc`."),
    ("cuMemcpyHtoD_v2", "Cuda::copy", "Copies `ByteCount` bytes from the host to a device."),
    ("cuMemcpyDtoH_v2", "Cuda::copy", "Copies `ByteCount` bytes from a device to the host."),
    (
        "cuMemGetAddressRange_v2",
        "",
        "Writes the start and the size in bytes of the allocation around an address.",
    ),
    (
        "cuPointerGetAttribute",
        "PinnedBuffer::is_allocated",
        "Writes an attribute of a pointer to memory of the attribute's type.",
    ),
    // virtual memory
    (
        "cuMemAddressReserve",
        "Device::reserve",
        "Reserves `size` bytes of addresses, a multiple of the granularity.",
    ),
    (
        "cuMemAddressFree",
        "MappedBuffer::unmap",
        "Releases reserved addresses; takes the range that was reserved.",
    ),
    (
        "cuMemCreate",
        "Device::alloc_mapped",
        "Allocates `size` bytes without an address. Clear `prop` first, as `Default` does.",
    ),
    (
        "cuMemRelease",
        "MappedBuffer::unmap",
        "Releases a handle; the memory stays allocated until it is also unmapped.",
    ),
    (
        "cuMemMap",
        "MappedBuffer::grow",
        "Maps `size` bytes of an allocation at reserved addresses; `flags` is 0.",
    ),
    (
        "cuMemUnmap",
        "MappedBuffer::unmap",
        "Unmaps `size` bytes. They must be whole ranges, as they were mapped.",
    ),
    ("cuMemSetAccess", "MappedBuffer::grow", "Lets the devices of `desc` use `size` mapped bytes."),
    ("cuMemGetAccess", "", "Writes a device's access to mapped memory."),
    (
        "cuMemGetAllocationGranularity",
        "MappedBuffer::granularity_bytes",
        "Writes the granularity in bytes: sizes of allocations must be multiples of it. Clear `prop` first, as \
         `Default` does.",
    ),
    (
        "cuMemGetAllocationPropertiesFromHandle",
        "",
        "Fills in the properties with which an allocation was created.",
    ),
    (
        "cuMemRetainAllocationHandle",
        "",
        "Writes one more handle of the allocation that is mapped at an address.",
    ),
    // stream memory operations
    (
        "cuStreamWaitValue32_v2",
        "Stream::on_words",
        "Makes later work of a stream wait for the 32 bits at `addr`; `flags` says how they are compared with `value`. \
         With 0, the wait ends when they are at least as large, with wraparound.",
    ),
    ("cuStreamWaitValue64_v2", "", "Does the same as `cuStreamWaitValue32`, with 64 bits."),
    (
        "cuStreamWriteValue32_v2",
        "Stream::on_words",
        "Writes `value` to the 32 bits at `addr`, in the order of a stream. With `flags` of 0, earlier writes become \
         visible first.",
    ),
    ("cuStreamWriteValue64_v2", "", "Does the same as `cuStreamWriteValue32`, with 64 bits."),
    (
        "cuStreamBatchMemOp_v2",
        "Stream::on_words",
        "Submits `count` waits and writes in the order of a stream; `flags` is 0.",
    ),
    // kernels
    (
        "cuModuleLoadData",
        "Device::load_module, Device::load_binary",
        "Loads a cubin, or NUL-terminated PTX, into the calling thread's context.",
    ),
    ("cuModuleUnload", "Module", "Unloads a module; none of its kernels may be running."),
    ("cuModuleGetFunction", "Module::kernel", "Writes the kernel with a NUL-terminated name."),
    (
        "cuLaunchKernel",
        "Stream::launch",
        "Launches a kernel in the order of a stream. Grid and block are counts, `sharedMemBytes` bytes, and `kernelParams` \
         points to a pointer for each argument.",
    ),
];
