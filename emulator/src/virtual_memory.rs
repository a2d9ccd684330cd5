//! Address ranges, physical memory and the mapping of one into the other.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use cuda_rt_sys::driver::CUresult;

use crate::mapping::{Mapping, Pair};
use crate::memory::{self, Allocation, Kind, Memory};
use crate::space::{Physical, Reservation, Space};

/// The unit of sizes and addresses, in bytes.
pub(crate) const GRANULARITY: usize = 2 << 20;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

fn whole(size: usize) -> Result<usize, CUresult> {
    if size > 0 && size.is_multiple_of(GRANULARITY) { Ok(size) } else { Err(INVALID) }
}

pub(crate) fn reserve(size: usize, alignment: usize) -> Result<usize, CUresult> {
    let length = whole(size)?;
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(INVALID);
    }
    let alignment = alignment.max(GRANULARITY);
    let no_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let padded = length.checked_add(alignment).ok_or(no_memory)?;
    let outside = Mapping::new(padded, libc::PROT_NONE).ok_or(no_memory)?;
    let inside = Mapping::new(length, libc::PROT_NONE).ok_or(no_memory)?;
    let base = outside.address().next_multiple_of(alignment);
    let reservation = Reservation {
        length,
        inside: inside.address(),
        hold: Arc::new(Pair { outside, _inside: Some(inside) }),
    };
    memory::with(|memory| memory.virtual_memory.reservations.insert(base, reservation));
    Ok(base)
}

pub(crate) fn free(base: usize, size: usize) -> Result<(), CUresult> {
    memory::with(|memory| {
        let reservations = &mut memory.virtual_memory.reservations;
        let matches = reservations.get(&base).is_some_and(|found| found.length == size);
        let mapped = memory.allocations.range(base..base.saturating_add(size)).next().is_some();
        if !matches || mapped {
            return Err(INVALID);
        }
        reservations.remove(&base);
        Ok(())
    })
}

pub(crate) fn create(size: usize, device: c_int, is_for_rdma: bool) -> Result<u64, CUresult> {
    let length = whole(size)?;
    memory::with(|memory| {
        if !memory.fits(device, length) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        // SAFETY: the name is a C string, and the descriptor returned is owned by nothing else.
        let file = unsafe {
            let descriptor = libc::memfd_create(c"emulated GPU memory".as_ptr(), libc::MFD_CLOEXEC);
            if descriptor < 0 {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
            OwnedFd::from_raw_fd(descriptor)
        };
        // SAFETY: the descriptor is open.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length as libc::off_t) } != 0 {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let handle = memory.next_id();
        let physical = Physical { file, length, device, is_for_rdma, references: 1, mappings: 0 };
        memory.virtual_memory.physical.insert(handle, physical);
        Ok(handle)
    })
}

/// Drops one reference to physical memory, which lasts as long as it is mapped.
pub(crate) fn release(handle: u64) -> Result<(), CUresult> {
    memory::with(|memory| {
        let found = memory.virtual_memory.physical.get_mut(&handle).ok_or(INVALID)?;
        found.references = found.references.checked_sub(1).ok_or(INVALID)?;
        memory.virtual_memory.forget_unused();
        Ok(())
    })
}

/// Takes one more reference.
pub(crate) fn retain(address: usize) -> Result<u64, CUresult> {
    memory::with(|memory| {
        let handle = memory.find(address).and_then(|found| found.physical).ok_or(INVALID)?;
        memory.virtual_memory.physical.get_mut(&handle).ok_or(INVALID)?.references += 1;
        Ok(handle)
    })
}

pub(crate) fn properties_of(handle: u64) -> Result<(c_int, bool), CUresult> {
    memory::with(|memory| {
        let found = memory.virtual_memory.physical.get(&handle).ok_or(INVALID)?;
        Ok((found.device, found.is_for_rdma))
    })
}

pub(crate) fn map(base: usize, size: usize, offset: usize, handle: u64) -> Result<(), CUresult> {
    let length = whole(size)?;
    memory::with(|memory| {
        let id = memory.next_id();
        let Space { reservations: _, physical } = &memory.virtual_memory;
        let found = physical.get(&handle).ok_or(INVALID)?;
        let (start, reservation) = memory.virtual_memory.reservation(base).ok_or(INVALID)?;
        let end = base.checked_add(length).ok_or(INVALID)?;
        let taken = memory.allocations.range(..end).next_back().is_some_and(|(_, other)| other.end() > base);
        let fits =
            end <= start + reservation.length && length <= found.length && base.is_multiple_of(GRANULARITY);
        if offset != 0 || taken || !fits {
            return Err(INVALID);
        }
        let inside = reservation.inside + (base - start);
        replace(inside, length, Some(&found.file))?;
        let allocation = Allocation {
            base,
            length,
            kind: Kind::Device,
            device: found.device,
            flags: 0,
            id,
            inside,
            physical: Some(handle),
            accessible: false,
            hold: Some(reservation.hold.clone()),
        };
        memory.allocations.insert(base, allocation);
        memory.virtual_memory.physical.get_mut(&handle).ok_or(INVALID)?.mappings += 1;
        Ok(())
    })
}

pub(crate) fn unmap(base: usize, size: usize) -> Result<(), CUresult> {
    memory::with(|memory| {
        for piece in pieces(memory, base, size)? {
            let Some(allocation) = memory.allocations.remove(&piece) else { continue };
            replace(allocation.inside, allocation.length, None)?;
            let handle = allocation.physical.ok_or(INVALID)?;
            memory.virtual_memory.physical.get_mut(&handle).ok_or(INVALID)?.mappings -= 1;
        }
        memory.virtual_memory.forget_unused();
        Ok(())
    })
}

pub(crate) fn set_access(base: usize, size: usize, accessible: bool) -> Result<(), CUresult> {
    memory::with(|memory| {
        for piece in pieces(memory, base, size)? {
            if let Some(allocation) = memory.allocations.get_mut(&piece) {
                allocation.accessible = accessible;
            }
        }
        Ok(())
    })
}

/// Fails unless the mappings make up exactly this range.
fn pieces(memory: &Memory, base: usize, size: usize) -> Result<Vec<usize>, CUresult> {
    let end = base.checked_add(size).ok_or(INVALID)?;
    let mut found = Vec::new();
    let mut next = base;
    while next < end {
        let piece = memory.allocations.get(&next).filter(|piece| piece.physical.is_some()).ok_or(INVALID)?;
        found.push(next);
        next = piece.end();
    }
    if next == end && size > 0 { Ok(found) } else { Err(INVALID) }
}

fn replace(address: usize, length: usize, file: Option<&OwnedFd>) -> Result<(), CUresult> {
    let (protection, flags, descriptor) = match file {
        Some(file) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
    };
    let pointer = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the range is inside a mapping of the reservation, where only the emulator has pointers.
    let mapped = unsafe { libc::mmap(pointer, length, protection, flags | libc::MAP_FIXED, descriptor, 0) };
    if mapped == libc::MAP_FAILED { Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(()) }
}

pub(crate) fn live_reservations() -> usize {
    memory::with(|memory| memory.virtual_memory.reservations.len())
}

pub(crate) fn live_physical() -> usize {
    memory::with(|memory| memory.virtual_memory.physical.len())
}
