//! One test for each cause: facts that are right, one of them made wrong.

use serde_json::json;

use super::super::block::{Disk, Layer};
use super::super::cufile_json::{Change, Configuration};
use super::super::gpus::Gpu;
use super::super::kernel::Kernel;
use super::super::libraries::{Found, Libraries, Library};
use super::super::machine::DriverFacts;
use super::super::mounts::Mount;
use super::super::network::Nic;
use super::super::nvidia_fs::NvidiaFs;
use super::super::pci::Link;
use super::super::target::{ReadOnly, tests::good};
use super::super::variables::{Unknown, Variables};
use super::*;
use cufile::FileSystems;

fn chain(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|&part| part.to_owned()).collect()
}

fn gpu_device() -> PciDevice {
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

fn link(lanes: u32) -> Link {
    Link { speed: "32 GT/s".to_owned(), lanes, max_speed: "32 GT/s".to_owned(), max_lanes: 16 }
}

fn disk_device() -> PciDevice {
    PciDevice {
        address: "0000:19:00.0".to_owned(),
        chain: chain(&["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:01.0", "0000:19:00.0"]),
        numa_node: Some(0),
        link: Some(Link { max_lanes: 4, ..link(4) }),
        ..PciDevice::default()
    }
}

fn bridge(address: &str, acs: Acs) -> PciDevice {
    PciDevice { address: address.to_owned(), class: 0x06_0400, acs: Some(acs), ..PciDevice::default() }
}

/// Returns a machine on which everything is right.
fn machine() -> Machine {
    let library = |name, variable| Library { name, variable, named: None, found: Ok(Found::default()) };
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
        },
        gpus: Ok(vec![gpu]),
        devices: vec![bridge("0000:15:01.0", Acs::Off), gpu_device(), disk_device()],
        nics: vec![],
        disks: vec![],
        kernel: Kernel {
            release: Some("6.8.0".to_owned()),
            display_driver: None,
            nvidia_fs: Some(NvidiaFs::default()),
            iommu: Iommu::Off,
            p2pdma: Some(true),
            nvme_multipath: false,
            is_container: false,
        },
        driver: Ok(driver()),
        configuration: Configuration::default(),
        variables: Variables::default(),
        policy: RoutePolicy::Auto,
    }
}

fn driver() -> DriverFacts {
    DriverFacts {
        nvidia_fs: Some((2, 17)),
        allows_compat_mode: true,
        posix_only: false,
        p2pdma: false,
        file_systems: FileSystems::NVME,
    }
}

/// Returns the facts of a good file whose bytes pass through host memory all the same.
fn staged() -> Target {
    let why_not = vec![(RouteKind::Gds, "only the library knows".to_owned())];
    Target { route: RouteKind::Posix, why_not, ..good() }
}

/// Returns facts with a change.
fn with<T>(mut facts: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut facts);
    facts
}

fn mounted(file_system: &str, options: &[&str]) -> Target {
    with(staged(), |target| {
        target.file_system = file_system.to_owned();
        target.mount = Some(Mount { options: chain(options), ..Mount::default() });
        (target.layers, target.udev_record, target.device) = (vec![], None, (0, 43));
    })
}

fn on(layers: &[(&str, Kind)]) -> Target {
    let below = good().layers;
    let above = layers.iter().map(|(name, kind)| Layer { name: (*name).to_owned(), kind: kind.clone() });
    with(staged(), |target| target.layers = above.chain(below).collect())
}

/// Checks that one cause, with its remedy, is found.
#[track_caller]
fn only(machine: &Machine, target: &Target, key: &str, problem: &str, remedy: &str) {
    let found = causes(machine, target);
    let keys: Vec<&str> = found.iter().map(Cause::key).collect();
    assert_eq!(keys, [key]);
    assert!(found[0].problem().contains(problem), "{}", found[0].problem());
    assert!(found[0].remedy().contains(remedy), "{}", found[0].remedy());
}

#[test]
fn good_facts_have_no_cause() {
    assert_eq!(causes(&machine(), &good()), []);
    assert_eq!(causes_without_path(&machine(), true), [Cause::CannotOpen(true)]);
}

