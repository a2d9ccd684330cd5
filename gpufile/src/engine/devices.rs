//! CUDA and the GPUs that an engine has met.

use std::sync::{OnceLock, PoisonError, RwLock};

use cufile::IoBuf;
use cufile::cuda::{Context, Cuda, Device};

/// CUDA, loaded when first needed, and the devices seen so far.
#[derive(Default)]
pub(crate) struct Devices {
    cuda: OnceLock<Cuda>,
    /// By the context that memory names. Primary contexts live as long as their device is kept here; another context
    /// that was destroyed and another made at its address may name the wrong GPU, which costs time, not correctness,
    /// because CUDA's addresses are unique among GPUs.
    seen: RwLock<Vec<(Option<Context>, Device)>>,
}

impl Devices {
    pub fn new(cuda: Option<Cuda>) -> Self {
        Self { cuda: cuda.map_or_else(OnceLock::new, OnceLock::from), seen: RwLock::default() }
    }

    /// # Errors
    /// The reason why there is no CUDA. The next call tries again.
    pub fn cuda(&self) -> cufile::Result<&Cuda> {
        if let Some(cuda) = self.cuda.get() {
            return Ok(cuda);
        }
        let cuda = Cuda::load()?;
        Ok(self.cuda.get_or_init(|| cuda))
    }

    /// The CUDA loaded so far.
    pub fn loaded_cuda(&self) -> Option<&Cuda> {
        self.cuda.get()
    }

    /// The ordinal of the device that a buffer is on.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn of<B: IoBuf + ?Sized>(&self, buffer: &B) -> cufile::Result<u32> {
        let context = buffer.context();
        {
            let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, device)) = seen.iter().find(|(known, _)| *known == context) {
                return Ok(device.ordinal());
            }
        }
        let device = self.cuda()?.device_of(buffer)?;
        let ordinal = device.ordinal();
        self.seen.write().unwrap_or_else(PoisonError::into_inner).push((context, device));
        Ok(ordinal)
    }

    /// The device with this ordinal, which [`of`](Self::of) gave.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn get(&self, ordinal: u32) -> cufile::Result<Device> {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        match seen.iter().find(|(_, device)| device.ordinal() == ordinal) {
            Some((_, device)) => Ok(device.clone()),
            None => self.cuda()?.device(ordinal),
        }
    }
}
