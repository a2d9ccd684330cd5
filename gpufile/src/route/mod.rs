//! The route of a file's bytes to device memory, and the reasons against better routes.

mod stats;
pub(crate) mod trace;

use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::sync::Arc;

use cuda_rt_sys::{driver, runtime};
use cufile::params::Param;
use cufile::{Controls, Driver, DriverProperties, Features, FileProperties, FileSystems};

pub(crate) use stats::{Counters, Way};
pub use stats::{Stats, Traffic};

/// The routes between a file and device memory, best first. Host memory always uses plain reads and writes.
///
/// ```
/// use gpufile::{File, RouteKind};
///
/// let file = File::open("Cargo.toml")?;
/// match file.route().kind() {
///     RouteKind::Gds | RouteKind::P2pDma => println!("the bytes bypass host memory"),
///     RouteKind::Unavailable => println!("only host memory can be used"),
///     _ => println!("device memory goes through the host's memory"),
/// }
/// assert!(RouteKind::Gds < RouteKind::Posix);
/// # Ok::<(), gpufile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RouteKind {
    /// GPUDirect Storage: cuFile and the nvidia-fs kernel module move the bytes without host memory.
    Gds,
    /// cuFile moves the bytes without host memory, with the kernel's PCI P2PDMA.
    P2pDma,
    /// cuFile stages the bytes in host memory (its compatibility mode).
    CufileCompat,
    /// This crate stages the bytes in pinned host memory.
    Posix,
    /// No route, because there is no CUDA. Host memory can be read and written.
    Unavailable,
}

impl RouteKind {
    /// Returns a word for the kind, as `gpufile check --json` and Python have it.
    ///
    /// ```
    /// assert_eq!(gpufile::RouteKind::P2pDma.as_str(), "p2pdma");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gds => "gds",
            Self::P2pDma => "p2pdma",
            Self::CufileCompat => "cufile-compat",
            Self::Posix => "posix",
            Self::Unavailable => "unavailable",
        }
    }
}

impl fmt::Display for RouteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RouteKind::Gds => "GPUDirect Storage",
            RouteKind::P2pDma => "cuFile over P2PDMA",
            RouteKind::CufileCompat => "cuFile in its compatibility mode",
            RouteKind::Posix => "POSIX through pinned host memory",
            RouteKind::Unavailable => "none, only host memory can be used here",
        })
    }
}

/// The choice between cuFile and POSIX for the device memory of a file's transfers.
///
/// ```
/// use gpufile::{File, RouteKind, RoutePolicy};
///
/// let file = File::options().read(true).policy(RoutePolicy::PosixOnly).open("Cargo.toml")?;
/// assert!(file.route().kind() >= RouteKind::Posix);
///
/// // Fails where cuFile does not work, and then names the reason.
/// if let Err(error) = File::options().read(true).policy(RoutePolicy::RequireCufile).open("Cargo.toml") {
///     println!("{error}");
/// }
/// # Ok::<(), gpufile::Error>(())
/// ```
///
/// Names elsewhere: `CompatMode` (KvikIO, kvik-rs); `is_gds_preferred` (kvik-rs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RoutePolicy {
    /// Uses cuFile where it moves bytes without host memory, and POSIX elsewhere.
    #[default]
    Auto,
    /// Uses cuFile, even in its compatibility mode. Opening fails where cuFile does not work.
    ///
    /// Names elsewhere: `CompatMode::OFF` (KvikIO); `CompatMode::Off` (kvik-rs).
    #[doc(alias = "OFF")]
    #[doc(alias = "Off")]
    RequireCufile,
    /// Never uses cuFile.
    ///
    /// Names elsewhere: `CompatMode::ON` (KvikIO); `CompatMode::On`, `is_compat` (kvik-rs).
    #[doc(alias = "ON")]
    #[doc(alias = "On")]
    #[doc(alias = "is_compat")]
    PosixOnly,
}

/// The route of a file's bytes, and why each better route is not used.
///
/// ```
/// use gpufile::File;
///
/// let route = File::open("Cargo.toml")?.route().clone();
/// println!("{}", route.kind());
/// for (better, reason) in route.why_not() {
///     println!("not {better}: {reason}");
/// }
/// # Ok::<(), gpufile::Error>(())
/// ```
///
/// Names elsewhere: `CompatModeManager` (KvikIO).
#[derive(Debug, Clone)]
pub struct Route {
    kind: RouteKind,
    why_not: Vec<(RouteKind, String)>,
    counters: Arc<Counters>,
}

