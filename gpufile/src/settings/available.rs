//! The memory that this process may still use, with the limits of its control groups.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cufile::fork::Mutex;

/// The last result, and its time.
static LAST: Mutex<Option<(Instant, u64)>> = Mutex::of_static(None);

/// Returns the bytes that the process and the page cache could still take, including those cached already:
/// `MemAvailable`, or less in a control group. Returns 0 where the kernel does not report it. A result holds for a
/// tenth of a second.
pub(crate) fn available_bytes() -> u64 {
    const HOLDS: Duration = Duration::from_millis(100);
    let last = *LAST.lock();
    match last {
        Some((when, bytes)) if when.elapsed() < HOLDS => bytes,
        // Others need not wait for the kernel's answer.
        _ => {
            let now = (Instant::now(), available_at(Path::new("/")));
            LAST.lock().insert(now).1
        }
    }
}

/// Returns the same for the files below `root`.
fn available_at(root: &Path) -> u64 {
    let read = |path| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (meminfo, groups) = (read("proc/meminfo"), read("proc/self/cgroup"));
    let hierarchies = root.join("sys/fs/cgroup");
    let left = [&VERSION_1, &VERSION_2].into_iter().filter_map(|version| version.left(&groups, &hierarchies));
    left.fold(of_machine(&meminfo), u64::min)
}

/// Returns `MemAvailable` of `/proc/meminfo` in bytes, or 0 if it is missing.
fn of_machine(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

struct Version {
    /// The controllers in `/proc/self/cgroup`.
    controller: &'static str,
    /// The folder of the hierarchy.
    folder: &'static str,
    limits: &'static [&'static str],
    usage: &'static str,
    /// The lines of `memory.stat` with cached contents of files. They are part of the usage, but the kernel frees them
    /// when memory is short.
    cached: [&'static str; 2],
}

const VERSION_1: Version = Version {
    controller: "memory",
    folder: "memory",
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cached: ["total_active_file", "total_inactive_file"],
};

const VERSION_2: Version = Version {
    controller: "",
    folder: "",
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    cached: ["active_file", "inactive_file"],
};

impl Version {
    /// Returns the bytes that the process's group and those around it have left, if there is a limit.
    fn left(&self, groups: &str, hierarchies: &Path) -> Option<u64> {
        let group = groups.lines().find_map(|line| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|controller| controller == self.controller).then_some(group)
        });
        // In a container, the named group may be visible as the root.
        let group = group.filter(|group| !group.contains("..")).unwrap_or("/");
        let root = hierarchies.join(self.folder);
        let folder = root.join(group.trim_start_matches('/'));
        let around = folder.ancestors().take_while(|folder| folder.starts_with(&root));
        around.filter_map(|folder| self.left_in(folder)).min()
    }

    fn left_in(&self, folder: &Path) -> Option<u64> {
        let number = |name: &&str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let limit = self.limits.iter().filter_map(number).min()?;
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            self.cached.contains(&name).then(|| bytes.parse::<u64>().ok()).flatten()
        });
        let usage = number(&self.usage).unwrap_or(0).saturating_sub(cached.sum());
        Some(limit.saturating_sub(usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tree with a machine that has 1 GiB left, and these files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let machine = ("proc/meminfo", "MemTotal: 24681480 kB\nMemAvailable: 1048576 kB\n");
        for (name, contents) in files.iter().chain([&machine]) {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        root
    }

    fn available(files: &[(&str, &str)]) -> u64 {
        available_at(tree(files).path())
    }

    #[test]
    fn available_memory_is_parsed_from_meminfo() {
        assert_eq!(of_machine("MemTotal:  24681480 kB\nMemAvailable:   2048 kB\nCached: 1 kB\n"), 2 << 20);
        assert_eq!(of_machine("MemTotal:  24681480 kB\n"), 0);
        assert_eq!(of_machine("MemAvailable: much\n"), 0);
        assert_eq!(available(&[]), 1 << 30);
        assert!(available_bytes() > 0);
    }

    const GROUP_2: (&str, &str) = ("proc/self/cgroup", "1:name=x:/other\n0::/service/inner\n");
    const GROUP_1: (&str, &str) = ("proc/self/cgroup", "9:cpu:/x\n4:hugetlb,memory:/docker/one\n0::/\n");

    #[test]
    fn smallest_rest_of_all_groups_counts() {
        let all = |changed: &[(&'static str, &'static str)]| {
            let files = [
                GROUP_2,
                ("sys/fs/cgroup/memory.max", "max\n"),
                ("sys/fs/cgroup/service/memory.max", "1000\n"),
                ("sys/fs/cgroup/service/inner/memory.max", "max\n"),
            ];
            available(&files.iter().chain(changed).copied().collect::<Vec<_>>())
        };
        assert_eq!(all(&[]), 1000);
        assert_eq!(all(&[("sys/fs/cgroup/service/inner/memory.max", "10\n")]), 10);
        assert_eq!(all(&[("sys/fs/cgroup/service/inner/memory.high", "20\n")]), 20);
        assert_eq!(all(&[("sys/fs/cgroup/memory.max", "5\n")]), 5);
        assert_eq!(all(&[("proc/self/cgroup", "0::/elsewhere\n")]), 1 << 30);
        assert_eq!(all(&[("proc/self/cgroup", "0::/../../service\n")]), 1 << 30);
    }

    #[test]
    fn used_memory_is_subtracted_and_cached_files_are_not() {
        let files = |usage, stat| {
            let service = |name| format!("sys/fs/cgroup/service/{name}");
            let [limit, current, stats] = ["memory.max", "memory.current", "memory.stat"].map(service);
            available(&[GROUP_2, (&limit, "1000"), (&current, usage), (&stats, stat)])
        };
        assert_eq!(files("400", ""), 600);
        assert_eq!(files("400", "anon 100\nactive_file 100\ninactive_file 200\nfile 999\n"), 900);
        assert_eq!(files("2000", "anon 2000\n"), 0);
        assert_eq!(files("10", "active_file 20\n"), 1000);
    }

    #[test]
    fn groups_of_version_1_count_too() {
        let limit = "sys/fs/cgroup/memory/docker/one/memory.limit_in_bytes";
        let used = ("sys/fs/cgroup/memory/docker/one/memory.usage_in_bytes", "70000\n");
        let stat = ("sys/fs/cgroup/memory/docker/one/memory.stat", "cache 9\ntotal_active_file 20000\n");
        assert_eq!(available(&[GROUP_1, (limit, "100000\n")]), 100_000);
        assert_eq!(available(&[GROUP_1, (limit, "100000\n"), used]), 30_000);
        assert_eq!(available(&[GROUP_1, (limit, "100000\n"), used, stat]), 50_000);
        // The number that stands for no limit.
        assert_eq!(available(&[GROUP_1, (limit, "9223372036854771712\n"), used]), 1 << 30);
        // A container may see its own group as the root.
        let root = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
        assert_eq!(available(&[GROUP_1, root]), 5000);
    }
}
