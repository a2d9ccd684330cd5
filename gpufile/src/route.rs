//! The way that the bytes of a file take to device memory, and why no better one.

use std::fmt;
use std::fs;
use std::os::fd::AsFd;

use cuda_rt_sys::{driver, runtime};
use cufile::{Controls, Driver, DriverProperties, Features, FileProperties, FileSystems};

/// The ways between a file and device memory, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RouteKind {
    /// GPUDirect Storage: cuFile and the nvidia-fs kernel module move the bytes without the host's memory.
    Gds,
    /// cuFile moves the bytes without the host's memory, by the kernel's PCI P2PDMA.
    P2pDma,
    /// cuFile stages the bytes in host memory (its compatibility mode).
    CufileCompat,
    /// This crate stages the bytes in pinned host memory.
    Posix,
    /// There is no way to device memory, because there is no CUDA. Host memory is read and written nonetheless.
    Unavailable,
}

impl fmt::Display for RouteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RouteKind::Gds => "GPUDirect Storage",
            RouteKind::P2pDma => "cuFile over P2PDMA",
            RouteKind::CufileCompat => "cuFile in its compatibility mode",
            RouteKind::Posix => "POSIX through pinned host memory",
            RouteKind::Unavailable => "none: host memory can be used here, device memory cannot",
        })
    }
}

/// The choice whether a file may or must go through cuFile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RoutePolicy {
    /// cuFile where it moves bytes without the host's memory, POSIX elsewhere.
    #[default]
    Auto,
    /// cuFile, also in its compatibility mode. Opening fails where cuFile does not work.
    RequireCufile,
    /// Never cuFile.
    PosixOnly,
}

/// The way that a file's bytes take, and why each better way is not taken.
#[derive(Debug, Clone)]
pub struct Route {
    kind: RouteKind,
    why_not: Vec<(RouteKind, String)>,
}

/// The reason why cuFile is not used where it would stage bytes in host memory itself.
const SLOWER: &str = "staging by this crate is faster; RoutePolicy::RequireCufile selects cuFile nonetheless";

impl Route {
    /// The way taken for device memory. Host memory always goes by plain reads and writes.
    pub fn kind(&self) -> RouteKind {
        self.kind
    }

    /// Each better way, and why it is not taken.
    pub fn why_not(&self) -> impl Iterator<Item = (RouteKind, &str)> {
        self.why_not.iter().map(|(kind, reason)| (*kind, reason.as_str()))
    }

    /// Returns why GPUDirect Storage does not move the file's bytes; `None` if it does. The reason is that against all of
    /// cuFile, or against all device memory, where there is one.
    pub fn why_not_gds(&self) -> Option<&str> {
        let reason = |wanted| self.why_not().find(|(kind, _)| *kind == wanted).map(|(_, reason)| reason);
        [RouteKind::Gds, RouteKind::CufileCompat, RouteKind::Posix].into_iter().find_map(reason)
    }

    /// The POSIX way, and why no other is taken.
    pub(crate) fn posix(why_not: impl Into<Vec<(RouteKind, String)>>) -> Self {
        Self { kind: RouteKind::Posix, why_not: why_not.into() }
    }

    /// No way, because CUDA does not work.
    pub(crate) fn unavailable(error: &cufile::Error) -> Self {
        Self { kind: RouteKind::Unavailable, why_not: vec![(RouteKind::Posix, no_cuda(error))] }
    }

    /// The POSIX way on a machine that has nothing of what the direct paths need.
    pub(crate) fn without_direct_path() -> Self {
        Self::posix([
            (RouteKind::Gds, no_module()),
            (
                RouteKind::P2pDma,
                "no GPU offers its memory to other PCI devices (no p2pmem in sysfs)".to_owned(),
            ),
            (RouteKind::CufileCompat, SLOWER.to_owned()),
        ])
    }

    /// True if the bytes go past the host's memory.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.kind, RouteKind::Gds | RouteKind::P2pDma)
    }

    /// The POSIX way in the stead of cuFile's compatibility mode.
    pub(crate) fn or_posix(mut self) -> Self {
        if self.kind == RouteKind::CufileCompat {
            self.kind = RouteKind::Posix;
            self.why_not.push((RouteKind::CufileCompat, SLOWER.to_owned()));
        }
        self
    }

    /// The way that cuFile takes for a file that it has accepted or is about to.
    pub(crate) fn cufile(driver: &Driver, file: impl AsFd) -> cufile::Result<Self> {
        Ok(Self::of_driver(&driver.properties()?, Some(&FileProperties::of(file)?)))
    }

    /// The way that cuFile takes for a file, or the best that it takes for any.
    pub(crate) fn of_driver(driver: &DriverProperties, file: Option<&FileProperties>) -> Self {
        let mut why_not = Vec::new();
        let posix_only = driver.controls.contains(Controls::POSIX_IO_MODE);
        let kind = if posix_only {
            why_not.push((RouteKind::Gds, "libcufile is configured for POSIX I/O only".to_owned()));
            RouteKind::CufileCompat
        } else {
            match (gds_obstacle(driver, file), p2p_obstacle(driver, file)) {
                (None, _) => RouteKind::Gds,
                (Some(gds), None) => {
                    why_not.push((RouteKind::Gds, gds));
                    RouteKind::P2pDma
                }
                (Some(gds), Some(p2p)) => {
                    why_not.push((RouteKind::Gds, gds));
                    why_not.push((RouteKind::P2pDma, p2p));
                    RouteKind::CufileCompat
                }
            }
        };
        Self { kind, why_not }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        self.why_not().try_for_each(|(kind, reason)| write!(f, "\n  not {kind}: {reason}"))
    }
}

