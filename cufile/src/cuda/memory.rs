//! Device, pinned and managed memory.

use std::ffi::c_void;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::{fmt, ptr, slice};

use cuda_rt_sys::runtime::{cudaHostAllocPortable, cudaMemAttachGlobal, cudaMemcpyKind};

use super::{Context, Device};
use crate::error::{Error, Result, check_runtime};
use crate::memory::{IoBuf, IoBufMut};

/// Memory of one GPU (`cudaMalloc`), freed when dropped. The host cannot look into it.
pub struct DeviceBuffer {
    device: Device,
    ptr: *mut u8,
    len_bytes: usize,
}

// SAFETY: an owning pointer to memory that no thread of the host accesses except through CUDA, which may be called from
// any thread.
unsafe impl Send for DeviceBuffer {}
// SAFETY: as above; methods that write take `&mut self`.
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    pub(super) fn new(device: &Device, len_bytes: usize) -> Result<Self> {
        let _entered = device.enter()?;
        let mut ptr = ptr::null_mut();
        // SAFETY: `ptr` outlives the call; the device's context is current.
        check_runtime("cudaMalloc", unsafe { (device.cuda().runtime().cudaMalloc)(&mut ptr, len_bytes) })?;
        Ok(Self { device: device.clone(), ptr: ptr.cast(), len_bytes })
    }

    /// The device that the memory is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The first byte's address on the device.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The first byte's address on the device, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// How many bytes there are.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes in `range`.
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as for a slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> DeviceSlice<'_> {
        let (start, len_bytes) = resolve(range, self.len_bytes);
        DeviceSlice { buffer: self, start, len_bytes }
    }

    /// The bytes in `range`, for writing.
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as for a slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> DeviceSliceMut<'_> {
        let (start, len_bytes) = resolve(range, self.len_bytes);
        DeviceSliceMut { buffer: self, start, len_bytes }
    }

    /// Disjoint parts of `len_bytes` each, the last one maybe shorter, which may be used from several threads.
    ///
    /// # Panics
    /// If `len_bytes` is 0.
    pub fn chunks_mut(&mut self, len_bytes: usize) -> impl Iterator<Item = DeviceSliceMut<'_>> {
        assert!(len_bytes > 0, "chunks of no bytes");
        let buffer = &*self;
        (0..buffer.len_bytes).step_by(len_bytes).map(move |start| DeviceSliceMut {
            buffer,
            start,
            len_bytes: len_bytes.min(buffer.len_bytes - start),
        })
    }

    /// Copies host bytes to `offset_bytes` and waits until they are there.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if they do not fit; what CUDA said.
    #[doc(alias = "cudaMemcpy")]
    pub fn copy_from_host(&mut self, offset_bytes: usize, source: &[u8]) -> Result<()> {
        self.slice_checked("copy_from_host", offset_bytes, source.len())?;
        let _entered = self.device.enter()?;
        let runtime = self.device.cuda().runtime();
        // SAFETY: the range lies in the buffer (checked above) and `source` is readable.
        check_runtime("cudaMemcpy", unsafe {
            (runtime.cudaMemcpy)(
                self.ptr.add(offset_bytes).cast(),
                source.as_ptr().cast(),
                source.len(),
                cudaMemcpyKind::cudaMemcpyHostToDevice,
            )
        })?;
        // cudaMemcpy from pageable memory returns when the source may be reused, not when the bytes have arrived.
        self.wait()
    }

    /// Copies bytes from `offset_bytes` to the host.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there are not as many; what CUDA said.
    #[doc(alias = "cudaMemcpy")]
    pub fn copy_to_host(&self, offset_bytes: usize, target: &mut [u8]) -> Result<()> {
        self.slice_checked("copy_to_host", offset_bytes, target.len())?;
        let _entered = self.device.enter()?;
        // SAFETY: the range lies in the buffer (checked above) and `target` is writable.
        check_runtime("cudaMemcpy", unsafe {
            (self.device.cuda().runtime().cudaMemcpy)(
                target.as_mut_ptr().cast(),
                self.ptr.add(offset_bytes).cast(),
                target.len(),
                cudaMemcpyKind::cudaMemcpyDeviceToHost,
            )
        })
    }

    /// A copy of all bytes on the host.
    ///
    /// # Errors
    /// What CUDA said.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len_bytes];
        self.copy_to_host(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Sets every byte and waits until it is done.
    ///
    /// # Errors
    /// What CUDA said.
    #[doc(alias = "cudaMemset")]
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the whole buffer.
        check_runtime("cudaMemset", unsafe {
            (self.device.cuda().runtime().cudaMemset)(self.ptr.cast(), byte.into(), self.len_bytes)
        })?;
        self.wait()
    }

    /// Waits for the default stream.
    fn wait(&self) -> Result<()> {
        // SAFETY: null is the default stream of the current context, which the caller has entered.
        check_runtime("cudaStreamSynchronize", unsafe {
            (self.device.cuda().runtime().cudaStreamSynchronize)(ptr::null_mut())
        })
    }

    fn slice_checked(&self, operation: &'static str, offset_bytes: usize, len_bytes: usize) -> Result<()> {
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= self.len_bytes => Ok(()),
            _ => Err(Error::invalid(
                operation,
                format!("{len_bytes} bytes at {offset_bytes} of a buffer of {} bytes", self.len_bytes),
            )),
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: allocated in `new`, freed once. A failure (the driver is shutting down) leaves nothing to do.
        unsafe { (self.device.cuda().runtime().cudaFree)(self.ptr.cast()) };
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

    fn context(&self) -> Option<Context> {
        Some(self.device.context())
    }

    fn is_host_accessible(&self) -> bool {
        false
    }
}

