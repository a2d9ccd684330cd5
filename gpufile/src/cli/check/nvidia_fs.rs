//! The kernel module nvidia-fs and its statistics, from `/proc/driver/nvidia-fs`.

use super::root::Root;

/// The loaded module.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NvidiaFs {
    /// Empty where the module does not show it.
    pub version: String,
    /// `None` where the module does not show them.
    pub statistics: Option<Statistics>,
}

/// The counters of the module since it was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// True if the module counts transfers. Its parameter `rw_stats_enabled` decides.
    pub counts: bool,
    pub reads: Counter,
    pub writes: Counter,
    /// GPU memory that is registered now.
    pub registered_mib: u64,
}

/// The counters of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counter {
    pub count: u64,
    pub failed: u64,
    pub mib: u64,
}

impl NvidiaFs {
    /// Returns the module if it is loaded.
    pub fn loaded(root: &Root) -> Option<Self> {
        let folder = "/proc/driver/nvidia-fs";
        root.at(folder).is_dir().then(|| Self {
            version: root.text(&format!("{folder}/version")).map_or_else(String::new, |text| version(&text)),
            statistics: root.text(&format!("{folder}/stats")).and_then(|text| Statistics::parse(&text)),
        })
    }
}

/// Returns the number in `version: 2.17.5`.
fn version(text: &str) -> String {
    text.rsplit(':').next().unwrap_or_default().trim().to_owned()
}

impl Statistics {
    /// Parses the lines `Name : key=number …`. A name may have several lines. Returns `None` without counters.
    pub fn parse(text: &str) -> Option<Self> {
        let value = |name: &str, key: &str| {
            let lines = text.lines().filter_map(|line| line.split_once(':'));
            let mut fields =
                lines.filter(|(found, _)| found.trim() == name).flat_map(|(_, rest)| rest.split_whitespace());
            fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('=')?.parse::<u64>().ok())
        };
        let counter = |name: &str, mib: &str| {
            Some(Counter {
                count: value(name, "n")?,
                failed: value(name, "err").unwrap_or(0),
                mib: value(name, mib).unwrap_or(0),
            })
        };
        Some(Self {
            counts: !text.contains("IO stats: Disabled,"),
            reads: counter("Reads", "readMiB")?,
            writes: counter("Writes", "writeMiB")?,
            registered_mib: registered(text),
        })
    }
}

/// Returns the sum over the lines of the GPUs.
fn registered(text: &str) -> u64 {
    let gpus = text.lines().filter(|line| line.starts_with("GPU "));
    let fields = gpus.flat_map(str::split_whitespace);
    fields.filter_map(|field| field.strip_prefix("Registered_MiB=")?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    const STATS: &str = "\
NVFS driver (version: 2.17.5)
IO stats: Enabled, peer IO stats: Disabled
Reads\t\t\t\t: err=3 n=120 ok=117 readMiB=2048 io_state_err=0
Reads\t\t\t\t: Bandwidth(MiB/s)=11 Avg-Latency(usec)=42
Sparse Reads\t\t: n=7 io=0 holes=0
Writes\t\t\t\t: n=60 ok=60 err=0 writeMiB=1024
GPU 0000:18:00.0  uuid:00ff : Registered_MiB=64 Cache_MiB=0
GPU 0000:3b:00.0  uuid:01ff : Registered_MiB=16 Cache_MiB=0";

    #[test]
    fn counters_are_found_by_name_and_key() {
        let expected = Statistics {
            counts: true,
            reads: Counter { count: 120, failed: 3, mib: 2048 },
            writes: Counter { count: 60, failed: 0, mib: 1024 },
            registered_mib: 80,
        };
        assert_eq!(Statistics::parse(STATS), Some(expected));
        let disabled = STATS.replace("IO stats: Enabled", "IO stats: Disabled");
        assert!(Statistics::parse(&disabled).is_some_and(|found| !found.counts));
        assert_eq!(Statistics::parse("Reads : n=x"), None);
        assert_eq!(Statistics::parse(""), None);
    }

    #[test]
    fn module_may_show_neither_version_nor_statistics() {
        let fake = Fake::new();
        assert_eq!(NvidiaFs::loaded(&fake.root()), None);
        fake.folder("/proc/driver/nvidia-fs");
        assert_eq!(NvidiaFs::loaded(&fake.root()), Some(NvidiaFs::default()));
        fake.file("/proc/driver/nvidia-fs/version", "version: 2.17.5\n")
            .file("/proc/driver/nvidia-fs/stats", STATS);
        let module = NvidiaFs::loaded(&fake.root()).unwrap();
        assert_eq!((module.version.as_str(), module.statistics.is_some()), ("2.17.5", true));
    }
}
