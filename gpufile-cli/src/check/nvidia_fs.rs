//! The kernel module nvidia-fs and its statistics, from `/proc/driver/nvidia-fs`.

use super::root::Root;
use crate::nvidia_fs::Stats;

/// The loaded module.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NvidiaFs {
    /// Empty where the module does not show it.
    pub version: String,
    /// `None` where the module does not show them.
    pub statistics: Option<Stats>,
}

impl NvidiaFs {
    /// Returns the module if it is loaded.
    pub fn loaded(root: &Root) -> Option<Self> {
        let folder = "/proc/driver/nvidia-fs";
        root.at(folder).is_dir().then(|| Self {
            version: root.text(&format!("{folder}/version")).map_or_else(String::new, |text| version(&text)),
            statistics: root.text(&format!("{folder}/stats")).map(|text| Stats::parse(&text)),
        })
    }
}

/// Returns the number in `version: 2.17.5`.
fn version(text: &str) -> String {
    text.rsplit(':').next().unwrap_or_default().trim().to_owned()
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
    }
}
