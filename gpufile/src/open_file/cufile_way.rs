//! A file's registration with cuFile, and why there is none.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::LazyLock;
use std::{fs, io};

use cufile::FileHandle;

use super::blocks::Sharing;
use super::{OpenFile, Outcome, direct};
use crate::engine::Engine;
use crate::memory::Memory;
use crate::route::{Route, RouteKind, RoutePolicy};

/// The way of device memory to and from a file.
#[derive(Debug)]
pub(crate) struct Way {
    route: Route,
    handle: Option<FileHandle>,
}

impl OpenFile {
    /// Returns the way that device memory takes, and why no better one. Opens the cuFile driver if the answer
    /// needs it.
    pub fn route(&self) -> &Route {
        &self.way().route
    }

    /// Registers the file with cuFile now.
    ///
    /// # Errors
    /// The reason why that does not work.
    pub fn require_cufile(&self) -> Result<(), String> {
        let (route, handle) = self.register()?;
        let handle = handle.ok_or_else(|| route.to_string())?;
        let _ = self.way.set(Way { route, handle: Some(handle) });
        Ok(())
    }

    /// The registration by which so many bytes of device memory should go, if they should go by cuFile.
    #[inline]
    pub fn cufile(&self, len_bytes: usize) -> Option<&FileHandle> {
        let large_enough = || {
            self.policy == RoutePolicy::RequireCufile
                || len_bytes >= self.engine.settings().gds_threshold_bytes()
        };
        self.way().handle.as_ref().filter(|_| large_enough())
    }

    /// Writes device memory by cuFile.
    pub fn write_cufile(&self, handle: &FileHandle, memory: &Memory, offset: u64) -> Outcome {
        let len = memory.len_bytes;
        let _held = self.blocks().hold(offset, len, Sharing::Alone);
        through_cufile(len, |done| {
            handle.write_range_at(memory, done, len - done, offset.saturating_add(done as u64))
        })
    }

    fn way(&self) -> &Way {
        self.way.get_or_init(|| {
            if let Err(error) = self.engine.cuda() {
                return Way { route: Route::unavailable(&error), handle: None };
            }
            match self.register() {
                Ok((route, handle)) => Way { route, handle },
                Err(reason) => Way { route: Route::posix([(RouteKind::CufileCompat, reason)]), handle: None },
            }
        })
    }

    /// Registers the file with cuFile if it should be used; or says why that does not work.
    fn register(&self) -> Result<(Route, Option<FileHandle>), String> {
        let only_direct = match self.policy {
            RoutePolicy::PosixOnly => return Err("the file was opened for POSIX only".to_owned()),
            RoutePolicy::RequireCufile => false,
            RoutePolicy::Auto => true,
        };
        if only_direct && nothing_is_direct(&self.engine) {
            return Ok((Route::without_direct_path(), None));
        }
        let driver = self.engine.driver()?;
        let text = |error: cufile::Error| error.to_string();
        let route = Route::cufile(driver, &self.file).map_err(text)?;
        let direct = route.is_direct();
        if only_direct && !direct {
            return Ok((route.or_posix(), None));
        }
        let fd = self.duplicate(direct).map_err(|error| error.to_string())?;
        Ok((route, Some(FileHandle::register(driver, fd).map_err(|failed| text(failed.error))?)))
    }

    /// A descriptor of the same file for cuFile; the direct paths want `O_DIRECT`.
    fn duplicate(&self, direct: bool) -> io::Result<OwnedFd> {
        if direct {
            return Ok(direct::reopen(&self.file, libc::O_DIRECT)?.into());
        }
        self.file.as_fd().try_clone_to_owned()
    }
}

impl Route {
    /// Returns the best way that a file of any file system can take to device memory in this process, and why there is no
    /// better one. [`File::route`](crate::File::route) tells what one file takes.
    ///
    /// The first call may load CUDA and open the cuFile driver, which takes a tenth of a second or more.
    ///
    /// ```
    /// use gpufile::{Engine, Route, RouteKind};
    ///
    /// let route = Route::best(Engine::global());
    /// match route.kind() {
    ///     RouteKind::Gds | RouteKind::P2pDma => println!("past the host's memory, if the file system can"),
    ///     RouteKind::Unavailable => println!("host memory only: {route}"),
    ///     _ => println!("through the host's memory: {route}"),
    /// }
    /// ```
    pub fn best(engine: &Engine) -> Self {
        if let Err(error) = engine.cuda() {
            return Self::unavailable(&error);
        }
        if nothing_is_direct(engine) {
            return Self::without_direct_path();
        }
        let properties = engine
            .driver()
            .map_err(str::to_owned)
            .and_then(|driver| driver.properties().map_err(|error| error.to_string()));
        match properties {
            Ok(driver) => Self::of_driver(&driver, None).or_posix(),
            Err(reason) => Self::posix([(RouteKind::CufileCompat, reason)]),
        }
    }
}

/// True if no file can go past the host's memory, as far as that can be seen without opening the driver.
fn nothing_is_direct(engine: &Engine) -> bool {
    !engine.has_opened_driver() && !direct_is_thinkable()
}

/// Returns whether this machine has what either direct path needs: the module nvidia-fs, or a GPU that offers
/// its memory to other PCI devices. It does not open the cuFile driver, which takes a tenth of a second.
///
/// The first answer holds for the process, because looking takes longer than opening and reading a small file.
fn direct_is_thinkable() -> bool {
    static IS_THINKABLE: LazyLock<bool> = LazyLock::new(|| {
        let devices = Path::new("/sys/bus/pci/devices");
        Path::new("/proc/driver/nvidia-fs").exists() || a_gpu_offers_p2p_memory(devices).unwrap_or(false)
    });
    *IS_THINKABLE
}

fn a_gpu_offers_p2p_memory(devices: &Path) -> io::Result<bool> {
    const NVIDIA: &str = "0x10de";
    for device in fs::read_dir(devices)? {
        let device = device?.path();
        let is_nvidia = || fs::read_to_string(device.join("vendor")).is_ok_and(|id| id.trim() == NVIDIA);
        if device.join("p2pmem").exists() && is_nvidia() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads to device memory by cuFile.
pub(crate) fn read_cufile(handle: &FileHandle, memory: &mut Memory, offset: u64) -> Outcome {
    let len = memory.len_bytes;
    through_cufile(len, |done| {
        handle.read_range_at(memory, done, len - done, offset.saturating_add(done as u64))
    })
}

/// Repeats a cuFile call until `len` bytes are done or it moves nothing, which is the end of the file.
fn through_cufile(len: usize, mut call: impl FnMut(usize) -> cufile::Result<usize>) -> Outcome {
    let mut done = 0;
    while done < len {
        match call(done) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(cufile::Error::Io { source, .. }) if source.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (done, Some(error.into())),
        }
    }
    (done, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_offered_by_an_nvidia_device_with_p2pmem() {
        let folder = tempfile::tempdir().unwrap();
        let offered = || a_gpu_offers_p2p_memory(folder.path()).unwrap();
        let device = |name: &str, vendor: &str| {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("vendor"), vendor).unwrap();
        };
        assert!(a_gpu_offers_p2p_memory(&folder.path().join("none")).is_err() && !offered());
        device("disk", "0x144d\n");
        fs::create_dir(folder.path().join("disk/p2pmem")).unwrap();
        assert!(!offered());
        device("gpu", "0x10de\n");
        assert!(!offered());
        fs::create_dir(folder.path().join("gpu/p2pmem")).unwrap();
        assert!(offered());
    }
}
