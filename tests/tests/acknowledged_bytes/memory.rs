//! Memory of every kind that transfers take.

use cufile::cuda::{Device, DeviceBuffer, ManagedBuffer, PinnedBuffer};
use cufile::{Driver, IoBuf, IoBufMut, Location, RegisterFlags, RegisteredBuffer};
use testkit::bed::{Bed, pattern};

use crate::plan::{NOISE_BYTES, Place};

/// A buffer of one of the kinds.
pub enum Buffer {
    Host(Vec<u8>),
    Pinned(PinnedBuffer),
    Managed(ManagedBuffer),
    Device(DeviceBuffer),
    /// Memory of the first GPU, registered with cuFile.
    Registered(RegisteredBuffer<DeviceBuffer>),
}

impl Buffer {
    /// Makes memory with these bytes.
    pub fn new(driver: &Driver, devices: &[Device], place: Place, bytes: &[u8]) -> Self {
        match place {
            Place::Registered => {
                let mut buffer = devices[0].alloc(bytes.len()).unwrap();
                buffer.copy_from_host(0, bytes).unwrap();
                Self::Registered(RegisteredBuffer::register(driver, buffer, RegisterFlags::empty()).unwrap())
            }
            Place::Host => Self::Host(bytes.to_vec()),
            Place::Pinned => {
                let mut buffer = devices[0].alloc_pinned(bytes.len()).unwrap();
                buffer.copy_from_slice(bytes);
                Self::Pinned(buffer)
            }
            Place::Managed => {
                let mut buffer = devices[0].alloc_managed(bytes.len()).unwrap();
                buffer.copy_from_host(0, bytes).unwrap();
                Self::Managed(buffer)
            }
            Place::Device(ordinal) => {
                let mut buffer = devices[ordinal as usize].alloc(bytes.len()).unwrap();
                buffer.copy_from_host(0, bytes).unwrap();
                Self::Device(buffer)
            }
        }
    }

    /// Returns its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Host(buffer) => buffer.clone(),
            Self::Pinned(buffer) => buffer.to_vec(),
            Self::Managed(buffer) => buffer.to_vec().unwrap(),
            Self::Device(buffer) => buffer.to_vec().unwrap(),
            Self::Registered(_) => unreachable!("what is written from, and not read into"),
        }
    }

    fn inner(&self) -> &dyn IoBuf {
        match self {
            Self::Host(buffer) => buffer,
            Self::Pinned(buffer) => buffer,
            Self::Managed(buffer) => buffer,
            Self::Device(buffer) => buffer,
            Self::Registered(buffer) => buffer,
        }
    }
}

// SAFETY: the buffer inside keeps the promise.
unsafe impl IoBuf for Buffer {
    fn as_ptr(&self) -> *const u8 {
        self.inner().as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.inner().len_bytes()
    }

    fn location(&self) -> Location {
        self.inner().location()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Buffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Self::Host(buffer) => buffer.as_mut_ptr(),
            Self::Pinned(buffer) => buffer.as_mut_ptr(),
            Self::Managed(buffer) => buffer.as_mut_ptr(),
            Self::Device(buffer) => buffer.as_mut_ptr(),
            Self::Registered(buffer) => buffer.as_mut_ptr(),
        }
    }
}

/// The source of writes, in memory of every kind.
pub struct Noise {
    pub bytes: Vec<u8>,
    buffers: Vec<Buffer>,
    pub devices: Vec<Device>,
    driver: Driver,
}

impl Noise {
    pub fn new(bed: &Bed) -> Self {
        let bytes = pattern(NOISE_BYTES);
        let cuda = bed.device.cuda();
        let devices: Vec<_> = (0..2).map(|ordinal| cuda.device(ordinal).unwrap()).collect();
        let buffers = Place::ALL.map(|place| Buffer::new(&bed.driver, &devices, place, &bytes));
        Self { bytes, buffers: buffers.into(), devices, driver: bed.driver.clone() }
    }

    /// Makes other memory of a kind, with these bytes.
    pub fn copy(&self, place: Place, bytes: &[u8]) -> Buffer {
        Buffer::new(&self.driver, &self.devices, place, bytes)
    }

    pub fn of(&self, place: Place) -> &Buffer {
        &self.buffers[Place::ALL.iter().position(|one| *one == place).unwrap()]
    }
}
