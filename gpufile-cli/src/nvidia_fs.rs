//! The statistics of the kernel module nvidia-fs, as `/proc/driver/nvidia-fs/stats` has them.

/// Counters of any version of the module: one that a version lacks is 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    pub read: Transfers,
    pub write: Transfers,
    pub counts_transfers: bool,
    pub shadow_buffer_bytes: u64,
    pub processes: u64,
    /// Ranges of GPU memory that the module has mapped now.
    pub active_maps: u64,
    pub batches: Transfers,
    /// Faults by their names in the statistics.
    pub faults: Vec<(String, u64)>,
    pub gpus: Vec<Gpu>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Transfers {
    pub calls: u64,
    pub errors: u64,
    pub bytes: u64,
    /// The average of a transfer, or of the submission of a batch.
    pub latency_micros: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gpu {
    pub address: String,
    pub registered_bytes: u64,
    pub cache_bytes: u64,
    /// The share of transfers between devices below different root ports.
    pub cross_root_percent: u64,
}

const MIB: u64 = 1 << 20;

impl Stats {
    /// Parses lines `NAME : KEY=VALUE KEY=VALUE`; one without a name continues the line before.
    pub fn parse(text: &str) -> Self {
        let mut stats = Self { counts_transfers: true, ..Self::default() };
        let mut section = String::new();
        for line in text.lines() {
            let is_continued = line.starts_with([' ', '\t']);
            let trimmed = line.trim();
            if let Some(state) = trimmed.strip_prefix("IO stats:") {
                stats.counts_transfers = state.trim_start().starts_with("Enabled");
            }
            if let Some(rest) = trimmed.strip_prefix("GPU ") {
                let address = rest.split_whitespace().next().unwrap_or_default();
                stats.gpus.push(Gpu { address: address.to_owned(), ..Gpu::default() });
                section = "GPU".to_owned();
            } else if !is_continued && let Some((name, value)) = trimmed.split_once(':') {
                section = name.trim().to_owned();
                let value = value.trim().parse().unwrap_or(0);
                match &*section {
                    "Active Shadow-Buffer (MiB)" | "Active Shadow-Buffer (MB)" => {
                        stats.shadow_buffer_bytes = value * MIB;
                    }
                    "Active Process" => stats.processes = value,
                    _ => {}
                }
            }
            let fields = trimmed.split_whitespace().filter_map(|word| word.split_once('='));
            for (key, value) in fields {
                stats.set(&section, key, value.parse().unwrap_or(0));
            }
        }
        stats
    }

    fn set(&mut self, section: &str, key: &str, value: u64) {
        let transfers = match section {
            "Reads" => &mut self.read,
            "Writes" => &mut self.write,
            "Batches" => &mut self.batches,
            "Error" => {
                self.faults.push((key.to_owned(), value));
                return;
            }
            "Bar1-map" => {
                if key == "active" {
                    self.active_maps = value;
                }
                return;
            }
            "GPU" => {
                let Some(gpu) = self.gpus.last_mut() else { return };
                match key {
                    "Registered_MiB" | "Registered_MB" => gpu.registered_bytes = value.saturating_mul(MIB),
                    "Cache_MiB" | "Cache_MB" => gpu.cache_bytes = value.saturating_mul(MIB),
                    "cross_root_port(%)" => gpu.cross_root_percent = value,
                    _ => {}
                }
                return;
            }
            _ => return,
        };
        match key {
            "n" => transfers.calls = value,
            "err" => transfers.errors = value,
            "Avg-Latency(usec)" | "Avg-Submit-Latency(usec)" => transfers.latency_micros = value,
            "readMiB" | "writeMiB" | "readMB" | "writeMB" => transfers.bytes = value.saturating_mul(MIB),
            _ => {}
        }
    }

    pub fn registered_bytes(&self) -> u64 {
        self.gpus.iter().fold(0, |sum: u64, gpu| sum.saturating_add(gpu.registered_bytes))
    }

    pub fn hint(&self) -> Option<&'static str> {
        (!self.counts_transfers).then_some(
            "nvidia-fs is not counting transfers; to make it count, run as root: \
             `echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled`",
        )
    }
}

/// Transfers below one root port, and across root ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peers {
    pub address: String,
    pub below_root_port: u64,
    pub across_root_ports: u64,
}

