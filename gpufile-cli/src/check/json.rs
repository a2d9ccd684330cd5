//! The report as JSON. The keys stay the same from release to release; new ones may come.

use serde_json::{Value, json};

use super::acs::Acs;
use super::block::{Disk, Kind, Layer};
use super::cause::Cause;
use super::container::Container;
use super::features;
use super::kernel::Iommu;
use super::libraries::Library;
use super::log_file;
use super::lustre::Judged;
use super::machine::Machine;
use super::nvidia_fs::LEAST_VERSION;
use super::outcome::{Outcome, Verdict};
use super::pci::{Distance, PciDevice};
use super::storages::STORAGES;
use super::target::Target;

pub fn report(machine: &Machine, outcomes: &[Outcome], worst: Verdict, status: u8) -> Value {
    json!({
        "gpufile": env!("CARGO_PKG_VERSION"),
        "verdict": worst.key(),
        "exit_status": status,
        "paths": outcomes.iter().map(|outcome| path(machine, outcome)).collect::<Vec<_>>(),
        "libraries": machine.libraries.all().map(library),
        "gpus": machine.gpus().iter().map(|gpu| json!({
            "ordinal": gpu.ordinal,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "address": gpu.address,
            "class": gpu.class(),
            "compute_capability": gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
            "gpudirect": gpu.has_gpudirect,
            "mig": gpu.is_mig(),
            "pci": gpu.pci.as_ref().map(pci),
        })).collect::<Vec<_>>(),
        "network_cards": machine.nics.iter().map(|nic| json!({
            "names": nic.names,
            "rdma": nic.has_rdma,
            "connectx": nic.connectx(),
            "ports": nic.ports.iter().map(|port| json!({
                "name": port.name,
                "link_layer": port.link_layer,
                "up": port.is_up,
            })).collect::<Vec<_>>(),
            "pci": pci(&nic.pci),
            "distances": distances(machine, &nic.pci),
        })).collect::<Vec<_>>(),
        "disks": machine.disks.iter().map(|(name, disk)| json!({
            "name": name,
            "bus": disk.bus.name(),
            "addresses": disk.pci,
            "distances": nearest(machine, disk),
        })).collect::<Vec<_>>(),
        "kernel": kernel(machine),
        "cufile_driver": match &machine.driver {
            Ok(driver) => json!({
                "opens": true,
                "nvidia_fs": driver.nvidia_fs.map(|(major, minor)| format!("{major}.{minor}")),
                "allows_compat_mode": driver.allows_compat_mode,
                "posix_only": driver.posix_only,
                "p2pdma": driver.p2pdma,
                "file_systems": driver.file_systems.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>(),
                "max_direct_io_bytes": driver.limits.max_direct_io_bytes,
                "max_device_cache_bytes": driver.limits.max_device_cache_bytes,
                "per_buffer_cache_bytes": driver.limits.per_buffer_cache_bytes,
                "max_device_pinned_bytes": driver.limits.max_device_pinned_bytes,
                "max_batch_entries": driver.limits.max_batch_entries,
            }),
            Err(error) => json!({ "opens": false, "error": error }),
        },
        "storages": STORAGES.iter().map(|storage| json!({
            "name": storage.key,
            "mode": storage.mode(machine).word(),
            "module": storage.module,
            "registered": storage.is_registered(machine),
        })).collect::<Vec<_>>(),
        "cufile_log": { "file": machine.log_file, "level": log_file::level(&machine.configuration) },
        "lustre": machine.lustre.as_ref().map(|found| json!({
            "parameters": judged(&found.parameters),
            "modules": judged(&found.modules),
        })),
        "cufile_json": {
            "effective": machine.configuration.effective().iter().map(|(key, value, from)| json!({
                "key": key,
                "value": value,
                "from": from,
            })).collect::<Vec<_>>(),
            "file": machine.configuration.file,
            "error": machine.configuration.error,
            "changed": machine.configuration.changed.iter().map(|change| json!({
                "key": change.key,
                "value": change.value,
                "default": change.default,
                "from": change.from,
            })).collect::<Vec<_>>(),
        },
        "variables": {
            "read": machine.variables.read.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect::<Vec<_>>(),
            "unknown": machine.variables.unknown.iter().map(|unknown| json!({
                "name": unknown.name,
                "nearest": unknown.nearest,
            })).collect::<Vec<_>>(),
            "error": machine.variables.error,
        },
        "features": features::table(machine).iter().map(|feature| (feature.key.to_owned(), json!(feature.is_there)))
            .collect::<serde_json::Map<_, _>>(),
    })
}

fn judged(values: &[Judged]) -> Value {
    let values = values.iter();
    values.map(|one| json!({ "name": one.name, "value": one.value, "wanted": one.wanted })).collect()
}

fn path(machine: &Machine, outcome: &Outcome) -> Value {
    let mut found = match &outcome.target {
        Ok(target) => facts(machine, target),
        Err(error) => json!({ "error": error }),
    };
    found["path"] = json!(outcome.path.to_string_lossy());
    found["verdict"] = json!(outcome.verdict().key());
    found["causes"] = outcome.causes.iter().map(cause).collect();
    found["try"] = match &outcome.attempt {
        None => Value::Null,
        Some(Err(error)) => json!({ "error": error }),
        Some(Ok(attempt)) => json!({
            "gpu": attempt.gpu,
            "route": attempt.route.as_str(),
            "bytes": super::attempt::BYTES,
            "write_seconds": attempt.write.map(|time| time.as_secs_f64()),
            "read_seconds": attempt.read.as_secs_f64(),
            "proven": attempt.proven(),
            "counted": attempt.proof(),
        }),
    };
    found
}

