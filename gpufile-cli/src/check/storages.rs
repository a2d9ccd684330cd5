//! The storages that libcufile knows, and the mode in which it reaches each here.

use cufile::FileSystems;

use super::machine::{DriverFacts, Machine};

/// The mode for a storage, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Directly, with nvidia-fs.
    NvidiaFs,
    /// Directly, with PCI P2PDMA.
    P2pDma,
    /// Through host memory, in the compatibility mode.
    Compat,
    Unsupported,
}

impl Mode {
    pub fn word(self) -> &'static str {
        match self {
            Self::NvidiaFs => "nvfs",
            Self::P2pDma => "p2pdma",
            Self::Compat => "compat",
            Self::Unsupported => "unsupported",
        }
    }
}

pub struct Storage {
    pub key: &'static str,
    pub name: &'static str,
    bit: FileSystems,
    /// The kernel module that registers with nvidia-fs, if one must.
    pub module: Option<&'static str>,
}

pub const STORAGES: &[Storage] = &[
    storage("nvme", "NVMe", FileSystems::NVME, Some("nvme")),
    storage("nvmeof", "NVMe over fabrics", FileSystems::NVMEOF, Some("nvme_rdma")),
    storage("scsi", "SCSI", FileSystems::SCSI, Some("scsi_mod")),
    storage("scaleflux-csd", "ScaleFlux CSD", FileSystems::SCALEFLUX_CSD, Some("sfxvdriver")),
    storage("nvmesh", "NVMesh", FileSystems::NVMESH, Some("nvmeib_common")),
    storage("lustre", "Lustre (EXAScaler)", FileSystems::LUSTRE, Some("lnet")),
    storage("gpfs", "Spectrum Scale (GPFS)", FileSystems::GPFS, Some("mmfslinux")),
    storage("nfs", "NFS over RDMA", FileSystems::NFS, Some("rpcrdma")),
    storage("beegfs", "BeeGFS", FileSystems::BEEGFS, Some("beegfs")),
    storage("weka", "WekaFS", FileSystems::WEKAFS, Some("wekafsio")),
    storage("scatefs", "ScaTeFS", FileSystems::SCATEFS, Some("scatefs")),
    storage("virtiofs", "virtiofs", FileSystems::VIRTIOFS, None),
    storage("panfs", "PanFS", FileSystems::PANFS, None),
];

const fn storage(
    key: &'static str,
    name: &'static str,
    bit: FileSystems,
    module: Option<&'static str>,
) -> Storage {
    Storage { key, name, bit, module }
}

impl Storage {
    pub fn mode(&self, machine: &Machine) -> Mode {
        let Ok(driver) = &machine.driver else { return Mode::Unsupported };
        let is_forced = |key: &str| machine.configuration.switched_on(key).is_some();
        let stages = driver.posix_only || is_forced("properties.force_compat_mode");
        if !stages && driver.nvidia_fs.is_some() && driver.file_systems.contains(self.bit) {
            Mode::NvidiaFs
        } else if !stages && self.takes_p2pdma(driver) {
            Mode::P2pDma
        } else if driver.allows_compat_mode || stages {
            Mode::Compat
        } else {
            Mode::Unsupported
        }
    }

    /// Returns whether P2PDMA reaches the storage: local NVMe disks.
    fn takes_p2pdma(&self, driver: &DriverFacts) -> bool {
        self.bit == FileSystems::NVME
            && (driver.p2pdma || driver.file_systems.contains(FileSystems::NVME_P2P))
    }

    /// Returns whether libcufile shows a direct path with nvidia-fs; `None` without nvidia-fs.
    pub fn is_shown(&self, machine: &Machine) -> Option<bool> {
        let driver = machine.driver.as_ref().ok()?;
        driver.nvidia_fs.map(|_| driver.file_systems.contains(self.bit))
    }

    /// Returns whether the driver of the storage is registered with nvidia-fs; `None` if nothing tells.
    pub fn is_registered(&self, machine: &Machine) -> Option<bool> {
        // Drivers are registered only while a process has the cuFile driver open, as this one has.
        machine.driver.as_ref().ok()?.nvidia_fs?;
        let registered = machine.kernel.nvidia_fs.as_ref()?.registered.as_ref()?;
        Some(registered.iter().any(|name| Some(name.as_str()) == self.module))
    }
}

#[cfg(test)]
mod tests {
    use super::super::right_facts::{driver, machine, with};
    use super::*;

    fn modes(change: impl FnOnce(&mut DriverFacts)) -> String {
        let machine = with(machine(), |machine| machine.driver = Ok(with(driver(), change)));
        let modes = STORAGES.iter().map(|storage| (storage.key, storage.mode(&machine).word()));
        let found: Vec<_> = modes.filter(|(_, mode)| *mode != "compat").collect();
        found.iter().map(|(key, mode)| format!("{key} {mode}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn properties_of_the_driver_give_each_mode() {
        assert_eq!(modes(|_| {}), "nvme nvfs");
        let both = FileSystems::NVME | FileSystems::WEKAFS;
        assert_eq!(modes(|driver| driver.file_systems = both), "nvme nvfs, weka nvfs");
        let p2pdma = |driver: &mut DriverFacts| {
            (driver.nvidia_fs, driver.file_systems, driver.p2pdma) = (None, FileSystems::empty(), true);
        };
        assert_eq!(modes(p2pdma), "nvme p2pdma");
        // The bits alone mean nothing without the module.
        assert_eq!(modes(|driver| driver.nvidia_fs = None), "");
        assert_eq!(modes(|driver| driver.posix_only = true), "");
        let strict = modes(|driver| driver.allows_compat_mode = false);
        assert_eq!(strict.matches("unsupported").count(), STORAGES.len() - 1, "{strict}");
        let closed = with(machine(), |machine| machine.driver = Err("closed".to_owned()));
        assert!(STORAGES.iter().all(|storage| storage.mode(&closed) == Mode::Unsupported));
    }

    #[test]
    fn registered_drivers_count_while_the_driver_is_open() {
        let listed = |names: &[&str]| {
            with(machine(), |machine| {
                let names = names.iter().map(|&name| name.to_owned()).collect();
                machine.kernel.nvidia_fs.as_mut().unwrap().registered = Some(names);
            })
        };
        let nvme = &STORAGES[0];
        assert_eq!(nvme.is_registered(&machine()), None);
        assert_eq!(nvme.is_registered(&listed(&["wekafsio"])), Some(false));
        assert_eq!(nvme.is_registered(&listed(&["nvme"])), Some(true));
        let closed = with(listed(&[]), |machine| machine.driver = Err("closed".to_owned()));
        assert_eq!(nvme.is_registered(&closed), None);
    }
}
