//! Facts of a machine without faults for the tests of causes, and checks of the causes that follow from facts.

use cufile::FileSystems;
use gpufile::{RouteKind, RoutePolicy};

use super::acs::Acs;
use super::block::{Kind, Layer};
use super::cause::Cause;
use super::cufile_json::Configuration;
use super::gpus::Gpu;
use super::kernel::{Iommu, Kernel};
use super::libraries::{Found, Libraries, Library};
use super::machine::{DriverFacts, Limits, Machine};
use super::modules::Modules;
use super::mounts::Mount;
use super::nvidia_fs::NvidiaFs;
use super::pci::{Link, PciDevice};
use super::target::Target;
pub use super::target::tests::good;
use super::variables::Variables;
use super::verdict::causes;

pub fn chain(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|&part| part.to_owned()).collect()
}

pub fn gpu_device() -> PciDevice {
    PciDevice {
        address: "0000:18:00.0".to_owned(),
        chain: chain(&["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"]),
        vendor: 0x10de,
        class: 0x03_0200,
        numa_node: Some(0),
        link: Some(link(16)),
        bar1_bytes: Some(128 << 30),
        ..PciDevice::default()
    }
}

pub fn link(lanes: u32) -> Link {
    Link { speed: "32 GT/s".to_owned(), lanes, max_speed: "32 GT/s".to_owned(), max_lanes: 16 }
}

pub fn disk_device() -> PciDevice {
    PciDevice {
        address: "0000:19:00.0".to_owned(),
        chain: chain(&["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:01.0", "0000:19:00.0"]),
        numa_node: Some(0),
        link: Some(Link { max_lanes: 4, ..link(4) }),
        ..PciDevice::default()
    }
}

pub fn bridge(address: &str, acs: Acs) -> PciDevice {
    PciDevice { address: address.to_owned(), class: 0x06_0400, acs: Some(acs), ..PciDevice::default() }
}

pub fn machine() -> Machine {
    let library =
        |name, variable| Library { name, variable, named: None, found: Ok(Found::default()), unusable: None };
    let gpu = Gpu {
        name: "NVIDIA H200".to_owned(),
        memory_bytes: Some(100 << 30),
        pci: Some(gpu_device()),
        ..Gpu::default()
    };
    Machine {
        libraries: Libraries {
            cuda: library("libcuda", "CUDA_LIBRARY"),
            cudart: library("libcudart", "CUDART_LIBRARY"),
            cufile: library("libcufile", "CUFILE_LIBRARY"),
            // Newer than every call.
            cufile_version: Some((9, 0)),
            rdma: Some("/lib/libcufile_rdma.so.1".into()),
        },
        gpus: Ok(vec![gpu]),
        devices: vec![bridge("0000:15:01.0", Acs::Off), gpu_device(), disk_device()],
        nics: vec![],
        addresses: vec![],
        lustre: None,
        log_file: "/work/cufile.log".into(),
        is_log_refused: false,
        disks: vec![],
        kernel: Kernel {
            release: Some("6.8.0".to_owned()),
            display_driver: None,
            nvidia_fs: Some(NvidiaFs { has_device: true, ..NvidiaFs::default() }),
            iommu: Iommu::Off,
            p2pdma: Some(true),
            nvme_multipath: false,
            platform: None,
            container: None,
            modules: Modules { has_peermem: true, ..Modules::default() },
        },
        driver: Ok(driver()),
        configuration: Configuration::default(),
        variables: Variables::default(),
        policy: RoutePolicy::Auto,
    }
}

pub fn driver() -> DriverFacts {
    DriverFacts {
        nvidia_fs: Some((2, 17)),
        allows_compat_mode: true,
        posix_only: false,
        p2pdma: false,
        file_systems: FileSystems::NVME,
        limits: Limits::default(),
    }
}

/// Returns a good file whose bytes pass through host memory all the same.
pub fn staged() -> Target {
    let why_not = vec![(RouteKind::Gds, "only the library knows".to_owned())];
    Target { route: RouteKind::Posix, why_not, ..good() }
}

/// Returns facts with a change.
pub fn with<T>(mut facts: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut facts);
    facts
}

pub fn mounted(file_system: &str, options: &[&str]) -> Target {
    with(staged(), |target| {
        target.file_system = file_system.to_owned();
        target.mount = Some(Mount { options: chain(options), ..Mount::default() });
        (target.layers, target.udev_record, target.device) = (vec![], None, (0, 43));
    })
}

pub fn on(layers: &[(&str, Kind)]) -> Target {
    let below = good().layers;
    let above = layers.iter().map(|(name, kind)| Layer { name: (*name).to_owned(), kind: kind.clone() });
    with(staged(), |target| target.layers = above.chain(below).collect())
}

pub fn causes_of(machine: &Machine, target: &Target) -> Vec<(&'static str, String, String)> {
    causes(machine, target).iter().map(|cause| (cause.key(), cause.problem(), cause.remedy())).collect()
}

#[track_caller]
pub fn only(machine: &Machine, target: &Target, key: &str, problem: &str, remedy: &str) {
    let found = causes(machine, target);
    let keys: Vec<&str> = found.iter().map(Cause::key).collect();
    assert_eq!(keys, [key]);
    assert!(found[0].problem().contains(problem), "{}", found[0].problem());
    assert!(found[0].remedy().contains(remedy), "{}", found[0].remedy());
}
