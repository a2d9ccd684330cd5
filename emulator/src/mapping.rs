//! Mappings of this process, which are unmapped on drop.

use std::ffi::c_int;
use std::ptr;

pub(crate) const PAGE: usize = 4096;

pub(crate) struct Mapping {
    address: usize,
    length: usize,
    protection: c_int,
}

impl Mapping {
    pub(crate) fn new(length: usize, protection: c_int) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces no other.
        let address = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
        (address != libc::MAP_FAILED).then(|| Self {
            address: address.expose_provenance(),
            length,
            protection,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Ends a program that runs beyond host memory.
    pub(crate) fn guard(&self) {
        let page = ptr::with_exposed_provenance_mut(self.end() - PAGE);
        // SAFETY: the page belongs to this mapping, which is new, and to no allocation in it.
        unsafe { libc::mprotect(page, PAGE, libc::PROT_NONE) };
    }

    pub(crate) fn end(&self) -> usize {
        self.address + self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Faulting addresses stay mapped, so that no later mapping makes a stale device pointer valid.
        if self.protection == libc::PROT_NONE {
            return;
        }
        // SAFETY: this value owns the mapping, and places in it hold a reference to this value.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.address), self.length) };
    }
}

pub(crate) struct Pair {
    /// The addresses that the program gets.
    pub outside: Mapping,
    /// The memory that the emulator copies through; `None` if the program may touch its addresses itself.
    pub _inside: Option<Mapping>,
}
