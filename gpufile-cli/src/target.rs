//! The memory that a command moves bytes to or from: the GPUs of `--gpu`, or host memory.

use std::io;

use cufile::cuda::{Cuda, Device, DeviceBuffer};
use cufile::{BufSlice, BufSliceMut, IoBuf};

use super::failure::Failure;

/// The options that choose the memory.
#[derive(clap::Args, Debug, Clone, Default, PartialEq)]
pub struct MemoryArgs {
    /// GPUs to use [default: 0, or host memory if there is no GPU].
    #[arg(short = 'd', long, value_name = "N,N", value_delimiter = ',', conflicts_with = "host")]
    pub gpu: Vec<u32>,
    /// Uses host memory.
    #[arg(long)]
    pub host: bool,
}

#[derive(Clone)]
pub enum Place {
    Host,
    Gpu(Device),
}

pub enum Memory {
    Host(Vec<u8>),
    Gpu(DeviceBuffer),
}

impl MemoryArgs {
    /// Returns the places, and the reason if host memory takes the place of a GPU.
    pub fn places(&self) -> Result<(Vec<Place>, Option<String>), Failure> {
        if self.host {
            return Ok((vec![Place::Host], None));
        }
        if self.gpu.is_empty() {
            return Ok(match Cuda::load().and_then(|cuda| cuda.device(0)) {
                Ok(device) => (vec![Place::Gpu(device)], None),
                Err(error) => (vec![Place::Host], Some(format!("no GPU: {}", short(&error)))),
            });
        }
        let cuda = Cuda::load().map_err(|error| Failure::Other(format!("cannot use --gpu: {error}")))?;
        let count = cuda.device_count()?;
        let place = |&ordinal: &u32| match ordinal < count {
            true => Ok(Place::Gpu(cuda.device(ordinal)?)),
            false => {
                Err(Failure::Other(format!("there is no GPU {ordinal}: this process sees {count} in all")))
            }
        };
        Ok((self.gpu.iter().map(place).collect::<Result<_, _>>()?, None))
    }
}

impl Place {
    /// Allocates a buffer of zeros on the host, or of any bytes on a GPU.
    ///
    /// # Errors
    /// The memory is not enough.
    pub fn alloc(&self, len_bytes: usize) -> Result<Memory, Failure> {
        match self {
            Place::Host => Ok(Memory::Host(host_bytes(len_bytes)?)),
            Place::Gpu(device) => Ok(Memory::Gpu(device.alloc(len_bytes)?)),
        }
    }

    /// Returns `host` or `GPU 0`.
    pub fn name(&self) -> String {
        match self {
            Place::Host => "host".to_owned(),
            Place::Gpu(device) => format!("GPU {}", device.ordinal()),
        }
    }
}

/// Allocates zeros; `vec!` would end the program, and leave the files that it made.
pub fn host_bytes(len_bytes: usize) -> Result<Vec<u8>, Failure> {
    zeros(len_bytes).map_err(|error| Failure::Other(error.to_string()))
}

pub fn zeros(len_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let room = bytes.try_reserve_exact(len_bytes);
    room.map_err(|_| io::Error::other(format!("the host cannot allocate {len_bytes} bytes of memory")))?;
    bytes.resize(len_bytes, 0);
    Ok(bytes)
}

/// Returns the reason why there is no GPU. `gpufile check` shows a long one whole.
fn short(error: &cufile::Error) -> String {
    match error {
        cufile::Error::Load(error) => {
            format!("{} does not load (`gpufile check` says why)", error.library())
        }
        error => error.to_string(),
    }
}

impl Memory {
    pub fn len_bytes(&self) -> usize {
        match self {
            Memory::Host(bytes) => bytes.len(),
            Memory::Gpu(buffer) => buffer.len_bytes(),
        }
    }

    pub fn first(&self, len_bytes: usize) -> BufSlice<'_> {
        match self {
            Memory::Host(bytes) => BufSlice::new(&bytes[..], ..len_bytes),
            Memory::Gpu(buffer) => buffer.slice(..len_bytes),
        }
    }

    pub fn first_mut(&mut self, len_bytes: usize) -> BufSliceMut<'_> {
        match self {
            Memory::Host(bytes) => BufSliceMut::new(&mut bytes[..], ..len_bytes),
            Memory::Gpu(buffer) => buffer.slice_mut(..len_bytes),
        }
    }
}