#[test]
fn unexplained_route_keeps_the_reason_of_the_library() {
    only(&machine(), &staged(), "other", "only the library knows", "--verbose");
}

#[test]
fn missing_libraries_are_named() {
    let lacks = |part: fn(&mut Libraries) -> &mut Library, named: Option<&str>| {
        with(machine(), |machine| {
            let library = part(&mut machine.libraries);
            library.found = Err("not there".to_owned());
            library.named = named.map(str::to_owned);
            if library.name == "libcufile" {
                machine.libraries.cufile_version = None;
            } else {
                machine.gpus = Err(NoGpus::NoLibrary);
            }
            machine.driver = Err("not there".to_owned());
        })
    };
    let cannot = with(good(), |target| target.route = RouteKind::Unavailable);
    let no_cuda = lacks(|libraries| &mut libraries.cuda, None);
    let keys = |machine: &Machine| causes(machine, &cannot).iter().map(Cause::key).collect::<Vec<_>>();
    // With nvidia-fs loaded, nothing else is wrong with the file.
    assert_eq!(keys(&no_cuda), ["no-libcuda"]);
    only(&no_cuda, &cannot, "no-libcuda", "is not found", "install NVIDIA's display driver");
    let in_container = with(no_cuda, |machine| machine.kernel.is_container = true);
    only(&in_container, &cannot, "no-libcuda", "libcuda", "--gpus all");
    let misnamed = lacks(|libraries| &mut libraries.cuda, Some("/x"));
    only(&misnamed, &cannot, "no-libcuda", "CUDA_LIBRARY is \"/x\"", "unset it");
    only(
        &lacks(|libraries| &mut libraries.cudart, None),
        &cannot,
        "no-libcudart",
        "libcudart",
        "pip install",
    );
    only(
        &lacks(|libraries| &mut libraries.cufile, None),
        &staged(),
        "no-libcufile",
        "libcufile",
        "pip install",
    );
}

#[test]
fn missing_device_tells_those_on_the_bus() {
    let cannot = with(good(), |target| target.route = RouteKind::Unavailable);
    let hidden = with(machine(), |machine| machine.gpus = Err(NoGpus::NoDevice));
    only(&hidden, &cannot, "no-device", "has 1 NVIDIA GPUs", "CUDA_VISIBLE_DEVICES");
    let none = with(hidden, |machine| machine.devices.clear());
    only(&none, &cannot, "no-device", "there is no GPU", "nvidia-smi -L");
    let broken = with(machine(), |machine| machine.gpus = Err(NoGpus::Failed("cuInit: 999".to_owned())));
    only(&broken, &cannot, "cuda-fails", "cuInit: 999", "nvidia-smi");
}

#[test]
fn devices_are_no_regular_files() {
    let device = with(mounted("devtmpfs", &[]), |target| target.file_type = FileType::CharDevice);
    only(&machine(), &device, "not-regular", "it is a character device", "folder");
}

#[test]
fn missing_udev_record_names_its_path() {
    let target = with(staged(), |target| target.udev_record = Some(false));
    only(&machine(), &target, "no-udev-record", "/run/udev/data/b259:0", "-v /run/udev:/run/udev:ro");
}

#[test]
fn file_systems_without_direct_path_are_named() {
    for (name, key, remedy) in [
        ("overlay", "overlay", "docker run -v"),
        ("tmpfs", "tmpfs", "ext4 or xfs"),
        ("nfs4", "nfs", "proto=rdma"),
        ("btrfs", "copy-on-write", "xfs"),
        ("fuse.sshfs", "fuse", "kernel client"),
        ("9p", "other-file-system", "ext4"),
    ] {
        let rdma = Nic { names: chain(&["mlx5_0"]), has_rdma: true, pci: disk_device() };
        let machine = with(machine(), |machine| machine.nics = vec![rdma]);
        only(&machine, &mounted(name, &["rw", "proto=tcp"]), key, "", remedy);
    }
}

