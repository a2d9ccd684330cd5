//! The source of writes, in memory of every kind.

use cufile::Driver;
use cufile::cuda::Device;
use testkit::bed::{Bed, pattern};
use testkit::memory::{Kind, Memory};

use crate::plan::{NOISE_BYTES, Place};

pub struct Noise {
    pub bytes: Vec<u8>,
    buffers: Vec<Memory>,
    pub devices: Vec<Device>,
    driver: Driver,
}

impl Noise {
    pub fn new(bed: &Bed) -> Self {
        let cuda = bed.device.cuda();
        let devices = (0..2).map(|ordinal| cuda.device(ordinal).unwrap()).collect();
        let (bytes, driver) = (pattern(NOISE_BYTES), bed.driver.clone());
        let mut noise = Self { bytes, buffers: Vec::new(), devices, driver };
        noise.buffers = Place::ALL.map(|place| noise.copy(place, &noise.bytes)).into();
        noise
    }

    pub fn copy(&self, place: Place, bytes: &[u8]) -> Memory {
        let (kind, ordinal) = match place {
            Place::Host => (Kind::Host, 0),
            Place::Pinned => (Kind::Pinned, 0),
            Place::Managed => (Kind::Managed, 0),
            Place::Device(ordinal) => (Kind::Device, ordinal as usize),
            Place::Registered => (Kind::Registered, 0),
        };
        Memory::new(kind, &self.driver, &self.devices[ordinal], bytes).unwrap()
    }

    pub fn of(&self, place: Place) -> &Memory {
        &self.buffers[Place::ALL.iter().position(|one| *one == place).unwrap()]
    }
}
