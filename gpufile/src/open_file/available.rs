//! The memory that is available to the page cache.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// Returns the number of bytes that the kernel could give to the page cache, including the bytes cached
/// already. This is `MemAvailable`, limited by the control groups of this process. Returns 0 where the kernel
/// does not report it.
pub(super) fn available_bytes() -> u64 {
    static LIMIT: LazyLock<u64> = LazyLock::new(|| {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        group_limit(&groups, Path::new("/sys/fs/cgroup"))
    });
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    available(&meminfo).min(*LIMIT)
}

/// Returns `MemAvailable` of `/proc/meminfo` in bytes, or 0 if it is missing.
fn available(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

/// Returns the smallest limit in bytes (`memory.max`) of the process's control group and the groups around
/// it. `root` is the root of their hierarchy.
fn group_limit(groups: &str, root: &Path) -> u64 {
    // The line of version 2 names the group. In a container, the named group may be visible as the root.
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    let limit = |folder: &Path| fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse().ok();
    let folder = root.join(group);
    let around = folder.ancestors().take_while(|folder| folder.starts_with(root));
    around.filter_map(limit).min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_parsed_from_meminfo() {
        assert_eq!(available("MemTotal:  24681480 kB\nMemAvailable:   2048 kB\nCached: 1 kB\n"), 2 << 20);
        assert_eq!(available("MemTotal:  24681480 kB\n"), 0);
        assert_eq!(available("MemAvailable: much\n"), 0);
        assert!(available_bytes() > 0);
    }

    #[test]
    fn the_smallest_cgroup_limit_applies() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("service/inner");
        fs::create_dir_all(&inner).unwrap();
        let limit = || group_limit("1:name=x:/other\n0::/service/inner\n", root.path());
        assert_eq!(limit(), u64::MAX);
        fs::write(root.path().join("service/memory.max"), "1000\n").unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), 1000);
        fs::write(inner.join("memory.max"), "10\n").unwrap();
        assert_eq!(limit(), 10);
        fs::write(root.path().join("memory.max"), "5\n").unwrap();
        assert_eq!(limit(), 5);
        assert_eq!(group_limit("0::/elsewhere\n", root.path()), 5);
        assert_eq!(group_limit("", root.path()), 5);
    }
}
