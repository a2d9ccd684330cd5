//! The route of device memory of a file: the registration with cuFile, or the reason for having none.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::{fs, io};

use cufile::fork::OnceCell;
use cufile::{BufSlice, BufSliceMut, FileHandle};

use super::direct;
use super::outcome::Outcome;
use super::repeat::repeat;
use crate::error::Cause;
use crate::gpu::gpus::Gpus;
use crate::memory::Memory;
use crate::route::{Counters, Route, RouteKind, RoutePolicy};

#[derive(Debug)]
pub(super) struct DeviceRoute {
    pub route: Route,
    pub handle: Option<FileHandle>,
}

impl DeviceRoute {
    /// Chooses the route of a file. Opens the cuFile driver if the choice depends on it.
    pub fn of(file: &fs::File, gpus: &Gpus, policy: RoutePolicy) -> Self {
        if let Err(error) = gpus.cuda() {
            return Self { route: Route::unavailable(&error), handle: None };
        }
        Self::register(file, gpus, policy).unwrap_or_else(|reason| Self {
            route: Route::posix([(RouteKind::CufileCompat, reason)]),
            handle: None,
        })
    }

    pub fn of_stored(gpus: &Gpus) -> Self {
        let route = match gpus.cuda() {
            Ok(_) => Route::posix([(
                RouteKind::CufileCompat,
                "the bytes come from a storage that has no descriptor".to_owned(),
            )]),
            Err(error) => Route::unavailable(&error),
        };
        Self { route, handle: None }
    }

    /// Lets the route know if host memory could not be pinned. Counts the reason against GPUDirect Storage.
    pub fn counted_in(self, gpus: &Gpus) -> Self {
        if let Some(reason) = self.route.why_not_gds() {
            gpus.counters.fell_back(reason);
        }
        Self { route: self.route.counted_in(&gpus.counters), ..self }
    }

    /// Registers the file with cuFile if the policy and the route use cuFile.
    ///
    /// # Errors
    /// The reason why registering fails.
    pub fn register(file: &fs::File, gpus: &Gpus, policy: RoutePolicy) -> Result<Self, String> {
        let only_direct = match policy {
            RoutePolicy::PosixOnly => return Err("the file was opened for POSIX only".to_owned()),
            RoutePolicy::RequireCufile => false,
            RoutePolicy::Auto => true,
        };
        if only_direct && nothing_is_direct(gpus) {
            return Ok(Self { route: Route::without_direct_route(), handle: None });
        }
        let driver = gpus.driver()?;
        let text = |error: cufile::Error| error.to_string();
        let route = Route::cufile(driver, file).map_err(text)?;
        let direct = route.is_direct();
        if only_direct && !direct {
            return Ok(Self { route: route.or_posix(), handle: None });
        }
        let fd = duplicate(file, direct).map_err(|error| error.to_string())?;
        let handle = FileHandle::register(driver, fd).map_err(|failed| text(failed.error))?;
        Ok(Self { route, handle: Some(handle) })
    }
}

/// Returns a descriptor of the same file for cuFile, with `O_DIRECT` for direct routes.
fn duplicate(file: &fs::File, direct: bool) -> io::Result<OwnedFd> {
    if direct {
        return Ok(direct::reopen(file, libc::O_DIRECT)?.into());
    }
    file.as_fd().try_clone_to_owned()
}

/// Returns the best route of any file in this process, and why no better one exists.
pub(crate) fn best_route(gpus: &Gpus) -> Route {
    if let Err(error) = gpus.cuda() {
        return Route::unavailable(&error);
    }
    if nothing_is_direct(gpus) {
        return Route::without_direct_route();
    }
    let route = gpus
        .driver()
        .map_err(str::to_owned)
        .and_then(|driver| Route::of_driver(driver, None).map_err(|error| error.to_string()));
    match route {
        Ok(route) => route.or_posix(),
        Err(reason) => Route::posix([(RouteKind::CufileCompat, reason)]),
    }
}

/// Returns whether every file's bytes must pass through host memory, to the extent visible without opening
/// the driver.
fn nothing_is_direct(gpus: &Gpus) -> bool {
    !gpus.has_open_driver() && !direct_is_thinkable()
}

/// Returns whether this machine has the module nvidia-fs, or a GPU that offers its memory to other PCI devices. Does
/// not open the cuFile driver, which takes a tenth of a second.
///
/// The result is kept, because looking takes longer than reading a small file.
fn direct_is_thinkable() -> bool {
    static IS_THINKABLE: OnceCell<bool> = OnceCell::new();
    *IS_THINKABLE.get_or_init(|| {
        let devices = Path::new("/sys/bus/pci/devices");
        Path::new("/proc/driver/nvidia-fs").exists() || a_gpu_offers_p2p_memory(devices).unwrap_or(false)
    })
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

pub(super) fn read_cufile(
    handle: &FileHandle,
    memory: &mut Memory,
    offset: u64,
    counters: &Counters,
    len_bytes: impl Fn() -> Option<u64>,
) -> Outcome {
    let len = memory.len_bytes;
    let call = |done, most| {
        counters.called(done);
        let at = offset.saturating_add(done as u64);
        handle.read_at(&mut BufSliceMut::new(memory, done..done + most), at).map_err(Cause::from)
    };
    repeat(len, offset, call, len_bytes)
}

/// Writes device memory by cuFile. The caller holds the blocks of the range.
pub(super) fn write_cufile(
    handle: &FileHandle,
    memory: &Memory,
    offset: u64,
    counters: &Counters,
) -> Outcome {
    let call = |done, most| {
        counters.called(done);
        let at = offset.saturating_add(done as u64);
        handle.write_at(&BufSlice::new(memory, done..done + most), at).map_err(Cause::from)
    };
    repeat(memory.len_bytes, offset, call, || None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p2p_memory_needs_an_nvidia_device_with_p2pmem() {
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