fn facts(machine: &Machine, target: &Target) -> Value {
    json!({
        "error": null,
        "route": target.route.as_str(),
        "why_not": target.why_not.iter().map(|(kind, reason)| json!({ "route": kind.as_str(), "reason": reason })).collect::<Vec<_>>(),
        "file_system": target.file_system,
        "mount_point": target.mount.as_ref().map(|mount| mount.point.to_string_lossy()),
        "mount_source": target.mount.as_ref().map(|mount| mount.source.as_str()),
        "mount_options": target.mount.as_ref().map(|mount| mount.options.as_slice()),
        "device": [target.device.0, target.device.1],
        "block_devices": target.layers.iter().map(|found| layer(machine, found)).collect::<Vec<_>>(),
        "udev_record": target.udev_record,
        "o_direct": target.alignment.map(|(memory, offset)| json!({ "memory_bytes": memory, "offset_bytes": offset })),
        "cached": target.cached,
    })
}

fn layer(machine: &Machine, layer: &Layer) -> Value {
    let kind = match &layer.kind {
        Kind::Partition => "partition",
        Kind::Lvm(_) => "lvm",
        Kind::Mapper(..) => "device-mapper",
        Kind::Md(_) => "md",
        Kind::Loop => "loop",
        Kind::Disk(_) => "disk",
    };
    let mut found = json!({ "name": layer.name, "kind": kind, "text": layer.to_string() });
    if let Kind::Disk(disk) = &layer.kind {
        found["bus"] = json!(disk.bus.name());
        found["addresses"] = json!(disk.pci);
        found["distances"] = nearest(machine, disk);
    }
    found
}

fn nearest(machine: &Machine, disk: &Disk) -> Value {
    let device = disk.pci.iter().find_map(|address| machine.device(address));
    device.map_or(Value::Null, |device| distances(machine, device))
}

fn distances(machine: &Machine, device: &PciDevice) -> Value {
    let gpus = machine.gpus().iter().filter_map(|gpu| Some((gpu, gpu.pci.as_ref()?)));
    gpus.map(|(gpu, pci)| json!({ "gpu": gpu.ordinal, "distance": Distance::between(pci, device).key() }))
        .collect()
}

fn library(library: &Library) -> Value {
    match &library.found {
        Ok(found) => {
            json!({ "name": library.name, "version": found.version, "path": found.path, "error": null, "unusable": null })
        }
        Err(error) => json!({
            "name": library.name,
            "version": null,
            "path": null,
            "error": error,
            "unusable": library.unusable.as_ref().map(|file| json!({ "path": file.path, "reason": file.reason })),
        }),
    }
}

fn pci(device: &PciDevice) -> Value {
    json!({
        "address": device.address,
        "numa_node": device.numa_node,
        "bar1_bytes": device.bar1_bytes,
        "p2p_memory": device.has_p2p_memory,
        "link": device.link.as_ref().map(|link| json!({
            "speed": link.speed,
            "lanes": link.lanes,
            "max_speed": link.max_speed,
            "max_lanes": link.max_lanes,
        })),
    })
}

fn kernel(machine: &Machine) -> Value {
    let kernel = &machine.kernel;
    json!({
        "release": kernel.release,
        "display_driver": kernel.display_driver,
        "iommu": match kernel.iommu {
            Iommu::Off => "off",
            Iommu::Passthrough => "passthrough",
            Iommu::On => "on",
            Iommu::Unknown => "unknown",
        },
        "p2pdma": kernel.p2pdma,
        "container": kernel.container.is_some(),
        "container_kind": kernel.container.map(Container::key),
        "platform": kernel.platform,
        "open_module": kernel.modules.is_open,
        "nvidia_peermem": kernel.modules.has_peermem,
        "mlx5_core": kernel.modules.mlx5.as_ref().map(|mlx5| json!({ "version": mlx5.version })),
        "libcufile_rdma": machine.libraries.rdma,
        "bridges": machine.bridges().map(|bridge| json!({
            "address": bridge.address,
            "acs": match bridge.acs {
                Some(Acs::Redirects) => "redirects",
                Some(Acs::Off) => "off",
                Some(Acs::Unknown) => "unknown",
                Some(Acs::None) | None => "none",
            },
        })).collect::<Vec<_>>(),
        "nvidia_fs": kernel.nvidia_fs.as_ref().map(|module| json!({
            "version": module.version,
            "least_version": format!("{}.{}", LEAST_VERSION.0, LEAST_VERSION.1),
            "registered_drivers": module.registered,
            "device": module.has_device,
            "statistics": module.statistics.as_ref().map(|found| json!({
                "reads": found.read.calls,
                "failed_reads": found.read.errors,
                "read_mib": found.read.bytes >> 20,
                "writes": found.write.calls,
                "failed_writes": found.write.errors,
                "read_latency_seconds": found.read.latency_micros as f64 / 1e6,
                "write_latency_seconds": found.write.latency_micros as f64 / 1e6,
                "batches": found.batches.calls,
                "failed_batches": found.batches.errors,
                "faults": found.faults.iter().map(|(name, count)| (name.clone(), json!(count))).collect::<serde_json::Map<_, _>>(),
                "written_mib": found.write.bytes >> 20,
                "registered_mib": found.registered_bytes() >> 20,
                "shadow_mib": found.shadow_buffer_bytes >> 20,
            })),
        })),
    })
}

fn cause(cause: &Cause) -> Value {
    json!({
        "cause": cause.key(),
        "effect": cause.effect().key(),
        "problem": cause.problem(),
        "remedy": cause.remedy(),
    })
}
