//! The kernel: its release, the IOMMU, PCI P2PDMA and NVIDIA's modules.

use super::container::Container;
use super::modules::Modules;
use super::nvidia_fs::NvidiaFs;
use super::pci::PciDevice;
use super::root::Root;

#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    pub release: Option<String>,
    pub display_driver: Option<String>,
    pub nvidia_fs: Option<NvidiaFs>,
    pub iommu: Iommu,
    /// True if the kernel has PCI P2PDMA; `None` if nothing tells.
    pub p2pdma: Option<bool>,
    pub nvme_multipath: bool,
    pub platform: Option<String>,
    pub container: Option<Container>,
    pub modules: Modules,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Iommu {
    Off,
    /// On, but it leaves the addresses of devices as they are.
    Passthrough,
    /// On, and it translates the addresses of devices.
    On,
    Unknown,
}

impl Kernel {
    /// Gathers the facts; `gpus` are NVIDIA's on the PCI bus.
    pub fn of(root: &Root, gpus: &[&PciDevice], variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let release = root.text("/proc/sys/kernel/osrelease");
        let groups: Vec<&str> = gpus.iter().filter_map(|gpu| gpu.iommu.as_deref()).collect();
        let units = root.at("/sys/class/iommu").is_dir().then(|| !root.list("/sys/class/iommu").is_empty());
        Self {
            display_driver: root.text("/proc/driver/nvidia/version").and_then(|text| display_driver(&text)),
            nvidia_fs: NvidiaFs::loaded(root),
            iommu: iommu(root.text("/proc/cmdline").as_deref(), units, &groups),
            p2pdma: p2pdma(root, release.as_deref()),
            nvme_multipath: root.text("/sys/module/nvme_core/parameters/multipath").as_deref() == Some("Y"),
            platform: root.text("/sys/class/dmi/id/product_name"),
            container: Container::of(root, variable),
            modules: Modules::of(root),
            release,
        }
    }

    /// Returns whether this is Linux in Windows.
    pub fn is_wsl(&self) -> bool {
        self.release.as_ref().is_some_and(|release| release.to_ascii_lowercase().contains("microsoft"))
    }
}

/// Trusts the groups of the GPUs more than the units in sysfs, and these more than the command line of the
/// kernel.
fn iommu(cmdline: Option<&str>, has_units: Option<bool>, groups: &[&str]) -> Iommu {
    if groups.iter().any(|group| group.starts_with("DMA")) {
        return Iommu::On;
    }
    if groups.contains(&"identity") {
        return Iommu::Passthrough;
    }
    let words: Vec<&str> = cmdline.unwrap_or_default().split_whitespace().collect();
    let has = |word: &str| words.contains(&word);
    let is_off = has("iommu=off") || has("intel_iommu=off") || has("amd_iommu=off");
    let passes = has("iommu=pt") || has("iommu.passthrough=1");
    let is_on =
        has("intel_iommu=on") || has("amd_iommu=on") || has("iommu=force") || has("iommu.passthrough=0");
    match has_units {
        Some(false) => Iommu::Off,
        _ if is_off => Iommu::Off,
        Some(true) | None if passes => Iommu::Passthrough,
        Some(true) => Iommu::On,
        None if is_on => Iommu::On,
        None => Iommu::Unknown,
    }
}

/// Returns whether the kernel has PCI P2PDMA, by its configuration, or by a symbol.
fn p2pdma(root: &Root, release: Option<&str>) -> Option<bool> {
    if let Some(config) = root.text(&format!("/boot/config-{}", release?)) {
        return Some(config.lines().any(|line| line == "CONFIG_PCI_P2PDMA=y"));
    }
    let symbols = root.text("/proc/kallsyms")?;
    Some(symbols.lines().any(|line| line.ends_with(" p2pdma_pgmap_ops")))
}

/// Returns the version in `NVRM version: … Kernel Module … 580.65.06  Release Build …`.
fn display_driver(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|part| part.is_ascii_digit() || part == '.');
    line.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    #[test]
    fn iommu_state_prefers_groups_then_units_then_words() {
        for (cmdline, units, groups, expected) in [
            (Some("quiet intel_iommu=off"), Some(true), &["DMA-FQ"][..], Iommu::On),
            (Some("intel_iommu=on"), Some(true), &["identity"], Iommu::Passthrough),
            (Some("intel_iommu=on iommu=pt"), Some(true), &[], Iommu::Passthrough),
            (Some("iommu.passthrough=1"), None, &[], Iommu::Passthrough),
            (Some("amd_iommu=off"), None, &[], Iommu::Off),
            (Some("quiet"), Some(true), &[], Iommu::On),
            (Some("quiet intel_iommu=on"), Some(false), &[], Iommu::Off),
            (Some("quiet intel_iommu=on"), None, &[], Iommu::On),
            (Some("quiet nointel_iommu=on"), None, &[], Iommu::Unknown),
            (None, None, &[], Iommu::Unknown),
        ] {
            assert_eq!(iommu(cmdline, units, groups), expected, "{cmdline:?} {units:?} {groups:?}");
        }
    }

    #[test]
    fn facts_come_from_proc_sys_and_boot() {
        let fake = Fake::new();
        fake.file("/proc/sys/kernel/osrelease", "6.8.0-57-generic\n")
            .file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12.3.0\n")
            .file("/boot/config-6.8.0-57-generic", "CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n")
            .file("/sys/module/nvme_core/parameters/multipath", "Y\n")
            .file("/.dockerenv", "");
        let kernel = Kernel::of(&fake.root(), &[], &|_| None);
        assert_eq!(kernel.release.as_deref(), Some("6.8.0-57-generic"));
        assert_eq!(kernel.display_driver.as_deref(), Some("580.65.06"));
        assert_eq!((kernel.p2pdma, kernel.nvme_multipath), (Some(true), true));
        assert!(kernel.container == Some(Container::Other) && !kernel.is_wsl() && kernel.nvidia_fs.is_none());
    }

    #[test]
    fn missing_parts_are_unknown() {
        let fake = Fake::new();
        let kernel = Kernel::of(&fake.root(), &[], &|_| None);
        assert_eq!((kernel.release, kernel.p2pdma, kernel.iommu), (None, None, Iommu::Unknown));
        fake.file("/proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2");
        fake.file(
            "/proc/kallsyms",
            "0000000000000000 d some_p2pdma_pgmap_ops_more\n0000000000000000 T start\n",
        );
        let kernel = Kernel::of(&fake.root(), &[], &|_| None);
        assert!(kernel.is_wsl());
        assert_eq!(kernel.p2pdma, Some(false));
    }
}
