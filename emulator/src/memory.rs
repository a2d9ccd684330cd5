//! Every address range that CUDA knows, and the memory behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::process::abort;
use std::ptr;
use std::sync::{Arc, Mutex};

use crate::control::{self, lock};
use crate::device::CAPACITY;
use crate::mapping::{Mapping, PAGE, Pair};
use crate::space::Space;

/// CUDA's kind of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a GPU, out of the host's reach.
    Device,
    /// Host memory that CUDA allocated.
    Pinned,
    /// Memory that moves between host and GPU.
    Managed,
    Registered,
}

#[derive(Clone)]
pub(crate) struct Allocation {
    pub base: usize,
    pub length: usize,
    pub kind: Kind,
    pub device: c_int,
    pub flags: u32,
    /// Different for every allocation ever made.
    pub id: u64,
    /// The real address of the bytes at `base`.
    pub inside: usize,
    /// The handle mapped here, for a range of virtual memory.
    pub physical: Option<u64>,
    /// True if copies may use it: mapped memory needs rights first.
    pub accessible: bool,
    pub hold: Option<Arc<Pair>>,
}

impl Allocation {
    pub(crate) fn end(&self) -> usize {
        self.base + self.length
    }
}

/// Memory that a copy may use for as long as this value lives.
pub(crate) struct Place {
    pub pointer: *mut u8,
    /// `None` for host memory that CUDA does not know.
    pub kind: Option<Kind>,
    pub device: c_int,
    _hold: Option<Arc<Pair>>,
}

// SAFETY: the pointer is into memory that `_hold` keeps mapped, or into host memory that the C caller lends.
unsafe impl Send for Place {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beyond;

#[derive(Default)]
pub(crate) struct Memory {
    pub allocations: BTreeMap<usize, Allocation>,
    pub virtual_memory: Space,
    /// The starts of staging buffers in larger allocations, as kernels used them.
    parts: BTreeSet<usize>,
    freed: BTreeMap<usize, usize>,
    last_id: u64,
    peak: usize,
}

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

pub(crate) fn with<R>(body: impl FnOnce(&mut Memory) -> R) -> R {
    body(lock(&MEMORY).get_or_insert_default())
}

impl Memory {
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn find(&self, address: usize) -> Option<&Allocation> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        (address < allocation.end()).then_some(allocation)
    }

    /// Returns whether `address` is behind an allocation, in the padding of its mapping.
    fn pads(&self, address: usize) -> bool {
        let before = self.allocations.range(..=address).next_back();
        let mapping = before.and_then(|(_, found)| found.hold.as_ref()).map(|pair| &pair.outside);
        mapping.is_some_and(|mapping| address < mapping.end())
    }

    fn was_freed(&self, address: usize) -> bool {
        let before = self.freed.range(..=address).next_back();
        before.is_some_and(|(_, end)| address < *end)
    }

    fn note_freed(&mut self, base: usize) {
        let gone = self.allocations.get(&base).filter(|found| found.kind == Kind::Device);
        if let Some(pair) = gone.and_then(|found| found.hold.as_ref()) {
            self.freed.insert(base, pair.outside.end());
        }
    }

    fn forget(&mut self, base: usize) {
        self.note_freed(base);
        if let Some(gone) = self.allocations.remove(&base) {
            self.parts.retain(|part| !(gone.base..gone.end()).contains(part));
        }
    }

    fn used(&self, device: c_int) -> usize {
        let owned = |allocation: &&Allocation| {
            allocation.device == device
                && allocation.physical.is_none()
                && matches!(allocation.kind, Kind::Device | Kind::Managed)
        };
        let allocated: usize = self.allocations.values().filter(owned).map(|found| found.length).sum();
        allocated + self.virtual_memory.used(device)
    }

    pub(crate) fn fits(&self, device: c_int, size: usize) -> bool {
        size <= CAPACITY - self.used(device)
    }

    fn place(&self, address: usize, length: usize) -> Result<Place, Beyond> {
        let end = address.checked_add(length).ok_or(Beyond)?;
        let outside =
            Place { pointer: ptr::with_exposed_provenance_mut(address), kind: None, device: -1, _hold: None };
        let Some(first) = self.find(address) else {
            let known =
                self.virtual_memory.reserved(address) || self.pads(address) || self.was_freed(address);
            return if known { Err(Beyond) } else { Ok(outside) };
        };
        // A copy treats neighbours in a reserved range as one range.
        let mut covered = first;
        while covered.accessible && covered.end() < end {
            match self.allocations.get(&covered.end()) {
                Some(next) if first.physical.is_some() && next.physical.is_some() => covered = next,
                _ => break,
            }
        }
        if !covered.accessible || (covered.end() < end && first.kind != Kind::Registered) {
            return Err(Beyond);
        }
        let is_in_part = self.parts.range(first.base..=address).next_back().is_some();
        if is_in_part && let Some(next) = self.parts.range(address + 1..).next().filter(|next| **next < end) {
            eprintln!(
                "cufile-emulator: aborting: {length} bytes at {address:#x} run into the next staging buffer, at {next:#x}"
            );
            abort();
        }
        Ok(Place {
            pointer: ptr::with_exposed_provenance_mut(first.inside + (address - first.base)),
            kind: Some(first.kind),
            device: first.device,
            _hold: first.hold.clone(),
        })
    }
}

