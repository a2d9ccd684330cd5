//! The cuFile driver: opening, closing, and what holds for the whole process.

use std::fmt;
use std::sync::Arc;

use crate::cuda::Cuda;
use crate::error::{Error, Result, check};
use crate::fork;
use crate::library::Library;
use crate::properties::DriverProperties;

/// An open cuFile driver.
///
/// A clone is another reference to the same opening; the last reference closes it. libcufile itself counts openings, so
/// independent [`open`](Driver::open)s, also by C code in the same process, do not disturb each other.
///
/// After `fork` neither CUDA nor cuFile works in the child: every call is [`Error::Forked`] there, and dropping closes
/// nothing.
#[derive(Clone)]
pub struct Driver(Arc<Open>);

struct Open {
    library: Library,
    cuda: Cuda,
    generation: u32,
    closed: bool,
}

impl Driver {
    /// Opens the driver of the process's default [`Library`] and [`Cuda`].
    ///
    /// First makes sure that libcuda loads, initialises and has a device, because without it libcufile 1.16 and newer
    /// never return from opening.
    ///
    /// # Errors
    /// [`Error::Load`] naming libcuda, libcudart or libcufile if one is missing, [`Error::NoDevice`], or what
    /// `cuFileDriverOpen` said.
    #[doc(alias = "cuFileDriverOpen")]
    pub fn open() -> Result<Self> {
        Self::builder().open()
    }

    /// For opening with another library.
    pub fn builder() -> DriverBuilder {
        DriverBuilder::default()
    }

    /// Closes the driver if this is the last reference to it (`cuFileDriverClose`).
    ///
    /// # Errors
    /// The driver comes back with the error: [`Error::InUse`] while handles, buffers or clones refer to it, or what
    /// libcufile said.
    #[doc(alias = "cuFileDriverClose")]
    #[allow(clippy::result_large_err, reason = "the error carries the driver back")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        let mut open = match Arc::try_unwrap(self.0) {
            Ok(open) => open,
            Err(shared) => {
                let users = Arc::strong_count(&shared) - 1;
                return Err((Self(shared), Error::InUse { what: "the cuFile driver", users }));
            }
        };
        match open.close() {
            Ok(()) => Ok(()),
            Err(error) => Err((Self(Arc::new(open)), error)),
        }
    }

    /// How many openings libcufile counts in this process, those of others included (`cuFileUseCount`).
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

    /// What the driver supports and is set to (`cuFileDriverGetProperties`).
    ///
    /// # Errors
    /// What libcufile said.
    #[doc(alias = "cuFileDriverGetProperties")]
    pub fn properties(&self) -> Result<DriverProperties> {
        self.check_alive()?;
        DriverProperties::get(self.library())
    }

    /// The libcufile that was opened.
    pub fn library(&self) -> &Library {
        &self.0.library
    }

    /// The CUDA that was found before opening.
    pub fn cuda(&self) -> &Cuda {
        &self.0.cuda
    }

    /// Fails in a fork of the process that opened the driver.
    #[inline]
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_alive() { Ok(()) } else { Err(Error::Forked) }
    }

    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.0.is_alive()
    }
}

impl Open {
    #[inline]
    fn is_alive(&self) -> bool {
        fork::current() == self.generation
    }

    fn close(&mut self) -> Result<()> {
        if !self.is_alive() {
            return Err(Error::Forked);
        }
        // SAFETY: balances the opening in `DriverBuilder::open`; what needs an open driver holds a reference.
        check("cuFileDriverClose", unsafe { (self.library.functions().cuFileDriverClose_v2)() })?;
        self.closed = true;
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.closed {
            // `Driver::close` is for those who want the error.
            let _ = self.close();
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("library", self.library()).field("cuda", self.cuda()).finish()
    }
}

/// How a driver is opened; see [`Driver::builder`].
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct DriverBuilder {
    library: Option<Library>,
    cuda: Option<Cuda>,
}

impl DriverBuilder {
    /// Uses this libcufile instead of the process's default.
    pub fn library(mut self, library: Library) -> Self {
        self.library = Some(library);
        self
    }

    /// Uses this CUDA instead of the process's default.
    pub fn cuda(mut self, cuda: Cuda) -> Self {
        self.cuda = Some(cuda);
        self
    }

    /// Opens the driver.
    ///
    /// # Errors
    /// As [`Driver::open`].
    #[doc(alias = "cuFileDriverOpen")]
    pub fn open(self) -> Result<Driver> {
        let generation = fork::generation();
        let cuda = self.cuda.map_or_else(Cuda::load, Ok)?;
        let library = self.library.map_or_else(Library::load, Ok)?;
        // SAFETY: libcuda is there and initialised, without which the call might not return.
        check("cuFileDriverOpen", unsafe { (library.functions().cuFileDriverOpen)() })?;
        Ok(Driver(Arc::new(Open { library, cuda, generation, closed: false })))
    }
}
