//! Page-locked host memory.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::{fmt, ptr, slice};

use cuda_rt_sys::driver::{CUpointer_attribute, CUresult};
use cuda_rt_sys::runtime::cudaHostAllocPortable;

use super::Device;
use super::huge_pages::{HugePages, Part};
use super::memory::allocate;
use crate::error::{Error, Result, check_driver};
use crate::memory::{IoBuf, IoBufMut, Location};

/// Page-locked host memory (`cudaHostAlloc`), used like a slice.
///
/// Buffers that fill a huge page of 2 MiB, or nearly, use it where the system has them (`cudaHostRegister`): such
/// buffers are ready several times sooner. A forked child finds zeros in them.
///
/// Names elsewhere: `Buffer` (KvikIO); `BounceBuffer` (kvik-rs).
#[doc(alias = "cudaFreeHost")]
#[doc(alias = "cudaHostUnregister")]
#[doc(alias = "Buffer")]
#[doc(alias = "BounceBuffer")]
pub struct PinnedBuffer {
    device: Device,
    ptr: *mut u8,
    len_bytes: usize,
    /// The number that CUDA gives this allocation and no other, if CUDA tells it.
    id: Option<u64>,
    /// The memory, unless `cudaHostAlloc` allocated it.
    part: Option<Part>,
}

/// Addresses for pinned buffers of one length, reserved in one piece. No buffer takes memory before it is
/// [allocated](Self::alloc).
///
/// Threads wait for each other much less than with [`Device::alloc_pinned`]: only the reservation maps memory, which
/// waits until no thread populates any.
///
/// ```no_run
/// # use cufile::cuda::Cuda;
/// let region = Cuda::load()?.device(0)?.reserve_pinned(2 << 20, 16);
/// std::thread::scope(|scope| {
///     for _ in 0..16 {
///         scope.spawn(|| region.alloc());
///     }
/// });
/// # Ok::<(), cufile::Error>(())
/// ```
pub struct PinnedRegion {
    device: Device,
    len_bytes: usize,
    pages: Option<Arc<HugePages>>,
}

// SAFETY: an owning pointer to memory that any thread may access.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above; writing takes `&mut self`.
unsafe impl Sync for PinnedBuffer {}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.len_bytes == 0 {
            return;
        }
        let Ok(_entered) = self.device.enter() else { return };
        let _beside = self.device.cuda().beside_captures();
        match &self.part {
            Some(part) => part.free(&self.device),
            // SAFETY: CUDA allocated the memory, and it is freed once.
            None => unsafe {
                (self.device.cuda().runtime().cudaFreeHost)(self.ptr.cast());
            },
        }
    }
}

impl PinnedBuffer {
    pub(super) fn new(device: &Device, len_bytes: usize) -> Result<Self> {
        PinnedRegion::new(device, len_bytes, 1).alloc()
    }

    fn of(device: &Device, ptr: *mut u8, len_bytes: usize, part: Option<Part>) -> Self {
        Self { device: device.clone(), ptr, len_bytes, id: allocation_id(device, ptr).ok(), part }
    }

    /// Returns the device for which the memory was allocated.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns whether CUDA still has the allocation (`cuPointerGetAttribute`). Other code that resets the device
    /// (`cudaDeviceReset`) frees all memory of the process there; the bytes must not be used then.
    #[doc(alias = "cuPointerGetAttribute")]
    pub fn is_allocated(&self) -> bool {
        let Self { device, ptr, id, .. } = self;
        match (id, allocation_id(device, *ptr)) {
            (Some(id), Ok(found)) => *id == found,
            (Some(_), Err(Error::CudaDriver { code: CUresult::CUDA_ERROR_INVALID_VALUE, .. })) => false,
            _ => true,
        }
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len_bytes` initialised bytes, or none at a dangling but aligned address.
        unsafe { slice::from_raw_parts(self.ptr, self.len_bytes) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { slice::from_raw_parts_mut(self.ptr, self.len_bytes) }
    }
}

// SAFETY: the allocation stays at its address until dropped.
unsafe impl IoBuf for PinnedBuffer {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        Location { context: Some(self.device().context()), ..Location::HOST }
    }
}

// SAFETY: `&mut self` is the only access to the memory.
unsafe impl IoBufMut for PinnedBuffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} bytes)", self.len_bytes)
    }
}

impl PinnedRegion {
    pub(super) fn new(device: &Device, len_bytes: usize, count: usize) -> Self {
        let pages = HugePages::filled(len_bytes).and_then(|part_bytes| {
            let _entered = device.enter().ok()?;
            HugePages::reserve(device, part_bytes, count)
        });
        Self { device: device.clone(), len_bytes, pages }
    }

    /// Returns the number of threads that [allocate](Self::alloc) a buffer now. CUDA registers one at a time.
    pub fn allocating(&self) -> usize {
        self.pages.as_ref().map_or(0, |pages| pages.takers())
    }

    /// Allocates a buffer, zeroed and page-locked for every device (`cudaHostRegister`, portable). If no address is left,
    /// or the buffers are shorter than a huge page, CUDA allocates the buffer (`cudaHostAlloc`).
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaHostRegister")]
    pub fn alloc(&self) -> Result<PinnedBuffer> {
        let Self { device, len_bytes, pages } = self;
        if let Some(pages) = pages {
            let _entered = device.enter()?;
            let _beside = device.cuda().beside_captures();
            if let Some(part) = pages.take(device, *len_bytes) {
                return Ok(PinnedBuffer::of(device, part.start(), *len_bytes, Some(part)));
            }
        }
        let ptr = allocate(device, *len_bytes, "cudaHostAlloc", |ptr| {
            // SAFETY: `ptr` outlives the call; the device's context is current.
            unsafe { (device.cuda().runtime().cudaHostAlloc)(ptr, *len_bytes, cudaHostAllocPortable) }
        })?;
        // SAFETY: CUDA allocated this many bytes, and the host may write them.
        unsafe { ptr::write_bytes(ptr, 0, *len_bytes) };
        Ok(PinnedBuffer::of(device, ptr, *len_bytes, None))
    }
}

impl fmt::Debug for PinnedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedRegion").field("len_bytes", &self.len_bytes).finish_non_exhaustive()
    }
}

fn allocation_id(device: &Device, ptr: *const u8) -> Result<u64> {
    let _entered = device.enter()?;
    let mut id = 0u64;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
    let address = ptr.expose_provenance() as u64;
    // SAFETY: the attribute is a number of 64 bits, which outlives the call. CUDA accepts any address.
    check_driver("cuPointerGetAttribute", unsafe {
        (device.cuda().driver().cuPointerGetAttribute)((&raw mut id).cast(), attribute, address)
    })?;
    Ok(id)
}
