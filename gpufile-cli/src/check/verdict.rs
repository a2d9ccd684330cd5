//! The causes that follow from the facts, in the order in which they are worth fixing. No call of the system.

use super::acs::Acs;
use cufile::FileType;
use gpufile::{RouteKind, RoutePolicy};

use super::block::{Bus, Disk, Kind};
use super::cause::{CannotOpen, Cause};
use super::causes::Facts;
use super::causes::gpus::GpuCause;
use super::causes::modules::ModuleCause;
use super::causes::network::NetworkCause;
use super::causes::settings::SettingCause;
use super::causes::values::ValueCause;
use super::effect::Effect;
use super::gpus::NoGpus;
use super::kernel::Iommu;
use super::libraries::{Library, calls_since};
use super::machine::Machine;
use super::pci::{Distance, PciDevice};
use super::storage::Storage;
use super::target::Target;

/// Returns the causes for a path, worst first.
pub fn causes(machine: &Machine, target: &Target) -> Vec<Cause> {
    let storage = Storage::of(&target.file_system, target.mount.as_ref());
    let facts = Facts { machine, target, storage: &storage };
    let mut causes = Vec::new();
    variables(machine, &mut causes);
    cuda(machine, &mut causes);
    if target.is_direct() {
        // The driver does not show every setting that turns its direct paths off.
        configuration(machine, &mut causes);
    } else {
        stages(facts, &mut causes);
    }
    causes.extend(NetworkCause::all(facts).into_iter().map(Cause::Network));
    causes.extend(GpuCause::all(facts).into_iter().map(Cause::Gpu));
    causes.extend(SettingCause::all(&machine.configuration).into_iter().map(Cause::Setting));
    causes.extend(ValueCause::all(facts).into_iter().map(Cause::Value));
    other(target, &mut causes);
    limits(machine, target, &storage, &mut causes);
    slows(machine, target, &storage, &mut causes);
    // Stable: within an effect, the order above stays.
    causes.sort_by_key(Cause::effect);
    causes
}

/// Returns the causes of the path, and those that hold for the machine.
pub fn causes_without_path(machine: &Machine, reason: &CannotOpen) -> Vec<Cause> {
    let mut causes = vec![Cause::CannotOpen(reason.clone())];
    variables(machine, &mut causes);
    cuda(machine, &mut causes);
    cufile(machine, &mut causes);
    causes.extend(SettingCause::all(&machine.configuration).into_iter().map(Cause::Setting));
    old_library(machine, &mut causes);
    topology(machine, &mut causes);
    causes.sort_by_key(Cause::effect);
    causes
}

fn variables(machine: &Machine, causes: &mut Vec<Cause>) {
    causes.extend(machine.variables.error.clone().map(Cause::WrongVariable));
    let unknown = machine.variables.unknown.iter();
    causes.extend(unknown.map(|unknown| Cause::UnknownVariable(unknown.name.clone(), unknown.nearest)));
}

fn cuda(machine: &Machine, causes: &mut Vec<Cause>) {
    let on_bus = machine.devices.iter().filter(|device| device.is_nvidia_gpu()).count();
    match &machine.gpus {
        Ok(_) => {}
        Err(NoGpus::NoLibrary) => {
            let libraries = &machine.libraries;
            if libraries.cuda.found.is_err() {
                let missing = || Cause::NoLibcuda(libraries.cuda.misnamed(), machine.kernel.container);
                causes.push(unusable(&libraries.cuda).unwrap_or_else(missing));
            }
            if libraries.cudart.found.is_err() {
                let missing = || Cause::NoLibcudart(libraries.cudart.misnamed());
                causes.push(unusable(&libraries.cudart).unwrap_or_else(missing));
            }
        }
        Err(NoGpus::NoDevice) => causes.push(Cause::NoDevice(on_bus, machine.kernel.container)),
        Err(NoGpus::Failed(error)) => causes.push(Cause::CudaFails(error.clone())),
    }
}

fn unusable(library: &Library) -> Option<Cause> {
    library.unusable.clone().map(|file| Cause::Unusable(library.name, library.variable, file))
}