/// Reads `/proc/driver/nvidia-fs/peer_affinity`: a line for each GPU, with its transfers by distance. The last column has those
/// across root ports.
pub fn peers(text: &str) -> Vec<Peers> {
    let of = |line: &str| {
        let (address, counts) = line.trim().strip_prefix("GPU :")?.split_once(" :")?;
        let counts: Vec<u64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        let (across_root_ports, below) = counts.split_last()?;
        let below_root_port = below.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        Some(Peers {
            address: address.trim().to_owned(),
            below_root_port,
            across_root_ports: *across_root_ports,
        })
    };
    text.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text with numbers of no real machine.
    const TEXT: &str = "\
NVFS statistics(ver: 4.0)
IO stats: Enabled, peer IO stats: Enabled
Logging level: info

Active Shadow-Buffer (MiB): 12
Active Process: 3
Batches                         : n=5 ok=4 err=1 Avg-Submit-Latency(usec)=12
Reads                           : n=40 ok=38 err=2 readMiB=5000 io_state_err=0
Reads                           : Bandwidth(MiB/s)=99 Avg-Latency(usec)=7
Sparse Reads : n=6 io=0 holes=0 pages=0
Writes                          : n=9 ok=9 err=0 writeMiB=77 io_state_err=0
        pg-cache=0 pg-cache-fail=0 pg-cache-eio=0
Mmap : n=183 ok=183 err=0 munmap=183
Bar1-map                        : n=183 ok=183 err=0 free=165 callbacks=18
        active=18
Error : cpu-gpu-pages=1 sg-ext=0 dma-map=2 dma-ref=0
GPU 0000:be:00.0  uuid:1-2-3 : Registered_MiB=64 Cache_MiB=1
        max_pinned_MiB=70 cross_root_port(%)=25
GPU 0000:e7:00.0  uuid:4-5-6 : Registered_MiB=0 Cache_MiB=0
        max_pinned_MiB=1 cross_root_port(%)=0
";

    #[test]
    fn counters_are_found_by_section_and_key() {
        let stats = Stats::parse(TEXT);
        assert_eq!(stats.read, Transfers { calls: 40, errors: 2, bytes: 5000 * MIB, latency_micros: 7 });
        assert_eq!(stats.write, Transfers { calls: 9, errors: 0, bytes: 77 * MIB, latency_micros: 0 });
        assert_eq!((stats.shadow_buffer_bytes, stats.processes, stats.active_maps), (12 * MIB, 3, 18));
        assert_eq!(stats.batches, Transfers { calls: 5, errors: 1, bytes: 0, latency_micros: 12 });
        let faults: Vec<_> = stats.faults.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(faults, [("cpu-gpu-pages", 1), ("sg-ext", 0), ("dma-map", 2), ("dma-ref", 0)]);
        assert_eq!(stats.gpus.len(), 2);
        let expected = Gpu {
            address: "0000:be:00.0".to_owned(),
            registered_bytes: 64 * MIB,
            cache_bytes: MIB,
            cross_root_percent: 25,
        };
        assert_eq!(stats.gpus[0], expected);
        assert_eq!(stats.registered_bytes(), 64 * MIB);
        assert_eq!(stats.hint(), None);
    }

    #[test]
    fn uncounted_transfers_have_a_hint() {
        let stats = Stats::parse(&TEXT.replace("IO stats: Enabled, peer", "IO stats: Disabled, peer"));
        assert!(stats.hint().is_some_and(|hint| hint.contains("rw_stats_enabled")));
    }

    #[test]
    fn peers_are_sums_by_root_port() {
        let text = "GPU P2P DMA distribution based on pci-distance\n\n(last column indicates p2p via root complex)\n\
                    GPU :0000:be:00.0 :0 0 26 0 4\nGPU :0000:e7:00.0 :\nGPU :x";
        let expected =
            Peers { address: "0000:be:00.0".to_owned(), below_root_port: 26, across_root_ports: 4 };
        assert_eq!(peers(text), [expected]);
    }

    #[test]
    fn any_text_is_accepted() {
        for text in [
            "",
            ":",
            "=",
            "GPU",
            "GPU \nn=",
            "Reads : n=x ok",
            " active=3\nReads",
            "Reads : n=99999999999999999999",
        ] {
            let stats = Stats::parse(text);
            assert_eq!((stats.read.calls, stats.active_maps), (0, 0), "{text}");
        }
    }
}