#[test]
fn network_file_systems_need_rdma_and_the_module() {
    let keys = |machine: &Machine, target: &Target| {
        causes(machine, target).iter().map(Cause::key).collect::<Vec<_>>().join(" ")
    };
    let without_module = with(machine(), |machine| {
        machine.kernel.nvidia_fs = None;
        machine.driver = Ok(DriverFacts { nvidia_fs: None, ..driver() });
    });
    for (name, key) in
        [("nfs", "nfs"), ("lustre", "lustre"), ("wekafs", "weka"), ("beegfs", "beegfs"), ("gpfs", "gpfs")]
    {
        let target = mounted(name, &["proto=rdma"]);
        assert_eq!(keys(&machine(), &target), format!("{key} no-rdma-card"), "{name}");
        assert_eq!(keys(&without_module, &target), "no-rdma-card no-nvidia-fs", "{name}");
        let direct = with(target, |target| target.route = RouteKind::Gds);
        assert_eq!(keys(&machine(), &direct), if name == "wekafs" { "weka-writes" } else { "" }, "{name}");
    }
}

#[test]
fn weka_remedy_names_the_address_list() {
    let remedy = Cause::FileSystem(Storage::Weka).remedy();
    assert!(remedy.contains("rdma_dev_addr_list"), "{remedy}");
}

#[test]
fn block_devices_between_file_and_disk_are_named() {
    for (kind, key, problem, remedy) in [
        (Kind::Lvm("vg-data".to_owned()), "lvm", "LVM volume vg-data", "NVMe"),
        (Kind::Mapper("raw".to_owned(), String::new()), "device-mapper", "raw", "the disk itself"),
        (
            Kind::Mapper("secret".to_owned(), "crypt".to_owned()),
            "device-mapper",
            "encrypted",
            "self-encrypting",
        ),
        (Kind::Md("raid0".to_owned()), "md", "x (raid0)", "mdadm --detail --export"),
        (Kind::Md("raid5".to_owned()), "md", "x (raid5)", "parity"),
        (Kind::Loop, "loop", "loop device x", "NVMe"),
    ] {
        only(
            &machine(),
            &on(&[("x", kind.clone())]),
            key,
            &problem.replace("x (", "x, a software RAID ("),
            remedy,
        );
        // What the library reaches anyway is no cause.
        let direct = with(on(&[("x", kind)]), |target| target.route = RouteKind::Gds);
        assert_eq!(causes(&machine(), &direct), []);
    }
    let disk = Kind::Disk(Disk { bus: Bus::Virtio, pci: vec![] });
    only(&machine(), &on(&[("vda", disk)]), "disk", "vda is a virtio disk", "passed through");
    assert_eq!(causes(&machine(), &on(&[("nvme0n1p1", Kind::Partition)]))[0].key(), "other");
}

#[test]
fn compatibility_mode_names_its_origin() {
    let by_policy = with(machine(), |machine| {
        machine.policy = RoutePolicy::PosixOnly;
        machine.variables.read = vec![("KVIKIO_COMPAT_MODE".to_owned(), "ON".to_owned())];
    });
    let key = "compat-mode-by-environment";
    only(&by_policy, &staged(), key, "KVIKIO_COMPAT_MODE=ON", "unset KVIKIO_COMPAT_MODE");
    let changed = |from: &str, key: &str, value| {
        with(machine(), |machine| {
            machine.configuration.file = Some("/etc/cufile.json".to_owned());
            let (key, from) = (key.to_owned(), from.to_owned());
            machine.configuration.changed = vec![Change { key, value, default: None, from }];
        })
    };
    let by_variable = changed("CUFILE_FORCE_COMPAT_MODE", "properties.force_compat_mode", json!(true));
    only(&by_variable, &staged(), key, "CUFILE_FORCE_COMPAT_MODE", "unset CUFILE_FORCE_COMPAT_MODE");
    for name in ["properties.force_compat_mode", "properties.vanilla_posix_io_mode"] {
        let by_file = changed("/etc/cufile.json", name, json!(true));
        only(
            &by_file,
            &staged(),
            "compat-mode-by-cufile-json",
            &format!("{name} is true in /etc/cufile.json"),
            "false",
        );
        // The library may not know that its driver stages the bytes.
        assert_eq!(causes(&by_file, &good())[0].key(), "compat-mode-by-cufile-json");
        let off = changed("/etc/cufile.json", name, json!(false));
        assert_eq!(causes(&off, &staged())[0].key(), "other");
    }
    for (list, entry) in [("filesystems", "ext4"), ("mounts", "/data"), ("devices", "/dev/nvme0n1")] {
        let denied = changed("/etc/cufile.json", &format!("denylist.{list}"), json!(["x", entry]));
        only(&denied, &staged(), "denied-by-cufile-json", &format!("denylist.{list}"), "entry");
    }
}

