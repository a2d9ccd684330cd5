//! Memory of every kind that transfers take, behind one type.

use std::ops::Range;

use cufile::cuda::{Device, DeviceBuffer, ManagedBuffer, PinnedBuffer};
use cufile::{
    BufSlice, BufSliceMut, Driver, IoBuf, IoBufMut, Location, RegisterFlags, RegisteredBuffer, Result,
};

/// The kind of a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A `Vec`.
    Host,
    /// Pinned memory of the host.
    Pinned,
    /// Managed memory.
    Managed,
    /// Memory of a GPU.
    Device,
    /// Memory of a GPU, registered with cuFile.
    Registered,
}

impl Kind {
    /// Each kind.
    pub const ALL: [Kind; 5] = [Kind::Host, Kind::Pinned, Kind::Managed, Kind::Device, Kind::Registered];
}

/// A buffer of any kind.
#[derive(Debug)]
pub enum Memory {
    /// See [`Kind::Host`].
    Host(Vec<u8>),
    /// See [`Kind::Pinned`].
    Pinned(PinnedBuffer),
    /// See [`Kind::Managed`].
    Managed(ManagedBuffer),
    /// See [`Kind::Device`].
    Device(DeviceBuffer),
    /// See [`Kind::Registered`].
    Registered(RegisteredBuffer<DeviceBuffer>),
}

impl Memory {
    /// Makes memory with these bytes.
    ///
    /// # Errors
    /// The failure of CUDA or cuFile.
    pub fn new(kind: Kind, driver: &Driver, device: &Device, bytes: &[u8]) -> Result<Self> {
        let len_bytes = bytes.len();
        let mut memory = match kind {
            Kind::Host => Self::Host(vec![0; len_bytes]),
            Kind::Pinned => Self::Pinned(device.alloc_pinned(len_bytes)?),
            Kind::Managed => Self::Managed(device.alloc_managed(len_bytes)?),
            Kind::Device | Kind::Registered => Self::Device(device.alloc(len_bytes)?),
        };
        memory.put(0, bytes)?;
        match memory {
            Self::Device(buffer) if kind == Kind::Registered => {
                Ok(Self::Registered(RegisteredBuffer::register(driver, buffer, RegisterFlags::empty())?))
            }
            memory => Ok(memory),
        }
    }

    /// Copies host bytes to the memory from `start` on. Registered memory keeps its bytes.
    ///
    /// # Errors
    /// The failure of CUDA.
    ///
    /// # Panics
    /// If the memory is registered, or too short.
    pub fn put(&mut self, start: usize, bytes: &[u8]) -> Result<()> {
        let range = start..start + bytes.len();
        match self {
            Self::Host(buffer) => buffer[range].copy_from_slice(bytes),
            Self::Pinned(buffer) => buffer[range].copy_from_slice(bytes),
            Self::Managed(buffer) => buffer.copy_from_host(start, bytes)?,
            Self::Device(buffer) => buffer.copy_from_host(start, bytes)?,
            Self::Registered(_) => panic!("registered memory has its bytes from the beginning"),
        }
        Ok(())
    }

    /// Copies bytes of the memory to the host.
    ///
    /// # Errors
    /// The failure of CUDA.
    ///
    /// # Panics
    /// If the memory is too short.
    pub fn get(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        match self {
            Self::Host(buffer) => bytes.copy_from_slice(&buffer[range]),
            Self::Pinned(buffer) => bytes.copy_from_slice(&buffer[range]),
            Self::Managed(buffer) => buffer.copy_to_host(range.start, &mut bytes)?,
            Self::Device(buffer) => buffer.copy_to_host(range.start, &mut bytes)?,
            Self::Registered(buffer) => buffer.get().copy_to_host(range.start, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// Copies all bytes of the memory to the host.
    ///
    /// # Errors
    /// The failure of CUDA.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        self.get(0..self.len_bytes())
    }

    /// Returns a part, for a write.
    ///
    /// # Panics
    /// If the memory is too short.
    pub fn part(&self, range: Range<usize>) -> BufSlice<'_> {
        BufSlice::new(self, range)
    }

    /// Returns a part, for a read.
    ///
    /// # Panics
    /// If the memory is too short.
    pub fn part_mut(&mut self, range: Range<usize>) -> BufSliceMut<'_> {
        BufSliceMut::new(self, range)
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

// SAFETY: the buffer inside keeps the promise, and stays the same one.
unsafe impl IoBuf for Memory {
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
unsafe impl IoBufMut for Memory {
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
