//! A small CUDA layer for file I/O: devices, memory, streams, events and kernels.
//!
//! [`IoBuf`] takes memory of any other CUDA crate, and the feature `cudarc` takes that crate's. No call except
//! [`Device::set_current`] changes the calling thread's current device or context. CUDA calls that allocate, wait or
//! query end the capture of a graph on another stream by default; the calls here do not, except
//! [`Device::synchronize`]. Copying or filling without a stream ends the capture of a stream that waits for the null
//! stream. Streams of [`Device::stream`] and of PyTorch do not wait for it.
//!
//! ```no_run
//! use cufile::cuda::Cuda;
//!
//! let device = Cuda::load()?.device(0)?;
//! let mut buffer = device.alloc(1 << 20)?;
//! buffer.copy_from_host(0, b"hello")?;
//! # Ok::<(), cufile::Error>(())
//! ```

mod capture;
mod copies;
mod device;
mod foreign;
mod huge_pages;
mod kernel;
mod mapped;
mod memory;
mod peer;
mod pinned;
mod stream;

use std::fmt;
use std::sync::Arc;

use cuda_rt_sys::{driver, runtime};

/// The types and functions of CUDA, for codes and raw handles.
pub use cuda_rt_sys as sys;

pub use crate::context::Context;
pub use device::{Device, Entered};
pub use foreign::DeviceMemory;
pub use kernel::{Kernel, KernelArgument, Module};
pub use mapped::MappedBuffer;
pub use memory::{DeviceBuffer, ManagedBuffer};
pub use pinned::{PinnedBuffer, PinnedRegion};
#[cfg(feature = "cudarc")]
pub(crate) use stream::is_implicit_stream;
pub use stream::{Event, Stream, WordOperation};

use crate::error::{Error, Result, check_driver};
use crate::fork::{Generation, OnceCell};
use crate::memory::IoBuf;

/// A loaded and initialised CUDA: libcuda and libcudart. Clones refer to the same one.
///
/// It does not survive a `fork`: in the child, calls on devices and their memory fail with [`Error::Forked`],
/// and dropping them frees nothing.
#[derive(Clone)]
pub struct Cuda(Arc<Loaded>);

struct Loaded {
    driver: driver::Library,
    runtime: runtime::Library,
    generation: Generation,
}

impl Cuda {
    /// Returns the process's CUDA. The first successful call loads and initialises it.
    ///
    /// # Errors
    /// [`Error::Load`] naming libcuda or libcudart if either is missing; [`Error::NoDevice`]; [`Error::Forked`]
    /// in the child of a process that has loaded CUDA; or the error of `cuInit`.
    #[doc(alias = "cuInit")]
    pub fn load() -> Result<Self> {
        static DEFAULT: OnceCell<Cuda> = OnceCell::new();
        match DEFAULT.get() {
            Some(cuda) => cuda.check_alive().map(|()| cuda.clone()),
            None => {
                // libcuda first: without a driver nothing else matters.
                let driver = driver::Library::load()?;
                let cuda = Self::from_sys(driver, runtime::Library::load()?)?;
                Ok(DEFAULT.get_or_init(|| cuda).clone())
            }
        }
    }

    /// Initialises CUDA with already loaded libraries.
    ///
    /// # Errors
    /// [`Error::NoDevice`], or the error of `cuInit`.
    pub fn from_sys(driver: driver::Library, runtime: runtime::Library) -> Result<Self> {
        let generation = Generation::current();
        // SAFETY: cuInit may be called any number of times, from any thread.
        match check_driver("cuInit", unsafe { (driver.cuInit)(0) }) {
            Err(Error::CudaDriver { code: driver::CUresult::CUDA_ERROR_NO_DEVICE, .. }) => {
                return Err(Error::NoDevice);
            }
            result => result?,
        }
        let cuda = Self(Arc::new(Loaded { driver, runtime, generation }));
        if cuda.device_count()? == 0 { Err(Error::NoDevice) } else { Ok(cuda) }
    }

    /// Returns the number of visible devices.
    ///
    /// # Errors
    /// The error of `cuDeviceGetCount`; [`Error::Forked`].
    #[doc(alias = "cuDeviceGetCount")]
    #[doc(alias = "cudaGetDeviceCount")]
    pub fn device_count(&self) -> Result<u32> {
        self.check_alive()?;
        let mut count = 0;
        // SAFETY: `count` outlives the call; CUDA is initialised.
        check_driver("cuDeviceGetCount", unsafe { (self.0.driver.cuDeviceGetCount)(&mut count) })?;
        Ok(count.unsigned_abs())
    }

    /// Returns the device with this ordinal, counted from 0.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if fewer devices are visible; CUDA's error; [`Error::Forked`].
    pub fn device(&self, ordinal: u32) -> Result<Device> {
        Device::open(self, ordinal)
    }

    /// Returns the device that a buffer's CUDA context is on; device 0 for memory without one.
    ///
    /// Names elsewhere: `get_context_associated_pointer`, `get_context_from_pointer`, `get_device_ordinal_from_pointer`
    /// (KvikIO).
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cuCtxGetDevice")]
    #[doc(alias = "get_context_associated_pointer")]
    #[doc(alias = "get_context_from_pointer")]
    #[doc(alias = "get_device_ordinal_from_pointer")]
    pub fn device_of(&self, buffer: &(impl IoBuf + ?Sized)) -> Result<Device> {
        let Some(context) = buffer.location().context else { return self.device(0) };
        let _entered = context.enter(self)?;
        let mut device = 0;
        // SAFETY: `device` outlives the call; the context is current.
        check_driver("cuCtxGetDevice", unsafe { (self.0.driver.cuCtxGetDevice)(&mut device) })?;
        self.device(device.unsigned_abs())
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_alive() { Ok(()) } else { Err(Error::Forked) }
    }

    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.0.generation.is_current()
    }

    /// Returns the table of driver functions, for calls that this crate does not wrap.
    pub fn driver(&self) -> &driver::Library {
        &self.0.driver
    }

    /// Returns the table of runtime functions, for calls that this crate does not wrap.
    pub fn runtime(&self) -> &runtime::Library {
        &self.0.runtime
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda")
            .field("driver", &self.0.driver.path())
            .field("runtime", &self.0.runtime.path())
            .finish()
    }
}
