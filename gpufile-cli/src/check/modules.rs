//! The kernel modules besides nvidia-fs on which direct routes depend: NVIDIA's own, and those of storage and cards.

use super::root::Root;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Modules {
    /// True if the display driver's module is the open one, false if it is closed; `None` if it does not show.
    pub is_open: Option<bool>,
    pub has_peermem: bool,
    pub mlx5: Option<Mlx5>,
    /// Functions with which storage drivers register with nvidia-fs; `None` if the kernel hides its symbols.
    pub hooks: Option<Vec<String>>,
}

/// The driver of ConnectX and BlueField cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mlx5 {
    /// The version of MLNX_OFED or DOCA; `None` for the kernel's own.
    pub version: Option<String>,
}

impl Mlx5 {
    pub fn numbers(&self) -> Option<(u32, u32)> {
        numbers(self.version.as_deref()?)
    }
}

impl Modules {
    pub fn of(root: &Root) -> Self {
        let module = |name: &str| root.at(&format!("/sys/module/{name}")).is_dir();
        // The names are worth their reading time only where a module uses them.
        let symbols =
            root.at("/proc/driver/nvidia-fs").is_dir().then(|| root.text("/proc/kallsyms")).flatten();
        Self {
            is_open: root.text("/proc/driver/nvidia/version").map(|text| text.contains("Open Kernel Module")),
            has_peermem: module("nvidia_peermem") || module("nv_peer_mem"),
            mlx5: module("mlx5_core").then(|| Mlx5 { version: root.text("/sys/module/mlx5_core/version") }),
            hooks: symbols.map(|symbols| hooks(&symbols)),
        }
    }
}

/// Returns the names in `/proc/kallsyms` that end in `register_nvfs_dma_ops`, without those that unregister.
fn hooks(symbols: &str) -> Vec<String> {
    let names = symbols.lines().filter_map(|line| line.split_whitespace().nth(2));
    let hooks = names.filter(|name| {
        name.ends_with("_register_nvfs_dma_ops") && !name.starts_with("__") && !name.contains("_unregister_")
    });
    let mut hooks: Vec<String> = hooks.map(str::to_owned).collect();
    hooks.sort();
    hooks.dedup();
    hooks
}

/// Parses a version such as `24.10-0.7.0`.
pub fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    #[test]
    fn modules_show_flavour_versions_and_hooks() {
        let fake = Fake::new();
        assert_eq!(Modules::of(&fake.root()), Modules::default());
        fake.file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
        )
        .folder("/sys/module/nvidia_peermem")
        .file("/sys/module/mlx5_core/version", "24.10-0.7.0\n")
        .file(
            "/proc/kallsyms",
            "0 t nvme_v2_register_nvfs_dma_ops\t[nvme]\n0 r __ksymtab_nvme_v2_register_nvfs_dma_ops\t[nvme]\n\
             0 t nvme_v2_unregister_nvfs_dma_ops\t[nvme]\n0 T start\n",
        );
        // Without nvidia-fs, the symbols are not read.
        assert_eq!(Modules::of(&fake.root()).hooks, None);
        fake.folder("/proc/driver/nvidia-fs");
        let found = Modules::of(&fake.root());
        assert_eq!((found.is_open, found.has_peermem), (Some(true), true));
        assert_eq!(found.mlx5.unwrap().numbers(), Some((24, 10)));
        assert_eq!(found.hooks.unwrap(), ["nvme_v2_register_nvfs_dma_ops"]);
    }

    #[test]
    fn closed_and_inbox_modules_are_told_apart() {
        let fake = Fake::new();
        fake.file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n",
        )
        .folder("/sys/module/mlx5_core");
        let found = Modules::of(&fake.root());
        assert_eq!((found.is_open, found.mlx5), (Some(false), Some(Mlx5 { version: None })));
        assert_eq!((numbers("5"), numbers("x.y"), numbers("4.9-0.1.7")), (None, None, Some((4, 9))));
    }
}
