//! A loaded libcufile, its version, and its features.

use std::path::Path;
use std::sync::{Arc, MutexGuard};
use std::{fmt, io, ptr};

use cufile_sys::Functions;

use crate::error::{Error, Result, check};
use crate::fork::{Generation, Mutex, OnceCell};
use crate::version::Version;

/// A feature that a libcufile newer than 1.11 may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Reading and setting parameters in the program. Since cuFile 1.14.
    Parameters,
    /// Limits of parameters, and the POSIX pool's slabs. Since cuFile 1.15.
    ParameterLimits,
    /// Statistics. Since cuFile 1.15.
    Statistics,
    /// Size of a GPU's BAR1. Since cuFile 1.15.
    BarSize,
    /// Peer-to-peer flags of a file system. Since cuFile 1.16.
    P2pFlags,
    /// Slabs of the GPU bounce buffers, and export of the PCIe topology. Since cuFile 1.17.
    BounceBufferSlabs,
    /// Reads into and writes from several buffers in one call. Since cuFile 1.19.
    ///
    /// Names elsewhere: `CU_FILE_FEATURE_VECTOR_IO_SUPPORTED` (C).
    #[doc(alias = "CU_FILE_FEATURE_VECTOR_IO_SUPPORTED")]
    VectoredIo,
}

/// A loaded libcufile. Clones refer to the same one; it is never unloaded.
#[derive(Clone)]
pub struct Library(Arc<Loaded>);

struct Loaded {
    sys: cufile_sys::Library,
    version: Version,
}

impl Library {
    /// Returns the process's libcufile. The first successful call loads it.
    ///
    /// It trusts the environment, as [`cuda_rt_sys::loader`] explains: `CUFILE_LIBRARY` names the file to load.
    ///
    /// # Errors
    /// [`Error::Load`] with every file tried.
    pub fn load() -> Result<Self> {
        static DEFAULT: OnceCell<Library> = OnceCell::new();
        match DEFAULT.get() {
            Some(library) => Ok(library.clone()),
            None => {
                let library = Self::from_sys(cufile_sys::Library::load()?)?;
                Ok(DEFAULT.get_or_init(|| library).clone())
            }
        }
    }

    /// Loads the libcufile at `path`.
    ///
    /// ```compile_fail,E0133
    /// let library = cufile::Library::load_from("/tmp/libcufile.so.0")?;
    /// # Ok::<(), cufile::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Load`] if it cannot be loaded or is not libcufile.
    ///
    /// # Safety
    /// The file must be libcufile, or a library with the same contract: loading runs its initialisers, and
    /// safe code calls its functions.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self> {
        // SAFETY: the caller's promise.
        Self::from_sys(unsafe { cufile_sys::Library::load_from(path) }?)
    }

    /// Wraps an already loaded table of functions.
    ///
    /// # Errors
    /// [`Error::CuFile`] if `cuFileGetVersion` fails.
    #[doc(alias = "cuFileGetVersion")]
    pub fn from_sys(sys: cufile_sys::Library) -> Result<Self> {
        let mut version = 0;
        // SAFETY: `version` outlives the call, which needs no open driver.
        check("cuFileGetVersion", unsafe { (sys.cuFileGetVersion)(&mut version) })?;
        Ok(Self(Arc::new(Loaded { sys, version: Version::from_raw(version) })))
    }

    /// Returns the loaded version (`cuFileGetVersion`).
    ///
    /// Names elsewhere: `get_version` (Python).
    #[doc(alias = "cuFileGetVersion")]
    #[doc(alias = "get_version")]
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// Returns the file or bare name that was loaded.
    pub fn path(&self) -> Option<&Path> {
        self.0.sys.path()
    }

    /// Returns whether the loaded version has `feature`.
    pub fn supports(&self, feature: Feature) -> bool {
        let functions = self.functions();
        match feature {
            Feature::Parameters => functions.cuFileGetParameterSizeT.is_some(),
            Feature::ParameterLimits => functions.cuFileGetParameterMinMaxValue.is_some(),
            Feature::Statistics => functions.cuFileGetStatsL1.is_some(),
            Feature::BarSize => functions.cuFileGetBARSizeInKB.is_some(),
            Feature::P2pFlags => functions.cuFileDriverGetP2PFlags.is_some(),
            Feature::BounceBufferSlabs => functions.cuFileGetParameterGpuBounceBufferSlabArray.is_some(),
            Feature::VectoredIo => functions.cuFileReadv.is_some(),
        }
    }

    /// Returns the table of C functions, for calls that this crate does not wrap.
    pub fn functions(&self) -> &Functions {
        self.0.sys.functions()
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        ptr::fn_addr_eq(self.functions().cuFileHandleRegister, other.functions().cuFileHandleRegister)
    }

    /// Fails where opening would never return: up to 1.20, NVIDIA's library reads lines of a missing file
    /// without end.
    pub(crate) fn check_modules(&self) -> Result<()> {
        let Loaded { sys, version } = &*self.0;
        modules_are_readable(sys.is_from_nvidia(), *version, Path::new("/proc/modules"))
    }

    pub(crate) fn newer<F>(&self, symbol: &'static str, function: Option<F>) -> Result<F> {
        function.ok_or_else(|| {
            let since = Functions::SYMBOLS.iter().find(|s| s.name == symbol).map_or(0, |s| s.since);
            Error::Unsupported { symbol, since: Version::from_raw(since), loaded: self.version() }
        })
    }
}