fn cufile(machine: &Machine, causes: &mut Vec<Cause>) {
    if machine.policy == RoutePolicy::PosixOnly {
        let names = ["GPUFILE_COMPAT_MODE", "KVIKIO_COMPAT_MODE"];
        if let Some((name, value)) = machine.variables.first(&names) {
            causes.push(Cause::CompatByVariable(name.clone(), value.clone()));
        }
    }
    configuration(machine, causes);
    let library = &machine.libraries.cufile;
    if library.found.is_err() {
        causes.push(unusable(library).unwrap_or_else(|| Cause::NoLibcufile(library.misnamed())));
    } else if let (Ok(_), Err(error)) = (&machine.gpus, &machine.driver) {
        causes.push(Cause::DriverFails(error.clone()));
    }
}

fn configuration(machine: &Machine, causes: &mut Vec<Cause>) {
    let configuration = &machine.configuration;
    if let (Some(file), Some(error)) = (&configuration.file, &configuration.error) {
        causes.push(Cause::BrokenConfiguration {
            file: file.clone(),
            error: error.clone(),
            is_named_by_variable: configuration.is_named_by_variable,
        });
    }
    for key in ["properties.force_compat_mode", "properties.vanilla_posix_io_mode"] {
        if let Some(change) = configuration.switched_on(key) {
            let is_variable = Some(&change.from) != configuration.file.as_ref();
            causes.push(Cause::CompatByCufile(change.clone(), is_variable));
        }
    }
}

fn stages(facts: Facts<'_>, causes: &mut Vec<Cause>) {
    let Facts { machine, target, storage } = facts;
    cufile(machine, causes);
    denied(machine, target, causes);
    open_flags(target, causes);
    if !matches!(target.file_type, FileType::Regular | FileType::Directory) {
        return causes.push(Cause::NotRegular(target.file_type.to_string()));
    }
    let direct_driver =
        machine.driver.as_ref().ok().filter(|driver| driver.nvidia_fs.is_some() || driver.p2pdma);
    // Engines open no driver where the kernel shows neither.
    let is_shown = machine.kernel.nvidia_fs.is_some() || machine.offers_p2p_memory();
    let has_direct_path = direct_driver.is_some() && is_shown;
    match storage {
        Storage::Local => {
            if target.mount.as_ref().is_some_and(|mount| mount.value("data") == Some("journal")) {
                causes.push(Cause::Journal);
            }
            block_devices(target, causes);
        }
        // With a direct path at hand, only the library knows whether it reaches a network file system.
        network if network.is_known_to_cufile() && *network != Storage::Nfs(false) && !has_direct_path => {}
        _ => causes.push(Cause::FileSystem(storage.clone())),
    }
    let is_reachable = storage.is_known_to_cufile();
    if is_reachable {
        causes.extend(ModuleCause::all(facts).into_iter().map(Cause::Module));
    }
    if is_reachable && !has_direct_path && machine.kernel.nvidia_fs.is_none() {
        no_module(machine, target, causes);
    }
    let is_journal = causes.contains(&Cause::Journal);
    if target.alignment.is_none()
        && *storage == Storage::Local
        && !is_journal
        && target.file_type == FileType::Regular
    {
        causes.push(Cause::NoDirectIo(target.file_system.clone()));
    }
    if target.udev_record == Some(false) {
        let (major, minor) = target.device;
        let path = format!("/run/udev/data/b{major}:{minor}");
        causes.push(Cause::NoUdevRecord(path, machine.kernel.container));
    }
}

/// Adds the library's own reason where nothing known here explains the route.
fn other(target: &Target, causes: &mut Vec<Cause>) {
    let is_explained = causes.iter().any(|cause| cause.effect() == Effect::Stages);
    let is_usable = !target.is_direct() && target.route != RouteKind::Unavailable;
    if is_usable && !is_explained {
        causes.extend(target.why_not.first().map(|(_, reason)| Cause::Other(reason.clone())));
    }
}

