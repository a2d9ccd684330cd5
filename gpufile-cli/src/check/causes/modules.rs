//! Causes that lie in kernel modules, and in the library that user-space file systems need.

use super::Facts;
use crate::check::block::Bus;
use crate::check::container::Container;
use crate::check::effect::Effect;
use crate::check::nvidia_fs::{LEAST_VERSION, NEEDS_OPEN_MODULE};
use crate::check::storage::Storage;
use crate::check::storages::{self, STORAGES};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModuleCause {
    NotRegistered {
        storage: &'static str,
        module: &'static str,
        hook: Hook,
    },
    /// The display driver's module is the closed one.
    Closed,
    /// nvidia-fs is older than libcufile accepts.
    OldNvidiaFs((u32, u32)),
    /// `/dev` lacks the device of nvidia-fs.
    NoDevice(Option<Container>),
    NoPeermem,
    NoRdmaLibrary,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hook {
    /// The driver is not made for nvidia-fs.
    Missing,
    Found(String),
    /// The kernel hides its symbols.
    Unknown,
}

impl ModuleCause {
    pub fn all(facts: Facts<'_>) -> Vec<Self> {
        let Facts { machine, storage, .. } = facts;
        let mut causes = Vec::new();
        let module = machine.kernel.nvidia_fs.as_ref();
        let driver = machine.driver.as_ref().ok();
        let open = driver.and_then(|driver| driver.nvidia_fs);
        let numbers = module.and_then(|module| module.numbers());
        let takes_closed = numbers.is_some_and(|numbers| numbers < NEEDS_OPEN_MODULE);
        if machine.kernel.modules.is_open == Some(false) && !takes_closed {
            causes.push(Self::Closed);
        }
        let version = open.or(numbers.map(|(major, minor, _)| (major, minor)));
        causes.extend(version.filter(|version| *version < LEAST_VERSION).map(Self::OldNvidiaFs));
        if module.is_some_and(|module| !module.has_device) && open.is_none() {
            causes.push(Self::NoDevice(machine.kernel.container));
        }
        causes.extend(not_registered(facts));
        // The clients of these run in user space, and register GPU memory with the network card.
        if matches!(storage, Storage::Weka | Storage::Gpfs) {
            if !machine.kernel.modules.has_peermem {
                causes.push(Self::NoPeermem);
            }
            if machine.libraries.cufile.found.is_ok() && machine.libraries.rdma.is_none() {
                causes.push(Self::NoRdmaLibrary);
            }
        }
        causes
    }

    pub fn effect(&self) -> Effect {
        Effect::Stages
    }

    pub fn key(&self) -> &'static str {
        match self {
            Self::NotRegistered { .. } => "driver-not-registered",
            Self::Closed => "closed-kernel-module",
            Self::OldNvidiaFs(_) => "old-nvidia-fs",
            Self::NoDevice(_) => "no-nvidia-fs-device",
            Self::NoPeermem => "no-nvidia-peermem",
            Self::NoRdmaLibrary => "no-libcufile-rdma",
        }
    }

    pub fn problem(&self) -> String {
        match self {
            Self::NotRegistered { storage, module, hook } => {
                let why = match hook {
                    Hook::Missing => {
                        "; it has no function to register, so it is not made for nvidia-fs".to_owned()
                    }
                    Hook::Found(name) => format!("; it has {name}, which nvidia-fs did not use"),
                    Hook::Unknown => String::new(),
                };
                format!("the driver of {storage} ({module}) is not registered with nvidia-fs{why}")
            }
            Self::Closed => {
                let (major, minor, last) = NEEDS_OPEN_MODULE;
                format!(
                    "NVIDIA's kernel module is the closed one; nvidia-fs {major}.{minor}.{last} or newer, and P2PDMA, need the open one"
                )
            }
            Self::OldNvidiaFs((major, minor)) => {
                let (least_major, least_minor) = LEAST_VERSION;
                format!("nvidia-fs is {major}.{minor}; libcufile needs {least_major}.{least_minor} or newer")
            }
            Self::NoDevice(_) => {
                "nvidia-fs is loaded, but /dev has no nvidia-fs device, so libcufile cannot call it"
                    .to_owned()
            }
            Self::NoPeermem => {
                "the kernel module nvidia_peermem is not loaded, so network cards cannot reach GPU memory"
                    .to_owned()
            }
            Self::NoRdmaLibrary => {
                "libcufile_rdma is not in the folder of libcufile, which needs it for this file system"
                    .to_owned()
            }
        }
    }

    pub fn remedy(&self) -> String {
        let text = match self {
            Self::NotRegistered { module: "nvme", hook: Hook::Found(_), .. } => {
                "build nvidia-fs again for this kernel and this NVMe driver (`dkms build nvidia-fs`), load it after the \
                 driver, and look for nvme in /proc/driver/nvidia-fs/modules while a program uses cuFile"
            }
            Self::NotRegistered { module: "nvme" | "nvme_rdma", .. } => {
                "install an NVMe driver for nvidia-fs (package mlnx-nvme of DOCA or MLNX_OFED, installed with --with-nvmf \
                 and --enable-gds), rebuild the initramfs and reboot; or use P2PDMA, which needs no such driver"
            }
            Self::NotRegistered { .. } => {
                "install the client that is made for GPUDirect Storage, and load nvidia-fs after it"
            }
            Self::Closed => {
                "install the open modules (the package nvidia-open, or nvidia-driver-VERSION-open), which need a GPU of \
                 Turing or newer, and reboot; `modinfo -F license nvidia` then says Dual MIT/GPL"
            }
            Self::OldNvidiaFs(_) => "install the nvidia-fs of the CUDA release that libcufile comes from",
            Self::NoDevice(Some(Container::Kubernetes)) => {
                "let the GPU Operator pass it on (gds.enabled=true), or mount /dev/nvidia-fs* of the node into the pod"
            }
            Self::NoDevice(Some(Container::Other)) => {
                "pass the devices on: set NVIDIA_GDS=enabled for NVIDIA's Container Toolkit, or add \
                 --device=/dev/nvidia-fs0 and its siblings"
            }
            Self::NoDevice(None) => {
                "load the module again (`modprobe -r nvidia_fs; modprobe nvidia_fs`), and look at `dmesg`"
            }
            Self::NoPeermem => "`modprobe nvidia_peermem`, after the driver of the network card",
            Self::NoRdmaLibrary => {
                "install it with libcufile (pip install nvidia-cufile has both), or the package libcufile of CUDA"
            }
        };
        text.to_owned()
    }
}

