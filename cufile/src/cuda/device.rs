//! Devices and their contexts.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::sync::Arc;
use std::{fmt, ptr};

use cuda_rt_sys::driver::{CUcontext, CUdevice, CUdevice_attribute, CUresult};

use super::{Cuda, DeviceBuffer, Event, ManagedBuffer, Module, PinnedBuffer, PinnedRegion, Stream};
use crate::context::{Context, Libcuda};
use crate::error::{Error, Result, check_driver, check_runtime};

/// A GPU and its primary context, which lives as long as any object made on the device.
#[derive(Clone)]
pub struct Device(Arc<Retained>);

struct Retained {
    cuda: Cuda,
    ordinal: CUdevice,
    context: CUcontext,
}

// SAFETY: CUDA's driver API may be called from any thread; a context is a token that threads make current for
// themselves.
unsafe impl Send for Retained {}
// SAFETY: as above.
unsafe impl Sync for Retained {}

impl Drop for Retained {
    fn drop(&mut self) {
        if !self.cuda.is_alive() {
            return;
        }
        // SAFETY: balances the retain in `Device::open`. A failure (the driver is shutting down) leaves nothing to do.
        unsafe { (self.cuda.driver().cuDevicePrimaryCtxRelease_v2)(self.ordinal) };
    }
}

#[inline]
fn libcuda(cuda: &Cuda) -> Libcuda {
    Libcuda(cuda.driver().cuCtxPushCurrent_v2 as usize)
}

impl Context {
    #[inline]
    pub(crate) fn enter(self, cuda: &Cuda) -> Result<Entered<'_>> {
        cuda.check_alive()?;
        if !self.may_be_of(libcuda(cuda)) {
            return Err(Error::invalid(
                "cuCtxPushCurrent",
                "the memory or stream belongs to another libcuda than the one in use",
            ));
        }
        let mut current = ptr::null_mut();
        // SAFETY: `current` outlives the call; CUDA is initialised.
        check_driver("cuCtxGetCurrent", unsafe { (cuda.driver().cuCtxGetCurrent)(&mut current) })?;
        if current == self.as_raw() {
            return Ok(Entered(None, PhantomData));
        }
        // SAFETY: a `Context` is valid as long as the memory that names it, which the caller holds, and of this libcuda.
        check_driver("cuCtxPushCurrent", unsafe { (cuda.driver().cuCtxPushCurrent_v2)(self.as_raw()) })?;
        Ok(Entered(Some(cuda), PhantomData))
    }
}

/// Keeps a device's context current on its thread; from [`Device::enter`].
#[derive(Debug)]
#[must_use = "dropping it makes the previous context current again"]
pub struct Entered<'a>(Option<&'a Cuda>, PhantomData<*const ()>);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(cuda) = self.0 {
            let mut popped = ptr::null_mut();
            // SAFETY: `enter` pushed a context on this thread, and guards go last in, first out.
            unsafe { (cuda.driver().cuCtxPopCurrent_v2)(&mut popped) };
        }
    }
}

impl Device {
    pub(super) fn open(cuda: &Cuda, ordinal: u32) -> Result<Self> {
        let count = cuda.device_count()?;
        if ordinal >= count {
            return Err(Error::invalid(
                "cuDeviceGet",
                format!("there is no GPU {ordinal}: {count} are visible"),
            ));
        }
        let (mut device, mut context) = (0, ptr::null_mut());
        let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: `device` outlives the call; CUDA is initialised.
        check_driver("cuDeviceGet", unsafe { (cuda.driver().cuDeviceGet)(&mut device, ordinal) })?;
        // SAFETY: `context` outlives the call; `Retained` releases what is retained here.
        check_driver("cuDevicePrimaryCtxRetain", unsafe {
            (cuda.driver().cuDevicePrimaryCtxRetain)(&mut context, device)
        })?;
        Ok(Self(Arc::new(Retained { cuda: cuda.clone(), ordinal: device, context })))
    }

    /// Returns the CUDA that the device belongs to.
    pub fn cuda(&self) -> &Cuda {
        &self.0.cuda
    }