/// Adds two ways to a direct path, of which one is enough.
fn no_module(machine: &Machine, target: &Target, causes: &mut Vec<Cause>) {
    causes.push(Cause::NoNvidiaFs(machine.kernel.is_wsl(), machine.kernel.container));
    let has_nvme = target.disks().any(|(_, disk)| disk.bus == Bus::NvmePcie);
    if has_nvme && !machine.offers_p2p_memory() && machine.gpus.is_ok() {
        causes.push(Cause::NoP2pDma {
            kernel_lacks: machine.kernel.p2pdma == Some(false),
            nvme_multipath: machine.kernel.nvme_multipath,
        });
    }
}

fn denied(machine: &Machine, target: &Target, causes: &mut Vec<Cause>) {
    let point = target.mount.as_ref().map(|mount| mount.point.to_string_lossy().into_owned());
    let is_device = |entry: &str| {
        let name = entry.trim_start_matches("/dev/");
        target.layers.iter().any(|layer| layer.name == name)
    };
    let configuration = &machine.configuration;
    let denies = [
        configuration.denies("filesystems", &|entry| entry == target.file_system),
        configuration.denies("mounts", &|entry| point.as_deref() == Some(entry)),
        configuration.denies("devices", &is_device),
        configuration.denies("drivers", &|entry| drivers(target).contains(&entry)),
    ];
    causes.extend(denies.into_iter().flatten().cloned().map(Cause::Denied));
}

/// Returns the modules as the deny list names them.
fn drivers(target: &Target) -> Vec<&'static str> {
    let of_disk = target.disks().filter_map(|(_, disk)| match disk.bus {
        Bus::NvmePcie => Some("nvme"),
        Bus::NvmeFabrics => Some("nvme_rdma"),
        Bus::Scsi => Some("scsi_mod"),
        Bus::Virtio | Bus::Other => None,
    });
    let of_file_system = match target.file_system.as_str() {
        "lustre" => Some("lnet"),
        "wekafs" => Some("wekafsio"),
        "nfs" | "nfs4" => Some("rpcrdma"),
        "beegfs" | "beegfs_nodev" => Some("beegfs"),
        "gpfs" => Some("mmfslinux"),
        "scatefs" => Some("scatefs"),
        _ => None,
    };
    of_disk.chain(of_file_system).collect()
}

fn open_flags(target: &Target, causes: &mut Vec<Cause>) {
    let refused =
        [(libc::O_APPEND, "O_APPEND"), (libc::O_NONBLOCK, "O_NONBLOCK"), (libc::O_NOFOLLOW, "O_NOFOLLOW")];
    let set: Vec<_> =
        refused.iter().filter(|(flag, _)| target.open_flags & flag != 0).map(|(_, name)| *name).collect();
    if !set.is_empty() {
        causes.push(Cause::OpenFlags(set));
    }
}

fn block_devices(target: &Target, causes: &mut Vec<Cause>) {
    for layer in &target.layers {
        causes.push(match &layer.kind {
            Kind::Lvm(volume) => Cause::Lvm(volume.clone()),
            Kind::Mapper(name, sort) => Cause::Mapper(name.clone(), sort.clone()),
            Kind::Md(level) => Cause::Md(layer.name.clone(), level.clone()),
            Kind::Loop => Cause::Loop(layer.name.clone()),
            Kind::Disk(disk) if [Bus::Virtio, Bus::Other].contains(&disk.bus) => {
                Cause::Disk(layer.name.clone(), disk.bus.name())
            }
            Kind::Disk(_) | Kind::Partition => continue,
        });
    }
}

fn limits(machine: &Machine, target: &Target, storage: &Storage, causes: &mut Vec<Cause>) {
    if target.is_append_only {
        causes.push(Cause::AppendOnly);
    }
    causes.extend(target.read_only.map(Cause::ReadOnly));
    if target.file_type == FileType::Directory {
        causes.push(Cause::NoFile);
    }
    log(machine, causes);
    old_library(machine, causes);
    if *storage == Storage::Weka
        && target.is_direct()
        && machine.configuration.switched_on("fs.weka.rdma_write_support").is_none()
    {
        causes.push(Cause::WekaWrites);
    }
}

