//! Host memory in huge pages. CUDA pins such memory several times faster than it allocates pinned memory of small pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fork::Mutex;
use crate::system::{Advice, Mapping};
use cuda_rt_sys::driver::CUdevice_attribute;
use cuda_rt_sys::runtime::{cudaError_t, cudaHostRegisterPortable};

use super::Device;

/// Addresses for parts of one length, mapped in one piece. A part that is taken has zeroed memory, page-locked for every
/// device. It begins at a multiple of the size of a huge page. A forked child finds zeros in it.
///
/// To map memory, a thread waits for all threads that populate theirs. With one mapping for all parts, threads take
/// parts in parallel.
pub(super) struct HugePages {
    mapping: Mapping,
    start: *mut u8,
    part_bytes: usize,
    parts: Mutex<Parts>,
    takers: AtomicUsize,
    /// Held by the thread that registers a part. While CUDA registers memory, no thread can submit copies. Without
    /// this lock, several threads could register parts in a row, and delay all copies.
    registering: Mutex<()>,
}

#[derive(Default)]
struct Parts {
    returned: Vec<usize>,
    next: usize,
    count: usize,
}

// SAFETY: the addresses stay mapped, and each part is used by who has taken it.
unsafe impl Send for HugePages {}
// SAFETY: as above.
unsafe impl Sync for HugePages {}

/// A part, page-locked until it is [freed](Self::free).
pub(super) struct Part {
    pages: Arc<HugePages>,
    number: usize,
}

impl HugePages {
    /// The size in bytes of a huge page, except where pages of 16 or 64 KiB are the small ones. There, the memory has
    /// small pages.
    const PAGE_BYTES: usize = 2 << 20;

    /// Maps addresses for `count` parts of a [filled](Self::filled) length. The device's context must be current. Returns
    /// `None` if the system maps no more, and where devices use other addresses for registered memory than the host.
    pub fn reserve(device: &Device, part_bytes: usize, count: usize) -> Option<Arc<Self>> {
        let one_address = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        if !device.attribute(one_address).is_ok_and(|value| value == 1) {
            return None;
        }
        Self::map(part_bytes, count)
    }

    /// Returns a length of at least `len_bytes`, up to the end of a huge page if little is missing: one huge page takes
    /// less time than the small ones. Returns `None` for less than a huge page.
    pub fn filled(len_bytes: usize) -> Option<usize> {
        let whole = len_bytes.checked_next_multiple_of(Self::PAGE_BYTES)?;
        let filled = if whole - len_bytes <= whole / 8 { whole } else { len_bytes };
        (filled >= Self::PAGE_BYTES).then_some(filled)
    }

    fn map(part_bytes: usize, count: usize) -> Option<Arc<Self>> {
        let stride = part_bytes.checked_next_multiple_of(Self::PAGE_BYTES)?;
        // Room to begin at the next huge page.
        let mapping_bytes = stride.checked_mul(count)?.checked_add(Self::PAGE_BYTES)?;
        let mapping = Mapping::new(mapping_bytes)?;
        let first = mapping.start();
        let start = first.wrapping_byte_add(first.align_offset(Self::PAGE_BYTES)).cast();
        let parts = Mutex::new(Parts { returned: Vec::new(), next: 0, count });
        let (takers, registering) = (AtomicUsize::new(0), Mutex::new(()));
        let pages = Self { mapping, start, part_bytes, parts, takers, registering };
        // Otherwise a forked child would share the pages, and a write of the parent would move it to other pages than
        // those that are locked.
        if !pages.advise(0, stride * count, Advice::WipeOnFork) {
            return None;
        }
        // Faults of one small page at a time would take longer than copying from the memory. A refusal costs time only.
        pages.advise(0, stride * count, Advice::HugePages);
        Some(Arc::new(pages))
    }

    /// Populates a part and page-locks its first `len_bytes`. The device's context must be current. Returns `None` if all
    /// are taken, if the system has no memory, or if CUDA refuses to lock it.
    pub fn take(self: &Arc<Self>, device: &Device, len_bytes: usize) -> Option<Part> {
        self.takers.fetch_add(1, Ordering::Relaxed);
        let part = self.take_and_register(device, len_bytes);
        self.takers.fetch_sub(1, Ordering::Relaxed);
        part
    }

    pub fn takers(&self) -> usize {
        self.takers.load(Ordering::Relaxed)
    }

    fn take_and_register(self: &Arc<Self>, device: &Device, len_bytes: usize) -> Option<Part> {
        let number = self.parts.lock().take()?;
        let part = Part { pages: self.clone(), number };
        self.advise(part.at(), self.part_bytes, Advice::Populate);
        let register = device.cuda().runtime().cudaHostRegister;
        let turn = self.registering.lock();
        // SAFETY: the part has these bytes, and stays mapped until it is unregistered.
        let registered = unsafe { register(part.start().cast(), len_bytes, cudaHostRegisterPortable) };
        drop(turn);
        if registered == cudaError_t::cudaSuccess {
            return Some(part);
        }
        part.give_back();
        // SAFETY: takes nothing. The failed call left its error behind for the program's next call.
        unsafe { (device.cuda().runtime().cudaGetLastError)() };
        None
    }

    fn advise(&self, start: usize, len_bytes: usize, advice: Advice) -> bool {
        // SAFETY: the range lies in the mapping, and is that of a part which the caller has taken, or that of all parts
        // before any is taken.
        unsafe { self.mapping.advise(self.start.wrapping_add(start), len_bytes, advice) }
    }
}

impl Drop for HugePages {
    /// Unmaps the memory, unless a device may still use a part.
    fn drop(&mut self) {
        let parts = self.parts.get_mut();
        if parts.returned.len() == parts.next {
            // SAFETY: no part is taken, and no device uses one.
            unsafe { self.mapping.unmap() };
        }
    }
}

impl Parts {
    fn take(&mut self) -> Option<usize> {
        if let Some(number) = self.returned.pop() {
            return Some(number);
        }
        let number = self.next;
        (number < self.count).then(|| {
            self.next += 1;
            number
        })
    }
}

impl Part {
    pub fn start(&self) -> *mut u8 {
        self.pages.start.wrapping_add(self.at())
    }

    /// Frees the memory, once. The device's context must be current. Memory that CUDA does not release stays mapped,
    /// because devices may still use it. A reset of the device releases the memory too.
    pub fn free(&self, device: &Device) {
        // SAFETY: `take` registered the memory.
        let released = unsafe { (device.cuda().runtime().cudaHostUnregister)(self.start().cast()) };
        if let cudaError_t::cudaSuccess | cudaError_t::cudaErrorHostMemoryNotRegistered = released {
            self.give_back();
        }
    }

    fn give_back(&self) {
        self.pages.advise(self.at(), self.pages.part_bytes, Advice::Discard);
        self.pages.parts.lock().returned.push(self.number);
    }

    /// Returns the place of the first byte behind that of the first part.
    fn at(&self) -> usize {
        self.number * self.pages.part_bytes.next_multiple_of(HugePages::PAGE_BYTES)
    }
}
