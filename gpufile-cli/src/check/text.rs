//! The report as text: the verdict first, then what to do, then the facts.

use std::fmt::Write;
use std::time::Duration;

use super::acs::Acs;
use super::attempt::{Attempt, BYTES};
use super::cause::{Cause, Effect};
use super::features;
use super::kernel::Iommu;
use super::libraries::Library;
use super::machine::Machine;
use super::outcome::Outcome;
use super::page::Page;
use super::pci::{Distance, PciDevice};
use super::target::Target;
use crate::nvidia_fs::Transfers;
use crate::table::printable;

/// The causes that the short report has.
const MOST_CAUSES: usize = 5;
/// The changed values of libcufile's configuration that the short report has.
const MOST_CHANGES: usize = 4;

/// Returns the report.
pub fn report(machine: &Machine, outcomes: &[Outcome], is_verbose: bool) -> String {
    let mut report = Report { page: Page::default(), is_verbose };
    for outcome in outcomes {
        let verdict = outcome.verdict().key().to_uppercase();
        report.page.wrapped(&format!("{}: {verdict}: ", outcome.path.display()), &outcome.headline());
    }
    report.causes(outcomes);
    for outcome in outcomes {
        if let Ok(target) = &outcome.target {
            report.page.title(&outcome.path.display().to_string());
            report.target(machine, target);
        }
        if let Some(Ok(attempt)) = &outcome.attempt {
            report.attempt(attempt);
        }
    }
    report.page.title("machine");
    report.libraries(machine);
    report.gpus(machine);
    report.disks_and_cards(machine);
    report.kernel(machine);
    report.configuration(machine);
    report.features(machine);
    report.page.text
}

struct Report {
    page: Page,
    is_verbose: bool,
}

impl Report {
    /// Writes the causes of all paths, each once, worst first.
    fn causes(&mut self, outcomes: &[Outcome]) {
        let mut found: Vec<(&Cause, Vec<String>)> = Vec::new();
        for outcome in outcomes {
            let path = printable(&outcome.path.to_string_lossy());
            for cause in &outcome.causes {
                match found.iter_mut().find(|(known, _)| *known == cause) {
                    Some((_, paths)) => paths.push(path.clone()),
                    None => found.push((cause, vec![path.clone()])),
                }
            }
        }
        found.sort_by_key(|(cause, _)| cause.effect());
        if found.is_empty() {
            return;
        }
        self.page.title("what to do");
        let shown = if self.is_verbose { found.len() } else { found.len().min(MOST_CAUSES) };
        for (index, (cause, paths)) in found[..shown].iter().enumerate() {
            // A cause that not all paths share names its paths.
            let paths =
                if paths.len() < outcomes.len() { format!(" ({})", paths.join(", ")) } else { String::new() };
            let note = match cause.effect() {
                Effect::Fails | Effect::Stops | Effect::Stages => "",
                Effect::Limits => "limit: ",
                Effect::Slows => "slower: ",
            };
            self.page.wrapped(&format!("  {}. ", index + 1), &format!("{note}{}{paths}", cause.problem()));
            self.page.wrapped("     -> ", &cause.remedy());
        }
        if shown < found.len() {
            let _ = writeln!(self.page.text, "  {} more: gpufile check --verbose", found.len() - shown);
        }
    }

    fn target(&mut self, machine: &Machine, target: &Target) {
        let file_system = match &target.mount {
            Some(mount) => {
                let options =
                    if self.is_verbose { mount.options.join(",") } else { first(&mount.options, 6) };
                format!(
                    "{} from {}, on {} ({options})",
                    target.file_system,
                    printable(&mount.source),
                    printable(&mount.point.to_string_lossy())
                )
            }
            None => target.file_system.clone(),
        };
        self.page.line("file system", &file_system);
        if !target.layers.is_empty() {
            let names: Vec<String> = target.layers.iter().map(ToString::to_string).collect();
            let record = match target.udev_record {
                Some(false) => "; no udev record",
                _ => "",
            };
            self.page.line("block device", &format!("{}{record}", names.join(" > ")));
        }
        for (name, disk) in target.disks() {
            for device in disk.pci.iter().filter_map(|address| machine.device(address)) {
                self.distances(machine, &format!("  {name}"), device);
            }
        }
        let alignment =
            target.alignment.map_or("none, or unknown to the kernel".to_owned(), |(memory, offset)| {
                format!("memory at {memory}, offset and length at {offset} bytes")
            });
        self.page.line("O_DIRECT", &alignment);
        if let Some(cached) = target.cached {
            self.page.line("page cache", &format!("{:.0} % of the file", 100.0 * cached));
        }
        if self.is_verbose {
            for (kind, reason) in &target.why_not {
                self.page.line("route", &format!("not {kind}: {reason}"));
            }
        }
    }

    fn distances(&mut self, machine: &Machine, name: &str, device: &PciDevice) {
        let gpus = machine.gpus().iter().filter_map(|gpu| Some((gpu.ordinal, gpu.pci.as_ref()?)));
        let found: Vec<String> =
            gpus.map(|(ordinal, pci)| format!("GPU {ordinal}: {}", Distance::between(pci, device))).collect();
        if !found.is_empty() {
            self.page.line(name, &found.join("; "));
        }
    }

