//! CUDA, the cuFile driver, and the GPUs that memory is on.

use std::mem;
use std::sync::Arc;

use cufile::cuda::{Context, Cuda, Device};
use cufile::fork::{Mutex, OnceCell};
use cufile::{Driver, IoBuf, IoBufMut, Location};

use crate::gpu::kernels::Kernels;
use crate::gpu::processors::Processors;
use crate::memory::{Memory, Place};
use crate::route::Counters;

/// The CUDA library and the cuFile driver of an engine and its files.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    cuda: OnceCell<Cuda>,
    /// The result of the first attempt, so that all files see the same.
    driver: OnceCell<Result<Driver, String>>,
    /// The devices seen so far, by the context that memory names. Primary contexts live as long as their device is kept
    /// here. Another context may be replaced by one of another GPU at its address. This costs time, not correctness,
    /// because CUDA's addresses are unique among GPUs.
    seen: Mutex<Vec<(Option<Context>, Device)>>,
    /// The kernels of the GPUs that needed them, by ordinal.
    kernels: Mutex<Vec<(u32, LoadedKernels)>>,
    pub counters: Arc<Counters>,
}

/// The kernels of a GPU, or the reason why they could not be loaded.
type LoadedKernels = Result<Arc<Kernels>, Arc<str>>;

impl Gpus {
    /// Returns GPUs with this CUDA and driver, if given, instead of the process's.
    pub fn new(cuda: Option<Cuda>, driver: Option<Driver>) -> Self {
        let cuda = cuda.or_else(|| driver.as_ref().map(|driver| driver.cuda().clone()));
        Self {
            cuda: cuda.map_or_else(OnceCell::new, OnceCell::from),
            driver: driver.map_or_else(OnceCell::new, |driver| OnceCell::from(Ok(driver))),
            seen: Mutex::default(),
            kernels: Mutex::default(),
            counters: Arc::default(),
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

    pub fn loaded_cuda(&self) -> Option<&Cuda> {
        self.cuda.get()
    }

    /// Returns the number of GPUs that CUDA shows to this process; 0 before CUDA was loaded.
    pub fn visible(&self) -> usize {
        self.loaded_cuda().and_then(|cuda| cuda.device_count().ok()).unwrap_or(0) as usize
    }

    /// Returns the cuFile driver, opened when first needed.
    ///
    /// # Errors
    /// The reason why the driver did not open.
    pub fn driver(&self) -> Result<&Driver, &str> {
        let open = || -> cufile::Result<Driver> { Driver::builder().cuda(self.cuda()?.clone()).open() };
        self.driver.get_or_init(|| open().map_err(|error| error.to_string())).as_ref().map_err(String::as_str)
    }

    pub fn has_open_driver(&self) -> bool {
        self.driver.get().is_some_and(Result::is_ok)
    }

    /// Returns the memory of a buffer that is only read from.
    ///
    /// # Errors
    /// The reason why the GPU of the buffer is unknown.
    pub fn memory_of<B: IoBuf + ?Sized>(&self, buffer: &B) -> cufile::Result<Memory> {
        let Location { is_host_accessible, context, is_registered, base_offset } = buffer.location();
        let (place, is_in_primary_context) = match is_host_accessible {
            true => (Place::Host, false),
            false => {
                let (ordinal, is_primary) = self.gpu_of(buffer)?;
                (Place::Device(ordinal), is_primary)
            }
        };
        Ok(Memory {
            ptr: buffer.as_ptr().cast_mut(),
            len_bytes: buffer.len_bytes(),
            place,
            context,
            is_in_primary_context,
            is_registered,
            base_offset,
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
        let seen = self.seen.lock();
        match seen.iter().find(|(_, device)| device.ordinal() == ordinal) {
            Some((_, device)) => Ok(device.clone()),
            None => self.cuda()?.device(ordinal),
        }
    }

    /// Returns the ordinal of a buffer's GPU, and whether the buffer belongs to its primary context.
    fn gpu_of<B: IoBuf + ?Sized>(&self, buffer: &B) -> cufile::Result<(u32, bool)> {
        let context = buffer.location().context;
        let found = |device: &Device| {
            let primary = device.context().as_raw();
            (device.ordinal(), context.is_some_and(|context| context.as_raw() == primary))
        };
        {
            let seen = self.seen.lock();
            if let Some((_, device)) = seen.iter().find(|(known, _)| *known == context) {
                return Ok(found(device));
            }
        }
        let device = self.cuda()?.device_of(buffer)?;
        let gpu = found(&device);
        self.seen.lock().push((context, device));
        Ok(gpu)
    }

    /// Returns the processors near a GPU, if some are farther away.
    pub fn processors_near(&self, place: Place) -> Option<Processors> {
        match place {
            Place::Host => None,
            Place::Device(ordinal) => Processors::near(&self.device(ordinal).ok()?),
        }
    }

    /// Forgets the kernels of a GPU that other code has reset.
    pub fn forget_kernels(&self, ordinal: u32) {
        let mut loaded = self.kernels.lock();
        mem::forget(loaded.extract_if(.., |(of, _)| *of == ordinal).collect::<Vec<_>>());
    }

    /// Returns the kernels for a GPU, loaded when first needed.
    ///
    /// # Errors
    /// The reason, which stays the same.
    pub fn kernels(&self, device: &Device) -> LoadedKernels {
        let mut loaded = self.kernels.lock();
        if let Some((_, kernels)) = loaded.iter().find(|(ordinal, _)| *ordinal == device.ordinal()) {
            return kernels.clone();
        }
        let kernels = Kernels::load(device).map(Arc::new).map_err(|error| error.to_string().into());
        if let Err(reason) = &kernels {
            self.counters
                .fell_back(&format!("GPU {} copies scattered ranges one by one: {reason}", device.ordinal()));
        }
        loaded.push((device.ordinal(), kernels.clone()));
        kernels
    }
}