#[test]
fn access_limits_do_not_hide_the_route() {
    let append =
        with(staged(), |target| target.open_flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NONBLOCK);
    only(&machine(), &append, "open-flags", "O_APPEND and O_NONBLOCK", "without them");
    only(
        &machine(),
        &with(good(), |target| target.is_append_only = true),
        "append-only",
        "O_APPEND",
        "chattr -a",
    );
    for (reason, remedy) in [
        (ReadOnly::Mount, "remount"),
        (ReadOnly::Immutable, "chattr -i"),
        (ReadOnly::Permissions, "permissions"),
    ] {
        only(&machine(), &with(good(), |target| target.read_only = Some(reason)), "read-only", "", remedy);
    }
    only(
        &machine(),
        &with(good(), |target| target.file_type = FileType::Directory),
        "no-file",
        "that of the folder",
        "name a file",
    );
}

#[test]
fn old_library_counts_the_calls_that_it_lacks() {
    let old = with(machine(), |machine| machine.libraries.cufile_version = Some((1, 18)));
    only(&old, &good(), "old-libcufile", "calls, such as cuFileReadv of 1.19", "pip install -U");
}

#[test]
fn iommu_counts_only_where_it_translates() {
    let with_iommu = |iommu| with(machine(), |machine| machine.kernel.iommu = iommu);
    only(&with_iommu(Iommu::On), &good(), "iommu", "root ports", "iommu=pt");
    for iommu in [Iommu::Passthrough, Iommu::Unknown] {
        assert_eq!(causes(&with_iommu(iommu), &good()), []);
    }
    let without_gpu = with(with_iommu(Iommu::On), |machine| {
        machine.gpus = Ok(vec![]);
        machine.devices.clear();
    });
    assert_eq!(causes(&without_gpu, &good()), []);
}

#[test]
fn acs_names_the_bridges_above_gpus() {
    let bridges = |bridges: Vec<PciDevice>| with(machine(), |machine| machine.devices.extend(bridges));
    let above = bridges(vec![bridge("0000:16:00.0", Acs::Redirects), bridge("0000:aa:00.0", Acs::Redirects)]);
    only(&above, &good(), "acs", "1 of the PCIe bridges (0000:16:00.0)", "setpci");
    assert_eq!(causes(&bridges(vec![bridge("0000:16:00.0", Acs::Unknown)]), &good()), []);
}

#[test]
fn small_bar_is_smaller_than_the_memory() {
    let small = |bytes| {
        with(machine(), |machine| {
            let gpu = &mut machine.gpus.as_mut().unwrap()[0];
            gpu.pci.as_mut().unwrap().bar1_bytes = Some(bytes);
        })
    };
    only(&small(256 << 20), &good(), "small-bar", "has 256 MiB for 102400 MiB", "Resizable BAR");
    assert_eq!(causes(&small(100 << 30), &good()), []);
}

#[test]
fn narrow_links_and_far_disks_are_slower() {
    let narrow = with(machine(), |machine| {
        machine.gpus.as_mut().unwrap()[0].pci.as_mut().unwrap().link = Some(link(8));
    });
    only(&narrow, &good(), "narrow-link", "8 of its 16 lanes", "slot");
    let far = with(machine(), |machine| {
        let disk = machine.devices.iter_mut().find(|device| device.address == "0000:19:00.0").unwrap();
        (disk.chain, disk.numa_node) = (chain(&["pci0000:97", "0000:97:01.0", "0000:98:00.0"]), Some(1));
    });
    only(&far, &good(), "far", "nvme0n1 and GPU 0 (NVIDIA H200): across NUMA nodes", "PCIe switch");
}

