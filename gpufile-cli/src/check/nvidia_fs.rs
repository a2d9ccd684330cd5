//! The kernel module nvidia-fs and its statistics, from `/proc/driver/nvidia-fs`.

use super::modules::numbers;
use super::root::{self, Root};
use crate::nvidia_fs::Stats;

/// The oldest version for libcufile 1.5 to 1.16, as their logs name it.
pub const LEAST_VERSION: (u32, u32) = (2, 12);
/// The first version that needs the open kernel module of the display driver.
pub const NEEDS_OPEN_MODULE: (u32, u32, u32) = (2, 17, 5);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct NvidiaFs {
    /// Empty where the module does not show it.
    pub version: String,
    pub statistics: Option<Stats>,
    /// The storage drivers that are registered with the module, by the names of their modules. They stay registered
    /// while a process has the cuFile driver open. `None` where the module does not show them.
    pub registered: Option<Vec<String>>,
    /// The bridges on which the module sees Access Control Services; `None` where it does not show them.
    pub acs_bridges: Option<Vec<String>>,
    /// True if the device through which libcufile calls the module is in `/dev`.
    pub has_device: bool,
}

impl NvidiaFs {
    pub fn loaded(root: &Root) -> Option<Self> {
        let folder = "/proc/driver/nvidia-fs";
        if !root.at(folder).is_dir() {
            return None;
        }
        let text = |name: &str| root.text(&format!("{folder}/{name}"));
        // An empty file is a list without entries.
        let lines = |name: &str, end: char| {
            let is_there = root.at(&format!("{folder}/{name}")).exists();
            let text = text(name).unwrap_or_default();
            let first = |line: &str| line.split(end).next().unwrap_or_default().trim().to_owned();
            is_there.then(|| text.lines().map(first).collect())
        };
        let statistics = text("stats");
        let whole = statistics.as_deref().and_then(whole_version);
        Some(Self {
            version: whole.or_else(|| text("version").map(|text| version(&text))).unwrap_or_default(),
            statistics: statistics.map(|text| Stats::parse(&text)),
            registered: lines("modules", ':'),
            acs_bridges: lines("bridges", ' '),
            has_device: root.list("/dev").iter().any(|path| root::name(path).starts_with("nvidia-fs")),
        })
    }

    /// Returns the numbers of the version. The last one is 0 where the module does not show it.
    pub fn numbers(&self) -> Option<(u32, u32, u32)> {
        let (major, minor) = numbers(&self.version)?;
        let last = self.version.split('.').nth(2).and_then(|last| last.parse().ok());
        Some((major, minor, last.unwrap_or(0)))
    }
}

/// Parses `version: 2.17`.
fn version(text: &str) -> String {
    text.rsplit(':').next().unwrap_or_default().trim().to_owned()
}

/// Parses `NVFS Driver(version: 2.17.5)`, which has one part more.
fn whole_version(stats: &str) -> Option<String> {
    let version = stats.split_once("NVFS Driver(version:")?.1;
    Some(version.split(')').next()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    #[test]
    fn module_may_show_neither_version_nor_statistics() {
        let fake = Fake::new();
        assert_eq!(NvidiaFs::loaded(&fake.root()), None);
        fake.folder("/proc/driver/nvidia-fs");
        assert_eq!(NvidiaFs::loaded(&fake.root()), Some(NvidiaFs::default()));
        fake.file("/proc/driver/nvidia-fs/version", "version: 2.17.5\n")
            .file("/proc/driver/nvidia-fs/stats", "Reads : n=120 err=3\n");
        let module = NvidiaFs::loaded(&fake.root()).unwrap();
        let calls = module.statistics.map(|found| found.read.calls);
        assert_eq!((module.version.as_str(), calls), ("2.17.5", Some(120)));
        assert_eq!((module.registered, module.acs_bridges, module.has_device), (None, None, false));
    }

    #[test]
    fn module_lists_drivers_bridges_and_its_whole_version() {
        let fake = Fake::new();
        let folder = "/proc/driver/nvidia-fs";
        fake.file(&format!("{folder}/version"), "version: 2.28\n")
            .file(&format!("{folder}/stats"), "NVFS Driver(version: 2.28.4)\nActive Shadow-Buffer (MiB): 3\n")
            .file(&format!("{folder}/modules"), "nvme: 1.0\nwekafsio: 1\n")
            .file(&format!("{folder}/bridges"), "")
            .file("/dev/nvidia-fs0", "");
        let module = NvidiaFs::loaded(&fake.root()).unwrap();
        assert_eq!((module.version.as_str(), module.numbers()), ("2.28.4", Some((2, 28, 4))));
        assert_eq!(module.registered.unwrap(), ["nvme", "wekafsio"]);
        assert_eq!((module.acs_bridges.unwrap().len(), module.has_device), (0, true));
        assert_eq!(module.statistics.unwrap().shadow_buffer_bytes, 3 << 20);
    }
}