// SAFETY: `&mut self` is the only access to the memory.
unsafe impl IoBufMut for DeviceBuffer {}

/// A part of a [`DeviceBuffer`].
#[derive(Debug, Clone, Copy)]
pub struct DeviceSlice<'a> {
    buffer: &'a DeviceBuffer,
    start: usize,
    len_bytes: usize,
}

/// A part of a [`DeviceBuffer`] that may be written.
#[derive(Debug)]
pub struct DeviceSliceMut<'a> {
    // Shared, because disjoint parts exist side by side; `slice_mut` and `chunks_mut` borrow the buffer mutably.
    buffer: &'a DeviceBuffer,
    start: usize,
    len_bytes: usize,
}

macro_rules! part_of_a_device_buffer {
    ($part:ident) => {
        // SAFETY: part of an allocation that stays at its address while it is borrowed.
        unsafe impl IoBuf for $part<'_> {
            fn as_ptr(&self) -> *const u8 {
                self.buffer.ptr.wrapping_add(self.start)
            }

            fn len_bytes(&self) -> usize {
                self.len_bytes
            }

            fn context(&self) -> Option<Context> {
                self.buffer.context()
            }

            fn is_host_accessible(&self) -> bool {
                false
            }
        }
    };
}

part_of_a_device_buffer!(DeviceSlice);
part_of_a_device_buffer!(DeviceSliceMut);

// SAFETY: parts that may be written are disjoint, and the buffer is borrowed mutably while they exist.
unsafe impl IoBufMut for DeviceSliceMut<'_> {}

/// Page-locked host memory (`cudaHostAlloc`), which reads and writes like a slice.
pub struct PinnedBuffer {
    device: Device,
    ptr: *mut u8,
    len_bytes: usize,
}

/// Memory that host and devices share page by page (`cudaMallocManaged`), which reads and writes like a slice.
///
/// cuFile can transfer it but not register it. Do not touch it from the host while a kernel uses it.
pub struct ManagedBuffer {
    device: Device,
    ptr: *mut u8,
    len_bytes: usize,
}

