//! Device memory that another library allocated.

use std::fmt;

use super::Device;
use crate::memory::{IoBuf, IoBufMut, Location};
use crate::slice::{BufSlice, BufSliceMut};

/// Device memory of another library, with the value that keeps it allocated.
///
/// If the owner is `'static`, so is the memory, and batches and stream-ordered transfers take it. For borrowed memory,
/// use [`BufSliceMut::from_device`](crate::BufSliceMut::from_device).
///
/// ```no_run
/// use cufile::cuda::{Device, DeviceMemory};
/// use cufile::{FileHandle, Result};
///
/// /// A tensor of some framework.
/// struct Tensor {
///     address: *mut u8,
///     len_bytes: usize,
/// }
///
/// fn read(file: &FileHandle, device: &Device, tensor: Tensor) -> Result<Tensor> {
///     let (address, len_bytes) = (tensor.address, tensor.len_bytes);
///     // SAFETY: the tensor keeps its memory until it is dropped, and no other code has the tensor.
///     let mut memory = unsafe { DeviceMemory::from_raw(device, address, len_bytes, tensor) };
///     file.read_exact_at(&mut memory, 0)?;
///     Ok(memory.into_owner())
/// }
/// ```
pub struct DeviceMemory<O> {
    device: Device,
    ptr: *mut u8,
    len_bytes: usize,
    owner: O,
}

// SAFETY: memory that no thread of the host accesses except through CUDA, which may be called from any thread.
unsafe impl<O: Send> Send for DeviceMemory<O> {}
// SAFETY: as above; a shared reference gives a shared reference to the owner.
unsafe impl<O: Sync> Sync for DeviceMemory<O> {}

impl<O> DeviceMemory<O> {
    /// Makes a buffer from the `len_bytes` bytes of device memory at `ptr`, and from the value that owns them.
    ///
    /// # Safety
    /// The bytes must be memory of the device's primary context. They must stay allocated until `owner` is
    /// dropped. While the value lives, no other code may access them, except to read through
    /// [`owner`](Self::owner).
    pub unsafe fn from_raw(device: &Device, ptr: *mut u8, len_bytes: usize, owner: O) -> Self {
        Self { device: device.clone(), ptr, len_bytes, owner }
    }

    /// Returns the device that the memory is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the owner.
    pub fn owner(&self) -> &O {
        &self.owner
    }

    /// Gives the owner back.
    pub fn into_owner(self) -> O {
        self.owner
    }
}

// SAFETY: the promise of `from_raw`; moving the owner does not move what it owns.
unsafe impl<O> IoBuf for DeviceMemory<O> {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    #[inline]
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    #[inline]
    fn location(&self) -> Location {
        Location::device(self.device.context())
    }
}

// SAFETY: as above; `&mut self` is the only access.
unsafe impl<O> IoBufMut for DeviceMemory<O> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}

impl<O> fmt::Debug for DeviceMemory<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes at {:p} on {:?})", self.len_bytes, self.ptr, self.device)
    }
}

impl<'a> BufSlice<'a> {
    /// Returns device memory that other code allocated, such as that of a PyTorch tensor: `len_bytes` bytes
    /// from `ptr`.
    ///
    /// # Safety
    /// The bytes must be memory of the device's primary context. As long as the value or copies of it live,
    /// nothing may free or write them.
    pub unsafe fn from_device(device: &'a Device, ptr: *const u8, len_bytes: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::foreign(device.context(), ptr, len_bytes) }
    }
}

impl<'a> BufSliceMut<'a> {
    /// Returns device memory that other code allocated, such as that of a PyTorch tensor: `len_bytes` bytes
    /// from `ptr`.
    ///
    /// ```no_run
    /// # use cufile::{BufSliceMut, Driver, FileHandle, Result};
    /// # fn read(driver: &Driver, file: &FileHandle, data_ptr: *mut u8, len_bytes: usize) -> Result<usize> {
    /// let device = driver.cuda().device(0)?;
    /// // SAFETY: the tensor's memory, and the tensor is not used before the read has returned.
    /// let mut tensor = unsafe { BufSliceMut::from_device(&device, data_ptr, len_bytes) };
    /// file.read_at(&mut tensor, 0)
    /// # }
    /// ```
    ///
    /// # Safety
    /// The bytes must be memory of the device's primary context. As long as the value lives, nothing else may
    /// free or use them.
    pub unsafe fn from_device(device: &'a Device, ptr: *mut u8, len_bytes: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::foreign(device.context(), ptr, len_bytes) }
    }
}