fn keys(facts: Facts<'_>) -> Vec<&'static str> {
    match facts.storage {
        Storage::Local => {
            let bus = |bus| match bus {
                Bus::NvmePcie => Some("nvme"),
                Bus::NvmeFabrics => Some("nvmeof"),
                _ => None,
            };
            let mut keys: Vec<_> = facts.target.disks().filter_map(|(_, disk)| bus(disk.bus)).collect();
            keys.dedup();
            keys
        }
        Storage::Lustre => vec!["lustre"],
        Storage::Weka => vec!["weka"],
        Storage::Nfs(true) => vec!["nfs"],
        Storage::BeeGfs => vec!["beegfs"],
        Storage::Gpfs => vec!["gpfs"],
        Storage::ScateFs => vec!["scatefs"],
        _ => vec![],
    }
}

fn not_registered(facts: Facts<'_>) -> Option<ModuleCause> {
    let of_path = keys(facts);
    let unregistered = |storage: &&storages::Storage| {
        let registered = storage.is_registered(facts.machine);
        // Where nvidia-fs shows no list, what libcufile found of disks decides.
        let shown = || storage.is_shown(facts.machine).filter(|_| *facts.storage == Storage::Local);
        of_path.contains(&storage.key) && registered.or_else(shown) == Some(false)
    };
    let storage = STORAGES.iter().find(unregistered)?;
    let module = storage.module?;
    Some(ModuleCause::NotRegistered { storage: storage.name, module, hook: hook(facts, module) })
}

fn hook(facts: Facts<'_>, module: &str) -> Hook {
    let Some(hooks) = &facts.machine.kernel.modules.hooks else { return Hook::Unknown };
    let prefix = match module {
        "nvme" | "nvme_rdma" => format!("{module}_v"),
        "lnet" => "lustre_".to_owned(),
        "mmfslinux" => "ibm_scale_".to_owned(),
        // Its client runs in user space.
        "wekafsio" => return Hook::Unknown,
        module => format!("{module}_"),
    };
    hooks
        .iter()
        .find(|hook| hook.starts_with(&prefix))
        .map_or(Hook::Missing, |hook| Hook::Found(hook.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::block::{Disk, Kind};
    use crate::check::machine::{DriverFacts, Machine};
    use crate::check::right_facts::{causes_of, driver, machine, mounted, only, staged, with};
    use crate::check::target::Target;
    use cufile::FileSystems;

    /// Returns a machine whose nvidia-fs lists these drivers, of which libcufile shows none.
    fn listing(names: &[&str], hooks: Option<&[&str]>) -> Machine {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        with(machine(), |machine| {
            machine.kernel.nvidia_fs.as_mut().unwrap().registered = Some(owned(names));
            machine.kernel.modules.hooks = hooks.map(owned);
            machine.driver = Ok(DriverFacts { file_systems: FileSystems::empty(), ..driver() });
        })
    }

    #[test]
    fn nvme_that_is_not_registered_has_an_answer() {
        let key = "driver-not-registered";
        let problem = "the driver of NVMe (nvme) is not registered with nvidia-fs";
        only(&listing(&["wekafsio"], None), &staged(), key, problem, "mlnx-nvme");
        only(&listing(&[], Some(&[])), &staged(), key, "not made for nvidia-fs", "rebuild the initramfs");
        let other = listing(&[], Some(&["nvme_v2_register_nvfs_dma_ops"]));
        only(&other, &staged(), key, "nvme_v2_register_nvfs_dma_ops", "dkms build nvidia-fs");
        // Where the module shows no list, the properties of the driver decide.
        let unlisted = with(listing(&[], None), |machine| {
            machine.kernel.nvidia_fs.as_mut().unwrap().registered = None;
        });
        only(&unlisted, &staged(), key, problem, "P2PDMA");
        let registered = listing(&["nvme"], None);
        only(&registered, &staged(), "other", "only the library knows", "");
    }

    #[test]
    fn drivers_of_other_storages_are_named() {
        let fabrics = with(staged(), |target| {
            let disk = Disk { bus: Bus::NvmeFabrics, ..Disk::default() };
            target.layers[0].kind = Kind::Disk(disk);
        });
        only(&listing(&["nvme"], None), &fabrics, "driver-not-registered", "(nvme_rdma)", "DOCA");
        for (file_system, module) in [
            ("lustre", "lnet"),
            ("nfs", "rpcrdma"),
            ("beegfs", "beegfs"),
            ("gpfs", "mmfslinux"),
            ("scatefs", "scatefs"),
        ] {
            let target = mounted(file_system, &["proto=rdma"]);
            let found = causes_of(&listing(&["nvme"], None), &target);
            let text = found.iter().find(|(key, ..)| *key == "driver-not-registered").unwrap();
            assert!(text.1.contains(module) && text.2.contains("load nvidia-fs after it"), "{text:?}");
        }
    }

    #[test]
    fn closed_module_is_a_cause_with_new_nvidia_fs() {
        let closed = |version: Option<&str>| {
            with(machine(), |machine| {
                machine.kernel.modules.is_open = Some(false);
                machine.kernel.nvidia_fs.as_mut().unwrap().version = version.unwrap_or_default().to_owned();
            })
        };
        let key = "closed-kernel-module";
        only(&closed(Some("2.17.5")), &staged(), key, "is the closed one", "nvidia-open");
        only(&closed(None), &staged(), key, "2.17.5", "Turing");
        only(&closed(Some("2.17.4")), &staged(), "other", "", "");
        let without = with(closed(None), |machine| {
            machine.kernel.nvidia_fs = None;
            machine.driver = Ok(DriverFacts { nvidia_fs: None, ..driver() });
        });
        let keys: Vec<_> = causes_of(&without, &staged()).iter().map(|(key, ..)| *key).collect();
        assert_eq!(keys, [key, "no-nvidia-fs", "no-p2pdma"]);
    }

    #[test]
    fn old_nvidia_fs_names_the_least_version() {
        let old = with(machine(), |machine| {
            machine.driver = Ok(DriverFacts { nvidia_fs: Some((2, 11)), ..driver() })
        });
        only(&old, &staged(), "old-nvidia-fs", "is 2.11; libcufile needs 2.12 or newer", "CUDA release");
    }

    #[test]
    fn missing_device_is_a_cause_in_each_container() {
        let key = "no-nvidia-fs-device";
        for (container, remedy) in [
            (None, "modprobe"),
            (Some(Container::Other), "NVIDIA_GDS=enabled"),
            (Some(Container::Kubernetes), "gds.enabled=true"),
        ] {
            let without = with(machine(), |machine| {
                machine.kernel.nvidia_fs.as_mut().unwrap().has_device = false;
                machine.kernel.container = container;
                machine.driver = Ok(DriverFacts { nvidia_fs: None, ..driver() });
            });
            only(&without, &staged(), key, "/dev has no nvidia-fs device", remedy);
        }
    }

    #[test]
    fn user_space_clients_need_peermem_and_their_library() {
        let target: Target = mounted("wekafs", &[]);
        let bare = with(machine(), |machine| {
            machine.kernel.modules.has_peermem = false;
            machine.libraries.rdma = None;
        });
        let found = causes_of(&bare, &target);
        for (key, remedy) in
            [("no-nvidia-peermem", "modprobe nvidia_peermem"), ("no-libcufile-rdma", "nvidia-cufile")]
        {
            let text = found.iter().find(|(found, ..)| *found == key).unwrap_or_else(|| panic!("{found:?}"));
            assert!(text.2.contains(remedy), "{text:?}");
        }
        let keys: Vec<_> = causes_of(&bare, &staged()).iter().map(|(key, ..)| *key).collect();
        assert_eq!(keys, ["other"], "disks need neither");
    }
}
