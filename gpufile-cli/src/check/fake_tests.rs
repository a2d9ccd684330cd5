//! From fake trees of `/proc`, `/sys` and `/etc` to causes: each test writes what a machine with one trouble shows.

use super::cufile_json::Configuration;
use super::kernel::Kernel;
use super::lustre::Lustre;
use super::machine::{DriverFacts, Machine};
use super::network;
use super::pci::{self, PciDevice};
use super::right_facts::{causes_of, driver, good, machine, mounted, staged, with};
use super::root::tests::Fake;
use super::target::Target;
use cufile::FileSystems;
use gpufile::RouteKind;

/// Returns a machine where all else is right, and the driver has no direct path.
fn shown(fake: &Fake) -> Machine {
    let root = fake.root();
    with(machine(), |machine| {
        machine.kernel = Kernel::of(&root, &[], &|_| None);
        machine.nics = network::cards(&root);
        machine.lustre = Some(Lustre::of(&root));
        machine.configuration = Configuration::of(&root, &|_| None);
        machine.driver = Ok(DriverFacts { file_systems: FileSystems::empty(), ..driver() });
    })
}

fn loaded() -> Fake {
    let fake = Fake::new();
    fake.file("/proc/driver/nvidia-fs/version", "version: 2.28\n")
        .file("/proc/driver/nvidia-fs/modules", "nvme: 1.0\n")
        .file("/proc/driver/nvidia-fs/stats", "NVFS Driver(version: 2.28.4)\n")
        .file("/dev/nvidia-fs0", "")
        .folder("/sys/module/nvidia_peermem")
        .file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06\n",
        )
        .file("/proc/kallsyms", "0 t nvme_v1_register_nvfs_dma_ops\t[nvme]\n");
    fake
}

#[track_caller]
fn has(machine: &Machine, target: &Target, key: &str, words: &str) {
    let found = causes_of(machine, target);
    let cause = found.iter().find(|(found, ..)| *found == key);
    let Some((_, problem, remedy)) = cause else { panic!("{key}: {found:?}") };
    assert!(format!("{problem} {remedy}").contains(words), "{words}: {problem} {remedy}");
}

fn keys(machine: &Machine, target: &Target) -> Vec<&'static str> {
    causes_of(machine, target).iter().map(|(key, ..)| *key).collect()
}

#[test]
fn loaded_and_registered_has_no_cause_in_modules() {
    assert_eq!(keys(&shown(&loaded()), &staged()), ["other"]);
}

#[test]
fn nvme_without_functions_for_nvidia_fs_is_not_registered() {
    let fake = loaded();
    fake.file("/proc/driver/nvidia-fs/modules", "").file("/proc/kallsyms", "0 T nvme_queue_rq\t[nvme]\n");
    has(&shown(&fake), &staged(), "driver-not-registered", "it is not made for nvidia-fs");
    fake.file("/proc/kallsyms", "0 t nvme_v2_register_nvfs_dma_ops\t[nvme]\n");
    has(&shown(&fake), &staged(), "driver-not-registered", "nvme_v2_register_nvfs_dma_ops");
}

#[test]
fn closed_display_driver_is_named() {
    let fake = loaded();
    fake.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05\n");
    has(&shown(&fake), &staged(), "closed-kernel-module", "nvidia-open");
    // This version still works with it.
    fake.file("/proc/driver/nvidia-fs/stats", "NVFS Driver(version: 2.17.4)\n");
    assert_eq!(keys(&shown(&fake), &staged()), ["other"]);
}

#[test]
fn containers_without_the_device_are_named() {
    let fake = loaded();
    std::fs::remove_file(fake.root().at("/dev/nvidia-fs0")).unwrap();
    fake.file("/proc/self/cgroup", "0::/kubepods.slice/pod1\n");
    let cannot =
        with(shown(&fake), |machine| machine.driver = Err("CU_FILE_NVFS_SETUP_ERROR (5033)".to_owned()));
    has(&cannot, &staged(), "no-nvidia-fs-device", "gds.enabled=true");
    has(&cannot, &staged(), "driver-fails", "load nvidia-fs");
}

#[test]
fn denied_drivers_and_wrong_settings_are_named() {
    let fake = loaded();
    fake.file(
        "/etc/cufile.json",
        r#"{ "denylist": { "drivers": ["nvme"] }, "properties": { "allow_compat_mode": false, "max_direct_io_size_kb": 100,
             "force_compat": true, "use_poll_mode": "true" } }"#,
    );
    let machine = shown(&fake);
    has(&machine, &staged(), "denied-by-cufile-json", "denylist.drivers in /etc/cufile.json");
    has(&machine, &good(), "compat-mode-forbidden", "what has no direct path fails");
    has(&machine, &good(), "out-of-range", "a multiple of 64 from 64 to 16384");
    has(&machine, &good(), "unknown-key", "properties.force_compat_mode");
    has(&machine, &good(), "wrong-type", "true or false");
}

#[test]
fn cards_and_values_of_lustre_are_judged() {
    let fake = loaded();
    let card = "/sys/devices/pci0000:37/0000:37:01.0/0000:38:00.0";
    fake.file(&format!("{card}/vendor"), "0x15b3").file(&format!("{card}/device"), "0x1017");
    fake.link("/sys/class/infiniband/mlx5_0/device", card)
        .file("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n")
        .file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
        .file("/sys/module/mlx5_core/version", "4.5-1.0.1\n")
        .file("/sys/fs/lustre/osc/ost0/max_rpcs_in_flight", "8\n");
    let (machine, lustre) = (shown(&fake), mounted("lustre", &[]));
    has(&machine, &lustre, "ethernet-mode", "mlx5_0 port 1 of a ConnectX-5");
    has(&machine, &lustre, "old-network-driver", "MLNX_OFED 4.5-1.0.1");
    has(&machine, &lustre, "lustre-values", "osc.*.max_rpcs_in_flight is 8");
    has(&machine, &lustre, "driver-not-registered", "(lnet)");
    let direct = with(lustre, |target| target.route = RouteKind::Gds);
    let found = keys(&machine, &direct);
    assert!(found.contains(&"lustre-values") && !found.contains(&"driver-not-registered"), "{found:?}");
}

#[test]
fn machines_without_sysfs_show_no_devices() {
    let bare = Fake::new();
    assert_eq!(pci::devices(&bare.root()), Vec::<PciDevice>::new());
    let machine = shown(&bare);
    assert_eq!((machine.kernel.modules.is_open, machine.kernel.container), (None, None));
}
