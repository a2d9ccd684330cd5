//! Host memory in huge pages. CUDA pins such memory several times faster than it allocates pinned memory of small pages.

use std::ffi::c_void;
use std::ptr;

use cuda_rt_sys::driver::CUdevice_attribute;
use cuda_rt_sys::runtime::{cudaError_t, cudaHostRegisterPortable};

use super::Device;

/// Zeroed memory that is page-locked for every device. It begins at a multiple of the size of a huge page. A forked child
/// finds zeros in it.
pub(super) struct HugePages {
    mapping: *mut c_void,
    mapping_bytes: usize,
    start: *mut u8,
}

impl HugePages {
    /// The size in bytes of a huge page, except where pages of 16 or 64 KiB are the small ones. There, the memory has
    /// small pages.
    pub const PAGE_BYTES: usize = 2 << 20;

    /// Maps and page-locks `len_bytes` bytes. The device's context must be current. Returns `None` if the system has no
    /// memory or CUDA refuses to lock it, and where devices use other addresses for registered memory than the host.
    pub fn new(device: &Device, len_bytes: usize) -> Option<Self> {
        let one_address = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        if !device.attribute(one_address).is_ok_and(|value| value == 1) {
            return None;
        }
        let pages = Self::map(len_bytes)?;
        // SAFETY: the mapping has these bytes, and stays until it is unregistered.
        let registered = unsafe {
            (device.cuda().runtime().cudaHostRegister)(
                pages.start.cast(),
                len_bytes,
                cudaHostRegisterPortable,
            )
        };
        if registered == cudaError_t::cudaSuccess {
            return Some(pages);
        }
        pages.unmap();
        // SAFETY: takes nothing. The failed call left its error behind for the program's next call.
        unsafe { (device.cuda().runtime().cudaGetLastError)() };
        None
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Frees the memory, once. The device's context must be current. Memory that CUDA does not release stays mapped,
    /// because devices may still use it. A reset of the device releases the memory too.
    pub fn free(&self, device: &Device) {
        // SAFETY: `new` registered the memory.
        let released = unsafe { (device.cuda().runtime().cudaHostUnregister)(self.start.cast()) };
        if let cudaError_t::cudaSuccess | cudaError_t::cudaErrorHostMemoryNotRegistered = released {
            self.unmap();
        }
    }

    fn map(len_bytes: usize) -> Option<Self> {
        // Room to begin at the next huge page.
        let mapping_bytes = len_bytes.checked_add(Self::PAGE_BYTES)?;
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a mapping at a new address replaces none.
        let mapping = unsafe { libc::mmap(ptr::null_mut(), mapping_bytes, access, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return None;
        }
        let start = mapping.wrapping_byte_add(mapping.align_offset(Self::PAGE_BYTES));
        let pages = Self { mapping, mapping_bytes, start: start.cast() };
        // SAFETY: the range lies in the mapping, which nothing else uses.
        let advise = |advice| unsafe { libc::madvise(start, len_bytes, advice) };
        // Otherwise a forked child would share the pages, and a write of the parent would move it to other pages than
        // those that are locked.
        if advise(libc::MADV_WIPEONFORK) != 0 {
            pages.unmap();
            return None;
        }
        // Faults of one small page at a time would take longer than copying from the memory. A refusal costs time only.
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE] {
            advise(advice);
        }
        Some(pages)
    }

    fn unmap(&self) {
        // SAFETY: `map` made the mapping, and no device uses it.
        unsafe { libc::munmap(self.mapping, self.mapping_bytes) };
    }
}
