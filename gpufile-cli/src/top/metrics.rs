//! The counters of nvidia-fs and the processes that use libcufile, for Prometheus.

use std::collections::BTreeMap;

use super::Look;
use crate::prometheus::{Exposition, Kind};

pub fn of(look: &Look) -> String {
    let mut page = Exposition::default();
    let loaded = look.stats.is_ok();
    page.metric("gpufile_nvidia_fs_loaded", Kind::Gauge, "1 if the kernel module nvidia-fs is loaded.")
        .sample(&[], u8::from(loaded));
    if let Ok(stats) = &look.stats {
        page.metric("gpufile_nvidia_fs_counts", Kind::Gauge, "1 if nvidia-fs counts transfers.")
            .sample(&[], u8::from(stats.counts_transfers));
        let directions = [("read", &stats.read), ("write", &stats.write)];
        let mut metric =
            page.metric("gpufile_nvidia_fs_calls_total", Kind::Counter, "Transfers of nvidia-fs.");
        for (direction, transfers) in directions {
            metric.sample(&[("direction", direction)], transfers.calls);
        }
        let mut metric =
            page.metric("gpufile_nvidia_fs_errors_total", Kind::Counter, "Failed transfers of nvidia-fs.");
        for (direction, transfers) in directions {
            metric.sample(&[("direction", direction)], transfers.errors);
        }
        let help = "Bytes that nvidia-fs transferred, in whole MiB.";
        let mut metric = page.metric("gpufile_nvidia_fs_bytes_total", Kind::Counter, help);
        for (direction, transfers) in directions {
            metric.sample(&[("direction", direction)], transfers.bytes);
        }
        let help = "The average time of a transfer of nvidia-fs.";
        let mut metric = page.metric("gpufile_nvidia_fs_latency_seconds", Kind::Gauge, help);
        for (direction, transfers) in directions {
            metric.sample(&[("direction", direction)], transfers.latency_micros as f64 / 1e6);
        }
        let batches = &stats.batches;
        page.metric("gpufile_nvidia_fs_batches_total", Kind::Counter, "Batches of nvidia-fs.")
            .sample(&[], batches.calls);
        page.metric("gpufile_nvidia_fs_batch_errors_total", Kind::Counter, "Failed batches of nvidia-fs.")
            .sample(&[], batches.errors);
        let help = "The average time of the submission of a batch.";
        page.metric("gpufile_nvidia_fs_batch_submit_latency_seconds", Kind::Gauge, help)
            .sample(&[], batches.latency_micros as f64 / 1e6);
        let help = "Faults of nvidia-fs, by their names in its statistics.";
        let mut metric = page.metric("gpufile_nvidia_fs_faults_total", Kind::Counter, help);
        for (name, count) in &stats.faults {
            metric.sample(&[("fault", name)], count);
        }
        let help = "Transfers between a GPU and other devices, below one root port or across root ports.";
        let mut metric = page.metric("gpufile_nvidia_fs_peer_transfers_total", Kind::Counter, help);
        for peers in &look.peers {
            metric
                .sample(&[("address", &peers.address), ("path", "switch")], peers.below_root_port)
                .sample(&[("address", &peers.address), ("path", "root")], peers.across_root_ports);
        }
        page.metric("gpufile_nvidia_fs_processes", Kind::Gauge, "Processes that use nvidia-fs.")
            .sample(&[], stats.processes);
        page.metric("gpufile_nvidia_fs_shadow_buffer_bytes", Kind::Gauge, "Memory of shadow buffers.")
            .sample(&[], stats.shadow_buffer_bytes);
        page.metric("gpufile_nvidia_fs_active_maps", Kind::Gauge, "Mapped ranges of GPU memory.")
            .sample(&[], stats.active_maps);
        let help = "Registered memory of a GPU.";
        let mut metric = page.metric("gpufile_nvidia_fs_registered_bytes", Kind::Gauge, help);
        for gpu in &stats.gpus {
            metric.sample(&[("address", &gpu.address)], gpu.registered_bytes);
        }
    }
    let mut programs = BTreeMap::<&str, [u64; 3]>::new();
    for process in &look.processes {
        let [count, read, written] = programs.entry(&process.name).or_default();
        *count += 1;
        *read = read.saturating_add(process.read_bytes);
        *written = written.saturating_add(process.written_bytes);
    }
    let help = "Running processes of a program that have loaded libcufile.";
    let mut metric = page.metric("gpufile_program_processes", Kind::Gauge, help);
    for (program, [count, ..]) in &programs {
        metric.sample(&[("program", program)], count);
    }
    // No counter: it falls when a process ends.
    let help = "Bytes from and to storage, of the running processes of a program.";
    let mut metric = page.metric("gpufile_program_bytes", Kind::Gauge, help);
    for (program, [_, read, written]) in &programs {
        for (direction, bytes) in [("read", read), ("write", written)] {
            metric.sample(&[("program", program), ("direction", direction)], bytes);
        }
    }
    page.text()
}
