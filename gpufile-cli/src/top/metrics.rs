//! The counters of nvidia-fs and the processes that use libcufile, for Prometheus.

use super::Look;
use crate::prometheus::{Exposition, Kind};

/// Returns one look as metrics.
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
    let help = "Bytes from and to storage, of a process that has loaded libcufile.";
    let mut metric = page.metric("gpufile_process_bytes_total", Kind::Counter, help);
    for process in &look.processes {
        for (direction, bytes) in [("read", process.read_bytes), ("write", process.written_bytes)] {
            let pid = process.pid.to_string();
            metric.sample(&[("pid", &pid), ("program", &process.name), ("direction", direction)], bytes);
        }
    }
    page.text()
}