macro_rules! host_accessible {
    ($buffer:ident, $free:ident) => {
        // SAFETY: an owning pointer to memory that any thread may access.
        unsafe impl Send for $buffer {}
        // SAFETY: as above; writing takes `&mut self`.
        unsafe impl Sync for $buffer {}

        impl $buffer {
            /// The device that it was allocated for.
            pub fn device(&self) -> &Device {
                &self.device
            }
        }

        impl Deref for $buffer {
            type Target = [u8];

            fn deref(&self) -> &[u8] {
                // SAFETY: `len_bytes` initialised bytes, or none at a dangling but aligned address.
                unsafe { slice::from_raw_parts(self.ptr, self.len_bytes) }
            }
        }

        impl DerefMut for $buffer {
            fn deref_mut(&mut self) -> &mut [u8] {
                // SAFETY: as in `deref`, and `&mut self` is the only access.
                unsafe { slice::from_raw_parts_mut(self.ptr, self.len_bytes) }
            }
        }

        impl Drop for $buffer {
            fn drop(&mut self) {
                if self.len_bytes == 0 {
                    return;
                }
                let Ok(_entered) = self.device.enter() else { return };
                // SAFETY: allocated in `new`, freed once.
                unsafe { (self.device.cuda().runtime().$free)(self.ptr.cast()) };
            }
        }

        impl fmt::Debug for $buffer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({} bytes)", stringify!($buffer), self.len_bytes)
            }
        }

        // SAFETY: the allocation stays at its address until dropped.
        unsafe impl IoBuf for $buffer {
            fn as_ptr(&self) -> *const u8 {
                self.ptr
            }

            fn len_bytes(&self) -> usize {
                self.len_bytes
            }

            fn context(&self) -> Option<Context> {
                Some(self.device.context())
            }
        }

        // SAFETY: `&mut self` is the only access to the memory.
        unsafe impl IoBufMut for $buffer {}
    };
}

host_accessible!(PinnedBuffer, cudaFreeHost);
host_accessible!(ManagedBuffer, cudaFree);

impl PinnedBuffer {
    pub(super) fn new(device: &Device, len_bytes: usize) -> Result<Self> {
        let runtime = device.cuda().runtime();
        let ptr = host_alloc(device, len_bytes, "cudaHostAlloc", |ptr| {
            // SAFETY: `ptr` outlives the call; the device's context is current.
            unsafe { (runtime.cudaHostAlloc)(ptr, len_bytes, cudaHostAllocPortable) }
        })?;
        Ok(Self { device: device.clone(), ptr, len_bytes })
    }
}

impl ManagedBuffer {
    pub(super) fn new(device: &Device, len_bytes: usize) -> Result<Self> {
        let runtime = device.cuda().runtime();
        let ptr = host_alloc(device, len_bytes, "cudaMallocManaged", |ptr| {
            // SAFETY: `ptr` outlives the call; the device's context is current.
            unsafe { (runtime.cudaMallocManaged)(ptr, len_bytes, cudaMemAttachGlobal) }
        })?;
        Ok(Self { device: device.clone(), ptr, len_bytes })
    }
}

/// Allocates and zeroes host-accessible memory; CUDA has no empty allocations of this kind.
fn host_alloc(
    device: &Device,
    len_bytes: usize,
    operation: &'static str,
    alloc: impl FnOnce(*mut *mut c_void) -> cuda_rt_sys::runtime::cudaError_t,
) -> Result<*mut u8> {
    if len_bytes == 0 {
        return Ok(ptr::NonNull::dangling().as_ptr());
    }
    let _entered = device.enter()?;
    let mut ptr = ptr::null_mut();
    check_runtime(operation, alloc(&mut ptr))?;
    // SAFETY: CUDA allocated this many bytes, and the host may write them.
    unsafe { ptr::write_bytes(ptr.cast::<u8>(), 0, len_bytes) };
    Ok(ptr.cast())
}

/// A range within `len_bytes` as start and length.
fn resolve(range: impl RangeBounds<usize>, len_bytes: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.checked_add(1).expect("range start overflows"),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.checked_add(1).expect("range end overflows"),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len_bytes,
    };
    assert!(start <= end && end <= len_bytes, "range {start}..{end} of a buffer of {len_bytes} bytes");
    (start, end - start)
}
