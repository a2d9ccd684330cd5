//! Facts about the functions of the CUDA runtime, and the items of `cufile::cuda` that call them.

/// Functions newer than CUDA 11.8, with the release that brought them. cudaMemcpyBatchAsync came with 12.8 under another
/// signature, which `cuda-rt-sys` declares by hand. The bindings have the signature of 13.0.
pub const NEWER: &[(&str, &str)] = &[("cudaMemcpyBatchAsync", "13.0")];

/// Each function with its safe counterparts, none if empty, and its description.
pub const FUNCTIONS: &[(&str, &str, &str)] = &[
    // devices
    ("cudaGetDeviceCount", "Cuda::device_count", "Writes the number of visible devices."),
    ("cudaGetDevice", "Device::enter", "Writes the number of the calling thread's device."),
    ("cudaSetDevice", "Device::set_current", "Selects the calling thread's device, by its number."),
    (
        "cudaSetDeviceFlags",
        "",
        "Sets how threads wait for the current device: a mask of `cudaDeviceSchedule*` constants.",
    ),
    ("cudaGetDeviceFlags", "", "Writes the flags of the current device."),
    ("cudaDeviceGetAttribute", "Device::attribute", "Writes a number about a device."),
    (
        "cudaDeviceGetPCIBusId",
        "Device::pci_bus_id",
        "Writes the device's PCI address to `len` bytes, with a NUL.",
    ),
    (
        "cudaDeviceGetByPCIBusId",
        "",
        "Writes the number of the device at a PCI address, a NUL-terminated text.",
    ),
    ("cudaDeviceSynchronize", "Device::synchronize", "Waits for all work of the current device."),
    ("cudaDeviceReset", "", "Destroys the current device's primary context, with all memory in it."),
    (
        "cudaDeviceCanAccessPeer",
        "Device::can_access_peer",
        "Writes whether a device can use memory of another.",
    ),
    (
        "cudaDeviceEnablePeerAccess",
        "Device::enable_peer_access",
        "Lets the current device use memory of another; `flags` is 0.",
    ),
    ("cudaMemGetInfo", "", "Writes the free and the total memory of the current device, in bytes."),
    ("cudaDeviceGetStreamPriorityRange", "", "Writes the lowest and the highest priority of streams."),
    // memory
    ("cudaMalloc", "Device::alloc", "Allocates `size` bytes on the current device."),
    (
        "cudaFree",
        "DeviceBuffer::free",
        "Waits for the device, and frees memory of `cudaMalloc`; null is success.",
    ),
    ("cudaMallocHost", "Device::alloc_pinned", "Allocates `size` bytes of page-locked host memory."),
    (
        "cudaHostAlloc",
        "Device::alloc_pinned",
        "Allocates `size` bytes of page-locked host memory; `flags` is a mask of `cudaHostAlloc*` constants.",
    ),
    ("cudaFreeHost", "PinnedBuffer", "Frees page-locked host memory of `cudaMallocHost` or `cudaHostAlloc`."),
    (
        "cudaMallocManaged",
        "Device::alloc_managed",
        "Allocates `size` bytes that host and devices use at the same address; `flags` is one of the \
         `cudaMemAttach*`. cuFile cannot register such memory.",
    ),
    (
        "cudaMallocAsync",
        "",
        "Allocates `size` bytes from the current device's pool, in the order of a stream.",
    ),
    ("cudaFreeAsync", "", "Frees memory of a pool, in the order of a stream."),
    ("cudaMallocFromPoolAsync", "", "Allocates `size` bytes from a pool, in the order of a stream."),
    ("cudaDeviceGetDefaultMemPool", "", "Writes the pool that a device has from the start."),
    ("cudaMemPoolSetAttribute", "", "Sets an attribute of a pool, from memory of the attribute's type."),
    ("cudaMemPoolGetAttribute", "", "Writes an attribute of a pool to memory of the attribute's type."),
    ("cudaMemPoolTrimTo", "", "Frees what a pool holds beyond `minBytesToKeep` bytes."),
    (
        "cudaHostRegister",
        "",
        "Page-locks `size` bytes that the program allocated; `flags` is a mask of `cudaHostRegister*` constants.",
    ),
    ("cudaHostUnregister", "", "Ends the page-locking of memory; it takes the address that was registered."),
    (
        "cudaHostGetDevicePointer",
        "",
        "Writes the address at which the device uses page-locked memory; `flags` is 0.",
    ),
    ("cudaHostGetFlags", "", "Writes the flags with which page-locked memory was allocated."),
    (
        "cudaPointerGetAttributes",
        "Cuda::device_of",
        "Fills in what CUDA knows about a pointer. The struct grew in 13.0: pass the largest, as these bindings have it, \
         to every version. See *CUDA* in docs/libcufile.md.",
    ),
    // copies and sets
    (
        "cudaMemcpy",
        "Cuda::copy, DeviceBuffer::copy_from_host, DeviceBuffer::copy_to_host",
        "Copies `count` bytes. From pageable memory it may return before the bytes are on the device. See *CUDA* in \
         docs/libcufile.md.",
    ),
    (
        "cudaMemcpyAsync",
        "Stream::copy_to_device, Stream::copy_from_device, Stream::copy_on_device",
        "Copies `count` bytes in the order of a stream. Page-locked memory must stay unchanged until the copy is \
         done.",
    ),
    ("cudaMemcpyPeer", "Cuda::copy", "Copies `count` bytes from one device to another."),
    (
        "cudaMemcpyPeerAsync",
        "Stream::copy_to_peer",
        "Copies `count` bytes from one device to another, in the order of a stream.",
    ),
    (
        "cudaMemcpy2D",
        "",
        "Copies `height` rows of `width` bytes, which start `dpitch` and `spitch` bytes apart.",
    ),
    ("cudaMemcpy2DAsync", "", "Copies rows as `cudaMemcpy2D` does, in the order of a stream."),
    ("cudaMemcpy3D", "", "Copies a box; widths and pitches are bytes. Clear `p` first, as `Default` does."),
    ("cudaMemcpy3DAsync", "", "Copies a box as `cudaMemcpy3D` does, in the order of a stream."),
    (
        "cudaMemcpyBatchAsync",
        "Stream::copy_batch",
        "Makes `count` copies in the order of a stream. `sizes` are in bytes. 12.8 and 12.9 export another function \
         under this name, which the table leaves out. Calls of two threads at once crash the process or the GPU's \
         context, and processes that call it on one GPU fail and lose bytes. See *CUDA* in docs/libcufile.md.",
    ),
    ("cudaMemset", "Cuda::fill, DeviceBuffer::fill", "Sets `count` bytes to the lowest byte of `value`."),
    ("cudaMemsetAsync", "", "Sets `count` bytes to the lowest byte of `value`, in the order of a stream."),
    // streams and events
    (
        "cudaStreamCreate",
        "",
        "Creates a stream on the current device. It waits for the null stream, and the null stream waits for it.",
    ),
    (
        "cudaStreamCreateWithFlags",
        "Device::stream",
        "Creates a stream on the current device; with `cudaStreamNonBlocking` it is not ordered with the null \
         stream.",
    ),
    (
        "cudaStreamCreateWithPriority",
        "",
        "Creates a stream with a priority in the range of `cudaDeviceGetStreamPriorityRange`; lower is sooner.",
    ),
    ("cudaStreamDestroy", "Stream", "Destroys a stream; work that was submitted still runs."),
    ("cudaStreamSynchronize", "Stream::synchronize", "Waits for all work of a stream."),
    ("cudaStreamQuery", "Stream::is_idle", "Returns `cudaErrorNotReady` while a stream has work."),
    (
        "cudaStreamWaitEvent",
        "Stream::wait_event",
        "Makes later work of a stream wait for an event; `flags` is 0.",
    ),
    ("cudaStreamGetFlags", "", "Writes the flags with which a stream was created."),
    (
        "cudaStreamIsCapturing",
        "Stream::is_capturing",
        "Writes whether a graph is being captured from a stream.",
    ),
    (
        "cudaThreadExchangeStreamCaptureMode",
        "",
        "Exchanges the calling thread's mode of capture for the one in `mode`. The relaxed mode permits calls that would \
         break a capture.",
    ),
    (
        "cudaLaunchHostFunc",
        "Stream::call_on_host",
        "Calls `fn_` with `userData` on a thread of CUDA, in the order of a stream. The function must not call CUDA.",
    ),
    ("cudaEventCreate", "Device::timing_event", "Creates an event with timing on the current device."),
    (
        "cudaEventCreateWithFlags",
        "Device::event, Device::timing_event",
        "Creates an event on the current device; `flags` is a mask of `cudaEvent*` constants.",
    ),
    ("cudaEventDestroy", "Event", "Destroys an event."),
    ("cudaEventRecord", "Stream::record, Stream::record_into", "Records an event in a stream."),
    ("cudaEventQuery", "Event::is_done", "Returns `cudaErrorNotReady` until the recorded event has passed."),
    ("cudaEventSynchronize", "Event::wait", "Waits until the recorded event has passed."),
    (
        "cudaEventElapsedTime",
        "Event::elapsed_since",
        "Writes the time between two events, in milliseconds. Both must have passed and must record times.",
    ),
    // errors and versions
    ("cudaGetErrorName", "", "Returns the name of an error, for example `cudaErrorNoDevice`."),
    ("cudaGetErrorString", "", "Returns a description of an error."),
    (
        "cudaGetLastError",
        "",
        "Returns the calling thread's last error, and clears it unless the context is unusable.",
    ),
    ("cudaPeekAtLastError", "", "Returns the calling thread's last error, and keeps it."),
    (
        "cudaDriverGetVersion",
        "",
        "Writes the newest CUDA that the display driver supports, as 1000 × major + 10 × minor; 0 without a driver.",
    ),
    (
        "cudaRuntimeGetVersion",
        "",
        "Writes the version of libcudart, as 1000 × major + 10 × minor. 11.8 fails with 35 on a host without a driver.",
    ),
];
