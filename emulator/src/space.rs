//! The reserved addresses and the physical memory of virtual memory management.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::mapping::Pair;

pub(crate) struct Reservation {
    pub length: usize,
    pub inside: usize,
    pub hold: Arc<Pair>,
}

pub(crate) struct Physical {
    pub file: OwnedFd,
    pub length: usize,
    pub device: c_int,
    pub is_for_rdma: bool,
    pub references: usize,
    pub mappings: usize,
}

#[derive(Default)]
pub(crate) struct Space {
    pub reservations: BTreeMap<usize, Reservation>,
    pub physical: BTreeMap<u64, Physical>,
}

impl Space {
    pub(crate) fn used(&self, device: c_int) -> usize {
        self.physical.values().filter(|found| found.device == device).map(|found| found.length).sum()
    }

    pub(crate) fn reserved(&self, address: usize) -> bool {
        self.reservation(address).is_some()
    }

    pub(crate) fn reserved_end(&self, address: usize) -> Option<usize> {
        self.reservation(address).map(|(base, found)| base + found.length)
    }

    pub(crate) fn reservation(&self, address: usize) -> Option<(usize, &Reservation)> {
        let (base, found) = self.reservations.range(..=address).next_back()?;
        (address < base + found.length).then_some((*base, found))
    }

    pub(crate) fn forget_unused(&mut self) {
        self.physical.retain(|_, found| found.references + found.mappings > 0);
    }
}