#[test]
fn missing_kernel_parts_come_with_both_ways_out() {
    let bare = with(machine(), |machine| {
        machine.kernel.nvidia_fs = None;
        machine.driver = Ok(DriverFacts { nvidia_fs: None, ..driver() });
    });
    let found = causes(&bare, &staged());
    assert_eq!(found.iter().map(Cause::key).collect::<Vec<_>>(), ["no-nvidia-fs", "no-p2pdma"]);
    assert!(found[0].remedy().contains("nvidia-gds") && found[1].remedy().contains("RMForceStaticBar1"));
    let multipath = with(bare.clone(), |machine| machine.kernel.nvme_multipath = true);
    assert!(causes(&multipath, &staged())[1].remedy().contains("nvme_core.multipath=N"));
    let old = with(bare, |machine| machine.kernel.p2pdma = Some(false));
    assert!(causes(&old, &staged())[1].problem().contains("built without"));
}

#[test]
fn broken_settings_and_drivers_keep_their_errors() {
    let fails = with(machine(), |machine| machine.driver = Err("code 5033".to_owned()));
    assert_eq!(causes(&fails, &staged())[0].problem(), "the cuFile driver does not open: code 5033");
    let wrong = with(machine(), |machine| machine.variables.error = Some("X is \"many\"".to_owned()));
    only(&wrong, &good(), "wrong-variable", "many", "accepted value");
    let unknown = |nearest| {
        with(machine(), |machine| {
            machine.variables.unknown = vec![Unknown { name: "GPUFILE_X".to_owned(), nearest }]
        })
    };
    only(&unknown(Some("GPUFILE_Y")), &good(), "unknown-variable", "GPUFILE_X", "GPUFILE_Y");
    only(&unknown(None), &good(), "unknown-variable", "GPUFILE_X", "unset it");
    let without = with(staged(), |target| target.alignment = None);
    only(&machine(), &without, "no-o-direct", "ext4", "xfs");
    assert_eq!(
        causes(&machine(), &with(without, |target| target.file_type = FileType::Directory))[0].key(),
        "other"
    );
    let journal = with(staged(), |target| target.mount.as_mut().unwrap().options = chain(&["data=journal"]));
    let journal = with(journal, |target| target.alignment = None);
    only(&machine(), &journal, "ext4-journal", "data=journal", "data=ordered");
}

#[test]
fn worst_effects_come_first() {
    let many = with(machine(), |machine| {
        machine.kernel.iommu = Iommu::On;
        machine.gpus = Err(NoGpus::NoDevice);
        machine.libraries.cufile_version = Some((1, 11));
        machine.variables.unknown = vec![Unknown { name: "GPUFILE_X".to_owned(), nearest: None }];
    });
    let found = causes(&many, &mounted("overlay", &["ro"]));
    let keys: Vec<&str> = found.iter().map(Cause::key).collect();
    assert_eq!(keys, ["no-device", "overlay", "unknown-variable", "old-libcufile", "iommu"]);
    assert!(found.is_sorted_by_key(Cause::effect));
}

#[test]
fn broken_configuration_is_a_limit_on_every_route() {
    let broken = with(machine(), |machine| {
        machine.configuration.file = Some("/etc/cufile.json".to_owned());
        machine.configuration.error = Some("it is not JSON".to_owned());
    });
    only(
        &broken,
        &good(),
        "broken-cufile-json",
        "/etc/cufile.json cannot be used: it is not JSON",
        "fix or remove",
    );
    let keys = |target| causes(&broken, target).iter().map(Cause::key).collect::<Vec<_>>();
    assert!(keys(&staged()).contains(&"broken-cufile-json"));
    assert_eq!(causes_without_path(&broken, true)[1].key(), "broken-cufile-json");
}

#[test]
fn causes_that_fail_the_check_come_first() {
    let wrong = with(machine(), |machine| {
        machine.variables.error = Some("wrong".to_owned());
        machine.gpus = Err(NoGpus::NoDevice);
    });
    assert_eq!(causes(&wrong, &good())[0], Cause::WrongVariable("wrong".to_owned()));
    let keys: Vec<_> = causes_without_path(&wrong, true).iter().map(Cause::key).collect();
    assert_eq!(keys[..3], ["cannot-open", "wrong-variable", "no-device"]);
}
