//! Modules and kernels.

use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::{fmt, ptr};

use cuda_rt_sys::driver::{CUfunction, CUmodule};

use super::{Device, Stream};
use crate::error::{Error, Result, check_driver};

/// Code of kernels on a device (`cuModuleLoadData`), from [`Device::load_module`] or [`Device::load_binary`]. Clones
/// refer to the same module, which is unloaded when the last of them and of its kernels is dropped.
///
/// ```no_run
/// use std::ffi::CStr;
///
/// use cufile::IoBuf;
/// use cufile::cuda::{Device, DeviceBuffer, KernelArgument};
///
/// /// Doubles each number of a buffer, by a kernel in CUDA C:
/// /// `extern "C" __global__ void twice(float *numbers, unsigned count)`.
/// fn twice(device: &Device, ptx: &CStr, numbers: &mut DeviceBuffer) -> cufile::Result<()> {
///     let kernel = device.load_module(ptx)?.kernel(c"twice")?;
///     let stream = device.stream()?;
///     let count = (numbers.len_bytes() / 4) as u32;
///     let arguments = [KernelArgument::Pointer(numbers.as_ptr()), KernelArgument::U32(count)];
///     // SAFETY: `twice` takes a pointer and a count. Kernel and numbers outlive the launch, for which this waits.
///     unsafe { stream.launch(&kernel, count.div_ceil(256).max(1), 256, arguments) }?;
///     stream.synchronize()
/// }
/// ```
#[derive(Clone)]
#[doc(alias = "cuModuleUnload")]
pub struct Module(Arc<Loaded>);

struct Loaded {
    device: Device,
    raw: CUmodule,
}

// SAFETY: CUDA allows a module to be used from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Module {
    pub(super) fn from_ptx(device: &Device, ptx: &CStr) -> Result<Self> {
        // SAFETY: the text ends with a NUL.
        unsafe { Self::load(device, ptx.as_ptr().cast()) }
    }

    /// # Safety
    /// As for [`Device::load_binary`].
    pub(super) unsafe fn from_binary(device: &Device, image: &[u8]) -> Result<Self> {
        // CUDA does not document that it takes an image at any address. Compilers align images to 8 bytes.
        let mut words = vec![0u64; image.len().div_ceil(8)];
        // SAFETY: the words have room for the image, and are not part of it.
        unsafe { words.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(image.as_ptr(), image.len()) };
        // SAFETY: the image is a whole cubin or fatbin, by the caller's promise.
        unsafe { Self::load(device, words.as_ptr().cast()) }
    }

    /// # Safety
    /// `image` must be a text that ends with a NUL, or a whole cubin or fatbin.
    unsafe fn load(device: &Device, image: *const c_void) -> Result<Self> {
        let _entered = device.enter()?;
        let _beside = device.cuda().beside_captures();
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call, and so does the image, whose end CUDA finds, by the caller's promise. The
        // device's context is current.
        check_driver("cuModuleLoadData", unsafe {
            (device.cuda().driver().cuModuleLoadData)(&mut raw, image)
        })?;
        Ok(Self(Arc::new(Loaded { device: device.clone(), raw })))
    }

    /// Returns the kernel with this name, which CUDA C mangles unless it is `extern "C"`.
    ///
    /// # Errors
    /// CUDA's error: `CUDA_ERROR_NOT_FOUND` if the module has no such kernel; [`Error::Forked`].
    #[doc(alias = "cuModuleGetFunction")]
    pub fn kernel(&self, name: &CStr) -> Result<Kernel> {
        let device = self.device();
        let _entered = device.enter()?;
        // CUDA may load the kernel's code only here.
        let _beside = device.cuda().beside_captures();
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` and the name outlive the call; the module is loaded.
        check_driver("cuModuleGetFunction", unsafe {
            (device.cuda().driver().cuModuleGetFunction)(&mut raw, self.0.raw, name.as_ptr())
        })?;
        Ok(Kernel { module: self.clone(), raw })
    }

    /// Returns the device on which the module is loaded.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns C's handle, for calls outside this crate.
    pub fn as_raw(&self) -> CUmodule {
        self.0.raw
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        let _beside = self.device.cuda().beside_captures();
        // SAFETY: loaded in `new`, unloaded once. None of its kernels runs, by the promise of `Stream::launch`.
        unsafe { (self.device.cuda().driver().cuModuleUnload)(self.raw) };
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:p} on {:?})", self.0.raw, self.0.device)
    }
}

/// A function that runs on a device, from [`Module::kernel`]; for [`Stream::launch`]. It keeps its module loaded.
#[derive(Clone)]
pub struct Kernel {
    module: Module,
    raw: CUfunction,
}

// SAFETY: CUDA allows a kernel to be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Returns the module that contains the kernel.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Returns C's handle, for calls outside this crate.
    pub fn as_raw(&self) -> CUfunction {
        self.raw
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({:p} of {:?})", self.raw, self.module)
    }
}

/// An argument of a kernel; for [`Stream::launch`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum KernelArgument {
    /// An address in memory that the device can use.
    Pointer(*const u8),
    /// An `unsigned int`.
    U32(u32),
    /// An `unsigned long long`.
    U64(u64),
}

impl KernelArgument {
    /// Returns a word that begins with the argument: both supported processors are little-endian.
    fn as_word(self) -> u64 {
        match self {
            KernelArgument::Pointer(pointer) => pointer.expose_provenance() as u64,
            KernelArgument::U32(value) => value.into(),
            KernelArgument::U64(value) => value,
        }
    }
}

impl Stream {
    /// Runs a kernel after the work already in the stream, in `blocks` blocks of `threads` threads in one dimension
    /// (`cuLaunchKernel`). To learn when the kernel has ended, [record](Self::record) an event right after it.
    ///
    /// A kernel that fails leaves the device's context unusable for this process; calls that wait for it, and later
    /// calls, return its error.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of earlier work. [`Error::InvalidInput`] if the kernel is loaded
    /// on another device than the stream's.
    ///
    /// # Safety
    /// The kernel must take arguments of these types, in this order. With these arguments and this number of
    /// threads, it must use only memory that stays allocated until it has ended. Until then, nothing else may
    /// use what it writes, and nothing may change what it reads. The kernel, a clone or its module must not be
    /// dropped before. If the stream is being captured, all this holds for each launch of the graph.
    #[doc(alias = "cuLaunchKernel")]
    pub unsafe fn launch<const N: usize>(
        &self,
        kernel: &Kernel,
        blocks: u32,
        threads: u32,
        arguments: [KernelArgument; N],
    ) -> Result<()> {
        let device = self.device();
        let loaded_on = kernel.module.device();
        if loaded_on.context() != device.context() {
            return Err(Error::invalid(
                "cuLaunchKernel",
                format!("the kernel is loaded on {loaded_on:?}, but the stream belongs to {device:?}"),
            ));
        }
        let _entered = device.enter()?;
        let mut words = arguments.map(KernelArgument::as_word);
        let mut pointers: [*mut c_void; N] = words.each_mut().map(|word| ptr::from_mut(word).cast());
        // SAFETY: stream and kernel are alive, and of one device. CUDA copies the arguments before it returns. The
        // rest is the caller's promise.
        check_driver("cuLaunchKernel", unsafe {
            (device.cuda().driver().cuLaunchKernel)(
                kernel.raw,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.as_raw().cast(),
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}