fn log(machine: &Machine, causes: &mut Vec<Cause>) {
    if machine.is_log_refused && machine.libraries.cufile.found.is_ok() {
        causes.push(Cause::LogRefused(machine.log_file.to_string_lossy().into_owned()));
    }
}

fn old_library(machine: &Machine, causes: &mut Vec<Cause>) {
    if let Some(version) = machine.libraries.cufile_version {
        let calls = calls_since(version);
        if let Some(&(first, since)) = calls.iter().min_by_key(|(_, since)| *since) {
            causes.push(Cause::OldLibcufile { version, calls: calls.len(), first, since });
        }
    }
}

fn slows(machine: &Machine, target: &Target, storage: &Storage, causes: &mut Vec<Cause>) {
    topology(machine, causes);
    let devices = |disk: &Disk| disk.pci.iter().filter_map(|address| machine.device(address)).collect();
    for (name, disk) in target.disks() {
        causes.extend(far(machine, &[(name.to_owned(), devices(disk))]));
    }
    if storage.is_remote() {
        let cards = machine.nics.iter().filter(|nic| nic.has_rdma);
        let cards: Vec<_> = cards.map(|nic| (nic.names.join(" "), vec![&nic.pci])).collect();
        causes.extend(far(machine, &cards));
    }
    for (name, disk) in target.disks() {
        let links = disk.pci.iter().filter_map(|address| machine.device(address)?.link.clone());
        causes.extend(
            links
                .filter(|link| link.lanes < link.max_lanes)
                .map(|link| Cause::NarrowLink(name.to_owned(), link)),
        );
    }
}

/// Returns GPUs whose nearest way to one of these devices leads through the processor or across nodes.
fn far(machine: &Machine, from: &[(String, Vec<&PciDevice>)]) -> Vec<Cause> {
    let mut found: Vec<(String, Distance, Vec<String>)> = Vec::new();
    for gpu in machine.gpus() {
        let Some(pci) = &gpu.pci else { continue };
        let each = from.iter().flat_map(|(name, devices)| devices.iter().map(move |device| (name, device)));
        let ways = each.map(|(name, device)| (Distance::between(pci, device), name.clone()));
        let Some((distance, name)) = ways.min_by_key(|(distance, _)| *distance) else { continue };
        if !matches!(distance, Distance::SameNode | Distance::AcrossNodes) {
            continue;
        }
        match found.iter_mut().find(|(known, at, _)| *known == name && *at == distance) {
            Some((.., gpus)) => gpus.push(gpu.title()),
            None => found.push((name, distance, vec![gpu.title()])),
        }
    }
    found.into_iter().map(|(from, distance, gpus)| Cause::Far { from, gpus, distance }).collect()
}

fn topology(machine: &Machine, causes: &mut Vec<Cause>) {
    if machine.gpus().is_empty() && !machine.devices.iter().any(PciDevice::is_nvidia_gpu) {
        return;
    }
    if machine.kernel.iommu == Iommu::On {
        causes.push(Cause::Iommu);
    }
    let redirecting = machine.bridges().filter(|bridge| bridge.acs == Some(Acs::Redirects));
    let bridges: Vec<String> = redirecting.map(|bridge| bridge.address.clone()).collect();
    if !bridges.is_empty() {
        causes.push(Cause::Acs(bridges));
    }
    for gpu in machine.gpus() {
        let Some(pci) = &gpu.pci else { continue };
        if let (Some(bar_bytes), Some(memory_bytes)) = (pci.bar1_bytes, gpu.memory_bytes)
            && bar_bytes < memory_bytes
        {
            causes.push(Cause::SmallBar { gpu: gpu.title(), bar_bytes, memory_bytes });
        }
        if let Some(link) = pci.link.as_ref().filter(|link| link.lanes < link.max_lanes) {
            causes.push(Cause::NarrowLink(gpu.title(), link.clone()));
        }
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
