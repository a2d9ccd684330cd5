//! Device memory that grows in place.

use std::ops::RangeBounds;
use std::{fmt, ptr};

use cuda_rt_sys::driver::{
    CUdevice_attribute, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st_anon_1, CUmemAllocationType,
    CUmemLocation, CUmemLocation_st_anon_1, CUmemLocationType,
};

use super::Device;
use crate::error::{Error, Result, check_driver};
use crate::failed::Failed;
use crate::memory::{IoBuf, IoBufMut, Location};
use crate::slice::{BufSlice, BufSliceMut};

/// Memory of one GPU mapped into a reserved range of addresses (`cuMemAddressReserve`, `cuMemCreate`, `cuMemMap`).
///
/// The memory grows within the range and never moves. Its length is that of the mapped part, a multiple of the
/// device's granularity, usually 2 MiB. If the device supports it, other devices may access the memory directly
/// (GPUDirect RDMA).
///
/// Dropping waits for all work of the device, as freeing a [`DeviceBuffer`](super::DeviceBuffer) does. If CUDA fails
/// to wait, the memory stays mapped; [`unmap`](Self::unmap) returns the error.
///
/// ```no_run
/// use cufile::IoBuf;
/// # use cufile::cuda::Cuda;
///
/// let device = Cuda::load()?.device(0)?;
/// let mut buffer = device.reserve(1 << 30)?;
/// buffer.grow(32 << 20)?;
/// buffer.fill(1)?;
/// buffer.grow(32 << 20)?; // Where it was, with what was in it.
/// assert_eq!(buffer.len_bytes(), 64 << 20);
/// # Ok::<(), cufile::Error>(())
/// ```
pub struct MappedBuffer {
    device: Device,
    address: CUdeviceptr,
    reserved_bytes: usize,
    len_bytes: usize,
    granularity_bytes: usize,
    properties: CUmemAllocationProp,
}

// SAFETY: owns memory that host threads access only through CUDA, and any thread may call CUDA; the pointer in the
// properties is null.
unsafe impl Send for MappedBuffer {}
// SAFETY: as above; methods that write or map take `&mut self`.
unsafe impl Sync for MappedBuffer {}

impl Device {
    /// Reserves `reserved_bytes` of addresses, rounded up to the device's granularity, for a buffer that is empty until
    /// it [grows](MappedBuffer::grow) (`cuMemAddressReserve`).
    ///
    /// # Errors
    /// CUDA's error: `CUDA_ERROR_NOT_SUPPORTED` if the device cannot map memory, `CUDA_ERROR_INVALID_VALUE` for
    /// 0 bytes.
    #[doc(alias = "cuMemAddressReserve")]
    #[doc(alias = "cuMemGetAllocationGranularity")]
    pub fn reserve(&self, reserved_bytes: usize) -> Result<MappedBuffer> {
        let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        // Drivers older than the attribute refuse it as invalid. Asking for RDMA without support is an error.
        let rdma = self.attribute(rdma).is_ok_and(|supported| supported != 0);
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: location(self),
            win32HandleMetaData: ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st_anon_1 {
                compressionType: 0,
                gpuDirectRDMACapable: rdma.into(),
                usage: 0,
                reserved: [0; 4],
            },
        };
        let driver = self.cuda().driver();
        let _entered = self.enter()?;
        let mut granularity_bytes = 0;
        // SAFETY: both outlive the call; CUDA is initialised.
        check_driver("cuMemGetAllocationGranularity", unsafe {
            (driver.cuMemGetAllocationGranularity)(
                &mut granularity_bytes,
                &properties,
                CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        })?;
        let reserved_bytes = round_up("reserve", reserved_bytes, granularity_bytes)?;
        let mut address = 0;
        // SAFETY: `address` outlives the call; alignment, address and flags are left to CUDA.
        check_driver("cuMemAddressReserve", unsafe {
            (driver.cuMemAddressReserve)(&mut address, reserved_bytes, 0, 0, 0)
        })?;
        let device = self.clone();
        Ok(MappedBuffer { device, address, reserved_bytes, len_bytes: 0, granularity_bytes, properties })
    }

    /// Reserves and maps at least `len_bytes` of device memory. Its contents are undefined.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve) and [`MappedBuffer::grow`].
    #[doc(alias = "cuMemCreate")]
    pub fn alloc_mapped(&self, len_bytes: usize) -> Result<MappedBuffer> {
        let mut buffer = self.reserve(len_bytes)?;
        buffer.grow(len_bytes)?;
        Ok(buffer)
    }
}

