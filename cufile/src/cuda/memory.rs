//! Device and managed memory.

use std::ffi::c_void;
use std::ops::RangeBounds;
use std::{fmt, ptr, slice};

use cuda_rt_sys::driver::CUdevice_attribute;
use cuda_rt_sys::runtime::cudaMemAttachGlobal;

use super::Device;
use crate::error::{Error, Result, check_runtime};
use crate::memory::{IoBuf, IoBufMut, Location};
use crate::slice::{BufSlice, BufSliceMut};

/// The alignment of CUDA's allocations, in bytes. Empty ones, which CUDA does not have, are at that address.
const ALIGNMENT: usize = 256;

/// Memory of one GPU (`cudaMalloc`), freed when dropped. The host cannot access it.
#[doc(alias = "cudaFree")]
pub struct DeviceBuffer {
    device: Device,
    ptr: *mut u8,
    len_bytes: usize,
}

// SAFETY: an owning pointer to memory that host threads access only through CUDA, and any thread may call CUDA.
unsafe impl Send for DeviceBuffer {}
// SAFETY: as above; methods that write take `&mut self`.
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    pub(super) fn new(device: &Device, len_bytes: usize) -> Result<Self> {
        if len_bytes == 0 {
            // CUDA's empty allocation is null, which libcufile refuses. Others are aligned.
            return Ok(Self {
                device: device.clone(),
                ptr: ptr::without_provenance_mut(ALIGNMENT),
                len_bytes,
            });
        }
        let _entered = device.enter()?;
        let mut ptr = ptr::null_mut();
        let _beside = device.cuda().beside_captures();
        // SAFETY: `ptr` outlives the call; the device's context is current.
        check_runtime("cudaMalloc", unsafe { (device.cuda().runtime().cudaMalloc)(&mut ptr, len_bytes) })
            .map_err(|error| about(error, device, len_bytes))?;
        Ok(Self { device: device.clone(), ptr: ptr.cast(), len_bytes })
    }

    /// Returns the device that the memory is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the bytes in `range`.
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as for a slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> BufSlice<'_> {
        BufSlice::new(self, range)
    }

    /// Returns the bytes in `range`, for writing.
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as for a slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> BufSliceMut<'_> {
        BufSliceMut::new(self, range)
    }

    /// Waits for all work of the device and frees the memory (`cudaFree`), as dropping does.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of earlier work; [`Error::Forked`]. The memory is leaked then.
    #[doc(alias = "cudaFree")]
    pub fn free(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        if self.len_bytes == 0 {
            return Ok(());
        }
        let _entered = self.device.enter()?;
        let _beside = self.device.cuda().beside_captures();
        self.len_bytes = 0;
        // SAFETY: allocated in `new`, freed once, because the length is 0 from now on.
        check_runtime("cudaFree", unsafe { (self.device.cuda().runtime().cudaFree)(self.ptr.cast()) })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // Ignored here; `free` returns the error.
        let _ = self.release();
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} bytes on {:?})", self.len_bytes, self.device)
    }
}

// SAFETY: the allocation stays at its address until dropped.
unsafe impl IoBuf for DeviceBuffer {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        Location::device(self.device.context())
    }
}

// SAFETY: `&mut self` is the only access to the memory.
unsafe impl IoBufMut for DeviceBuffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}

/// Memory that host and devices share page by page (`cudaMallocManaged`).
///
/// cuFile can transfer it but not register it. Do not touch it from the host while a kernel uses it.
///
/// On devices without concurrent managed access (`CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`), a host access is a
/// segmentation fault while any kernel runs. So [`as_slice`](Self::as_slice) returns the bytes only where the host
/// may access them. Copying and filling work everywhere:
///
/// ```no_run
/// # use cufile::cuda::Cuda;
/// let mut buffer = Cuda::load()?.device(0)?.alloc_managed(4096)?;
/// buffer.copy_from_host(0, b"hello")?;
/// match buffer.as_slice() {
///     Ok(bytes) => println!("{}", bytes[0]),
///     Err(_) => println!("{}", buffer.to_vec()?[0]),
/// }
/// # Ok::<(), cufile::Error>(())
/// ```
pub struct ManagedBuffer {
    device: Device,
    ptr: *mut u8,
    len_bytes: usize,
    is_host_accessible: bool,
}