    fn attempt(&mut self, attempt: &Attempt) {
        let place = attempt.gpu.map_or("host memory".to_owned(), |gpu| format!("the memory of GPU {gpu}"));
        let millis = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let read = millis(attempt.read);
        let moved = match attempt.write {
            Some(write) => {
                let write = millis(write);
                format!("{} MiB from {place} in {write}, and back in {read}, with equal bytes", BYTES >> 20)
            }
            None => format!("read into {place} in {read}; nothing can be written here"),
        };
        self.page.line("try", &format!("{moved}; {}", attempt.proof()));
    }

    fn libraries(&mut self, machine: &Machine) {
        for Library { name, variable, named, found } in machine.libraries.all() {
            let text = match found {
                Ok(found) => {
                    let path = found.path.as_ref().map(|path| format!(", {}", path.display()));
                    let of = if *name == "libcufile" { "" } else { "CUDA " };
                    format!("{of}{}{}", found.version, path.unwrap_or_default())
                }
                Err(error) if self.is_verbose => error.replace("; ", "\n"),
                Err(_) => match named {
                    Some(path) => format!("does not load: {variable} is {path:?}"),
                    None => "not found".to_owned(),
                },
            };
            self.page.line(name, &text);
        }
        if self.is_verbose
            && let Err(error) = &machine.driver
        {
            self.page.line("cuFile driver", &error.replace("; ", "\n"));
        }
    }

    fn gpus(&mut self, machine: &Machine) {
        for gpu in machine.gpus() {
            let mut facts = vec![gpu.name.clone()];
            facts.extend(gpu.memory_bytes.map(|bytes| format!("{} GiB", bytes >> 30)));
            facts.push(gpu.address.clone());
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

    fn disks_and_cards(&mut self, machine: &Machine) {
        let is_verbose = self.is_verbose;
        for nic in machine.nics.iter().filter(|nic| nic.has_rdma || is_verbose) {
            self.page.line("network", &format!("{} at {}", nic.names.join(" "), nic.pci.address));
            self.distances(machine, "", &nic.pci);
        }
        for (name, disk) in machine.disks.iter().filter(|_| is_verbose) {
            for device in disk.pci.iter().filter_map(|address| machine.device(address)) {
                self.page.line("disk", &format!("{name} ({}) at {}", disk.bus.name(), device.address));
                self.distances(machine, "", device);
            }
        }
    }

    fn kernel(&mut self, machine: &Machine) {
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
        let driver =
            kernel.display_driver.as_ref().map(|version| format!(", nvidia {version}")).unwrap_or_default();
        let acs = acs(machine);
        self.page
            .line("kernel", &format!("Linux {release}{driver}, P2PDMA {p2pdma}, IOMMU {iommu}, ACS {acs}"));
        let module = match &kernel.nvidia_fs {
            None => "not loaded".to_owned(),
            Some(module) => {
                let counted = module.statistics.as_ref().map_or(String::new(), |found| {
                    let text = |of: &Transfers, calls| {
                        format!("{} {calls} of {} MiB ({} failed)", of.calls, of.bytes >> 20, of.errors)
                    };
                    let (reads, writes) = (text(&found.read, "reads"), text(&found.write, "writes"));
                    format!("; {reads}, {writes}, {} MiB registered", found.registered_bytes() >> 20)
                });
                let off = match &module.statistics {
                    Some(found) if !found.counts_transfers => "; it counts no transfers",
                    _ => "",
                };
                format!("loaded, {}{counted}{off}", module.version)
            }
        };
        self.page.line("nvidia-fs", &module);
    }

    fn configuration(&mut self, machine: &Machine) {
        let found = &machine.configuration;
        let file = match (&found.file, &found.error) {
            (Some(file), Some(error)) => format!("{} cannot be used: {error}", printable(file)),
            (Some(file), None) => printable(file),
            (None, _) => "none (libcufile's defaults)".to_owned(),
        };
        self.page.line("cufile.json", &file);
        let shown = if self.is_verbose { found.changed.len() } else { found.changed.len().min(MOST_CHANGES) };
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
        if !machine.variables.read.is_empty() {
            let read: Vec<String> =
                machine.variables.read.iter().map(|(name, value)| format!("{name}={value}")).collect();
            self.page.line("variables", &printable(&read.join(" ")));
        }
    }

    fn features(&mut self, machine: &Machine) {
        self.page.title("features here");
        for pair in features::table(machine).chunks(2) {
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

/// Returns the state of ACS on the bridges in words.
fn acs(machine: &Machine) -> String {
    let count = |state| machine.bridges().filter(|bridge| bridge.acs == Some(state)).count();
    let (redirects, unknown, all) = (count(Acs::Redirects), count(Acs::Unknown), machine.bridges().count());
    match (redirects, unknown, all) {
        (_, _, 0) => "without bridges".to_owned(),
        (0, 0, _) => format!("off on {all} bridges"),
        (0, _, _) => format!("unknown for {unknown} of {all} bridges (only root can read it)"),
        _ => format!("on for {redirects} of {all} bridges"),
    }
}

/// Returns the first options of a mount.
fn first(options: &[String], most: usize) -> String {
    let more = if options.len() > most { ",…" } else { "" };
    format!("{}{more}", options[..options.len().min(most)].join(","))
}
