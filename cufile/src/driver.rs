//! The cuFile driver: opening, closing, and its properties.

use std::fmt;
use std::sync::Arc;

use crate::cuda::Cuda;
use crate::error::{Error, OpError, Result, check};
use crate::failed::Failed;
use crate::library::{Feature, Library, one_at_a_time};
use crate::opened;
use crate::params::{Bytes, Param};
use crate::properties::{Controls, DriverProperties};

/// An open cuFile driver.
///
/// A clone refers to the same opening; the last reference closes it. libcufile counts openings, so independent
/// [`open`](Driver::open)s, also by C code, do not disturb each other.
///
/// After `fork`, every call in the child fails with [`Error::Forked`], even another opening, and dropping closes
/// nothing. To use cuFile in a child, fork before the parent loads [`Cuda`] and reads or sets
/// [parameters](Library::params), or call `exec` in the child.
///
/// Names elsewhere: `DriverInitializer` (KvikIO).
#[derive(Clone)]
pub struct Driver(Arc<Open>);

struct Open {
    library: Library,
    cuda: Cuda,
    closed: bool,
}

impl Driver {
    /// Opens the driver; the caller makes sure that no other thread does so at the same time.
    pub(crate) fn open_with(library: Library, cuda: Cuda) -> Result<Self> {
        let turn = one_at_a_time()?;
        let asked = opened::ask_first(&library);
        // SAFETY: `cuda` proves that libcuda is loaded and initialised; otherwise the call might not return.
        check("cuFileDriverOpen", unsafe { (library.functions().cuFileDriverOpen)() }).map_err(|error| {
            let advice = "without the nvidia-fs module, allow the compatibility mode in cufile.json";
            if not_open(&error) { error.advise(advice.into()) } else { error }
        })?;
        drop(turn);
        if let Err(error) = asked.and_then(|asked| note(&library, asked)) {
            let _turn = one_at_a_time()?;
            // SAFETY: balances the opening. A failure to close would add no information.
            let _ = unsafe { (library.functions().cuFileDriverClose_v2)() };
            return Err(error);
        }
        Ok(Self(Arc::new(Open { library, cuda, closed: false })))
    }

    /// Closes the driver if this is the last reference to it (`cuFileDriverClose`).
    ///
    /// Names elsewhere: `cuFileDriverClose_v2` (C); `driver_close` (Python).
    ///
    /// # Errors
    /// [`Failed`] returns the driver: [`Error::InUse`] while handles, buffers or clones refer to it, or
    /// libcufile's error.
    #[doc(alias = "driver_close")]
    #[doc(alias = "cuFileDriverClose")]
    #[doc(alias = "cuFileDriverClose_v2")]
    pub fn close(self) -> Result<(), Failed<Self>> {
        let mut open = match Arc::try_unwrap(self.0) {
            Ok(open) => open,
            Err(shared) => {
                let users = Arc::strong_count(&shared) - 1;
                return Err(Failed::new(Error::InUse { what: "the cuFile driver", users }, Self(shared)));
            }
        };
        match open.close() {
            Ok(()) => Ok(()),
            Err(error) => Err(Failed::new(error, Self(Arc::new(open)))),
        }
    }

    /// Returns the number of openings that libcufile counts in this process, including those by other code
    /// (`cuFileUseCount`).
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[doc(alias = "cuFileUseCount")]
    pub fn use_count(&self) -> Result<u64> {
        self.check_alive()?;
        // SAFETY: takes nothing.
        let count = unsafe { (self.library().functions().cuFileUseCount)() };
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Returns the driver's features and settings (`cuFileDriverGetProperties`).
    ///
    /// An open driver has no setters, because libcufile would ignore them: use
    /// [`DriverBuilder`](crate::DriverBuilder).
    ///
    /// Up to cuFile 1.16, this returns what libcufile reported when the process opened its first driver. Asking again
    /// would make these versions forget parameters, or end the process if another thread is transferring.
    ///
    /// Names elsewhere: `driver_get_properties` (Python).
    ///
    /// # Errors
    /// libcufile's error.
    #[doc(alias = "cuFileDriverGetProperties")]
    #[doc(alias = "driver_get_properties")]
    pub fn properties(&self) -> Result<DriverProperties> {
        self.check_alive()?;
        opened::properties(self.library())
    }

    /// Returns the libcufile that was opened.
    pub fn library(&self) -> &Library {
        &self.0.library
    }

    /// Returns the CUDA that the driver uses.
    pub fn cuda(&self) -> &Cuda {
        &self.0.cuda
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_alive() { Ok(()) } else { Err(Error::Forked) }
    }

    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.0.is_alive()
    }
}

fn not_open(error: &Error) -> bool {
    error.op_error() == Some(OpError::DRIVER_NOT_INITIALIZED)
}

impl Open {
    #[inline]
    fn is_alive(&self) -> bool {
        self.cuda.is_alive()
    }

    fn close(&mut self) -> Result<()> {
        if !self.is_alive() {
            return Err(Error::Forked);
        }
        let _turn = one_at_a_time()?;
        // SAFETY: balances the opening in `Driver::open_with`; what needs an open driver holds a reference.
        check("cuFileDriverClose", unsafe { (self.library.functions().cuFileDriverClose_v2)() }).map_err(
            |error| {
                let advice = "other code in this process has closed it";
                if not_open(&error) { error.advise(advice.into()) } else { error }
            },
        )?;
        self.closed = true;
        opened::remove(&self.library);
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.closed {
            // Ignored here; `Driver::close` returns the error.
            let _ = self.close();
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("library", self.library()).field("cuda", self.cuda()).finish()
    }
}

fn note(library: &Library, asked: Option<DriverProperties>) -> Result<()> {
    let mut properties = asked.or_else(|| opened::known(library));
    if let Some(properties) = &mut properties
        && opened::check_none(library).is_ok()
        && library.supports(Feature::Parameters)
    {
        take_over_parameters(properties, library)?;
    }
    opened::add(library, properties);
    Ok(())
}

fn take_over_parameters(properties: &mut DriverProperties, library: &Library) -> Result<()> {
    let params = library.params();
    let Bytes(poll_threshold) = params.get(Param::POLL_THRESHOLD)?;
    let Bytes(max_direct_io) = params.get(Param::MAX_DIRECT_IO_SIZE)?;
    let Bytes(max_device_cache) = params.get(Param::MAX_DEVICE_CACHE_SIZE)?;
    let Bytes(per_buffer_cache) = params.get(Param::PER_BUFFER_CACHE_SIZE)?;
    let Bytes(max_device_pinned) = params.get(Param::MAX_DEVICE_PINNED_MEMORY)?;
    properties.poll_threshold_bytes = poll_threshold;
    properties.max_direct_io_bytes = max_direct_io;
    properties.max_device_cache_bytes = max_device_cache;
    properties.per_buffer_cache_bytes = per_buffer_cache;
    properties.max_device_pinned_bytes = max_device_pinned;
    properties.max_batch_entries = params.get(Param::MAX_BATCH_ENTRIES)? as u32;
    properties.max_batch_timeout = params.get(Param::BATCH_TIMEOUT)?;
    properties.controls.set(Controls::POLL_MODE, params.get(Param::USE_POLL_MODE)?);
    properties.controls.set(Controls::COMPAT_MODE, params.get(Param::ALLOW_COMPAT_MODE)?);
    Ok(())
}