impl MappedBuffer {
    /// Maps at least `additional_bytes` more, rounded up to the granularity, after the mapped bytes (`cuMemCreate`,
    /// `cuMemMap`, `cuMemSetAccess`). The contents of the new bytes are undefined; the others keep addresses and
    /// contents.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if they go beyond the reserved range; CUDA's error, most often
    /// `CUDA_ERROR_OUT_OF_MEMORY`. The buffer then stays unchanged.
    #[doc(alias = "cuMemCreate")]
    #[doc(alias = "cuMemMap")]
    #[doc(alias = "cuMemSetAccess")]
    pub fn grow(&mut self, additional_bytes: usize) -> Result<()> {
        let size = round_up("grow", additional_bytes, self.granularity_bytes)?;
        if size == 0 {
            return Ok(());
        }
        let room = self.reserved_bytes - self.len_bytes;
        if size > room {
            let reserved = self.reserved_bytes;
            return Err(Error::invalid(
                "grow",
                format!(
                    "{size} more bytes, but only {room} of the {reserved} reserved bytes are left; reserve more"
                ),
            ));
        }
        let _entered = self.device.enter()?;
        let driver = self.device.cuda().driver();
        let mut memory = 0;
        // SAFETY: both outlive the call; the size is a multiple of the granularity.
        check_driver("cuMemCreate", unsafe { (driver.cuMemCreate)(&mut memory, size, &self.properties, 0) })?;
        let address = self.address + self.len_bytes as CUdeviceptr;
        // SAFETY: the range lies in the reserved one, behind the mapped bytes.
        let mapped = unsafe { (driver.cuMemMap)(address, size, 0, memory, 0) };
        // SAFETY: created above, released once. Mapped memory stays until it is unmapped.
        let released = unsafe { (driver.cuMemRelease)(memory) };
        check_driver("cuMemMap", mapped)?;
        let access = CUmemAccessDesc {
            location: location(&self.device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let accessible = check_driver("cuMemRelease", released).and_then(|()| {
            // SAFETY: the range was just mapped; `access` is one description and outlives the call.
            check_driver("cuMemSetAccess", unsafe { (driver.cuMemSetAccess)(address, size, &access, 1) })
        });
        match accessible {
            Ok(()) => self.len_bytes += size,
            // SAFETY: the range was just mapped, and nothing has used it.
            Err(_) => _ = unsafe { (driver.cuMemUnmap)(address, size) },
        }
        accessible
    }

    /// Returns the device that the memory is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the number of bytes of the reserved range.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Returns the granularity in bytes: sizes are rounded up to multiples of it.
    pub fn granularity_bytes(&self) -> usize {
        self.granularity_bytes
    }

    /// Returns the bytes in `range`.
    ///
    /// # Panics
    /// If the range goes beyond the mapped bytes, as for a slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> BufSlice<'_> {
        BufSlice::new(self, range)
    }

    /// Returns the bytes in `range`, for writing.
    ///
    /// # Panics
    /// If the range goes beyond the mapped bytes, as for a slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> BufSliceMut<'_> {
        BufSliceMut::new(self, range)
    }

    /// Waits for all work of the device and releases memory and addresses (`cuMemUnmap`, `cuMemAddressFree`), as
    /// dropping does.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of earlier work; or [`Error::Forked`]. [`Failed`] returns the
    /// buffer. Dropping this buffer leaks the memory, because the device may use it.
    #[doc(alias = "cuMemUnmap")]
    #[doc(alias = "cuMemAddressFree")]
    #[allow(clippy::result_large_err, reason = "the error returns the buffer")]
    pub fn unmap(mut self) -> Result<(), Failed<Self>> {
        self.release().map_err(|error| Failed::new(error, self))
    }

    fn release(&mut self) -> Result<()> {
        if self.reserved_bytes == 0 {
            return Ok(());
        }
        let _entered = self.device.enter()?;
        let driver = self.device.cuda().driver();
        if self.len_bytes > 0 {
            // Unlike cudaFree, unmapping does not wait for work that uses the memory.
            self.wait_for_device()?;
            // SAFETY: `grow` mapped exactly this range, and nothing refers to it any more.
            check_driver("cuMemUnmap", unsafe { (driver.cuMemUnmap)(self.address, self.len_bytes) })?;
            self.len_bytes = 0;
        }
        // SAFETY: reserved in `reserve`, given back once, because no bytes are reserved from then on. CUDA
        // refuses while memory is still mapped there.
        check_driver("cuMemAddressFree", unsafe {
            (driver.cuMemAddressFree)(self.address, self.reserved_bytes)
        })?;
        self.reserved_bytes = 0;
        Ok(())
    }

    fn wait_for_device(&self) -> Result<()> {
        match self.device.alloc(1) {
            // As cudaFree does, without ending the capture of a graph, which cudaDeviceSynchronize would.
            Ok(fence) => fence.free(),
            // No memory is left for the byte.
            Err(_) => self.device.synchronize(),
        }
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        // Ignored here; `unmap` returns the error.
        let _ = self.release();
    }
}

impl fmt::Debug for MappedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, len_bytes, reserved_bytes, .. } = self;
        write!(f, "MappedBuffer({len_bytes} of {reserved_bytes} bytes on {device:?})")
    }
}

// SAFETY: the memory stays mapped at its address until dropped.
unsafe impl IoBuf for MappedBuffer {
    fn as_ptr(&self) -> *const u8 {
        ptr::with_exposed_provenance(self.address as usize)
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        Location::device(self.device.context())
    }
}

// SAFETY: `&mut self` is the only access to the memory.
unsafe impl IoBufMut for MappedBuffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }
}

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        anon_1: CUmemLocation_st_anon_1 { id: device.ordinal().cast_signed() },
    }
}

fn round_up(operation: &'static str, bytes: usize, granularity: usize) -> Result<usize> {
    let rounded = bytes.checked_next_multiple_of(granularity).filter(|bytes| isize::try_from(*bytes).is_ok());
    rounded
        .ok_or_else(|| Error::invalid(operation, format!("{bytes} bytes do not fit into the address space")))
}