    /// Returns CUDA's number of the device, counted from 0.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal.unsigned_abs()
    }

    /// Returns the device's primary context.
    ///
    /// Names elsewhere: `get_primary_cuda_context` (KvikIO).
    #[doc(alias = "get_primary_cuda_context")]
    pub fn context(&self) -> Context {
        Context::of(self.0.context, libcuda(&self.0.cuda))
    }

    /// Makes the device's primary context current on the calling thread until the guard is dropped
    /// (`cuCtxPushCurrent`).
    ///
    /// All calls of this crate do that for themselves; many calls in a row take less time within one guard.
    /// Drop guards in the reverse order of their creation.
    ///
    /// Names elsewhere: `PushAndPopContext` (KvikIO).
    ///
    /// # Errors
    /// CUDA's error; [`Error::Forked`].
    #[doc(alias = "cuCtxPushCurrent")]
    #[doc(alias = "PushAndPopContext")]
    pub fn enter(&self) -> Result<Entered<'_>> {
        self.context().enter(&self.0.cuda)
    }

    /// Makes this the calling thread's current device, for calls outside this crate (`cudaSetDevice`).
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaSetDevice")]
    pub fn set_current(&self) -> Result<()> {
        self.cuda().check_alive()?;
        // SAFETY: takes an integer.
        check_runtime("cudaSetDevice", unsafe { (self.cuda().runtime().cudaSetDevice)(self.0.ordinal) })
    }

    /// Returns the device's name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cuDeviceGetName")]
    pub fn name(&self) -> Result<String> {
        self.text("cuDeviceGetName", self.cuda().driver().cuDeviceGetName)
    }

    /// Returns the device's address on the PCI bus, such as `0000:3B:00.0`. In lower case, it is the name of a folder
    /// of `/sys/bus/pci/devices`.
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cuDeviceGetPCIBusId")]
    pub fn pci_bus_id(&self) -> Result<String> {
        self.text("cuDeviceGetPCIBusId", self.cuda().driver().cuDeviceGetPCIBusId)
    }

    fn text(
        &self,
        operation: &'static str,
        function: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> CUresult,
    ) -> Result<String> {
        self.cuda().check_alive()?;
        let mut text = [0 as c_char; 256];
        let [room @ .., _] = &mut text;
        // SAFETY: the length given leaves the last byte as it is, a terminating zero.
        check_driver(operation, unsafe { function(room.as_mut_ptr(), room.len() as c_int, self.0.ordinal) })?;
        // SAFETY: the array ends in a zero.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Returns an integer attribute of the device.
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        self.cuda().check_alive()?;
        let mut value = 0;
        // SAFETY: `value` outlives the call; an unknown attribute is an error.
        check_driver("cuDeviceGetAttribute", unsafe {
            (self.cuda().driver().cuDeviceGetAttribute)(&mut value, attribute, self.0.ordinal)
        })?;
        Ok(value)
    }

    /// Waits for everything submitted to the device (`cudaDeviceSynchronize`).
    ///
    /// # Errors
    /// CUDA's error, which may be that of earlier work; also an error if a stream is being captured, whose
    /// capture it ends.
    #[doc(alias = "cudaDeviceSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: takes nothing.
        check_runtime("cudaDeviceSynchronize", unsafe { (self.cuda().runtime().cudaDeviceSynchronize)() })
    }

    /// Allocates `len_bytes` of device memory (`cudaMalloc`). Its contents are undefined.
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaMalloc")]
    pub fn alloc(&self, len_bytes: usize) -> Result<DeviceBuffer> {
        DeviceBuffer::new(self, len_bytes)
    }

    /// Allocates `len_bytes` of page-locked host memory, zeroed (`cudaHostAlloc`, portable: pinned for every device).
    /// From 1.75 MiB on, registers huge pages instead if `len_bytes` nearly fills them (`cudaHostRegister`,
    /// portable), which is faster.
    ///
    /// Names elsewhere: `PageAlignedAllocator`, `CudaPinnedAllocator`, `CudaPageAlignedPinnedAllocator`,
    /// `PageAlignedBounceBufferPool`, `CudaPinnedBounceBufferPool`, `CudaPageAlignedPinnedBounceBufferPool`,
    /// `allocate`, `deallocate` (KvikIO); `Allocator`, `PageAligned` (kvik-rs).
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaHostAlloc")]
    #[doc(alias = "cudaHostRegister")]
    #[doc(alias = "cudaMallocHost")]
    #[doc(alias = "PageAlignedAllocator")]
    #[doc(alias = "CudaPinnedAllocator")]
    #[doc(alias = "CudaPageAlignedPinnedAllocator")]
    #[doc(alias = "PageAlignedBounceBufferPool")]
    #[doc(alias = "CudaPinnedBounceBufferPool")]
    #[doc(alias = "CudaPageAlignedPinnedBounceBufferPool")]
    #[doc(alias = "allocate")]
    #[doc(alias = "deallocate")]
    #[doc(alias = "Allocator")]
    #[doc(alias = "PageAligned")]
    pub fn alloc_pinned(&self, len_bytes: usize) -> Result<PinnedBuffer> {
        PinnedBuffer::new(self, len_bytes)
    }

    /// Reserves addresses for `count` pinned buffers of `len_bytes` each (`mmap`), and no memory.
    pub fn reserve_pinned(&self, len_bytes: usize, count: usize) -> PinnedRegion {
        PinnedRegion::new(self, len_bytes, count)
    }

    /// Allocates `len_bytes` of managed memory, zeroed (`cudaMallocManaged`).
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaMallocManaged")]
    pub fn alloc_managed(&self, len_bytes: usize) -> Result<ManagedBuffer> {
        ManagedBuffer::new(self, len_bytes)
    }

    /// Creates a stream that is not ordered with the default stream (`cudaStreamCreateWithFlags`, non-blocking).
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaStreamCreateWithFlags")]
    #[doc(alias = "cudaStreamCreate")]
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Creates an event that marks no work yet and counts as done (`cudaEventCreateWithFlags`, without timing).
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaEventCreateWithFlags")]
    pub fn event(&self) -> Result<Event> {
        Event::new(self)
    }

    /// Creates an event that records its time, for [`Event::elapsed_since`] (`cudaEventCreateWithFlags`).
    ///
    /// ```no_run
    /// # let device = cufile::cuda::Cuda::load()?.device(0)?;
    /// let (stream, start, end) = (device.stream()?, device.timing_event()?, device.timing_event()?);
    /// stream.record_into(&start)?;
    /// // Work on the stream.
    /// stream.record_into(&end)?;
    /// end.wait()?;
    /// println!("{:?}", end.elapsed_since(&start)?);
    /// # Ok::<(), cufile::Error>(())
    /// ```
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaEventCreateWithFlags")]
    pub fn timing_event(&self) -> Result<Event> {
        Event::with_flags(self, 0)
    }

    /// Loads kernels in PTX, which CUDA compiles for the device (`cuModuleLoadData`). That takes milliseconds,
    /// unless CUDA finds the result of an earlier load in its cache on disk. [`load_binary`](Self::load_binary)
    /// loads code that is compiled already.
    ///
    /// # Errors
    /// CUDA's error: `CUDA_ERROR_UNSUPPORTED_PTX_VERSION` if the PTX is newer than the display driver,
    /// `CUDA_ERROR_INVALID_PTX`, or `CUDA_ERROR_NO_BINARY_FOR_GPU` if the PTX is for newer GPUs;
    /// [`Error::Forked`].
    #[doc(alias = "cuModuleLoadData")]
    pub fn load_module(&self, ptx: &CStr) -> Result<Module> {
        Module::from_ptx(self, ptx)
    }

    /// Loads kernels in machine code, a cubin or a fatbin from `nvcc` or NVRTC (`cuModuleLoadData`). CUDA compiles
    /// nothing, unless only the PTX in a fatbin fits the device.
    ///
    /// A cubin runs only on devices of its major compute capability, with at least its minor one; PTX in a fatbin
    /// serves all other devices:
    ///
    /// ```no_run
    /// use std::ffi::CStr;
    ///
    /// use cufile::cuda::{Device, Module};
    ///
    /// /// Loads kernels that `nvcc` compiled, by `-cubin -arch=sm_90` and by `-ptx`.
    /// fn load(device: &Device, cubin: &'static [u8], ptx: &CStr) -> cufile::Result<Module> {
    ///     // SAFETY: the build of this program made the cubin.
    ///     let module = unsafe { device.load_binary(cubin) };
    ///     module.or_else(|_| device.load_module(ptx))
    /// }
    /// ```
    ///
    /// # Errors
    /// CUDA's error: `CUDA_ERROR_NO_BINARY_FOR_GPU` if the code is for other GPUs, or `CUDA_ERROR_INVALID_IMAGE`;
    /// [`Error::Forked`].
    ///
    /// # Safety
    /// `image` must be a whole cubin or fatbin, as a compiler of CUDA made it. CUDA takes the length from the headers
    /// in the image, and trusts its contents.
    #[doc(alias = "cuModuleLoadData")]
    pub unsafe fn load_binary(&self, image: &[u8]) -> Result<Module> {
        // SAFETY: the caller's promise.
        unsafe { Module::from_binary(self, image) }
    }

    /// Returns the device's default stream, which CUDA uses for work that names no stream.
    pub fn default_stream(&self) -> Stream {
        Stream::default_of(self)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.ordinal())
    }
}