// SAFETY: an owning pointer to memory that no thread accesses except through CUDA, or that any thread may access.
unsafe impl Send for ManagedBuffer {}
// SAFETY: as above; writing takes `&mut self`.
unsafe impl Sync for ManagedBuffer {}

impl Drop for ManagedBuffer {
    fn drop(&mut self) {
        if self.len_bytes == 0 {
            return;
        }
        let Ok(_entered) = self.device.enter() else { return };
        let _beside = self.device.cuda().beside_captures();
        // SAFETY: `new` allocated the memory, and it is freed once.
        unsafe { (self.device.cuda().runtime().cudaFree)(self.ptr.cast()) };
    }
}

impl fmt::Debug for ManagedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManagedBuffer({} bytes)", self.len_bytes)
    }
}

// SAFETY: the allocation stays at its address until dropped.
unsafe impl IoBuf for ManagedBuffer {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        let (is_host_accessible, context) = (self.is_host_accessible, Some(self.device.context()));
        Location { is_host_accessible, context, ..Location::HOST }
    }
}

// SAFETY: `&mut self` is the only access to the memory.
unsafe impl IoBufMut for ManagedBuffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}

impl ManagedBuffer {
    /// Returns the device for which the memory was allocated.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn new(device: &Device, len_bytes: usize) -> Result<Self> {
        let is_concurrent = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        let is_host_accessible = device.attribute(is_concurrent)? != 0;
        let runtime = device.cuda().runtime();
        let ptr = allocate(device, len_bytes, "cudaMallocManaged", |ptr| {
            // SAFETY: `ptr` outlives the call; the device's context is current.
            unsafe { (runtime.cudaMallocManaged)(ptr, len_bytes, cudaMemAttachGlobal) }
        })?;
        let mut buffer = Self { device: device.clone(), ptr, len_bytes, is_host_accessible };
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the host must not touch them while the device works.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.check_host_access("as_slice")?;
        // SAFETY: `len_bytes` initialised bytes, which the host may touch at any time, or none at a dangling but aligned
        // address.
        Ok(unsafe { slice::from_raw_parts(self.ptr, self.len_bytes) })
    }

    /// Returns the bytes, for writing.
    ///
    /// # Errors
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.check_host_access("as_mut_slice")?;
        // SAFETY: as in `as_slice`, and `&mut self` is the only access.
        Ok(unsafe { slice::from_raw_parts_mut(self.ptr, self.len_bytes) })
    }

    fn check_host_access(&self, operation: &'static str) -> Result<()> {
        if self.is_host_accessible {
            return Ok(());
        }
        let ordinal = self.device.ordinal();
        Err(Error::invalid(
            operation,
            format!(
                "the host must not touch managed memory while GPU {ordinal} works; copy it (copy_to_host)"
            ),
        ))
    }
}

fn about(error: Error, device: &Device, len_bytes: usize) -> Error {
    error.about(&format_args!("{len_bytes} bytes for GPU {}", device.ordinal()))
}

/// Allocates at least a byte, because CUDA has no empty allocations of these kinds.
pub(super) fn allocate(
    device: &Device,
    len_bytes: usize,
    operation: &'static str,
    alloc: impl FnOnce(*mut *mut c_void) -> cuda_rt_sys::runtime::cudaError_t,
) -> Result<*mut u8> {
    if len_bytes == 0 {
        return Ok(ptr::without_provenance_mut(ALIGNMENT));
    }
    let _entered = device.enter()?;
    let _beside = device.cuda().beside_captures();
    let mut ptr = ptr::null_mut();
    check_runtime(operation, alloc(&mut ptr)).map_err(|error| about(error, device, len_bytes))?;
    Ok(ptr.cast())
}
