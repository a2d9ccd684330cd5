//! The facts about the machine, as text.

use std::fmt::Write;

use super::Report;
use crate::check::acs::Acs;
use crate::check::features;
use crate::check::gpus::Gpu;
use crate::check::kernel::Iommu;
use crate::check::libraries::Library;
use crate::check::log_file;
use crate::check::machine::Machine;
use crate::check::network::Nic;
use crate::check::nvidia_fs::{LEAST_VERSION, NvidiaFs};
use crate::check::storages::STORAGES;
use crate::check::variables::Variables;
use crate::findings::width;
use crate::nvidia_fs::Transfers;
use crate::table::printable;

/// The changed values of libcufile's configuration that the short report has.
const MOST_CHANGES: usize = 4;

impl Report {
    pub(super) fn libraries(&mut self, machine: &Machine) {
        for Library { name, variable, named, found, unusable } in machine.libraries.all() {
            let text = match found {
                Ok(found) => {
                    let path = found.path.as_ref().map(|path| format!(", {}", path.display()));
                    let of = if *name == "libcufile" { "" } else { "CUDA " };
                    format!("{of}{}{}", found.version, path.unwrap_or_default())
                }
                Err(error) if self.is_verbose => error.replace("; ", "\n"),
                Err(_) => match (named, unusable) {
                    (Some(path), _) => format!("does not load: {variable} is {path:?}"),
                    (None, Some(file)) => format!("does not load: {}", file.path),
                    (None, None) => "not found".to_owned(),
                },
            };
            self.page.line(name, &text);
        }
        if self.is_verbose && machine.libraries.cufile.found.is_ok() {
            let rdma = machine.libraries.rdma.as_ref().map(|path| path.display().to_string());
            self.page
                .line("libcufile_rdma", &rdma.unwrap_or_else(|| "not in the folder of libcufile".to_owned()));
        }
        if self.is_verbose
            && let Err(error) = &machine.driver
        {
            self.page.line("cuFile driver", &error.replace("; ", "\n"));
        }
    }

    pub(super) fn gpus(&mut self, machine: &Machine) {
        for gpu in machine.gpus() {
            let mut facts = vec![gpu.name.clone()];
            facts.extend(gpu.memory_bytes.map(|bytes| format!("{} GiB", bytes >> 30)));
            facts.push(gpu.address.clone());
            facts.extend(abilities(gpu));
            if let Some(pci) = &gpu.pci {
                facts.extend(pci.bar1_bytes.map(|bytes| format!("BAR1 {} MiB", bytes >> 20)));
                facts.extend(pci.link.as_ref().map(|link| format!("PCIe {link}")));
                facts.extend(pci.numa_node.map(|node| format!("node {node}")));
            }
            facts.extend(gpu.no_kernel.as_ref().map(|reason| format!("no kernel: {reason}")));
            self.page.line(&format!("GPU {}", gpu.ordinal), &facts.join(", "));
        }
        for device in machine.devices.iter().filter(|device| device.is_nvidia_gpu()) {
            if !machine.gpus().iter().any(|gpu| gpu.address == device.address) {
                self.page.line("GPU", &format!("{} on the PCI bus, not shown by CUDA", device.address));
            }
        }
    }

    pub(super) fn disks_and_cards(&mut self, machine: &Machine) {
        let is_verbose = self.is_verbose;
        for nic in machine.nics.iter().filter(|nic| nic.has_rdma || is_verbose) {
            self.page
                .line("network", &format!("{} at {}{}", nic.names.join(" "), nic.pci.address, ports(nic)));
            self.distances(machine, "", &nic.pci);
        }
        for (name, disk) in machine.disks.iter().filter(|_| is_verbose) {
            for device in disk.pci.iter().filter_map(|address| machine.device(address)) {
                self.page.line("disk", &format!("{name} ({}) at {}", disk.bus.name(), device.address));
                self.distances(machine, "", device);
            }
        }
    }