/// Notes that a staging buffer begins here. No range in an earlier one of the same allocation may reach it.
pub(crate) fn note_staging(address: usize) {
    with(|memory| {
        if memory.find(address).is_some() {
            memory.parts.insert(address);
        }
    });
}

pub(crate) fn place(address: usize, length: usize) -> Result<Place, Beyond> {
    with(|memory| memory.place(address, length))
}

/// Checks that cuFile would register the range: memory, or a part of a reserved range whose first byte is mapped.
pub(crate) fn registrable(base: usize, length: usize) -> Result<(), Beyond> {
    with(|memory| {
        let mapped = memory.find(base).is_some_and(|found| found.physical.is_some());
        let end = base.checked_add(length).ok_or(Beyond)?;
        if mapped && memory.virtual_memory.reserved_end(base).is_some_and(|reserved| end <= reserved) {
            return Ok(());
        }
        memory.place(base, length).map(drop)
    })
}

pub(crate) fn find(address: usize) -> Option<Allocation> {
    with(|memory| memory.find(address).cloned())
}

pub(crate) fn allocate(kind: Kind, size: usize, device: c_int, flags: u32) -> Option<usize> {
    // A page that belongs to no allocation keeps neighbours apart.
    let length = size.checked_next_multiple_of(PAGE)?.checked_add(PAGE)?;
    let is_out_of_reach = kind == Kind::Device || kind == Kind::Managed && !control::concurrent_managed();
    with(|memory| {
        if kind != Kind::Pinned && !memory.fits(device, size) {
            return None;
        }
        let readable = libc::PROT_READ | libc::PROT_WRITE;
        let (outside, inside) = if is_out_of_reach {
            (Mapping::new(length, libc::PROT_NONE)?, Some(Mapping::new(length, readable)?))
        } else {
            let outside = Mapping::new(length, readable)?;
            outside.guard();
            (outside, None)
        };
        let base = outside.address();
        let allocation = Allocation {
            base,
            length: size,
            kind,
            device,
            flags,
            id: memory.next_id(),
            inside: inside.as_ref().map_or(base, Mapping::address),
            physical: None,
            accessible: true,
            hold: Some(Arc::new(Pair { outside, _inside: inside })),
        };
        memory.allocations.insert(base, allocation);
        memory.peak = memory.peak.max(memory.used(device));
        Some(base)
    })
}

/// Returns false if none of these kinds starts at `base`.
pub(crate) fn release(base: usize, kinds: &[Kind]) -> bool {
    with(|memory| {
        let matches = memory
            .allocations
            .get(&base)
            .is_some_and(|found| found.physical.is_none() && kinds.contains(&found.kind));
        if matches {
            memory.forget(base);
        }
        matches
    })
}

pub(crate) fn release_all(device: c_int) {
    with(|memory| {
        let doomed = |found: &&Allocation| found.device == device && found.physical.is_none();
        let bases: Vec<usize> = memory.allocations.values().filter(doomed).map(|found| found.base).collect();
        for base in bases {
            memory.forget(base);
        }
    });
}

pub(crate) fn register(base: usize, length: usize, device: c_int, flags: u32) -> bool {
    with(|memory| {
        let before = memory.allocations.range(..base + length).next_back();
        if before.is_some_and(|(_, found)| found.end() > base) {
            return false;
        }
        let id = memory.next_id();
        let allocation = Allocation {
            base,
            length,
            kind: Kind::Registered,
            device,
            flags,
            id,
            inside: base,
            physical: None,
            accessible: true,
            hold: None,
        };
        memory.allocations.insert(base, allocation);
        true
    })
}

pub(crate) fn used(device: c_int) -> usize {
    with(|memory| memory.used(device))
}

/// Counts memory mapped into a reserved range only when something is allocated beside it.
pub(crate) fn peak() -> usize {
    with(|memory| memory.peak)
}

pub(crate) fn pinned_bytes() -> usize {
    let pinned = |found: &&Allocation| matches!(found.kind, Kind::Pinned | Kind::Registered);
    with(|memory| memory.allocations.values().filter(pinned).map(|found| found.length).sum())
}

pub(crate) fn live_allocations() -> usize {
    let owned = |found: &&Allocation| found.kind != Kind::Registered && found.physical.is_none();
    with(|memory| memory.allocations.values().filter(owned).count())
}

pub(crate) fn live_registrations() -> usize {
    with(|memory| memory.allocations.values().filter(|found| found.kind == Kind::Registered).count())
}