const SLOWER: &str = "staging in gpufile is faster; RoutePolicy::RequireCufile selects cuFile anyway";

/// The reason against direct routes that the properties of the driver do not show.
const FORCED: &str = "libcufile is set to its compatibility mode: force_compat_mode in cufile.json or by the program, or \
                      CUFILE_FORCE_COMPAT_MODE";

impl Route {
    /// Returns the kind of the route.
    ///
    /// Names elsewhere: `is_compat_mode_preferred`, `is_compat_mode_preferred_for_async` (KvikIO); `is_gds_available`
    /// (kvik-rs).
    #[doc(alias = "is_compat_mode_preferred")]
    #[doc(alias = "is_compat_mode_preferred_for_async")]
    #[doc(alias = "is_gds_available")]
    pub fn kind(&self) -> RouteKind {
        self.kind
    }

    /// Returns each better route, and the reason against it.
    pub fn why_not(&self) -> impl Iterator<Item = (RouteKind, &str)> {
        self.why_not.iter().map(|(kind, reason)| (*kind, reason.as_str()))
    }

    /// Returns the reason why GPUDirect Storage does not move the file's bytes; `None` if it does. If cuFile as a
    /// whole or device memory as a whole cannot be used, returns the reason for that.
    ///
    /// Names elsewhere: `is_wsl`, `is_udev_readable` (kvik-rs).
    #[doc(alias = "is_wsl")]
    #[doc(alias = "is_udev_readable")]
    pub fn why_not_gds(&self) -> Option<&str> {
        let reason = |wanted| self.why_not().find(|(kind, _)| *kind == wanted).map(|(_, reason)| reason);
        [RouteKind::Gds, RouteKind::CufileCompat, RouteKind::Posix].into_iter().find_map(reason)
    }

    /// Returns why CUDA refused to pin some of the host memory that bytes pass through; `None` if it never did.
    /// Transfers then use unpinned memory, from which CUDA copies more slowly. The answer is that of the engine, and
    /// may change with each transfer.
    pub fn why_not_pinned(&self) -> Option<&str> {
        self.counters.why_not_pinned()
    }

    fn new(kind: RouteKind, why_not: Vec<(RouteKind, String)>) -> Self {
        Self { kind, why_not, counters: Arc::default() }
    }

    pub(crate) fn counted_in(self, counters: &Arc<Counters>) -> Self {
        Self { counters: counters.clone(), ..self }
    }

    pub(crate) fn posix(why_not: impl Into<Vec<(RouteKind, String)>>) -> Self {
        Self::new(RouteKind::Posix, why_not.into())
    }

    pub(crate) fn unavailable(error: &cufile::Error) -> Self {
        Self::new(RouteKind::Unavailable, vec![(RouteKind::Posix, no_cuda(error))])
    }

    /// Returns the POSIX route of a machine without anything that the direct routes need.
    pub(crate) fn without_direct_route() -> Self {
        Self::posix([
            (RouteKind::Gds, no_module()),
            (
                RouteKind::P2pDma,
                "no GPU offers its memory to other PCI devices (no p2pmem in sysfs)".to_owned(),
            ),
            (RouteKind::CufileCompat, SLOWER.to_owned()),
        ])
    }

    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.kind, RouteKind::Gds | RouteKind::P2pDma)
    }

    /// Replaces cuFile's compatibility mode by the POSIX route.
    pub(crate) fn or_posix(mut self) -> Self {
        if self.kind == RouteKind::CufileCompat {
            self.kind = RouteKind::Posix;
            self.why_not.push((RouteKind::CufileCompat, SLOWER.to_owned()));
        }
        self
    }

    /// Returns cuFile's route for a file that it accepts.
    pub(crate) fn cufile(driver: &Driver, file: impl AsFd) -> cufile::Result<Self> {
        Self::of_driver(driver, Some(&FileProperties::of(file)?))
    }

    /// Returns cuFile's route for a file, or its best route for any file.
    pub(crate) fn of_driver(driver: &Driver, file: Option<&FileProperties>) -> cufile::Result<Self> {
        let route = Self::of_properties(&driver.properties()?, file);
        // Versions before 1.14 do not tell.
        let is_forced = || driver.library().params().get(Param::FORCE_COMPAT_MODE).unwrap_or(false);
        Ok(if route.is_direct() && is_forced() {
            Self::new(RouteKind::CufileCompat, vec![(RouteKind::Gds, FORCED.to_owned())])
        } else {
            route
        })
    }

    fn of_properties(driver: &DriverProperties, file: Option<&FileProperties>) -> Self {
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
        Self::new(kind, why_not)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.why_not_pinned()) {
            (RouteKind::Posix, Some(_)) => f.write_str("POSIX through host memory that is not all pinned")?,
            (kind, _) => write!(f, "{kind}")?,
        }
        if let Some(reason) = self.why_not_pinned() {
            write!(f, "\n  not pinned: {reason}")?;
        }
        self.why_not().try_for_each(|(kind, reason)| write!(f, "\n  not {kind}: {reason}"))
    }
}

