//! CUDA and the cuFile driver, loaded and opened when first needed, and the GPUs that memory is on.

use std::sync::{OnceLock, PoisonError, RwLock};

use cufile::cuda::{Context, Cuda, Device};
use cufile::{Driver, IoBuf, IoBufMut};

use crate::memory::{Memory, Place};

/// The CUDA library and the cuFile driver of an engine, and of the files that it opened.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    cuda: OnceLock<Cuda>,
    /// The result of the first attempt to open the driver, success or failure, so that all files see the
    /// same.
    driver: OnceLock<Result<Driver, String>>,
    /// The devices seen so far, by the context that memory names. Primary contexts live as long as their
    /// device is kept here. Another context may be destroyed, and a new one made at its address. The entry
    /// may then name the wrong GPU. This costs time, not correctness, because CUDA's addresses are unique
    /// among GPUs.
    seen: RwLock<Vec<(Option<Context>, Device)>>,
}

impl Gpus {
    /// Returns GPUs with this CUDA and this driver, if given, instead of the process's.
    pub fn new(cuda: Option<Cuda>, driver: Option<Driver>) -> Self {
        let cuda = cuda.or_else(|| driver.as_ref().map(|driver| driver.cuda().clone()));
        Self {
            cuda: cuda.map_or_else(OnceLock::new, OnceLock::from),
            driver: driver.map_or_else(OnceLock::new, |driver| OnceLock::from(Ok(driver))),
            seen: RwLock::default(),
        }
    }

    /// Returns CUDA, loaded when first needed.
    ///
    /// # Errors
    /// The reason why CUDA is not available. The next call tries again.
    pub fn cuda(&self) -> cufile::Result<&Cuda> {
        if let Some(cuda) = self.cuda.get() {
            return Ok(cuda);
        }
        let cuda = Cuda::load()?;
        Ok(self.cuda.get_or_init(|| cuda))
    }

    /// Returns CUDA if it was loaded already.
    pub fn loaded_cuda(&self) -> Option<&Cuda> {
        self.cuda.get()
    }

    /// Returns the cuFile driver, opened when first needed.
    ///
    /// # Errors
    /// The reason why the driver did not open.
    pub fn driver(&self) -> Result<&Driver, &str> {
        let open = || -> cufile::Result<Driver> { Driver::builder().cuda(self.cuda()?.clone()).open() };
        self.driver.get_or_init(|| open().map_err(|error| error.to_string())).as_ref().map_err(String::as_str)
    }

    /// Returns whether a driver was given or opened already.
    pub fn has_open_driver(&self) -> bool {
        self.driver.get().is_some_and(Result::is_ok)
    }

    /// Returns the memory of a buffer that is only read from.
    ///
    /// # Errors
    /// The reason why the GPU of the buffer is unknown.
    pub fn memory_of<B: IoBuf + ?Sized>(&self, buffer: &B) -> cufile::Result<Memory> {
        let place = match buffer.is_host_accessible() {
            true => Place::Host,
            false => Place::Device(self.ordinal_of(buffer)?),
        };
        Ok(Memory {
            ptr: buffer.as_ptr().cast_mut(),
            len_bytes: buffer.len_bytes(),
            place,
            context: buffer.context(),
            is_registered: buffer.is_registered(),
            base_offset: buffer.base_offset(),
        })
    }

    /// Returns the memory of a buffer that may be written.
    ///
    /// # Errors
    /// As [`memory_of`](Self::memory_of).
    pub fn memory_of_mut<B: IoBufMut + ?Sized>(&self, buffer: &mut B) -> cufile::Result<Memory> {
        let memory = self.memory_of(buffer)?;
        Ok(Memory { ptr: buffer.as_mut_ptr(), ..memory })
    }

    /// Returns the GPU with an ordinal that [`memory_of`](Self::memory_of) found.
    ///
    /// # Errors
    /// The error that CUDA returned.
    pub fn device(&self, ordinal: u32) -> cufile::Result<Device> {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        match seen.iter().find(|(_, device)| device.ordinal() == ordinal) {
            Some((_, device)) => Ok(device.clone()),
            None => self.cuda()?.device(ordinal),
        }
    }

    fn ordinal_of<B: IoBuf + ?Sized>(&self, buffer: &B) -> cufile::Result<u32> {
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
}