/// Says why CUDA does not work, and which of its libraries are missing.
fn no_cuda(error: &cufile::Error) -> String {
    let cufile::Error::Load(first) = error else { return error.to_string() };
    let missing = [driver::Library::load().err(), runtime::Library::load().err()];
    let mut names: Vec<&str> = missing.iter().flatten().map(|error| error.library()).collect();
    if names.is_empty() {
        names.push(first.library());
    }
    format!("{} could not be loaded (Engine::cuda says which files were tried)", names.join(" and "))
}

fn no_module() -> String {
    no_module_on(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())
}

/// That nvidia-fs is not loaded, and whether there is one for this kernel.
fn no_module_on(kernel_release: &str) -> String {
    let is_wsl = kernel_release.to_ascii_lowercase().contains("microsoft");
    let there_is_none = if is_wsl { "; there is none for WSL" } else { "" };
    format!("the kernel module nvidia-fs is not loaded{there_is_none}")
}

/// Names what nvidia-fs would need and lacks, for a file or for all of them.
fn gds_obstacle(driver: &DriverProperties, file: Option<&FileProperties>) -> Option<String> {
    if driver.nvidia_fs.is_none() {
        return Some(no_module());
    }
    let Some(file) = file else {
        let none = "libcufile has no direct path to any file system here";
        return driver.file_systems.is_empty().then(|| none.to_owned());
    };
    let name = file.file_system.as_str();
    let supported = match name {
        "lustre" => FileSystems::LUSTRE,
        "wekafs" => FileSystems::WEKAFS,
        "nfs" | "nfs4" => FileSystems::NFS,
        "gpfs" => FileSystems::GPFS,
        "beegfs" | "beegfs_nodev" => FileSystems::BEEGFS,
        "scatefs" => FileSystems::SCATEFS,
        "virtiofs" => FileSystems::VIRTIOFS,
        "panfs" => FileSystems::PANFS,
        "ext4" | "xfs" => FileSystems::NVME | FileSystems::NVMEOF | FileSystems::SCSI | FileSystems::NVMESH,
        _ => FileSystems::empty(),
    };
    if !driver.file_systems.intersects(supported) {
        return Some(format!("libcufile has no direct path to {name} here"));
    }
    no_direct_io(file)
}

/// Names what P2PDMA would need and lacks, for a file or for all of them.
fn p2p_obstacle(driver: &DriverProperties, file: Option<&FileProperties>) -> Option<String> {
    if !driver.features.contains(Features::P2P) {
        return Some("libcufile finds no PCI P2PDMA here (driver, kernel or hardware)".to_owned());
    }
    let file = file?;
    if !["ext4", "xfs"].contains(&file.file_system.as_str()) {
        return Some(format!("{} is not on a local NVMe device", file.file_system));
    }
    no_direct_io(file)
}

fn no_direct_io(file: &FileProperties) -> Option<String> {
    file.direct_io.is_none().then(|| format!("{} offers no O_DIRECT for the file", file.file_system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_can_be_no_module_the_reason_says_so() {
        let usual = "the kernel module nvidia-fs is not loaded";
        assert_eq!(no_module_on("6.8.0-57-generic\n"), usual);
        for wsl in ["5.15.167.4-microsoft-standard-WSL2\n", "4.4.0-19041-Microsoft\n"] {
            assert_eq!(no_module_on(wsl), format!("{usual}; there is none for WSL"));
        }
    }

    #[test]
    fn the_reason_against_gds_is_its_own_or_that_against_all_of_cufile() {
        let reason = |kind: RouteKind| (kind, format!("not {kind:?}"));
        let (gds, p2p, compat) =
            (reason(RouteKind::Gds), reason(RouteKind::P2pDma), reason(RouteKind::CufileCompat));
        for (kind, why_not, expected) in [
            (RouteKind::Gds, vec![], None),
            (RouteKind::P2pDma, vec![gds.clone()], Some("not Gds")),
            (RouteKind::Posix, vec![p2p, compat.clone(), gds], Some("not Gds")),
            (RouteKind::Posix, vec![compat], Some("not CufileCompat")),
            (RouteKind::Unavailable, vec![reason(RouteKind::Posix)], Some("not Posix")),
        ] {
            assert_eq!(Route { kind, why_not }.why_not_gds(), expected);
        }
    }
}