fn modules_are_readable(is_from_nvidia: bool, version: Version, modules: &Path) -> Result<()> {
    const LAST_MEASURED: Version = Version { major: 1, minor: 20 };
    if !is_from_nvidia || version > LAST_MEASURED || modules.exists() {
        return Ok(());
    }
    let problem =
        format!("this kernel has no {}, without which libcufile {version} never returns", modules.display());
    let source = io::Error::new(io::ErrorKind::Unsupported, problem);
    Err(Error::Io { operation: "cuFileDriverOpen".into(), source })
}

/// Takes a lock for each call of libcufile that sets or reads parameters, reads properties, opens or closes. 1.11 to
/// 1.15 corrupt their heap if two threads make such calls at a time.
///
/// # Errors
/// [`Error::Forked`] in the child of a process that made such a call. There, the lock and libcufile's may stay
/// locked for ever.
pub(crate) fn one_at_a_time() -> Result<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::of_static(());
    lock_unless_forked(&TURN)
}

/// Takes a lock for a [`DriverBuilder`](crate::DriverBuilder) that sets and opens. Settings of two openings would mix
/// in the process. The caller takes it before [`one_at_a_time`], never after it.
///
/// # Errors
/// As [`one_at_a_time`].
pub(crate) fn one_opening_at_a_time() -> Result<MutexGuard<'static, ()>> {
    static OPENING: Mutex<()> = Mutex::of_static(());
    lock_unless_forked(&OPENING)
}

fn lock_unless_forked(mutex: &'static Mutex<()>) -> Result<MutexGuard<'static, ()>> {
    static FIRST_BY: OnceCell<Generation> = OnceCell::new();
    if !FIRST_BY.get_or_init(Generation::current).is_current() {
        return Err(Error::Forked);
    }
    Ok(mutex.lock())
}

macro_rules! newer {
    ($library:expr, $name:ident) => {
        $library.newer(stringify!($name), $library.functions().$name)
    };
}
pub(crate) use newer;

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("path", &self.path()).field("version", &self.version()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn only_nvidias_library_needs_the_list_of_modules() {
        let (there, missing) = (Path::new("/proc/self/stat"), Path::new("/proc/no-such-file"));
        let of = |minor| Version { major: 1, minor };
        for (is_from_nvidia, version, modules) in
            [(true, of(20), there), (false, of(16), missing), (true, of(21), missing)]
        {
            modules_are_readable(is_from_nvidia, version, modules).unwrap();
        }
        for version in [of(11), of(16), of(20)] {
            let error = modules_are_readable(true, version, missing).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let text = format!(
                "cuFileDriverOpen: this kernel has no /proc/no-such-file, without which libcufile {version} never returns"
            );
            assert_eq!(error.to_string(), text);
        }
    }
}
