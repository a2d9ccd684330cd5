//! One test for each cause: facts that are right, one of them made wrong.

use std::path::Path;

use serde_json::json;

use super::super::block::Disk;
use super::super::container::Container;
use super::super::cufile_json::Change;
use super::super::libraries::{Libraries, Library};
use super::super::machine::DriverFacts;
use super::super::network::Nic;
use super::super::right_facts::*;
use super::super::target::ReadOnly;
use super::super::unusable::Unusable;
use super::super::variables::Unknown;
use super::*;

#[test]
fn good_facts_have_no_cause() {
    assert_eq!(causes(&machine(), &good()), []);
    let missing = CannotOpen::Missing;
    assert_eq!(causes_without_path(&machine(), &missing), [Cause::CannotOpen(missing.clone())]);
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
    for (container, remedy) in
        [(Container::Other, "--gpus all"), (Container::Kubernetes, "nvidia.com/gpu: 1")]
    {
        let inside = with(no_cuda.clone(), |machine| machine.kernel.container = Some(container));
        only(&inside, &cannot, "no-libcuda", "libcuda", remedy);
    }
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
        ("virtiofs", "virtiofs", "1.16"),
        ("9p", "other-file-system", "ext4"),
    ] {
        let rdma = Nic { names: chain(&["mlx5_0"]), has_rdma: true, pci: disk_device(), ..Nic::default() };
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
    for (name, key) in [
        ("nfs", "nfs"),
        ("lustre", "lustre"),
        ("wekafs", "weka"),
        ("beegfs", "beegfs"),
        ("gpfs", "gpfs"),
        ("scatefs", "scatefs"),
        ("panfs", "panfs"),
    ] {
        let target = mounted(name, &["proto=rdma"]);
        let no_card = if name == "wekafs" { "no-rdma-card no-rdma-addresses" } else { "no-rdma-card" };
        assert_eq!(keys(&machine(), &target), format!("{key} {no_card}"), "{name}");
        assert_eq!(keys(&without_module, &target), format!("no-nvidia-fs {no_card}"), "{name}");
        let direct = with(target, |target| target.route = RouteKind::Gds);
        assert_eq!(keys(&machine(), &direct), if name == "wekafs" { "weka-writes" } else { "" }, "{name}");
    }
}

