//! What files share: CUDA, the cuFile driver, and the staging lanes.

mod posix;
mod staging;

use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use cufile::Driver;
use cufile::cuda::{Cuda, Device};

pub(crate) use posix::{read_full, write_full};
pub(crate) use staging::{Lane, Outcome, Stop};

/// What files share. Clones refer to the same engine; several engines may exist.
///
/// Nothing is loaded or allocated before a transfer of device memory needs it: an engine costs nothing on a machine
/// without CUDA.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    cuda: OnceLock<Cuda>,
    // The first attempt decides, for success and failure alike, so that all files see the same.
    driver: OnceLock<Result<Driver, String>>,
    lanes: Mutex<Vec<Lane>>,
    bounce_buffer_bytes: usize,
}

/// How an engine is made; see [`Engine::builder`].
#[derive(Debug, Default)]
#[must_use]
pub struct EngineBuilder {
    cuda: Option<Cuda>,
    driver: Option<Driver>,
}

impl EngineBuilder {
    /// Uses this CUDA instead of the process's default.
    pub fn cuda(mut self, cuda: Cuda) -> Self {
        self.cuda = Some(cuda);
        self
    }

    /// Uses this open driver, and its CUDA, instead of opening one when it is first needed.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    /// Makes the engine.
    pub fn build(self) -> Engine {
        let cuda = self.cuda.or_else(|| self.driver.as_ref().map(|driver| driver.cuda().clone()));
        Engine(Arc::new(Inner {
            cuda: filled(cuda),
            driver: filled(self.driver.map(Ok)),
            lanes: Mutex::new(Vec::new()),
            bounce_buffer_bytes: 4 << 20,
        }))
    }
}

fn filled<T>(value: Option<T>) -> OnceLock<T> {
    value.map_or_else(OnceLock::new, OnceLock::from)
}

impl Engine {
    /// The process's default engine.
    pub fn global() -> &'static Engine {
        static GLOBAL: LazyLock<Engine> = LazyLock::new(|| Engine::builder().build());
        &GLOBAL
    }

    /// For an engine of one's own.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// The CUDA that device memory is copied with, loaded when first needed.
    ///
    /// # Errors
    /// Why there is none; tried again on the next call.
    pub fn cuda(&self) -> cufile::Result<&Cuda> {
        if let Some(cuda) = self.0.cuda.get() {
            return Ok(cuda);
        }
        let cuda = Cuda::load()?;
        Ok(self.0.cuda.get_or_init(|| cuda))
    }

    /// The cuFile driver, opened when first needed; or why it did not open.
    pub(crate) fn driver(&self) -> Result<&Driver, &str> {
        let open = || -> cufile::Result<Driver> { Driver::builder().cuda(self.cuda()?.clone()).open() };
        self.0
            .driver
            .get_or_init(|| open().map_err(|error| error.to_string()))
            .as_ref()
            .map_err(String::as_str)
    }

    /// Lends a staging lane on `device` to `work`, and keeps it for the next.
    pub(crate) fn with_lane<T>(
        &self,
        device: &Device,
        work: impl FnOnce(&mut Lane) -> cufile::Result<T>,
    ) -> cufile::Result<T> {
        let free = {
            let mut lanes = self.lanes();
            lanes
                .iter()
                .position(|lane| lane.device().ordinal() == device.ordinal())
                .map(|at| lanes.swap_remove(at))
        };
        let mut lane = free.map_or_else(|| Lane::new(device, self.0.bounce_buffer_bytes), Ok)?;
        let result = work(&mut lane);
        self.lanes().push(lane);
        result
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, Vec<Lane>> {
        // Lanes are whole whatever happened to a thread that held the lock.
        self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("cuda", &self.0.cuda.get()).finish_non_exhaustive()
    }
}