    pub(super) fn kernel(&mut self, machine: &Machine) {
        let kernel = &machine.kernel;
        let iommu = match kernel.iommu {
            Iommu::Off => "off",
            Iommu::Passthrough => "passthrough",
            Iommu::On => "on",
            Iommu::Unknown => "unknown",
        };
        let p2pdma = match kernel.p2pdma {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        let release = kernel.release.as_deref().unwrap_or("of unknown release");
        let flavour = match kernel.modules.is_open {
            Some(true) => " (open)",
            Some(false) => " (closed)",
            None => "",
        };
        let driver = kernel.display_driver.as_ref();
        let driver = driver.map(|version| format!(", nvidia {version}{flavour}")).unwrap_or_default();
        let acs = acs(machine);
        self.page
            .line("kernel", &format!("Linux {release}{driver}, P2PDMA {p2pdma}, IOMMU {iommu}, ACS {acs}"));
        let module = kernel.nvidia_fs.as_ref().map_or("not loaded".to_owned(), nvidia_fs);
        self.page.line("nvidia-fs", &module);
        if self.is_verbose {
            let peermem = if kernel.modules.has_peermem { "loaded" } else { "not loaded" };
            self.page.line("nvidia_peermem", peermem);
            let mlx5 = kernel.modules.mlx5.as_ref();
            let mlx5 = mlx5.map(|mlx5| mlx5.version.as_ref().map_or("the kernel's own", String::as_str));
            self.page.line("mlx5_core", mlx5.unwrap_or("not loaded"));
            self.page.line("platform", kernel.platform.as_deref().unwrap_or("unknown"));
        }
    }

    pub(super) fn configuration(&mut self, machine: &Machine) {
        let found = &machine.configuration;
        let file = match (&found.file, &found.error) {
            (Some(file), Some(error)) => format!("{} cannot be used: {error}", printable(file)),
            (Some(file), None) => printable(file),
            (None, _) => "none (libcufile's defaults)".to_owned(),
        };
        self.page.line("cufile.json", &file);
        if self.is_verbose {
            for (key, value, from) in found.effective() {
                let from = if Some(&from) == found.file.as_ref() { "the file" } else { &from };
                let key = printable(&key);
                let text = match value {
                    Some(value) => format!("{key} = {value} ({from})"),
                    None => format!("{key}: libcufile's default"),
                };
                self.page.line("", &text);
            }
            self.limits(machine);
        } else {
            self.changes(machine);
        }
        let log = printable(&machine.log_file.to_string_lossy());
        let level = log_file::level(found);
        if self.is_verbose {
            self.page.line("cufile.log", &format!("{log}, level {level}"));
        }
        if !machine.variables.read.is_empty() {
            let version = machine.libraries.cufile.found.as_ref().map_or("", |found| &found.version);
            let shown = |(name, value): &(String, String)| match Variables::is_ignored(name, version) {
                true => format!("{name}={value} (libcufile {version} does not read it)"),
                false => format!("{name}={value}"),
            };
            let read: Vec<String> = machine.variables.read.iter().map(shown).collect();
            self.page.line("variables", &printable(&read.join(" ")));
        }
    }

    fn changes(&mut self, machine: &Machine) {
        let found = &machine.configuration;
        let shown = found.changed.len().min(MOST_CHANGES);
        for change in &found.changed[..shown] {
            let default =
                change.default.as_ref().map_or(String::new(), |default| format!(" (default {default})"));
            let is_of_file = Some(&change.from) == found.file.as_ref();
            let from = if is_of_file { String::new() } else { format!(", from {}", change.from) };
            self.page.line("", &format!("{} = {}{default}{from}", printable(&change.key), change.value));
        }
        if shown < found.changed.len() {
            self.page.line("", &format!("and {} more changed values", found.changed.len() - shown));
        }
    }

    fn limits(&mut self, machine: &Machine) {
        let Ok(driver) = &machine.driver else { return };
        let limits = &driver.limits;
        let kib = |bytes: u64| format!("{} KiB", bytes >> 10);
        let text = format!(
            "at most {} in a direct transfer, {} in a bounce buffer, {} in all of these, {} pinned, {} entries in a batch",
            kib(limits.max_direct_io_bytes),
            kib(limits.per_buffer_cache_bytes),
            kib(limits.max_device_cache_bytes),
            kib(limits.max_device_pinned_bytes),
            limits.max_batch_entries
        );
        self.page.line("in force", &text);
    }

    pub(super) fn storages(&mut self, machine: &Machine) {
        if machine.driver.is_err() {
            return self.page.line("storages", "unknown: the cuFile driver does not open");
        }
        if self.is_verbose {
            self.page.title("storages, as libcufile reaches them");
            for storage in STORAGES {
                let registered = match (storage.is_registered(machine), storage.module) {
                    (Some(false), Some(module)) => format!(" ({module} is not registered with nvidia-fs)"),
                    _ => String::new(),
                };
                let _ = writeln!(
                    self.page.text,
                    "  {:<24}{}{registered}",
                    storage.name,
                    storage.mode(machine).word()
                );
            }
            return;
        }
        let mut modes: Vec<(&str, Vec<&str>)> = Vec::new();
        for storage in STORAGES {
            let word = storage.mode(machine).word();
            match modes.iter_mut().find(|(mode, _)| *mode == word) {
                Some((_, names)) => names.push(storage.name),
                None => modes.push((word, vec![storage.name])),
            }
        }
        let texts = modes.iter().map(|(mode, names)| match names.len() {
            // The list of what takes the same way is in the long report.
            count if count > 6 => {
                format!("{mode}: {count}{}", if modes.len() > 1 { " others" } else { ", all" })
            }
            _ => format!("{mode}: {}", names.join(", ")),
        });
        let text = texts.collect::<Vec<_>>().join("; ");
        self.page.line("storages", &text);
    }

    pub(super) fn features(&mut self, machine: &Machine) {
        self.page.title("features here");
        // Two beside each other need 84 columns.
        let beside = if width() < 84 { 1 } else { 2 };
        for pair in features::table(machine).chunks(beside) {
            let cells: Vec<String> = pair
                .iter()
                .map(|feature| {
                    format!("{:<4}{:<38}", if feature.is_there { "yes" } else { "no" }, feature.name)
                })
                .collect();
            let _ = writeln!(self.page.text, "  {}", cells.concat().trim_end());
        }
    }
}

fn abilities(gpu: &Gpu) -> Vec<String> {
    let mut facts = vec![gpu.class().to_owned()];
    facts.extend(gpu.compute_capability.map(|(major, minor)| format!("compute {major}.{minor}")));
    facts.extend(gpu.is_mig().then(|| "MIG slice".to_owned()));
    facts.extend((gpu.has_gpudirect == Some(false)).then(|| "no GPUDirect".to_owned()));
    facts
}

fn ports(nic: &Nic) -> String {
    let ports = nic.ports.iter();
    let ports = ports.map(|port| format!("{} {}", port.link_layer, if port.is_up { "up" } else { "down" }));
    nic.connectx().map_or(String::new(), |generation| format!(" (ConnectX-{generation})"))
        + &ports.map(|port| format!(", {port}")).collect::<String>()
}

fn nvidia_fs(module: &NvidiaFs) -> String {
    let counted = module.statistics.as_ref().map_or(String::new(), |found| {
        let text = |of: &Transfers, calls| {
            format!("{} {calls} of {} MiB ({} failed)", of.calls, of.bytes >> 20, of.errors)
        };
        let (reads, writes) = (text(&found.read, "reads"), text(&found.write, "writes"));
        let (registered, shadow) = (found.registered_bytes() >> 20, found.shadow_buffer_bytes >> 20);
        format!("; {reads}, {writes}, {registered} MiB registered, {shadow} MiB of host memory for them (shadow buffers)")
    });
    let off = match &module.statistics {
        Some(found) if !found.counts_transfers => "; it counts no transfers",
        _ => "",
    };
    let drivers = match &module.registered {
        None => String::new(),
        Some(names) if names.is_empty() => "; no storage driver is registered".to_owned(),
        Some(names) => format!("; registered: {}", names.join(", ")),
    };
    let (major, minor) = LEAST_VERSION;
    format!("loaded, {} (libcufile needs {major}.{minor}){drivers}{counted}{off}", module.version)
}

fn acs(machine: &Machine) -> String {
    let count = |state| machine.bridges().filter(|bridge| bridge.acs == Some(state)).count();
    let (redirects, unknown, all) = (count(Acs::Redirects), count(Acs::Unknown), machine.bridges().count());
    match (redirects, unknown, all) {
        // Without sysfs, nothing is known of bridges.
        (_, _, 0) if machine.devices.is_empty() => "unknown (no PCI devices in /sys)".to_owned(),
        (_, _, 0) => "without bridges".to_owned(),
        (0, 0, _) => format!("off on {all} bridges"),
        (0, _, _) => format!("unknown for {unknown} of {all} bridges (only root can read it)"),
        _ => format!("on for {redirects} of {all} bridges"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::pci::PciDevice;
    use crate::check::right_facts::{machine, with};

    #[test]
    fn missing_sysfs_is_no_machine_without_bridges() {
        assert_eq!(acs(&machine()), "off on 1 bridges");
        let bare = with(machine(), |machine| machine.devices.clear());
        assert_eq!(acs(&bare), "unknown (no PCI devices in /sys)");
        let without = with(bare, |machine| machine.devices.push(PciDevice::default()));
        assert_eq!(acs(&without), "without bridges");
    }

    #[test]
    fn nvidia_fs_shows_drivers_and_shadow_buffers() {
        let statistics = crate::nvidia_fs::Stats { shadow_buffer_bytes: 256 << 20, ..Default::default() };
        let module = NvidiaFs {
            version: "2.28.4".to_owned(),
            statistics: Some(statistics),
            registered: Some(vec!["nvme".to_owned()]),
            ..NvidiaFs::default()
        };
        let text = nvidia_fs(&module);
        assert!(text.starts_with("loaded, 2.28.4 (libcufile needs 2.12); registered: nvme; "), "{text}");
        assert!(text.contains("256 MiB of host memory for them (shadow buffers)"), "{text}");
        let empty = NvidiaFs { registered: Some(vec![]), statistics: None, ..module };
        assert!(nvidia_fs(&empty).ends_with("no storage driver is registered"));
    }
}
