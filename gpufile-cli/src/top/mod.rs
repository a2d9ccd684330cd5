//! `gpufile top`: the counters of nvidia-fs, and the processes that use libcufile, live.
//!
//! [`super::nvidia_fs`] parses the kernel module's statistics. [`processes`] finds the processes. cuFile's own counters are in
//! the memory of each process, so no other process can read them.

mod metrics;
mod processes;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::failure::Failure;
use super::findings::Page;
use super::location::path_parser;
use super::nvidia_fs::{self, Peers, Stats};
use super::prometheus;
use super::table::{Table, is_screen, print};
use super::units::{Bytes, gbps};
use processes::Process;

/// Shows the counters of nvidia-fs, and the processes that use libcufile, until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile top
  gpufile top --interval 5 --count 12 --json > counters.jsonl
  gpufile top --textfile /var/lib/prometheus/node-exporter/gpufile_top.prom

The speed of a process counts bytes from and to storage, not those from the page cache.
cuFile's own counters stay in each process: NVIDIA's gds_stats asks a process for them.")]
pub struct Args {
    /// Seconds between refreshes.
    #[arg(short = 'n', long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
    /// Ends after this many refreshes.
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Prints a line of JSON for each refresh.
    #[arg(long)]
    json: bool,
    /// Prints the counters once, as they are, in Prometheus' text format.
    #[arg(long, conflicts_with_all = ["json", "count", "interval"])]
    prometheus: bool,
    /// Writes them into FILE, for node_exporter's textfile collector.
    #[arg(long, value_name = "FILE", value_parser = path_parser(), conflicts_with_all = ["json", "count", "interval", "prometheus"])]
    textfile: Option<PathBuf>,
}

struct Look {
    time: Instant,
    stats: Result<Stats, String>,
    peers: Vec<Peers>,
    processes: Vec<Process>,
}

impl Look {
    fn new() -> Self {
        Self {
            time: Instant::now(),
            stats: stats(Path::new("/proc/driver/nvidia-fs")),
            peers: fs::read_to_string("/proc/driver/nvidia-fs/peer_affinity")
                .map_or_else(|_| Vec::new(), |text| nvidia_fs::peers(&text)),
            processes: processes::all(Path::new("/proc")),
        }
    }
}

/// Returns the statistics, or the reason why there are none, and what changes that.
fn stats(folder: &Path) -> Result<Stats, String> {
    match fs::read_to_string(folder.join("stats")) {
        Ok(text) => Ok(Stats::parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err("nvidia-fs is not loaded, so it counts no transfers: \
            `modprobe nvidia-fs` loads it if GPUDirect Storage is installed; P2PDMA works without it"
                .to_owned())
        }
        Err(error) => Err(format!("cannot read {:?}: {error}", folder.join("stats"))),
    }
}

pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    if arguments.prometheus {
        print(&metrics::of(&Look::new()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &arguments.textfile {
        prometheus::write(path, &metrics::of(&Look::new()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let interval = Duration::from_secs(arguments.interval.into());
    let is_screen = !arguments.json && is_screen();
    let mut before = Look::new();
    for turn in 0_u64.. {
        if arguments.count.is_some_and(|count| turn >= u64::from(count)) {
            break;
        }
        thread::sleep(interval);
        let now = Look::new();
        let text =
            if arguments.json { format!("{}\n", to_json(&before, &now)) } else { screen(&before, &now) };
        // Begins at the upper left corner of the screen, and clears what is left below.
        let text = if is_screen { format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")) } else { text };
        let mut out = io::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        before = now;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the processes of both looks, with the bytes that each has read and written in between.
fn moved<'a>(before: &Look, now: &'a Look) -> Vec<(&'a Process, u64, u64)> {
    let earlier = |process: &Process| before.processes.iter().find(|other| other.is_same(process));
    let moved = |process: &'a Process| {
        let (read, written) = earlier(process)
            .map_or((process.read_bytes, process.written_bytes), |earlier| {
                (earlier.read_bytes, earlier.written_bytes)
            });
        (process, process.read_bytes.saturating_sub(read), process.written_bytes.saturating_sub(written))
    };
    now.processes.iter().map(moved).collect()
}

fn paragraph(sentence: &str) -> String {
    let mut page = Page::default();
    page.wrapped("", sentence);
    page.text
}

fn screen(before: &Look, now: &Look) -> String {
    let seconds = (now.time - before.time).as_secs_f64();
    let speed = |bytes: u64| format!("{:.3}", gbps(bytes, seconds));
    let mut text = String::new();
    match (&before.stats, &now.stats) {
        (Ok(before), Ok(now)) => {
            let mut table = Table::new(&["nvidia-fs<", "GB/s", "calls/s", "calls", "errors", "latency us"]);
            for (name, before, now) in
                [("read", &before.read, &now.read), ("write", &before.write, &now.write)]
            {
                let calls = now.calls.saturating_sub(before.calls) as f64 / seconds;
                let bytes = now.bytes.saturating_sub(before.bytes);
                let row = [
                    name.to_owned(),
                    speed(bytes),
                    format!("{calls:.0}"),
                    now.calls.to_string(),
                    now.errors.to_string(),
                    now.latency_micros.to_string(),
                ];
                table.row(row.to_vec());
            }
            text += &table.plain();
            let (buffers, processes) = (Bytes(now.shadow_buffer_bytes), now.processes);
            text += &format!("shadow buffers {buffers}, processes {processes}");
            text += &format!(", maps of GPU memory {}\n", now.active_maps);
            let faults = now.faults.iter().filter(|(_, count)| *count > 0);
            let faults: Vec<_> = faults.map(|(name, count)| format!("{name} {count}")).collect();
            if !faults.is_empty() {
                text += &format!("faults {}\n", faults.join(", "));
            }
            if let Some(hint) = now.hint() {
                text += &paragraph(hint);
            }
            if !now.gpus.is_empty() {
                let mut table = Table::new(&["GPU<", "registered", "cache", "across root ports"]);
                for gpu in &now.gpus {
                    let sizes = [gpu.registered_bytes, gpu.cache_bytes].map(|bytes| Bytes(bytes).to_string());
                    let [registered, cache] = sizes;
                    table.row(vec![
                        gpu.address.clone(),
                        registered,
                        cache,
                        format!("{} %", gpu.cross_root_percent),
                    ]);
                }
                text += &format!("\n{}", table.plain());
            }
        }
        (_, Err(why)) | (Err(why), Ok(_)) => text += &paragraph(why),
    }
    let moved = moved(before, now);
    text += "\n";
    if moved.is_empty() {
        text += "no process visible to this user has loaded libcufile\n";
        return text;
    }
    let mut table = Table::new(&["PID", "read GB/s", "write GB/s", "program<"]);
    for (process, read, written) in moved {
        table.row(vec![process.pid.to_string(), speed(read), speed(written), process.name.clone()]);
    }
    text + &table.plain()
}

fn to_json(before: &Look, now: &Look) -> Value {
    let seconds = (now.time - before.time).as_secs_f64();
    let process = |(process, read, written): (&Process, u64, u64)| {
        json!({
            "pid": process.pid,
            "program": process.name,
            "read_gbps": gbps(read, seconds),
            "write_gbps": gbps(written, seconds),
        })
    };
    let nvidia_fs = match (&before.stats, &now.stats) {
        (Ok(before), Ok(now)) => json!({
            "read_gbps": gbps(now.read.bytes.saturating_sub(before.read.bytes), seconds),
            "write_gbps": gbps(now.write.bytes.saturating_sub(before.write.bytes), seconds),
            "reads": now.read.calls,
            "writes": now.write.calls,
            "read_errors": now.read.errors,
            "write_errors": now.write.errors,
            "read_latency_seconds": now.read.latency_micros as f64 / 1e6,
            "write_latency_seconds": now.write.latency_micros as f64 / 1e6,
            "batches": now.batches.calls,
            "batch_errors": now.batches.errors,
            "faults": now.faults.iter().map(|(name, count)| (name.clone(), json!(count))).collect::<serde_json::Map<_, _>>(),
            "counts_transfers": now.counts_transfers,
            "shadow_buffer_bytes": now.shadow_buffer_bytes,
            "processes": now.processes,
            "active_maps": now.active_maps,
            "gpus": now.gpus.iter().map(|gpu| json!({
                "address": gpu.address,
                "registered_bytes": gpu.registered_bytes,
                "cache_bytes": gpu.cache_bytes,
                "cross_root_percent": gpu.cross_root_percent,
            })).collect::<Vec<_>>(),
        }),
        (_, Err(why)) | (Err(why), Ok(_)) => json!({ "missing": why }),
    };
    json!({
        "seconds": seconds,
        "nvidia_fs": nvidia_fs,
        "processes": moved(before, now).into_iter().map(process).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(time: Instant, mib: u64, bytes: u64) -> Look {
        let stats = Stats::parse(&format!("Reads : n={mib} ok={mib} err=1 readMiB={mib} io_state_err=0\n"));
        let name = "loader".to_owned();
        let process = Process { pid: 7, start: 5, name, read_bytes: bytes, written_bytes: 0 };
        let peers =
            vec![Peers { address: "0000:be:00.0".to_owned(), below_root_port: 26, across_root_ports: 4 }];
        Look { time, stats: Ok(stats), peers, processes: vec![process] }
    }

    #[test]
    fn speeds_are_differences_of_two_looks() {
        let start = Instant::now();
        let (before, now) = (look(start, 1000, 0), look(start + Duration::from_secs(2), 3000, 4_000_000_000));
        let value = to_json(&before, &now);
        let speed = value["nvidia_fs"]["read_gbps"].as_f64().unwrap();
        assert!((speed - 1.048_576).abs() < 1e-9, "{value}");
        assert_eq!(value["processes"][0]["read_gbps"], 2.0);
        let text = screen(&before, &now);
        assert!(
            text.contains("1.049     1000   3000       1           0") && text.contains("loader"),
            "{text}"
        );
        // Another process with the same number has moved nothing yet.
        let mut other = look(start, 1000, 0);
        other.processes[0].start = 4;
        assert_eq!(to_json(&other, &now)["processes"][0]["read_gbps"], 0.0);
    }

    #[test]
    fn metrics_are_the_counters_themselves() {
        let text = metrics::of(&look(Instant::now(), 1000, 5));
        for line in [
            "gpufile_nvidia_fs_loaded 1",
            "gpufile_nvidia_fs_calls_total{direction=\"read\"} 1000",
            "gpufile_nvidia_fs_errors_total{direction=\"read\"} 1",
            "gpufile_nvidia_fs_bytes_total{direction=\"read\"} 1048576000",
            "gpufile_nvidia_fs_peer_transfers_total{address=\"0000:be:00.0\",path=\"root\"} 4",
            "gpufile_nvidia_fs_latency_seconds{direction=\"write\"} 0",
            "gpufile_program_processes{program=\"loader\"} 1",
            "gpufile_program_bytes{program=\"loader\",direction=\"read\"} 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        // Processes of one program are a series.
        let mut two = look(Instant::now(), 1000, 5);
        two.processes.push(Process {
            pid: 8,
            start: 6,
            name: "loader".to_owned(),
            read_bytes: 7,
            written_bytes: 0,
        });
        let sums = metrics::of(&two);
        assert!(sums.contains("processes{program=\"loader\"} 2\n"), "{sums}");
        assert!(sums.contains("bytes{program=\"loader\",direction=\"read\"} 12\n"), "{sums}");
        let without =
            metrics::of(&Look { stats: Err("not loaded".to_owned()), ..look(Instant::now(), 1, 1) });
        assert!(
            without.contains("gpufile_nvidia_fs_loaded 0\n") && !without.contains("calls_total"),
            "{without}"
        );
    }

    #[test]
    fn missing_module_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let why = stats(folder.path()).unwrap_err();
        assert!(why.contains("nvidia-fs is not loaded") && why.contains("modprobe"), "{why}");
        fs::write(folder.path().join("stats"), "Reads : n=4\n").unwrap();
        assert_eq!(stats(folder.path()).unwrap().read.calls, 4);
    }
}