/// Describes why CUDA does not work, and which of its libraries are missing.
fn no_cuda(error: &cufile::Error) -> String {
    let cufile::Error::Load(first) = error else { return error.to_string() };
    let missing = [driver::Library::load().err(), runtime::Library::load().err()];
    let mut names: Vec<&str> = missing.iter().flatten().map(|error| error.library()).collect();
    if names.is_empty() {
        names.push(first.library());
    }
    format!(
        "{} could not be loaded; the error of Engine::cuda lists the files that were tried",
        names.join(" and ")
    )
}

fn no_module() -> String {
    no_module_on(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())
}

/// Describes that nvidia-fs is not loaded, and the remedy, if this kernel has one.
fn no_module_on(kernel_release: &str) -> String {
    let is_wsl = kernel_release.to_ascii_lowercase().contains("microsoft");
    let remedy = if is_wsl { "NVIDIA provides none for WSL" } else { "the package nvidia-gds installs it" };
    format!("the kernel module nvidia-fs is not loaded; {remedy}")
}

/// Returns the first thing that nvidia-fs needs and lacks, for one file or for all.
fn gds_obstacle(driver: &DriverProperties, file: Option<&FileProperties>) -> Option<String> {
    if driver.nvidia_fs.is_none() {
        return Some(no_module());
    }
    let Some(file) = file else {
        let none = "libcufile has no direct route to any file system here";
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
        return Some(format!("libcufile has no direct route to {name} here"));
    }
    no_direct_io(file)
}

/// Returns the first thing that P2PDMA needs and lacks, for one file or for all.
fn p2p_obstacle(driver: &DriverProperties, file: Option<&FileProperties>) -> Option<String> {
    if !driver.features.contains(Features::P2P) {
        return Some(
            "libcufile finds no PCI P2PDMA here; the driver, the kernel and the hardware must support it"
                .to_owned(),
        );
    }
    let file = file?;
    if !["ext4", "xfs"].contains(&file.file_system.as_str()) {
        return Some(format!(
            "it needs ext4 or xfs on a local NVMe device, and the file is on {}",
            file.file_system
        ));
    }
    no_direct_io(file)
}

fn no_direct_io(file: &FileProperties) -> Option<String> {
    file.direct_io.is_none().then(|| format!("{} does not support O_DIRECT for the file", file.file_system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_names_wsl_without_kernel_modules() {
        let usual = "the kernel module nvidia-fs is not loaded";
        assert_eq!(
            no_module_on("6.8.0-57-generic\n"),
            format!("{usual}; the package nvidia-gds installs it")
        );
        for wsl in ["5.15.167.4-microsoft-standard-WSL2\n", "4.4.0-19041-Microsoft\n"] {
            assert_eq!(no_module_on(wsl), format!("{usual}; NVIDIA provides none for WSL"));
        }
    }

    #[test]
    fn why_not_gds_prefers_the_reason_for_gds() {
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
            assert_eq!(Route::new(kind, why_not).why_not_gds(), expected);
        }
    }

    #[test]
    fn routes_say_why_memory_is_not_pinned() {
        let counters = Arc::new(Counters::default());
        let [posix, gds] =
            [RouteKind::Posix, RouteKind::Gds].map(|kind| Route::new(kind, Vec::new()).counted_in(&counters));
        assert_eq!((posix.why_not_pinned(), posix.to_string()), (None, RouteKind::Posix.to_string()));
        counters.not_pinned("no memory");
        counters.not_pinned("a later reason");
        assert_eq!(posix.why_not_pinned(), Some("no memory"));
        assert_eq!(
            posix.to_string(),
            "POSIX through host memory that is not all pinned\n  not pinned: no memory"
        );
        assert_eq!(gds.to_string(), "GPUDirect Storage\n  not pinned: no memory");
    }
}
