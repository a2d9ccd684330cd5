//! The facts about the machine that hold for every path.

use std::env;
use std::path::PathBuf;

use cufile::cuda::Cuda;
use cufile::params::Param;
use cufile::{Controls, Driver, Feature, Features, FileSystems};
use gpufile::{RoutePolicy, Settings};

use super::block::{self, Disk};
use super::cufile_json::Configuration;
use super::gpus::{self, Gpu, NoGpus};
use super::kernel::Kernel;
use super::libraries::Libraries;
use super::lustre::Lustre;
use super::network::{self, Nic};
use super::pci::{self, PciDevice};
use super::root::Root;
use super::variables::Variables;
use super::{addresses, log_file};

#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub libraries: Libraries,
    pub gpus: Result<Vec<Gpu>, NoGpus>,
    /// Every PCI device: also NVIDIA's GPUs that CUDA does not show.
    pub devices: Vec<PciDevice>,
    pub nics: Vec<Nic>,
    pub addresses: Vec<(String, String)>,
    /// Every disk that is reached by PCI, by its name.
    pub disks: Vec<(String, Disk)>,
    pub kernel: Kernel,
    /// The values of the Lustre client that are not the wanted ones; `None` without one.
    pub lustre: Option<Lustre>,
    pub log_file: PathBuf,
    /// True if libcufile logs nothing, because it cannot write the file.
    pub is_log_refused: bool,
    /// The properties, or the reason why the driver does not open.
    pub driver: Result<DriverFacts, String>,
    pub configuration: Configuration,
    pub variables: Variables,
    pub policy: RoutePolicy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverFacts {
    pub nvidia_fs: Option<(u32, u32)>,
    pub allows_compat_mode: bool,
    pub posix_only: bool,
    pub p2pdma: bool,
    pub file_systems: FileSystems,
    pub limits: Limits,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub max_direct_io_bytes: u64,
    pub max_device_cache_bytes: u64,
    pub per_buffer_cache_bytes: u64,
    pub max_device_pinned_bytes: u64,
    pub max_batch_entries: u32,
}

pub struct Opened {
    pub cuda: cufile::Result<Cuda>,
    pub driver: Option<Driver>,
}

impl Machine {
    /// Loads the libraries and opens the cuFile driver, if there is one.
    pub fn gather(root: &Root) -> (Self, Opened) {
        let cuda = Cuda::load();
        let mut devices = pci::devices(root);
        let opened = open(&cuda);
        let properties = opened.as_ref().map_err(String::clone).and_then(|driver| {
            let found = driver.properties().map_err(|error| error.to_string())?;
            Ok(DriverFacts {
                nvidia_fs: found.nvidia_fs,
                allows_compat_mode: found.controls.contains(Controls::COMPAT_MODE),
                posix_only: found.controls.contains(Controls::POSIX_IO_MODE),
                p2pdma: found.features.contains(Features::P2P),
                file_systems: found.file_systems,
                limits: Limits {
                    max_direct_io_bytes: found.max_direct_io_bytes,
                    max_device_cache_bytes: found.max_device_cache_bytes,
                    per_buffer_cache_bytes: found.per_buffer_cache_bytes,
                    max_device_pinned_bytes: found.max_device_pinned_bytes,
                    max_batch_entries: found.max_batch_entries,
                },
            })
        });
        let settings = Settings::from_env();
        let text = |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let variables = env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
        let gpus_on_bus: Vec<_> = devices.iter().filter(|device| device.is_nvidia_gpu()).collect();
        let kernel = Kernel::of(root, &gpus_on_bus, &text);
        let bridges = kernel.nvidia_fs.as_ref().and_then(|module| module.acs_bridges.as_deref());
        for device in &mut devices {
            device.acs = device.acs.map(|acs| acs.or_listed(&device.address, bridges));
        }
        let configuration = Configuration::of(root, &text);
        let log_file = log_file::path(&configuration, &text, &env::current_dir().unwrap_or_default());
        let machine = Self {
            is_log_refused: log_file::is_refused(&log_file),
            libraries: Libraries::load(),
            addresses: addresses::all(),
            lustre: root.at("/sys/module/lnet").is_dir().then(|| Lustre::of(root)),
            log_file,
            gpus: gpus::all(&cuda, &devices),
            nics: network::cards(root),
            disks: block::disks(root),
            kernel,
            devices,
            driver: properties,
            configuration,
            variables: Variables::of(variables, settings.as_ref().err().map(ToString::to_string)),
            policy: settings.map(|settings| settings.policy).unwrap_or_default(),
        };
        (machine, Opened { cuda, driver: opened.ok() })
    }

    pub fn gpus(&self) -> &[Gpu] {
        self.gpus.as_deref().unwrap_or_default()
    }

    /// Returns whether a GPU offers its memory to other PCI devices, as the kernel shows it.
    pub fn offers_p2p_memory(&self) -> bool {
        self.devices.iter().any(|device| device.is_nvidia_gpu() && device.has_p2p_memory)
    }

    /// Returns whether there is the module nvidia-fs, or a GPU that offers its memory.
    pub fn may_be_direct(&self) -> bool {
        self.kernel.nvidia_fs.is_some() || self.offers_p2p_memory()
    }

    pub fn device(&self, address: &str) -> Option<&PciDevice> {
        self.devices.iter().find(|device| device.address == address)
    }

    /// Returns the bridges on the way to the GPUs, or all where no GPU is known.
    pub fn bridges(&self) -> impl Iterator<Item = &PciDevice> {
        let bridges = || self.devices.iter().filter(|device| device.acs.is_some());
        let is_above_gpu = |bridge: &PciDevice| {
            let gpus = self.devices.iter().filter(|device| device.is_nvidia_gpu());
            gpus.into_iter().any(|gpu| gpu.chain.contains(&bridge.address))
        };
        let is_any_above = bridges().any(is_above_gpu);
        bridges().filter(move |bridge| !is_any_above || is_above_gpu(bridge))
    }
}

/// Opens with statistics, where the library has them.
fn open(cuda: &cufile::Result<Cuda>) -> Result<Driver, String> {
    let cuda = cuda.as_ref().map_err(ToString::to_string)?;
    let library = cufile::Library::load().map_err(|error| error.to_string())?;
    let counts = library.supports(Feature::Statistics);
    let builder = Driver::builder().library(library).cuda(cuda.clone());
    let builder = if counts { builder.set(Param::STATS_LEVEL, 1) } else { builder };
    builder.open().map_err(|error| error.to_string())
}