#[test]
fn weka_remedy_names_addresses_bandwidth_and_cards() {
    let remedy = Cause::FileSystem(Storage::Weka).remedy();
    for words in ["rdma_dev_addr_list", "needs 2X/N of network bandwidth", "ports on different cards"] {
        assert!(remedy.contains(words), "{words}: {remedy}");
    }
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
    for (list, entry) in
        [("filesystems", "ext4"), ("mounts", "/data"), ("devices", "/dev/nvme0n1"), ("drivers", "nvme")]
    {
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
fn devices_below_other_root_ports_are_far() {
    let moved = with(machine(), |machine| {
        let disk = machine.devices.iter_mut().find(|device| device.address == "0000:19:00.0").unwrap();
        disk.chain = chain(&["pci0000:37", "0000:37:01.0", "0000:19:00.0"]);
        let mut second = machine.gpus.as_ref().unwrap()[0].clone();
        second.ordinal = 1;
        machine.gpus.as_mut().unwrap().push(second);
    });
    let gpus = "GPU 0 (NVIDIA H200), GPU 1 (NVIDIA H200)";
    only(&moved, &good(), "far", &format!("nvme0n1 and {gpus}: same node, through the CPU"), "PCIe switch");
    let direct = with(mounted("nfs", &["proto=rdma"]), |target| target.route = RouteKind::Gds);
    let card = |name: &str, parts: &[&str]| {
        let pci = PciDevice { chain: chain(parts), numa_node: Some(0), ..PciDevice::default() };
        Nic { names: chain(&[name]), has_rdma: true, pci, ..Nic::default() }
    };
    let one =
        with(machine(), |machine| machine.nics = vec![card("mlx5_0", &["pci0000:37", "0000:37:01.0", "x"])]);
    only(&one, &direct, "far", "mlx5_0 and GPU 0 (NVIDIA H200): same node, through the CPU", "nearer GPU");
    let near = card("mlx5_1", &["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:02.0", "y"]);
    let two = with(one, |machine| machine.nics.push(near));
    assert_eq!(causes(&two, &direct), [], "one card below the GPU's switch is enough");
}

#[test]
fn libraries_that_are_there_keep_their_reason() {
    let broken = |part: fn(&mut Libraries) -> &mut Library| {
        with(machine(), |machine| {
            let library = part(&mut machine.libraries);
            library.found = Err("libx could not be loaded".to_owned());
            library.unusable =
                Some(Unusable { path: "/lib/x.so".to_owned(), reason: "file too short".to_owned() });
        })
    };
    let cufile = broken(|libraries| &mut libraries.cufile);
    let problem = "libcufile is at /lib/x.so, but does not load: file too short";
    only(&cufile, &staged(), "unusable-library", problem, "cut off");
    let cuda = with(broken(|libraries| &mut libraries.cuda), |machine| machine.gpus = Err(NoGpus::NoLibrary));
    let found = causes(&cuda, &with(good(), |target| target.route = RouteKind::Unavailable));
    assert_eq!((found[0].key(), found[0].effect()), ("unusable-library", Effect::Stops));
}

#[test]
fn containers_change_the_way_to_gpus_udev_and_modules() {
    let pod = with(machine(), |machine| machine.kernel.container = Some(Container::Kubernetes));
    let hidden = with(pod.clone(), |machine| machine.gpus = Err(NoGpus::NoDevice));
    let cannot = with(good(), |target| target.route = RouteKind::Unavailable);
    only(&hidden, &cannot, "no-device", "CUDA shows none", "device plugin");
    let target = with(staged(), |target| target.udev_record = Some(false));
    only(&pod, &target, "no-udev-record", "/run/udev/data/b259:0", "hostPath");
    let bare = with(pod, |machine| {
        machine.kernel.nvidia_fs = None;
        machine.driver = Ok(DriverFacts { nvidia_fs: None, ..driver() });
    });
    assert!(causes(&bare, &staged())[0].remedy().contains("gds.enabled=true"));
}

#[test]
fn codes_of_cuda_and_the_driver_choose_the_remedy() {
    let cannot = with(good(), |target| target.route = RouteKind::Unavailable);
    for (code, name, remedy) in [
        (34, "CUDA_ERROR_STUB_LIBRARY", "stub"),
        (802, "CUDA_ERROR_SYSTEM_NOT_READY", "fabricmanager"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart"),
        (777, "CUDA_ERROR_OF_LATER_RELEASES", "nvidia-smi"),
    ] {
        let text = format!("cuInit: {name} ({code})");
        let fails = with(machine(), |machine| machine.gpus = Err(NoGpus::Failed(text.clone())));
        only(&fails, &cannot, "cuda-fails", &text, remedy);
    }
    for (code, remedy) in
        [("CU_FILE_INTERNAL_ERROR (5030)", "/run/udev"), ("CU_FILE_X (5999)", "CUFILE_LOGGING_LEVEL")]
    {
        let fails = with(machine(), |machine| machine.driver = Err(format!("cuFileDriverOpen: {code}, x")));
        only(&fails, &staged(), "driver-fails", code, remedy);
    }
}

#[test]
fn reasons_against_opening_have_their_own_remedies() {
    let missing = Path::new("/nonexistent/file");
    for (path, error, reason, remedy) in [
        (missing, "cannot open: No such file or directory (os error 2)", "no such path", "exists"),
        (Path::new("/"), "cannot open: Permission denied (os error 13)", "cannot be opened", "run as a user"),
        (
            Path::new("/"),
            "\"/x\" is not a file or a folder, so it has no route",
            "neither a file nor a folder",
            "pipes and sockets",
        ),
        (Path::new("/"), "cannot open: Input/output error (os error 5)", "cannot", "of the file system"),
        (
            Path::new("/"),
            "cuFile is required, but does not work here: CU_FILE_X (5034)",
            "5034",
            "remove the entry",
        ),
        (
            Path::new("/"),
            "cuFile is required, but does not work here: no GPU",
            "no GPU",
            "GPUFILE_COMPAT_MODE",
        ),
    ] {
        let cause = &causes_without_path(&machine(), &CannotOpen::of(path, error))[0];
        assert!(
            cause.problem().contains(reason) && cause.remedy().contains(remedy),
            "{error}: {}",
            cause.remedy()
        );
    }
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
    assert_eq!(causes_without_path(&broken, &CannotOpen::Missing)[1].key(), "broken-cufile-json");
}

#[test]
fn causes_that_fail_the_check_come_first() {
    let wrong = with(machine(), |machine| {
        machine.variables.error = Some("wrong".to_owned());
        machine.gpus = Err(NoGpus::NoDevice);
    });
    assert_eq!(causes(&wrong, &good())[0], Cause::WrongVariable("wrong".to_owned()));
    let keys: Vec<_> = causes_without_path(&wrong, &CannotOpen::Missing).iter().map(Cause::key).collect();
    assert_eq!(keys[..3], ["cannot-open", "wrong-variable", "no-device"]);
}
